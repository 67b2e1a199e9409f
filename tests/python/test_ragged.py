"""Ragged records keep their own shapes; a batch is a list of arrays, or packed."""

import numpy as np
import pytest
from helpers import Kind, assert_same_records, raises_zrecord, same

import ringloader


def mixed_records():
    """Ranks 0 to 4, and 32, in one list."""
    rng = np.random.default_rng(12)
    shapes = [(5,), (), (2, 3), (1,), (4, 1, 2), (2, 2, 2, 2), (), (1, 1), (1000,), (1,) * 31 + (3,)]
    return [rng.integers(0, 9, shape, dtype=np.int32) for shape in shapes]


@pytest.fixture
def ragged(codec, tmp_path):
    kind = Kind(codec, "ragged")
    with kind.create(tmp_path / "store") as store:
        store.append(mixed_records())
        yield store


@pytest.fixture
def byte_store(codec, tmp_path):
    kind = Kind(codec, "ragged")
    with ringloader.RaggedStore.create(tmp_path / "bytes", np.uint8, **kind.options) as store:
        yield store


def test_every_record_keeps_its_shape(ragged):
    assert_same_records(ragged[:], mixed_records())
    for i, record in enumerate(mixed_records()):
        assert same(ragged[i], record)
        assert ragged[i].shape == record.shape


def test_a_record_of_rank_zero_is_a_zero_dimensional_array(ragged):
    for found in (ragged[1], ragged[[1]][0], ragged.gather(1)[0], list(ragged)[1]):
        assert type(found) is np.ndarray
        assert found.shape == ()
        assert found == mixed_records()[1]


def test_a_fortran_ordered_record_comes_back_in_c_order(ragged):
    record = np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4))
    first = ragged.append([record, record.T])
    assert same(ragged[first], record)
    assert same(ragged[first + 1], record.T)
    assert ragged[first].flags.c_contiguous


def test_the_arrays_of_a_batch_are_writable_and_apart(ragged):
    batch = ragged[:] + ragged[[0, 0, 0]]
    for i, record in enumerate(batch):
        record[...] = i
    for i, record in enumerate(batch):
        assert (record == i).all()
    assert_same_records(ragged[:], mixed_records())


def test_the_arrays_of_a_batch_are_views_of_one_buffer(ragged):
    def root(array):
        while isinstance(array, np.ndarray) and array.base is not None:
            array = array.base
        return array

    batch = ragged[:]
    assert len({id(root(record)) for record in batch}) == 1
    assert not any(record.flags.owndata for record in batch)


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_bytes_are_records_of_a_uint8_store(byte_store, form):
    contents = [b"a", b"\x00\xff" * 10, bytes(range(256)) * 40, "日本語".encode()]
    assert byte_store.append([form(content) for content in contents]) == 0
    for found, content in zip(byte_store[:], contents, strict=True):
        assert found.dtype == np.uint8
        assert found.shape == (len(content),)
        assert found.tobytes() == content


def test_bytes_and_arrays_mix_in_one_batch(byte_store):
    byte_store.append([b"abc", np.array([[1], [2]], np.uint8), memoryview(bytearray(b"xy")), np.uint8(7)])
    assert [record.tobytes() for record in byte_store[:]] == [b"abc", b"\x01\x02", b"xy", b"\x07"]
    assert [record.shape for record in byte_store[:]] == [(3,), (2, 1), (2,), ()]


@pytest.mark.parametrize("record", [b"", bytearray(), memoryview(b"")])
def test_empty_bytes_are_refused_by_place(byte_store, record):
    with pytest.raises(ValueError, match=r"\b1\b"):
        byte_store.append([b"abc", record])
    assert len(byte_store) == 0


def test_a_strided_memoryview_is_read_as_it_looks(byte_store):
    byte_store.append([memoryview(b"a-b-c-")[::2]])
    assert byte_store[0].tobytes() == b"abc"


