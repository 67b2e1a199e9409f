"""Appends: what is taken, what is refused, and that a refused batch leaves no trace."""

import numpy as np
import pytest
from helpers import Kind, assert_same_records, raises_zrecord, same, tree

import ringloader


@pytest.fixture
def dense(codec, tmp_path):
    kind = Kind(codec, "dense")
    store = ringloader.DenseStore.create(tmp_path / "dense", np.int32, (2, 3), **kind.options)
    with store:
        yield store


@pytest.fixture
def ragged(codec, tmp_path):
    kind = Kind(codec, "ragged")
    with ringloader.RaggedStore.create(tmp_path / "ragged", np.int32, **kind.options) as store:
        yield store


@pytest.fixture
def scalars(tmp_path):
    with ringloader.DenseStore.create(tmp_path / "scalars", np.int64, (), codec="raw") as store:
        yield store


def batch(count, start=0):
    return np.arange(start, start + 6 * count, dtype=np.int32).reshape(count, 2, 3)


def test_an_append_gives_its_first_index(kind, tmp_path):
    with kind.create(tmp_path / "store") as store:
        expected = []
        for count in (1, 10, 3, 500):
            records = kind.records(count, seed=count)
            first = store.append(kind.batch(records))
            assert type(first) is int
            assert first == len(expected)
            expected.extend(records)
            assert len(store) == len(expected)
            assert same(store[-1], records[-1])
        assert_same_records(store[:], expected)


def test_appended_records_are_there_after_close_without_a_sync(kind, records, closed_store):
    with kind.open(closed_store, mode="r") as store:
        assert_same_records(store[:], records)


def test_appends_go_on_after_reopening(kind, records, closed_store):
    for turn in range(1, 4):
        more = kind.records(5, seed=turn)
        with kind.open(closed_store) as store:
            assert store.append(kind.batch(more)) == len(records)
        records.extend(more)
    with kind.open(closed_store, mode="r") as store:
        assert_same_records(store[:], records)


LAYOUTS = {
    "C": lambda a: np.ascontiguousarray(a),
    "Fortran": lambda a: np.asfortranarray(a),
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "strided inside": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "list": lambda a: [row for row in a],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_layout_is_taken(dense, layout):
    given = LAYOUTS[layout](batch(20))
    assert dense.append(given) == 0
    assert same(dense[:], np.ascontiguousarray(given))


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "list"])
def test_a_ragged_record_of_any_layout_is_taken(ragged, layout):
    given = LAYOUTS[layout](batch(4))
    ragged.append([given, given[0], given[:, 0]])
    assert_same_records(ragged[:], [np.ascontiguousarray(a) for a in (given, given[0], given[:, 0])])


def test_read_only_and_mapped_input_is_taken(dense, tmp_path):
    np.save(tmp_path / "records.npy", batch(50))
    mapped = np.load(tmp_path / "records.npy", mmap_mode="r")
    assert dense.append(mapped) == 0
    frozen = batch(5, start=9)
    frozen.setflags(write=False)
    assert dense.append(frozen) == 50
    assert same(dense[:], np.concatenate([batch(50), frozen]))


def test_the_input_is_left_as_it_was_and_can_change_afterwards(dense):
    given = batch(10)
    dense.append(given)
    assert same(given, batch(10))
    given[:] = -1
    assert same(dense[:], batch(10))


def test_a_store_appends_its_own_records(kind, store, records):
    assert store.append(store[:]) == len(records)
    assert_same_records(store[:], records + records)


def test_plain_numbers_are_taken_where_numpy_makes_the_store_s_dtype_of_them(tmp_path):
    with ringloader.DenseStore.create(tmp_path / "store", np.float64, (2,)) as store:
        store.append([[1.0, 2.0], [3.0, 4.0]])
        assert store[:].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_scalar_is_a_batch_of_one_scalar_record(scalars):
    assert scalars.append(np.int64(5)) == 0
    assert scalars.append(np.array(6)) == 1
    assert scalars.append(7) == 2
    assert scalars.append([8, 9]) == 3
    assert scalars[:].tolist() == [5, 6, 7, 8, 9]


