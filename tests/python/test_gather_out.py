"""`gather(idx, out=...)`: the caller's memory is filled, or refused before it is touched."""

import numpy as np
import pytest
from helpers import Kind, assert_same_records, raises_zrecord, same

import ringloader


@pytest.fixture
def array():
    return np.random.default_rng(2).integers(0, 100, (40, 3, 5), dtype=np.int32)


@pytest.fixture
def dense(codec, array, tmp_path):
    kind = Kind(codec, "dense")
    with ringloader.DenseStore.create(tmp_path / "dense", np.int32, (3, 5), **kind.options) as store:
        store.append(array)
        yield store


@pytest.fixture
def sequences():
    return Kind("raw", "ragged").records(40)


@pytest.fixture
def ragged(codec, sequences, tmp_path):
    with Kind(codec, "ragged").create(tmp_path / "ragged") as store:
        store.append(sequences)
        yield store


def test_out_is_filled_and_returned(dense, array):
    out = np.full((4, 3, 5), -1, np.int32)
    assert dense.gather([3, 1, 39, 3], out=out) is out
    assert same(out, array[[3, 1, 39, 3]])


@pytest.mark.parametrize(
    "selection",
    [slice(2, 30, 3), -1, (5, 6), np.array([7, 7], np.uint8), np.arange(40) % 3 == 0, slice(0)],
    ids=lambda selection: type(selection).__name__,
)
def test_out_takes_every_index_form(dense, array, selection):
    as_numpy = list(selection) if isinstance(selection, tuple) else selection
    expected = array[np.atleast_1d(np.arange(40)[as_numpy])]
    out = np.full(expected.shape, -1, np.int32)
    assert dense.gather(selection, out=out) is out
    assert same(out, expected)


def test_out_none_is_a_new_array(dense, array):
    assert same(dense.gather([1, 2], out=None), array[[1, 2]])
    assert same(dense.gather([1, 2], None), array[[1, 2]])


def test_out_is_reused_batch_after_batch(dense, array):
    out = np.empty((10, 3, 5), np.int32)
    rng = np.random.default_rng(0)
    for _ in range(50):
        chosen = rng.integers(0, 40, 10)
        dense.gather(chosen, out=out)
        assert same(out, array[chosen])


def test_out_of_scalar_records(tmp_path):
    with ringloader.DenseStore.create(tmp_path / "labels", np.int64, ()) as store:
        store.append(np.arange(20))
        out = np.empty(3, np.int64)
        assert store.gather([5, 4, 19], out=out).tolist() == [5, 4, 19]


def test_out_may_be_a_slice_of_a_larger_array_and_its_neighbours_are_left_alone(dense, array):
    large = np.full((12, 3, 5), -7, np.int32)
    view = large[4:8]
    assert dense.gather([0, 1, 2, 3], out=view) is view
    assert same(large[4:8], array[:4])
    assert (large[:4] == -7).all() and (large[8:] == -7).all()


def test_out_may_be_unaligned_or_mapped(dense, array, tmp_path):
    raw = bytearray(1 + 4 * 15 * 4)
    unaligned = np.frombuffer(raw, np.int32, offset=1).reshape(4, 3, 5)
    assert dense.gather([9, 8, 7, 6], out=unaligned) is unaligned
    assert same(np.array(unaligned), array[[9, 8, 7, 6]])
    mapped = np.memmap(tmp_path / "out.bin", np.int32, "w+", shape=(2, 3, 5))
    assert dense.gather([0, 39], out=mapped) is mapped
    assert same(np.asarray(mapped), array[[0, 39]])


def read_only(array):
    array.setflags(write=False)
    return array


