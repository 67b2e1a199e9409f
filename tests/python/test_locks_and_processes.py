"""Who may open a store at the same time, and what crosses into other processes."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import children
import loaderx
import loaderx.zrecord
import numpy as np
import pytest
from children import Failure, run
from helpers import Kind, assert_same_records, raises_zrecord, tree

import ringloader

# CPython warns of fork in a process with threads, which is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

METHODS = [
    method for method in ("fork", "forkserver", "spawn") if method in multiprocessing.get_all_start_methods()
]
SPAWNING = [method for method in METHODS if method != "fork"]
needs_fork = pytest.mark.skipif("fork" not in METHODS, reason="there is no fork here")

RAW = Kind("raw", "dense")


@pytest.fixture
def path(tmp_path):
    """A closed raw store of 64 records: locks do not depend on the codec."""
    return RAW.build(tmp_path / "store", RAW.records(64))


# --- locks ---------------------------------------------------------------------------------


def test_readers_share_and_exclude_a_writer(kind, closed_store, records):
    with contextlib.ExitStack() as open_stores:
        readers = [open_stores.enter_context(kind.open(closed_store, mode="r")) for _ in range(4)]
        with raises_zrecord(-13, closed_store):
            kind.open(closed_store, mode="r+")
        for reader in readers:
            assert_same_records(reader[:], records)
        readers.pop().close()
        with raises_zrecord(-13, closed_store):
            kind.open(closed_store)
    with kind.open(closed_store) as writer:
        assert len(writer) == len(records)


def test_a_writer_excludes_readers_and_writers(kind, closed_store, records):
    with kind.open(closed_store) as writer:
        for mode in ("r", "r+"):
            with raises_zrecord(-13, closed_store):
                kind.open(closed_store, mode=mode)
        assert writer.append(kind.batch(records[:1])) == len(records)
    kind.open(closed_store, mode="r").close()


def test_a_new_store_is_locked_until_it_is_closed(kind, tmp_path):
    with kind.create(tmp_path / "store"):
        for mode in ("r", "r+"):
            with raises_zrecord(-13):
                kind.open(tmp_path / "store", mode=mode)
    kind.open(tmp_path / "store").close()


def test_a_refused_open_leaves_the_holder_its_lock(path):
    with RAW.open(path, mode="r"):
        for _ in range(3):
            with raises_zrecord(-13):
                RAW.open(path)
    with RAW.open(path):
        for _ in range(3):
            with raises_zrecord(-13):
                RAW.open(path, mode="r")


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_our_handle_keeps_loaderx_out(path, mode):
    with RAW.open(path, mode=mode) as store:
        with pytest.raises(loaderx.zrecord.ZrecordError) as caught:
            RAW.open(path, loaderx)
        assert caught.value.code == -13
        assert len(store[:]) == 64
    RAW.open(path, loaderx).close()


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_loaderx_s_handle_keeps_us_out(path, mode):
    with RAW.open(path, loaderx) as theirs:
        with raises_zrecord(-13, path):
            RAW.open(path, mode=mode)
        assert len(theirs[:]) == 64
    RAW.open(path, mode=mode).close()


@pytest.mark.parametrize("method", SPAWNING)
@pytest.mark.parametrize(
    ("holder", "holder_mode", "other", "other_mode", "may_open"),
    [
        ("ringloader", "r", "ringloader", "r", True),
        ("ringloader", "r", "ringloader", "r+", False),
        ("ringloader", "r+", "ringloader", "r", False),
        ("ringloader", "r+", "ringloader", "r+", False),
        ("ringloader", "r", "loaderx", None, False),
        ("ringloader", "r+", "loaderx", None, False),
        ("loaderx", None, "ringloader", "r", False),
        ("loaderx", None, "ringloader", "r+", False),
    ],
)
def test_the_locks_hold_between_processes(path, method, holder, holder_mode, other, other_mode, may_open):
    options = {} if holder_mode is None else {"mode": holder_mode}
    with RAW.open(path, children.PACKAGES[holder], **options):
        options = {} if other_mode is None else {"mode": other_mode}
        result = run(method, children.try_open, RAW, path, other, options)
    if may_open:
        assert result == 64
    else:
        assert (result.name, result.code) == ("ZrecordError", -13)


@pytest.mark.parametrize("method", SPAWNING)
@pytest.mark.parametrize("package", ["ringloader", "loaderx"])
def test_the_lock_of_a_killed_process_goes_with_it(path, method, package):
    context = multiprocessing.get_context(method)
    opened, finish = context.Event(), context.Event()
    child = context.Process(target=children.hold, args=(RAW, path, package, {}, opened, finish))
    child.start()
    try:
        assert opened.wait(children.ANSWER_SECONDS_MAX)
        with raises_zrecord(-13, path):
            RAW.open(path, mode="r")
    finally:
        child.kill()
        child.join()
    with RAW.open(path) as store:
        assert_same_records(store[:], RAW.records(64))


# --- pickle --------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_store_unpickles_to_a_reader_of_the_same_path(kind, closed_store, records, protocol):
    with kind.open(closed_store, mode="r") as store:
        with pickle.loads(pickle.dumps(store, protocol)) as copy:
            assert type(copy) is type(store)
            assert copy is not store
            assert copy.mode == "r"
            assert copy.path == store.path
            assert_same_records(copy[:], records)
        assert_same_records(store[:], records)


def test_a_writer_unpickles_to_a_reader_once_it_is_closed(kind, closed_store, records):
    store = kind.open(closed_store)
    store.append(kind.batch(records[:2]))
    pickled = pickle.dumps(store)
    with raises_zrecord(-13, closed_store):
        pickle.loads(pickled)
    store.close()
    with pickle.loads(pickled) as reader:
        assert reader.mode == "r"
        assert_same_records(reader[:], records + records[:2])


def test_a_relative_path_is_pickled_as_an_absolute_one(kind, closed_store, records, monkeypatch):
    monkeypatch.chdir(closed_store.parent)
    with kind.open(closed_store.name, mode="r") as store:
        pickled = pickle.dumps(store)
        monkeypatch.chdir("/")
        with pickle.loads(pickled) as copy:
            assert copy.path.is_absolute()
            assert_same_records(copy[:], records)


def test_a_pickle_of_a_store_that_is_gone_is_file_not_found(path):
    with RAW.open(path, mode="r") as store:
        pickled = pickle.dumps(store)
    path.rename(path.parent / "moved")
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)


def test_a_pickle_holds_no_records_and_no_lock(path):
    with RAW.open(path, mode="r") as store:
        pickled = pickle.dumps(store)
    assert len(pickled) < 1_000 + len(str(path))
    RAW.open(path).close()


# --- processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_child_process_reads_the_store_it_is_given(kind, closed_store, method):
    with kind.open(closed_store, mode="r") as store:
        assert run(method, children.check_records, store, kind, 64) == "r"
        # The parent's handle is as it was.
        assert children.check_records(store, kind, 64) == "r"
        with raises_zrecord(-13):
            kind.open(closed_store)
    kind.open(closed_store).close()


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_of_processes_shares_the_reading(kind, tmp_path, method):
    records = kind.records(200)
    path = kind.build(tmp_path / "store", records)
    context = multiprocessing.get_context(method)
    shares = [np.arange(start, 200, 8) for start in range(8)]
    with kind.open(path, mode="r") as store, ProcessPoolExecutor(2, mp_context=context) as pool:
        sums = list(pool.map(children.sum_of, [store] * 8, shares, timeout=children.ANSWER_SECONDS_MAX))
    assert sums == [[int(np.sum(records[i])) for i in share] for share in shares]


@needs_fork
def test_a_forked_child_makes_large_batches_without_its_parent_s_workers(tmp_path):
    """The parent's worker threads do not exist in the child, and nobody waits for them."""
    kind = Kind("zstd", "dense")
    records = kind.records(20_000)
    with kind.open(kind.build(tmp_path / "store", records), mode="r") as store:
        assert_same_records(store[:], records)
        assert run("fork", children.check_records, store, kind, 20_000) == "r"
        assert_same_records(store[:100], records[:100])


