"""Batches come from recycled memory, and no live array is ever written to again."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import Kind, assert_same_records, same

import ringloader

RECORD_VALUES = 4096  # 16 KiB of int32


@pytest.fixture(params=["raw", "zstd"])
def large(request, tmp_path):
    """128 dense records of 16 KiB; record `i` is filled with `i`."""
    path = tmp_path / "large"
    with ringloader.DenseStore.create(path, np.int32, (RECORD_VALUES,), codec=request.param) as store:
        store.append(np.repeat(np.arange(128, dtype=np.int32)[:, None], RECORD_VALUES, axis=1))
        yield store


@pytest.fixture(params=["raw", "zstd"])
def large_ragged(request, tmp_path):
    """The same records in a ragged store."""
    with ringloader.RaggedStore.create(tmp_path / "ragged", np.int32, codec=request.param) as store:
        store.append(np.repeat(np.arange(128, dtype=np.int32)[:, None], RECORD_VALUES, axis=1))
        yield store


def address(array):
    return array.__array_interface__["data"][0]


def test_a_dropped_batch_serves_the_next(large):
    batch = large[:64]
    first = address(batch)
    del batch
    for start in range(10):
        batch = large[start : start + 64]
        assert address(batch) == first
        assert (batch == np.arange(start, start + 64)[:, None]).all()
        del batch


def test_a_dropped_ragged_batch_serves_the_next(large_ragged):
    batch = large_ragged[:64]
    first = address(batch[0])
    del batch
    for _ in range(10):
        batch = large_ragged[:64]
        assert address(batch[0]) == first
        del batch


def test_a_batch_that_is_held_is_not_lent(large):
    held = [large[start : start + 64] for start in range(8)]
    assert len({address(batch) for batch in held}) == 8
    for start, batch in enumerate(held):
        assert (batch == np.arange(start, start + 64)[:, None]).all()


@pytest.mark.parametrize("count", [1, 3, 64], ids=["heap", "small", "large"])
def test_a_live_array_is_never_overwritten(large, count):
    rng = np.random.default_rng(0)
    held = {}
    for step in range(200):
        chosen = rng.integers(0, 128, count)
        held[step % 7] = (chosen, large[chosen])
        for chosen, batch in held.values():
            assert (batch == chosen[:, None]).all()


def test_a_live_ragged_array_is_never_overwritten(large_ragged):
    rng = np.random.default_rng(0)
    held = {}
    for step in range(100):
        chosen = rng.integers(0, 128, 20)
        kept = int(rng.integers(20))
        # One array of the batch is kept; the others are dropped.
        held[step % 7] = (chosen[kept], large_ragged[chosen][kept])
        for value, record in held.values():
            assert record.shape == (RECORD_VALUES,)
            assert (record == value).all()


def test_a_view_keeps_the_memory_of_its_batch(large):
    view = large[:64][10:12, ::2]
    gc.collect()
    for start in range(20):
        large[start : start + 64]
    assert (view == np.array([[10], [11]])).all()


def test_a_packed_batch_s_parts_live_on_their_own(large_ragged):
    offsets = large_ragged.gather_packed(slice(0, 64)).offsets
    values = large_ragged.gather_packed(slice(64, 128)).values
    gc.collect()
    for _ in range(10):
        large_ragged.gather_packed(slice(0, 64))
    assert offsets.tolist() == list(range(0, 65 * RECORD_VALUES, RECORD_VALUES))
    assert (values.reshape(64, -1) == np.arange(64, 128)[:, None]).all()


def test_batches_outlive_their_store(kind, tmp_path):
    records = kind.records(64)
    path = kind.build(tmp_path / "store", records)
    store = kind.open(path)
    closed_batch = store[:]
    closed_record = store[5]
    store.close()
    other = kind.open(path, mode="r")
    collected_batch = other[10:20]
    del other, store
    gc.collect()
    assert_same_records(closed_batch, records)
    assert_same_records(collected_batch, records[10:20])
    assert same(closed_record, records[5])


def test_writing_to_a_batch_does_not_reach_the_store(kind, store, records):
    for batch in (store[:], store.gather([0, 1])):
        for record in batch:
            record[...] = -1
    assert_same_records(store[:], records)


def test_dropped_memory_is_reported_as_idle(large):
    batch = large[:]
    nbytes = batch.nbytes
    while_held = ringloader.engine_info()["pool_idle_bytes"]
    del batch
    after = ringloader.engine_info()["pool_idle_bytes"]
    assert type(after) is int
    assert after >= while_held + nbytes


def test_a_batch_may_be_dropped_by_another_thread(large):
    with ThreadPoolExecutor(1) as other:
        for start in range(20):
            batches = [large[start : start + 64]]
            other.submit(batches.clear).result()
            assert batches == []
    assert (large[:64] == np.arange(64)[:, None]).all()


def test_threads_never_share_a_live_batch(large):
    def gather_and_check(seed):
        rng = np.random.default_rng(seed)
        held = []
        for _ in range(60):
            chosen = rng.integers(0, 128, 16)
            held.append((chosen, large[chosen]))
            del held[:-3]
            for expected, batch in held:
                assert (batch == expected[:, None]).all()
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(gather_and_check, range(8)))


def test_a_zero_record_batch_owns_no_memory_of_another(large):
    empty = large[[]]
    assert empty.shape == (0, RECORD_VALUES)
    assert empty.nbytes == 0


def test_batches_are_plain_numpy_arrays(large, large_ragged):
    for array in (large[:2], large[0], large_ragged[0], large_ragged.gather_packed([0, 1]).values):
        assert type(array) is np.ndarray
        assert array.flags.writeable and array.flags.c_contiguous and array.flags.aligned
        resaved = array.copy()
        resaved.sort()
        assert resaved.flags.owndata


def test_memory_of_one_store_serves_another(tmp_path):
    kinds = [Kind("raw", "dense"), Kind("zstd", "dense")]
    array = np.ones((8, 1 << 18), np.uint8)
    stores = []
    for kind in kinds:
        stores.append(ringloader.DenseStore.create(tmp_path / kind.codec, "u1", (1 << 18,), codec=kind.codec))
        stores[-1].append(array)
    batch = stores[0][:]
    first = address(batch)
    del batch
    stores[0].close()
    assert address(stores[1][:]) == first
    stores[1].close()
