"""Many threads on one handle: gathers beside an appender see complete records only."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import Kind, assert_same_records, raises_zrecord
from interpreter import run

import ringloader

READERS = 8


def numbered(kind, start, count):
    """Records that are filled with their own index."""
    if kind.geometry == "dense":
        return [np.full((4, 6), i, np.int32) for i in range(start, start + count)]
    return [np.full(1 + i % 50, i, np.int32) for i in range(start, start + count)]


def is_number(kind, record, i):
    shape = (4, 6) if kind.geometry == "dense" else (1 + i % 50,)
    return record.shape == shape and bool((record == i).all())


def test_gathers_beside_an_appender_see_complete_records_only(kind, tmp_path):
    batches, batch_records = 60, 25
    finished = threading.Event()
    started = threading.Barrier(READERS + 1)

    with kind.create(tmp_path / "store") as store, ThreadPoolExecutor(READERS) as pool:
        store.append(kind.batch(numbered(kind, 0, batch_records)))

        def read(seed):
            rng = np.random.default_rng(seed)
            started.wait(60)
            seen = 0
            while True:
                last_round = finished.is_set()
                length = len(store)
                assert length >= seen, "the store shrank"
                assert length % batch_records == 0, "half a batch was published"
                chosen = rng.integers(0, length, 24)
                chosen[0] = length - 1
                for i, record in zip(chosen.tolist(), store.gather(chosen), strict=True):
                    assert is_number(kind, record, i), (i, record)
                seen = length
                if last_round:
                    return seen

        running = [pool.submit(read, seed) for seed in range(READERS)]
        started.wait(60)
        try:
            for start in range(batch_records, batches * batch_records, batch_records):
                assert store.append(kind.batch(numbered(kind, start, batch_records))) == start
        finally:
            finished.set()
        total = batches * batch_records
        assert [future.result(60) for future in running] == [total] * READERS
        assert_same_records(store[:], numbered(kind, 0, total))
    with kind.open(tmp_path / "store", mode="r") as store:
        assert_same_records(store[:], numbered(kind, 0, total))


def test_concurrent_appends_keep_their_batches_whole(kind, tmp_path):
    writers, rounds = 4, 15
    started = threading.Barrier(writers)

    with kind.create(tmp_path / "store") as store, ThreadPoolExecutor(writers) as pool:

        def write(writer):
            started.wait(60)
            firsts = []
            for round_number in range(rounds):
                records = kind.records(writer + 2, seed=100 * writer + round_number)
                firsts.append((store.append(kind.batch(records)), records))
            return firsts

        placed = [
            entry for future in [pool.submit(write, w) for w in range(writers)] for entry in future.result(60)
        ]
        placed.sort(key=lambda entry: entry[0])
        next_first = 0
        for first, records in placed:
            assert first == next_first
            next_first += len(records)
            assert_same_records(store[first:next_first], records)
        assert len(store) == next_first


def test_many_readers_of_one_handle_get_their_own_batches(kind, store, records):
    def read(seed):
        rng = np.random.default_rng(seed)
        for size in rng.integers(1, 200, 40):
            chosen = rng.integers(-64, 64, size)
            assert_same_records(store[chosen], [records[i] for i in chosen])
        return True

    with ThreadPoolExecutor(READERS) as pool:
        assert all(pool.map(read, range(READERS)))


def test_errors_of_one_thread_do_not_reach_another(kind, store, records):
    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            if seed % 2:
                with raises_zrecord(-3):
                    store[[0, 64 + seed]]
            else:
                chosen = rng.integers(0, 64, 16)
                assert_same_records(store[chosen], [records[i] for i in chosen])
        return True

    with ThreadPoolExecutor(READERS) as pool:
        assert all(pool.map(read, range(READERS)))


def test_deletes_and_compactions_wait_for_gathers(kind, tmp_path):
    """A gather beside a delete gives whole records of the store, or says what is out of range."""
    finished = threading.Event()
    started = threading.Barrier(5)
    with kind.create(tmp_path / "store") as store, ThreadPoolExecutor(4) as pool:
        store.append(kind.batch(numbered(kind, 0, 400)))

        def read(seed):
            rng = np.random.default_rng(seed)
            started.wait(60)
            gathered = 0
            while not finished.is_set() or gathered == 0:
                try:
                    batch = store.gather(rng.integers(0, len(store), 16))
                except ringloader.ZrecordError as error:
                    assert error.code == -3
                    continue
                for record in batch:
                    assert is_number(kind, record, int(record.flat[0]))
                gathered += 1
            return gathered

        running = [pool.submit(read, seed) for seed in range(4)]
        started.wait(60)
        try:
            for turn in range(20):
                store.delete(slice(0, 60, 4))
                if turn % 4 == 3:
                    store.compact()
        finally:
            finished.set()
        assert all(future.result(60) > 0 for future in running)
        assert len(store) == 400 - 20 * 15
        left = [int(record.flat[0]) for record in store[:]]
        assert len(set(left)) == len(left)


@pytest.mark.parametrize("codec", ["raw", "zstd", "zstd_dict"])
@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_input_that_changes_during_an_append_leaves_a_store_that_opens(codec, geometry, tmp_path):
    """The changed batch may hold anything; what was there before and after it is right."""
    kind = Kind(codec, geometry)
    victim = np.zeros((24, 4096), np.int32)
    before = [np.full(4096, 7, np.int32)] * 3
    after = [np.full(4096, 9, np.int32)] * 3
    finished = threading.Event()

    def change():
        rng = np.random.default_rng(1)
        while not finished.is_set():
            victim[rng.integers(24)] = rng.integers(0, 1 << 30, 4096)

    arguments = {"item_shape": (4096,)} if geometry == "dense" else {}
    store = kind.store_class().create(tmp_path / "store", np.int32, **arguments, **kind.options)
    with store, ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        try:
            store.append(kind.batch(before))
            rounds = 3 if codec == "zstd_dict" else 15
            for _ in range(rounds):
                store.append(victim if geometry == "dense" else list(victim))
        finally:
            finished.set()
        changing.result(60)
        store.append(kind.batch(after))
    with kind.open(tmp_path / "store") as store:
        assert len(store) == 6 + rounds * 24
        assert_same_records(store[:3], before)
        assert_same_records(store[-3:], after)
        for i in range(3, len(store) - 3):
            try:
                record = store[i]
            except ringloader.ZrecordError as error:
                assert error.code == -7
            else:
                assert record.shape == (4096,)
        store.delete(slice(3, 3 + rounds * 24))
        store.compact()
        assert sorted(int(record[0]) for record in store[:]) == [7, 7, 7, 9, 9, 9]


def test_a_list_that_changes_during_an_append_is_not_a_crash(tmp_path):
    kind = Kind("raw", "ragged")
    records = kind.records(200)
    finished = threading.Event()

    def change():
        while not finished.is_set():
            records.append(records.pop(0))

    with kind.create(tmp_path / "store") as store, ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        try:
            for _ in range(20):
                store.append(records)
        finally:
            finished.set()
        changing.result(60)
        known = {record.tobytes() for record in kind.records(200)}
        assert all(record.tobytes() in known for record in store[:])


def test_the_interpreter_exits_while_daemon_threads_gather(tmp_path):
    """Also with workers, rings and batch memory in use; and promptly."""
    path = str(tmp_path / "store")
    data = np.arange(4000 * 1024, dtype=np.int32).reshape(4000, 1024)
    with ringloader.DenseStore.create(path, np.int32, (1024,), codec="zstd") as store:
        store.append(data)
    code = f"""