REFUSED_DENSE = {
    "int64 in place of int32": lambda: batch(2).astype(np.int64),
    "float32 in place of int32": lambda: batch(2).astype(np.float32),
    "uint32 in place of int32": lambda: batch(2).view(np.uint32),
    "other byte order": lambda: batch(2).astype(">i4"),
    "bytes in place of int32": lambda: batch(2).view(np.uint8),
    "one record without its batch axis": lambda: batch(1)[0],
    "an axis too many": lambda: batch(2)[None],
    "other record shape": lambda: np.zeros((2, 3, 2), np.int32),
    "flat": lambda: batch(2).ravel(),
    "empty": lambda: batch(0),
    "empty list": list,
    "scalar": lambda: np.int32(3),
    "uneven list": lambda: [[[1, 2, 3]], [[1]]],
    "None": lambda: None,
    "text": lambda: "records",
}


@pytest.mark.parametrize("name", REFUSED_DENSE)
def test_a_refused_dense_batch_writes_nothing(dense, name):
    dense.append(batch(3))
    dense.sync()
    before = tree(dense.path)
    with pytest.raises(ValueError) as caught:
        dense.append(REFUSED_DENSE[name]())
    assert str(caught.value)
    assert len(dense) == 3
    assert tree(dense.path) == before
    assert dense.append(batch(1)) == 3


def test_a_dtype_or_shape_mismatch_names_both_sides(dense):
    with pytest.raises(ValueError, match=r"int64.*int32|int32.*int64"):
        dense.append(batch(2).astype(np.int64))
    with pytest.raises(ValueError, match=r"\(2, 6\).*\(.*2, 3\)|\(.*2, 3\).*\(2, 6\)"):
        dense.append(batch(2).reshape(2, 6))


def good():
    return [np.arange(5, dtype=np.int32), np.int32(1), np.ones((2, 2), np.int32)]


REFUSED_RAGGED = {
    "int64 record": lambda: [*good(), np.arange(3)],
    "float record": lambda: [*good(), np.ones(3, np.float32)],
    "other byte order": lambda: [*good(), np.ones(3, ">i4")],
    "bytes in an int32 store": lambda: [*good(), b"abcd"],
    "bytearray in an int32 store": lambda: [*good(), bytearray(4)],
    "memoryview in an int32 store": lambda: [*good(), memoryview(b"abcd")],
    "zero-byte record": lambda: [*good(), np.zeros(0, np.int32)],
    "zero-byte record of rank 2": lambda: [*good(), np.zeros((3, 0), np.int32)],
    "text record": lambda: [*good(), "abc"],
    "None record": lambda: [*good(), None],
}


@pytest.mark.parametrize("name", REFUSED_RAGGED)
def test_a_refused_ragged_record_refuses_its_batch_and_is_named_by_place(ragged, name):
    ragged.append(good())
    ragged.sync()
    before = tree(ragged.path)
    with pytest.raises(ValueError, match=r"\b3\b"):
        ragged.append(REFUSED_RAGGED[name]())
    assert len(ragged) == 3
    assert tree(ragged.path) == before
    assert ragged.append(good()) == 3
    assert_same_records(ragged[:], [np.asarray(a) for a in good() + good()])


@pytest.mark.parametrize("empty", [list, tuple, lambda: iter(()), lambda: np.zeros((0, 3), np.int32)])
def test_an_empty_ragged_batch_is_refused(ragged, empty):
    with pytest.raises(ValueError):
        ragged.append(empty())
    assert len(ragged) == 0