@needs_fork
def test_a_writer_s_forked_child_is_kept_out_while_the_writer_lives(kind, store, records):
    result = run("fork", children.read_one, store)
    assert isinstance(result, Failure), result
    assert (result.name, result.code) == ("ZrecordError", -13)
    assert str(store.path) in result.text
    assert store.append(kind.batch(records[:1])) == 64


@needs_fork
def test_a_writer_s_forked_child_reads_once_the_writer_is_closed(path):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    go = context.Event()
    store = RAW.open(path)
    store.append(RAW.batch(RAW.records(3, seed=1)))
    child = context.Process(target=children.read_when_told, args=(sender, store, go))
    child.start()
    store.close()
    go.set()
    assert receiver.poll(children.ANSWER_SECONDS_MAX)
    total, mode = receiver.recv()
    child.join(children.ANSWER_SECONDS_MAX)
    assert child.exitcode == 0
    assert mode == "r"
    assert total == sum(int(np.sum(record)) for record in RAW.records(64) + RAW.records(3, seed=1))


@needs_fork
def test_a_writer_s_close_unlocks_though_a_forked_child_lives(path):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    finish = context.Event()
    store = RAW.open(path)
    child = context.Process(target=children.wait_for, args=(sender, store, finish))
    child.start()
    try:
        assert receiver.poll(children.ANSWER_SECONDS_MAX)
        assert receiver.recv() is False
        store.close()
        with RAW.open(path) as again:
            assert len(again) == 64
    finally:
        finish.set()
        child.join(children.ANSWER_SECONDS_MAX)
    assert child.exitcode == 0