REFUSED_DENSE = {
    "too few records": lambda: np.empty((3, 3, 5), np.int32),
    "too many records": lambda: np.empty((5, 3, 5), np.int32),
    "other record shape": lambda: np.empty((4, 5, 3), np.int32),
    "flat": lambda: np.empty(60, np.int32),
    "int64": lambda: np.empty((4, 3, 5), np.int64),
    "uint32": lambda: np.empty((4, 3, 5), np.uint32),
    "other byte order": lambda: np.empty((4, 3, 5), ">i4"),
    "bytes": lambda: np.empty(240, np.uint8),
    "read-only": lambda: read_only(np.empty((4, 3, 5), np.int32)),
    "Fortran order": lambda: np.empty((4, 3, 5), np.int32, order="F"),
    "strided": lambda: np.empty((8, 3, 5), np.int32)[::2],
    "reversed": lambda: np.empty((4, 3, 5), np.int32)[::-1],
    "broadcast": lambda: np.broadcast_to(np.int32(0), (4, 3, 5)),
}


@pytest.mark.parametrize("name", REFUSED_DENSE)
def test_an_unsuitable_out_is_refused_and_left_as_it_was(dense, name):
    out = REFUSED_DENSE[name]()
    before = out.tobytes()
    with pytest.raises(ValueError, match="out"):
        dense.gather([0, 1, 2, 3], out=out)
    assert out.tobytes() == before


@pytest.mark.parametrize("out", [[1, 2, 3], bytearray(240), "out", 5], ids=lambda out: type(out).__name__)
def test_what_is_no_array_is_no_out(dense, ragged, out):
    for store in (dense, ragged):
        with pytest.raises((TypeError, ValueError)):
            store.gather([0, 1, 2, 3], out=out)


def test_an_index_error_leaves_out_as_it_was(dense, ragged):
    out = np.full((2, 3, 5), -1, np.int32)
    with raises_zrecord(-3):
        dense.gather([0, 40], out=out)
    assert (out == -1).all()
    buffer = np.full(10_000, 255, np.uint8)
    with raises_zrecord(-3):
        ragged.gather([0, 40], out=buffer)
    assert (buffer == 255).all()


def test_ragged_records_are_views_of_out(ragged, sequences):
    out = np.zeros(100_000, np.uint8)
    chosen = [5, 4, 39, 5, 0]
    batch = ragged.gather(chosen, out=out)
    assert isinstance(batch, list)
    assert_same_records(batch, [sequences[i] for i in chosen])
    for record in batch:
        assert np.shares_memory(record, out)
        assert record.flags.writeable
    out[:] = 0
    assert all((record == 0).all() for record in batch)


def test_ragged_out_is_reused_batch_after_batch(ragged, sequences):
    out = np.empty(100_000, np.uint8)
    rng = np.random.default_rng(0)
    for _ in range(50):
        chosen = rng.integers(0, 40, 12)
        assert_same_records(ragged.gather(chosen, out=out), [sequences[i] for i in chosen])


def test_a_ragged_out_keeps_its_memory_alive_by_its_views(ragged, sequences):
    batch = ragged.gather([7, 8], out=np.empty(10_000, np.uint8))
    for _ in range(20):
        np.full(10_000, 255, np.uint8)
    assert_same_records(batch, [sequences[7], sequences[8]])


def test_a_ragged_out_of_no_records_is_an_empty_list(ragged):
    assert ragged.gather([], out=np.empty(0, np.uint8)) == []


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_ragged_out_that_is_too_small_is_told_and_left_as_it_was(ragged, sequences, size):
    assert sum(record.nbytes for record in sequences) > 100
    out = np.full(size, 255, np.uint8)
    with raises_zrecord(-6, size):
        ragged.gather(slice(None), out=out)
    assert (out == 255).all()


REFUSED_RAGGED = {
    "store dtype": lambda: np.empty(10_000, np.int32),
    "int8": lambda: np.empty(10_000, np.int8),
    "two axes": lambda: np.empty((100, 100), np.uint8),
    "strided": lambda: np.empty(10_000, np.uint8)[::2],
    "read-only": lambda: read_only(np.empty(10_000, np.uint8)),
}


@pytest.mark.parametrize("name", REFUSED_RAGGED)
def test_an_unsuitable_ragged_out_is_refused(ragged, name):
    with pytest.raises(ValueError, match="out"):
        ragged.gather([0, 1], out=REFUSED_RAGGED[name]())