@pytest.mark.parametrize("record", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc"])
def test_one_record_of_bytes_is_no_ragged_batch(record, tmp_path):
    """Its bytes would be taken for records."""
    for dtype in (np.uint8, np.int64):
        with ringloader.RaggedStore.create(tmp_path / np.dtype(dtype).name, dtype) as store:
            with pytest.raises(TypeError, match="list"):
                store.append(record)
            assert len(store) == 0


@pytest.mark.parametrize("records", [5, None, 1.5])
def test_a_ragged_batch_must_be_iterable(ragged, records):
    with pytest.raises(TypeError):
        ragged.append(records)
    assert len(ragged) == 0


def test_an_iterable_of_any_kind_is_a_ragged_batch(ragged):
    records = good()
    for form in (list, tuple, iter, lambda r: (a for a in r), lambda r: dict(enumerate(r)).values()):
        ragged.append(form(records))
    assert_same_records(ragged[:], [np.asarray(a) for a in records] * 5)


def test_a_bare_array_is_a_ragged_batch_along_its_first_axis(ragged):
    assert ragged.append(batch(4)) == 0
    assert_same_records(ragged[:], list(batch(4)))
    assert ragged.append(np.arange(3, dtype=np.int32)) == 4
    assert_same_records(ragged[4:], [np.asarray(np.int32(i)) for i in range(3)])


def test_an_iterable_that_fails_appends_nothing_and_its_error_arrives(ragged):
    class Failure(Exception):
        pass

    def failing():
        yield np.arange(4, dtype=np.int32)
        raise Failure("half-way")

    with pytest.raises(Failure, match="half-way"):
        ragged.append(failing())
    assert len(ragged) == 0
    assert ragged.append(good()) == 0


def test_a_record_that_closes_the_store_while_it_is_read_is_an_error_and_not_a_crash(ragged):
    def closing():
        yield np.arange(4, dtype=np.int32)
        ragged.close()
        yield np.arange(4, dtype=np.int32)

    with pytest.raises(ValueError, match=str(ragged.path)):
        ragged.append(closing())


@pytest.mark.parametrize("extra_bytes", [1, -8], ids=["payload over", "payload and prefix over"])
def test_a_record_over_two_gib_is_refused_before_anything_is_written(codec, extra_bytes, tmp_path):
    # The pages of the huge record are never touched, so it costs no memory.
    huge = np.zeros(2**31 + extra_bytes, np.uint8)
    kind = Kind(codec, "ragged")
    with ringloader.RaggedStore.create(tmp_path / "store", np.uint8, **kind.options) as store:
        store.append([b"first"])
        store.sync()
        before = tree(store.path)
        with raises_zrecord(-4, store.path):
            store.append([b"good", huge])
        assert len(store) == 1
        assert tree(store.path) == before
        assert store.append([b"second"]) == 1


def test_a_large_append_is_whole(kind, tmp_path):
    """More records than any internal batch, and more bytes than any internal buffer."""
    if kind.geometry == "dense":
        records = list(np.random.default_rng(5).integers(0, 3, (20_000, *(4, 6)), dtype=np.int32))
    else:
        records = kind.records(20_000)
    if kind.codec == "zstd_dict":
        records = records[:3_000]
    with kind.create(tmp_path / "store") as store:
        store.append(kind.batch(records))
        assert_same_records(store[:], records)
    with kind.open(tmp_path / "store", mode="r") as store:
        order = np.random.default_rng(6).permutation(len(records))
        assert_same_records(store[order], [records[i] for i in order])


def test_incompressible_and_constant_records_round_trip(codec, tmp_path):
    rng = np.random.default_rng(9)
    records = np.stack([rng.integers(0, 256, 300_000, dtype=np.uint8), np.zeros(300_000, np.uint8)])
    kind = Kind(codec, "dense")
    with ringloader.DenseStore.create(tmp_path / "store", np.uint8, (300_000,), **kind.options) as store:
        store.append(records)
        assert same(store[:], records)
        assert store.stats()["live_bytes"] <= 600_000 + 4_000
        if codec != "raw":
            assert store.stats()["live_bytes"] < 310_000