@needs_fork
@pytest.mark.parametrize("drop", [children.close_and_collect, children.collect])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_child_that_drops_its_handle_does_not_unlock_its_parent_s(path, drop, mode):
    holder = [RAW.open(path, mode=mode)]
    result = run("fork", drop, holder)
    assert result in ("dropped", "collected")
    with raises_zrecord(-13, path):
        RAW.open(path)
    with pytest.raises(loaderx.zrecord.ZrecordError):
        RAW.open(path, loaderx)
    assert_same_records(holder[0][:], RAW.records(64))
    holder.pop().close()
    RAW.open(path).close()


@needs_fork
def test_a_child_does_not_write_for_its_parent(kind, store, records):
    """What the parent appended and did not sync is the parent's to write, before and after."""
    more = kind.records(10, seed=3)
    store.append(kind.batch(more))
    before = tree(store.path)
    for attempt in (children.append_one, children.read_one):
        arguments = (kind.batch(more),) if attempt is children.append_one else ()
        result = run("fork", attempt, store, *arguments)
        assert isinstance(result, Failure), result
        assert result.name in ("ValueError", "ZrecordError")
    assert run("fork", children.close_and_collect, [store]) == "dropped"
    assert tree(store.path) == before
    store.append(kind.batch(more))
    store.delete([0])
    store.close()
    expected = records + more + more
    expected[0] = expected.pop()
    for package in (ringloader, loaderx):
        with kind.open(store.path, package) as again:
            assert_same_records(again[:], expected)


@needs_fork
def test_a_bare_fork_that_exits_leaves_the_store_alone(kind, store, records):
    """Without multiprocessing: the child leaves through the interpreter's own exit."""
    store.append(kind.batch(records[:4]))
    before = tree(store.path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.close()
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert tree(store.path) == before
    with raises_zrecord(-13):
        kind.open(store.path, mode="r")
    assert store.append(kind.batch(records[:1])) == 68


@needs_fork
def test_a_child_forked_while_threads_gather_reads(tmp_path):
    """Locks that other threads held when the process forked are nobody's in the child."""
    kind = Kind("zstd", "ragged")
    records = kind.records(64)
    with kind.open(kind.build(tmp_path / "store", records), mode="r") as store:
        finished = threading.Event()

        def gather():
            while not finished.is_set():
                store[:]

        with ThreadPoolExecutor(3) as pool:
            gathering = [pool.submit(gather) for _ in range(3)]
            try:
                for _ in range(8):
                    assert run("fork", children.check_records, store, kind, 64) == "r"
            finally:
                finished.set()
            for future in gathering:
                assert future.result(60) is None


@needs_fork
def test_grandchildren_read_too(path):
    def read_in_a_child(store):
        return run("fork", children.checksum, store)

    expected = sum(int(np.sum(record)) for record in RAW.records(64))
    with RAW.open(path, mode="r") as store:
        assert run("fork", read_in_a_child, store) == (expected, "r")


@needs_fork
def test_a_store_closed_before_the_fork_is_closed_in_the_child(path):
    store = RAW.open(path)
    store.close()
    result = run("fork", children.read_one, store)
    assert result.name == "ValueError"
    assert "closed" in result.text


@needs_fork
def test_a_child_forked_before_first_use_has_its_own_engine(path):
    with RAW.open(path, mode="r") as store:
        batch = store[:]
        child_info = run("fork", ringloader.engine_info)
        assert child_info["io"] == ringloader.engine_info()["io"]
        assert_same_records(batch, RAW.records(64))