import sys, threading, time
import numpy as np
import ringloader
store = ringloader.DenseStore.open({path!r}, mode="r")
begun = threading.Barrier(5)
def work(seed):
    rng = np.random.default_rng(seed)
    store[rng.integers(0, 4000, 256)]
    begun.wait()
    while True:
        store[rng.integers(0, 4000, 256)]
for seed in range(4):
    threading.Thread(target=work, args=(seed,), daemon=True).start()
begun.wait()
sys.exit(7)
"""
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (7, "")


# A thread that is bound to one core and blocks every signal is the first to use the engine.
BOUND = """
import os, signal, sys, threading, time
import numpy as np
found = {{}}
def first():
    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with ringloader.DenseStore.open({path!r}, mode="r") as store:
        for _ in range(20):
            store[:]
    found.update(ringloader.engine_info())
thread = threading.Thread(target=first)
thread.start()
thread.join()
def workers():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{{task}}/status") as file:
                fields = dict(line.rstrip().partition(":\\t")[::2] for line in file)
        except OSError:
            continue  # it has ended meanwhile
        if fields["Name"] in {names}:
            catches = not int(fields["SigBlk"], 16) >> (signal.SIGBUS - 1) & 1
            found.append([catches, len(os.sched_getaffinity(int(task)))])
    return found
# Threads begin when their core has time for them.
deadline = time.monotonic() + 30
while workers() != {expected} and time.monotonic() < deadline:
    time.sleep(0.01)
result = [found["cores"] == sorted(os.sched_getaffinity(0)), workers()]
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads have masks on Linux")
@pytest.mark.parametrize("pin", [False, True])
def test_workers_inherit_nothing_from_the_thread_that_came_first(pin, tmp_path):
    path = tmp_path / "store"
    with ringloader.DenseStore.create(path, np.uint8, (4096,), codec="raw") as store:
        store.append(np.zeros((4000, 4096), np.uint8))
    names = ["ringloader-0", "ringloader-1"]
    expected = [[True, 1 if pin else len(os.sched_getaffinity(0))]] * 2
    code = BOUND.format(path=str(path), names=names, expected=expected).strip()
    same_cores, workers = run(code, RINGLOADER_WORKERS="2", RINGLOADER_PIN=str(int(pin)))
    assert same_cores
    assert workers == expected
