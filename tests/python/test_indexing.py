"""Every index form of numpy's first axis, with numpy (dense) and list (ragged) as the model."""

import numpy as np
import pytest
from helpers import assert_same_records, raises_zrecord, same, swap_delete
from hypothesis import given
from hypothesis import strategies as st

import ringloader

N = 50
INTEGER_DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">u8"]

scalars = st.integers(-N, N - 1)
slices = st.slices(N)
masks = st.lists(st.booleans(), min_size=N, max_size=N)


@st.composite
def integer_arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(INTEGER_DTYPES)))
    low = 0 if dtype.kind == "u" else -N
    array = np.array(draw(st.lists(st.integers(low, N - 1), max_size=30)), dtype=dtype)
    form = draw(st.sampled_from(["plain", "strided", "reversed", "read-only"]))
    if form == "strided":
        array = np.repeat(array, 2)[::2]
    elif form == "reversed":
        array = array[::-1]
    elif form == "read-only":
        array.setflags(write=False)
    return array


selections = st.one_of(
    slices,
    st.lists(scalars, max_size=30),
    st.lists(scalars, max_size=30).map(tuple),
    integer_arrays(),
    masks,
    masks.map(np.array),
)


def positions(selection, length=N):
    """The records that `selection` names, by numpy's own rules."""
    if isinstance(selection, (list, tuple)):
        selection = np.array(selection, dtype=None if selection else np.intp)
    return np.arange(length)[selection]