SELECTIONS = [slice(None), slice(None, None, -1), [3, 0, 3], (8, 1), -1, np.arange(10) % 2 == 0]


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda selection: type(selection).__name__)
def test_a_packed_batch_holds_the_same_records(ragged, selection):
    expected = ragged.gather(selection)
    batch = ragged.gather_packed(selection)
    values, offsets, shapes = batch
    assert isinstance(batch, tuple)
    assert isinstance(batch, ringloader.RaggedBatch)
    assert batch._fields == ("values", "offsets", "shapes")
    assert values.dtype == ragged.dtype and values.ndim == 1
    assert values.flags.c_contiguous and values.flags.writeable and values.flags.aligned
    assert same(values, np.concatenate([record.ravel() for record in expected]))
    assert offsets.dtype == shapes.dtype == np.int64
    assert offsets.tolist() == [0, *np.cumsum([record.size for record in expected]).tolist()]
    width = max(record.ndim for record in expected)
    assert shapes.shape == (len(expected), width)
    for row, record in zip(shapes.tolist(), expected, strict=True):
        assert row == [*record.shape, *[-1] * (width - record.ndim)]


def test_a_packed_batch_can_be_taken_apart_again(ragged):
    values, offsets, shapes = ragged.gather_packed(slice(None))
    rebuilt = [
        values[start:end].reshape([axis for axis in shape if axis >= 0])
        for start, end, shape in zip(offsets[:-1], offsets[1:], shapes, strict=True)
    ]
    assert_same_records(rebuilt, mixed_records())


def test_a_packed_batch_of_rank_zero_records_has_shapes_of_no_axes(ragged):
    values, offsets, shapes = ragged.gather_packed([1, 6])
    assert values.shape == (2,)
    assert offsets.tolist() == [0, 1, 2]
    assert shapes.shape == (2, 0)


def test_an_empty_packed_batch_has_its_dtypes(ragged):
    values, offsets, shapes = ragged.gather_packed([])
    assert values.shape == (0,) and values.dtype == ragged.dtype
    assert offsets.tolist() == [0] and offsets.dtype == np.int64
    assert shapes.shape[0] == 0 and shapes.ndim == 2 and shapes.dtype == np.int64


def test_a_packed_batch_checks_its_index(ragged):
    with raises_zrecord(-3, ragged.path, 10):
        ragged.gather_packed([0, 10])
    with pytest.raises(IndexError):
        ragged.gather_packed(np.ones(3, bool))


@pytest.mark.parametrize("dtype", ["u1", "i2", "f8", "c16", "U3", [("a", "u1"), ("b", "<f8")]], ids=str)
def test_packed_values_have_the_element_size_of_any_dtype(dtype, tmp_path):
    records = [np.zeros(shape, dtype) for shape in ((3,), (1, 5), (), (2,))]
    with ringloader.RaggedStore.create(tmp_path / "store", dtype) as store:
        store.append(records)
        values, offsets, _ = store.gather_packed([0, 1, 2, 3, 1])
        assert offsets.tolist() == [0, 3, 8, 9, 11, 16]
        assert same(values, np.zeros(16, dtype))


def test_a_dense_store_has_no_packed_gather():
    assert not hasattr(ringloader.DenseStore, "gather_packed")


def test_a_large_ragged_batch_is_whole(codec, tmp_path):
    """Large enough to be split among workers."""
    kind = Kind(codec, "ragged")
    rng = np.random.default_rng(1)
    records = [rng.integers(0, 5, n, dtype=np.int32) for n in rng.integers(1, 30_000, 300)]
    if codec == "zstd_dict":
        records = records[:60]
    with kind.create(tmp_path / "store") as store:
        store.append(records)
        chosen = rng.integers(0, len(records), 400)
        assert_same_records(store[chosen], [records[i] for i in chosen])
        values, offsets, _ = store.gather_packed(chosen)
        assert same(values, np.concatenate([records[i] for i in chosen]))
        assert offsets[-1] == values.size
