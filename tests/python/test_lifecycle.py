"""Open, close, use after close, iteration, repr: a store's life, and its ends."""

import gc
import itertools
import os
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import Kind, assert_same_records, raises_zrecord, same, tree

import ringloader


@pytest.mark.parametrize("cls", [ringloader.DenseStore, ringloader.RaggedStore])
def test_a_store_is_not_made_by_its_constructor(cls, tmp_path):
    for arguments in ((), (tmp_path,), (tmp_path, np.int32, (4,))):
        with pytest.raises(TypeError, match=r"open.*create|create.*open"):
            cls(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_store_says_what_it_is(kind, store):
    assert isinstance(store.path, Path)
    assert store.path.name == "store"
    assert store.dtype == np.dtype(np.int32)
    assert store.codec == kind.codec
    assert store.has_dict() is (kind.codec == "zstd_dict")
    assert store.mode == "r+"
    assert store.closed is False
    assert len(store) == 64
    if kind.geometry == "dense":
        assert store.item_shape == (4, 6)
        assert all(type(axis) is int for axis in store.item_shape)


@pytest.mark.parametrize("name", ["path", "dtype", "codec", "mode", "closed", "item_shape"])
def test_what_a_store_is_cannot_be_assigned(name, tmp_path):
    with Kind("raw", "dense").create(tmp_path / "store") as store, pytest.raises(AttributeError):
        setattr(store, name, "other")


def test_what_a_store_was_can_be_asked_after_close(kind, store):
    path = store.path
    store.close()
    assert store.closed is True
    assert (store.path, store.codec, store.mode, store.dtype) == (path, kind.codec, "r+", np.dtype("i4"))


@pytest.mark.parametrize("form", [str, Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_a_path_is_given_as_str_path_or_bytes(form, kind, tmp_path):
    records = kind.records(3)
    with kind.create(form(tmp_path / "störe")) as store:
        store.append(kind.batch(records))
        assert store.path == tmp_path / "störe"
    with kind.open(form(tmp_path / "störe"), mode="r") as store:
        assert_same_records(store[:], records)
        assert store.path == tmp_path / "störe"


def test_a_relative_path_works_and_survives_a_change_of_directory(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = kind.records(3)
    (tmp_path / "elsewhere").mkdir()
    with kind.create("store") as store:
        store.append(kind.batch(records))
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.append(kind.batch(records))
        assert_same_records(store[:], records * 2)
    with kind.open("../store", mode="r") as store:
        monkeypatch.chdir("/")
        assert_same_records(store[:], records * 2)


@pytest.mark.parametrize("mode", ["w", "a", "rw", "r+b", "", "R", None, 1])
def test_an_unknown_mode_is_a_value_error(closed_store, kind, mode):
    with pytest.raises((ValueError, TypeError) if not isinstance(mode, str) else ValueError):
        kind.open(closed_store, mode=mode)
    kind.open(closed_store).close()


@pytest.mark.parametrize("io", ["map", "URING", "", "aio"])
def test_an_unknown_io_is_a_value_error(closed_store, kind, io):
    with pytest.raises(ValueError, match="io"):
        kind.open(closed_store, io=io)
    kind.open(closed_store).close()


@pytest.mark.parametrize("io", ["auto", "pread"])
def test_every_io_gives_the_same_records(closed_store, kind, records, io):
    with kind.open(closed_store, mode="r", io=io) as store:
        assert_same_records(store[:], records)


def test_open_s_default_is_read_and_write(closed_store, kind):
    with kind.open(closed_store) as store:
        assert store.mode == "r+"


USES = {
    "len": len,
    "record": lambda store: store[0],
    "batch": lambda store: store[:],
    "empty batch": lambda store: store[[]],
    "gather": lambda store: store.gather([0]),
    "append": lambda store: store.append(store_batch(store)),
    "delete": lambda store: store.delete(0),
    "compact": lambda store: store.compact(),
    "stats": lambda store: store.stats(),
    "sync": lambda store: store.sync(),
    "iteration": list,
    "pickle": pickle.dumps,
}


def store_batch(store):
    shape = (1, *getattr(store, "item_shape", (3,)))
    return np.ones(shape, store.dtype)


@pytest.mark.parametrize("use", USES)
def test_a_closed_store_is_a_value_error_that_names_it(store, use):
    store.close()
    with pytest.raises(ValueError, match="closed") as caught:
        USES[use](store)
    assert str(store.path) in str(caught.value)


def test_a_closed_ragged_store_packs_nothing(tmp_path):
    store = Kind("raw", "ragged").create(tmp_path / "store")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.gather_packed([])


@pytest.mark.parametrize("use", ["append", "delete", "compact"])
def test_a_reader_does_not_write(closed_store, kind, records, use):
    before = tree(closed_store)
    with kind.open(closed_store, mode="r") as store:
        with pytest.raises(ValueError, match="mode='r'") as caught:
            USES[use](store)
        assert str(closed_store) in str(caught.value)
        assert_same_records(store[:], records)
    assert tree(closed_store) == before


def test_closing_twice_is_closing_once(store):
    store.close()
    store.close()
    assert store.closed
    with store.__class__.open(store.path) as again:
        store.close()
        # The second close of the old handle did not unlock the new one.
        with raises_zrecord(-13):
            store.__class__.open(store.path)
        assert len(again) == 64


def test_a_with_block_closes_also_on_an_error(kind, closed_store):
    class Failure(Exception):
        pass

    with pytest.raises(Failure), kind.open(closed_store) as store:
        assert store.closed is False
        raise Failure
    assert store.closed
    with kind.open(closed_store) as store:
        store.close()


def test_a_forgotten_store_is_closed_and_unlocked(kind, records, tmp_path):
    store = kind.create(tmp_path / "store")
    store.append(kind.batch(records))
    del store
    gc.collect()
    with kind.open(tmp_path / "store") as store:
        assert_same_records(store[:], records)


def test_a_batch_does_not_keep_its_store_locked(kind, closed_store, records):
    store = kind.open(closed_store)
    batch = store[:]
    del store
    gc.collect()
    with kind.open(closed_store):
        assert_same_records(batch, records)


def test_a_store_can_be_referenced_weakly(store):
    assert weakref.ref(store)() is store


def test_iteration_gives_every_record_in_order(kind, store, records):
    assert_same_records(list(store), records)
    assert_same_records([record for record in store], records)


def test_iteration_crosses_internal_batches(codec, tmp_path):
    kind = Kind(codec, "dense")
    count = 5_000 if codec != "zstd_dict" else 1_500
    with ringloader.DenseStore.create(tmp_path / "store", np.int64, (), **kind.options) as store:
        store.append(np.arange(count))
        found = list(store)
        assert found == list(range(count))
        assert all(type(value) is np.int64 for value in found[:3])


def test_iterations_are_independent(store, records):
    first, second = iter(store), iter(store)
    next(first)
    assert same(next(first), records[1])
    assert same(next(second), records[0])
    assert_same_records(list(itertools.islice(first, 5)), records[2:7])
    assert iter(first) is first


def test_iterated_records_are_the_caller_s_own(store, records):
    kept = []
    for record in store:
        record = np.asarray(record)
        record[...] += 1
        kept.append(record)
    assert_same_records(kept, [np.asarray(record + 1) for record in records])
    assert_same_records(store[:], records)


@pytest.mark.parametrize("change", [lambda s: s.delete(5), lambda s: s.compact()], ids=["delete", "compact"])
@pytest.mark.parametrize("seen", [0, 1, 10])
def test_reordering_during_iteration_is_a_runtime_error(store, change, seen):
    iterator = iter(store)
    for _ in range(seen):
        next(iterator)
    change(store)
    with pytest.raises(RuntimeError, match="iterat"):
        list(iterator)
    assert len(list(store)) == len(store)


def test_closing_during_iteration_is_a_value_error(store):
    iterator = iter(store)
    next(iterator)
    store.close()
    with pytest.raises(ValueError, match="closed"):
        list(iterator)


def test_records_are_neither_assigned_nor_removed_by_index_syntax(store):
    with pytest.raises(TypeError):
        store[0] = 1
    with pytest.raises(TypeError):
        del store[0]


def test_repr_shows_what_and_where(kind, store):
    text = repr(store)
    assert type(store).__name__ in text
    assert str(store.path) in text
    assert kind.codec in text
    assert "64" in text
    store.close()
    assert "closed" in repr(store)
    assert str(store.path) in repr(store)


@pytest.mark.parametrize("closer", ["close", "with"])
def test_close_waits_for_gathers_under_way(kind, closer, tmp_path):
    """Each gather gives its whole batch or says that the store is closed; nobody hangs."""
    records = kind.records(300)
    path = kind.build(tmp_path / "store", records)
    store = kind.open(path, mode="r")
    threads = 6
    started = threading.Barrier(threads + 1)

    def gather_until_closed(seed):
        rng = np.random.default_rng(seed)
        started.wait(60)
        for batches in itertools.count():
            chosen = rng.integers(0, 300, 64)
            try:
                batch = store.gather(chosen)
            except ValueError as error:
                assert not isinstance(error, ringloader.ZrecordError)
                assert "closed" in str(error)
                return batches
            assert_same_records(batch, [records[i] for i in chosen])

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(gather_until_closed, seed) for seed in range(threads)]
        started.wait(60)
        for _ in range(50):
            store[0]
        if closer == "close":
            store.close()
        else:
            with store:
                pass
        for future in running:
            assert future.result(60) >= 0
    assert store.closed
    # The lock went with the handle.
    kind.open(path).close()


def test_a_store_is_closed_by_many_threads_at_once(store):
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(store.close) for _ in range(8)]:
            assert future.result(60) is None
    assert store.closed


def test_sync_can_be_repeated_and_changes_nothing(kind, store, records):
    store.sync()
    before = tree(store.path)
    store.sync()
    assert tree(store.path) == before
    assert_same_records(store[:], records)


def test_an_emptied_store_can_be_filled_again(kind, store, records):
    store.delete(slice(None))
    assert len(store) == 0 and list(store) == []
    assert store.append(kind.batch(records[:5])) == 0
    store.compact()
    assert_same_records(store[:], records[:5])
    store.delete(np.ones(5, bool))
    store.compact()
    assert store.stats() == {"records": 0, "live_bytes": 0, "chunk_bytes": 0, "reclaimable": 0}
    store.close()
    with kind.open(store.path) as again:
        assert len(again) == 0
        assert again.append(kind.batch(records)) == 0
        assert_same_records(again[:], records)