class Index:
    """Something that is not an int and has __index__."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.fixture(scope="module")
def array():
    return np.random.default_rng(7).integers(0, 1000, (N, 3, 2))


@pytest.fixture(scope="module")
def dense(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("indexing") / "dense"
    with ringloader.DenseStore.create(path, array.dtype, array.shape[1:], codec="raw") as store:
        store.append(array)
        yield store


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    path = tmp_path_factory.mktemp("indexing") / "labels"
    with ringloader.DenseStore.create(path, np.int64, (), codec="zstd") as store:
        store.append(np.arange(N) * 11)
        yield store


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(8)
    return [rng.integers(0, 9, i % 7 + 1, dtype=np.int16) for i in range(N)]


@pytest.fixture(scope="module")
def ragged(tmp_path_factory, sequences):
    path = tmp_path_factory.mktemp("indexing") / "ragged"
    with ringloader.RaggedStore.create(path, np.int16, codec="zstd") as store:
        store.append(sequences)
        yield store


@given(selection=selections)
def test_a_dense_selection_is_numpy_s(dense, array, selection):
    expected = array[positions(selection)]
    for found in (dense[selection], dense.gather(selection)):
        assert same(found, expected)
        assert found.flags.c_contiguous and found.flags.writeable and found.flags.aligned


@given(selection=selections)
def test_a_selection_of_scalar_records_is_numpy_s(labels, selection):
    assert same(labels[selection], (np.arange(N) * 11)[positions(selection)])


@given(selection=selections)
def test_a_ragged_selection_is_a_list_of_its_records(ragged, sequences, selection):
    expected = [sequences[i] for i in positions(selection)]
    for found in (ragged[selection], ragged.gather(selection)):
        assert isinstance(found, list)
        assert_same_records(found, expected)
        assert all(record.flags.writeable and record.flags.c_contiguous for record in found)


@given(index=scalars, as_type=st.sampled_from([int, np.int8, np.int64, Index, np.array]))
def test_an_integer_of_any_type_is_one_record(dense, labels, ragged, array, sequences, index, as_type):
    given_index = as_type(index)
    assert same(dense[given_index], array[index])
    assert same(ragged[given_index], sequences[index])
    assert labels[given_index] == np.arange(N)[index] * 11


@given(index=st.integers(0, N - 1), dtype=st.sampled_from(["u1", "u2", "u4", "u8"]))
def test_an_unsigned_scalar_is_one_record(dense, array, index, dtype):
    assert same(dense[np.dtype(dtype).type(index)], array[index])


def test_a_scalar_record_comes_as_a_numpy_scalar(labels):
    assert type(labels[3]) is np.int64
    assert labels[-1] == (N - 1) * 11


def test_one_dense_record_has_the_shape_of_a_record(dense):
    assert type(dense[0]) is np.ndarray
    assert dense[0].shape == dense.item_shape == (3, 2)


def test_several_numbers_are_a_record_set_and_not_axes(dense, array):
    assert same(dense[0, 2, 1], array[[0, 2, 1]])


def test_a_gathered_scalar_is_a_batch_of_one(dense, labels, ragged, array, sequences):
    assert same(dense.gather(-2), array[-2:-1])
    assert same(labels.gather(4), np.array([44]))
    assert_same_records(ragged.gather(np.int32(5)), [sequences[5]])
    assert_same_records(ragged.gather(Index(5)), [sequences[5]])


EMPTY_SELECTIONS = [
    [],
    (),
    slice(0, 0),
    slice(10, 2),
    np.array([], dtype=np.int64),
    np.array([], dtype=np.uint8),
    np.zeros(N, dtype=bool),
    [False] * N,
]


@pytest.mark.parametrize("selection", EMPTY_SELECTIONS, ids=lambda s: f"{type(s).__name__}-{len(str(s))}")
def test_an_empty_selection_is_an_empty_batch(dense, labels, ragged, selection):
    assert dense[selection].shape == (0, 3, 2)
    assert dense[selection].dtype == dense.dtype
    assert labels.gather(selection).shape == (0,)
    assert ragged[selection] == []


def test_an_empty_store_gives_empty_batches_and_no_record(kind, tmp_path):
    with kind.create(tmp_path / "empty") as store:
        assert len(store) == 0
        assert len(store[:]) == len(store[[]]) == len(store[np.zeros(0, bool)]) == 0
        assert list(store) == []
        for index in (0, -1, [0]):
            with raises_zrecord(-3, store.path):
                store[index]


OUT_OF_RANGE = [N, -N - 1, N + 1000, 2**31, 2**32, 2**62, -(2**62), 2**63 - 1]


@pytest.mark.parametrize("index", OUT_OF_RANGE)
@pytest.mark.parametrize(
    "form",
    [
        lambda i: i,
        lambda i: np.int64(i),
        lambda i: [0, i],
        lambda i: (i, 0),
        lambda i: np.array([1, 2, i]),
    ],
    ids=["int", "int64", "list", "tuple", "array"],
)
@pytest.mark.parametrize("method", ["__getitem__", "gather"])
def test_out_of_range_is_both_index_error_and_zrecord_error(dense, ragged, index, form, method):
    for store in (dense, ragged):
        with pytest.raises(IndexError) as caught:
            getattr(store, method)(form(index))
        assert isinstance(caught.value, ringloader.ZrecordError)
        assert caught.value.code == -3
        for part in (index, N, store.path):
            assert str(part) in str(caught.value)


@pytest.mark.parametrize("index", [2**63, 2**64 - 1])
def test_an_unsigned_index_past_int64_is_out_of_range_and_does_not_wrap(dense, index):
    for selection in (np.uint64(index), np.array([index], dtype=np.uint64), index):
        with pytest.raises(IndexError) as caught:
            dense[selection]
        assert caught.value.code == -3
        assert str(index) in str(caught.value)


@pytest.mark.parametrize("index", [2**200, -(2**200)])
def test_a_number_of_any_size_is_an_index_error(dense, ragged, index):
    for store in (dense, ragged):
        with pytest.raises(IndexError):
            store[index]
        with pytest.raises(IndexError):
            store[[index]]


NO_INDEX = {
    "bool": True,
    "numpy bool": np.True_,
    "0-d bool array": np.array(True),
    "float": 1.0,
    "numpy float": np.float64(2),
    "float array": np.array([1.0, 2.0]),
    "complex array": np.array([1j]),
    "list of floats": [0.0, 1.0],
    "None": None,
    "ellipsis": Ellipsis,
    "str": "0",
    "list of str": ["0", "1"],
    "bytes": b"0",
    "list with None": [0, None],
    "mask too short": np.ones(N - 1, bool),
    "mask too long": np.ones(N + 1, bool),
    "mask of one": [True],
    "list mask too short": [True] * (N - 1),
    "two axes": np.zeros((2, 2), int),
    "two axes of bool": np.ones((N, 1), bool),
    "nested list": [[0, 1], [2, 3]],
    "object array": np.array([0, 1], dtype=object),
    "datetime array": np.array(["2020-01-01"], dtype="M8[D]"),
    "slice of floats": slice(0.0, 2.0),
}


@pytest.mark.parametrize("name", NO_INDEX)
@pytest.mark.parametrize("method", ["__getitem__", "gather", "delete"])
def test_what_is_no_index_is_a_plain_index_error(dense, ragged, name, method):
    # numpy itself gives TypeError for a slice of floats.
    expected = (IndexError, TypeError) if name == "slice of floats" else IndexError
    for store in (dense, ragged):
        with pytest.raises(expected) as caught:
            getattr(store, method)(NO_INDEX[name])
        assert not isinstance(caught.value, ringloader.ZrecordError)
        assert str(caught.value)
        assert len(store) == N


def test_a_slice_with_step_zero_is_a_value_error(dense, ragged):
    for store in (dense, ragged):
        with pytest.raises(ValueError, match="zero"):
            store[::0]


def test_a_wrong_mask_names_both_lengths(dense):
    with pytest.raises(IndexError, match=rf"{N - 1}\D.*\b{N}\b|\b{N}\b.*{N - 1}"):
        dense[np.ones(N - 1, bool)]


@pytest.mark.parametrize("index", [N, -N - 1])
@pytest.mark.parametrize("form", [lambda i: i, lambda i: [0, i, 1]], ids=["scalar", "list"])
def test_a_delete_out_of_range_deletes_nothing(dense, ragged, index, form):
    for store in (dense, ragged):
        with raises_zrecord(-3, index, N, store.path):
            store.delete(form(index))
        assert len(store) == N


@given(selection=selections)
def test_a_delete_takes_every_index_form(tmp_path_factory, selection):
    path = tmp_path_factory.mktemp("delete") / "store"
    expected = list(np.arange(N))
    with ringloader.DenseStore.create(path, np.int64, (), codec="raw") as store:
        store.append(np.arange(N))
        store.delete(selection)
        swap_delete(expected, positions(selection))
        assert store[:].tolist() == expected
        assert len(store) == len(expected)


@given(rounds=st.lists(st.lists(st.integers(0, 10_000), max_size=8), max_size=6))
def test_deletes_add_up(tmp_path_factory, rounds):
    path = tmp_path_factory.mktemp("delete") / "store"
    expected = list(range(N))
    with ringloader.RaggedStore.create(path, np.int64, codec="raw") as store:
        store.append(list(np.arange(N)[:, None]))
        for numbers in rounds:
            selection = [number % len(expected) for number in numbers]
            store.delete(selection)
            swap_delete(expected, selection)
            assert [int(record[0]) for record in store[:]] == expected


def test_a_deleted_scalar_is_one_record(store, kind, records):
    store.delete(np.int16(3))
    store.delete(-1)
    swap_delete(records, [3])
    swap_delete(records, [len(records) - 1])
    assert_same_records(store[:], records)


def test_a_batch_keeps_order_and_repeats(store, records):
    rng = np.random.default_rng(3)
    chosen = rng.integers(0, len(records), 500)
    assert_same_records(store[chosen], [records[i] for i in chosen])
    assert_same_records(store[[5] * 100], [records[5]] * 100)
