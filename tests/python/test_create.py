"""Creation is all or nothing: a store at the path, or nothing of ours anywhere."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import children
import msgpack
import numpy as np
import pytest
from helpers import Files, Kind, assert_same_records, dictionary, raises_zrecord, tree

import ringloader

ZSTD_DICTIONARY_MAGIC = b"\x37\xa4\x30\xec"


def create_dense(path, dtype=np.int32, item_shape=(4,), **options):
    return ringloader.DenseStore.create(path, dtype, item_shape, **options)


def create_ragged(path, dtype=np.int32, **options):
    return ringloader.RaggedStore.create(path, dtype, **options)


creators = pytest.mark.parametrize("create", [create_dense, create_ragged], ids=["dense", "ragged"])


def test_a_new_store_has_exactly_its_files(kind, tmp_path):
    kind.create(tmp_path / "store").close()
    expected = {"meta.zr", "store.zr", "0.chunk"}
    if kind.codec == "zstd_dict":
        expected.add("dict.zr")
        assert (tmp_path / "store" / "dict.zr").read_bytes() == dictionary()
    assert set(tree(tmp_path / "store")) == expected
    assert os.listdir(tmp_path) == ["store"]
    header = Files(tmp_path / "store").header
    assert header[:3] == (0, 0, 0)
    assert header.codec == ["raw", "zstd", "zstd_dict"].index(kind.codec)
    assert (tmp_path / "store" / "0.chunk").stat().st_size == 0


@creators
def test_a_new_store_is_open_for_writing(create, tmp_path):
    with create(tmp_path / "store") as store:
        assert store.mode == "r+"
        assert not store.closed
        assert len(store) == 0
        assert store.codec == "zstd"


def test_the_identity_is_what_was_asked_for(tmp_path):
    create_dense(tmp_path / "dense", ">i2", (3, 1, 7)).close()
    create_ragged(tmp_path / "ragged", "U5").close()
    assert msgpack.loads((tmp_path / "dense" / "store.zr").read_bytes()) == {
        "dtype": ">i2",
        "item_shape": [3, 1, 7],
    }
    assert msgpack.loads((tmp_path / "ragged" / "store.zr").read_bytes()) == {"dtype": "<U5"}


@creators
def test_missing_parents_are_made(create, tmp_path):
    create(tmp_path / "a" / "b" / "store").close()
    assert "meta.zr" in os.listdir(tmp_path / "a" / "b" / "store")
    assert os.listdir(tmp_path / "a") == ["b"]
    assert os.listdir(tmp_path / "a" / "b") == ["store"]


@creators
def test_an_empty_directory_becomes_the_store(create, tmp_path):
    (tmp_path / "store").mkdir()
    with create(tmp_path / "store") as store:
        assert len(store) == 0
    assert os.listdir(tmp_path) == ["store"]


def a_file(path):
    path.write_text("mine")


def an_empty_file(path):
    path.touch()


def a_directory_with_a_file(path):
    path.mkdir()
    (path / "mine").write_text("mine")


def a_directory_with_a_hidden_file(path):
    path.mkdir()
    (path / ".mine").write_text("mine")


def a_directory_with_a_directory(path):
    (path / "mine").mkdir(parents=True)


def a_store(path):
    Kind("raw", "dense").build(path, Kind("raw", "dense").records(5))


def a_dangling_symlink(path):
    path.symlink_to(path.parent / "nowhere")


def a_symlink_to_a_file(path):
    target = path.parent / "target"
    target.write_text("mine")
    path.symlink_to(target)


EXISTING = [
    a_file,
    an_empty_file,
    a_directory_with_a_file,
    a_directory_with_a_hidden_file,
    a_directory_with_a_directory,
    a_store,
    a_dangling_symlink,
    a_symlink_to_a_file,
]


@creators
@pytest.mark.parametrize("existing", EXISTING, ids=lambda existing: existing.__name__)
def test_an_existing_path_is_refused_and_left_alone(create, existing, tmp_path):
    existing(tmp_path / "store")
    before, entries = tree(tmp_path), sorted(os.listdir(tmp_path))
    with raises_zrecord(-12, tmp_path / "store"):
        create(tmp_path / "store")
    assert tree(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == entries


def test_an_open_store_is_not_created_over(kind, store, records):
    with raises_zrecord(-12, store.path):
        kind.create(store.path)
    assert_same_records(store[:], records)


REFUSED = {
    "unknown codec": {"codec": "lz4"},
    "codec in capitals": {"codec": "RAW"},
    "empty codec": {"codec": ""},
    "zstd_dict without a dictionary": {"codec": "zstd_dict"},
    "zstd_dict with an empty dictionary": {"codec": "zstd_dict", "dict_bytes": b""},
    "a dictionary for zstd": {"codec": "zstd", "dict_bytes": b"x" * 1000},
    "a dictionary for raw": {"codec": "raw", "dict_bytes": b"x" * 1000},
    "a dictionary for the default codec": {"dict_bytes": b"x" * 1000},
    "an object dtype": {"dtype": object},
    "a subarray dtype": {"dtype": np.dtype(("<i4", (2, 2)))},
}


@creators
@pytest.mark.parametrize("name", REFUSED)
def test_impossible_arguments_are_a_value_error_and_leave_nothing(create, name, tmp_path):
    for path in (tmp_path / "store", tmp_path / "parent" / "store"):
        with pytest.raises(ValueError) as caught:
            create(path, **REFUSED[name])
        assert not isinstance(caught.value, ringloader.ZrecordError)
        assert os.listdir(tmp_path) == []


@creators
def test_a_broken_dictionary_is_refused_and_leaves_nothing(create, tmp_path):
    broken = ZSTD_DICTIONARY_MAGIC + b"\xff" * 500
    for path in (tmp_path / "store", tmp_path / "parent" / "store"):
        with pytest.raises((ValueError, ringloader.ZrecordError)):
            create(path, codec="zstd_dict", dict_bytes=broken)
        assert os.listdir(tmp_path) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises((ValueError, ringloader.ZrecordError)):
        create(tmp_path / "empty", codec="zstd_dict", dict_bytes=broken)
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview], ids=lambda form: form.__name__)
def test_a_dictionary_is_any_bytes(form, tmp_path):
    create_ragged(tmp_path / "store", codec="zstd_dict", dict_bytes=form(dictionary())).close()
    assert (tmp_path / "store" / "dict.zr").read_bytes() == dictionary()


WRONG_SHAPES = {
    "negative axis": ((-1, 2), ValueError),
    "no bytes": ((0,), ValueError),
    "no bytes among others": ((4, 0, 4), ValueError),
    "over 2 GiB": ((2**29 + 1,), ValueError),
    "a product that overflows": ((2**40, 2**40), ValueError),
    "a number alone": (4, TypeError),
    "a float axis": ((4.0,), TypeError),
    "text": ("44", TypeError),
    "None": (None, TypeError),
    "an axis of text": (("4",), TypeError),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_an_impossible_item_shape_is_refused_and_leaves_nothing(name, tmp_path):
    item_shape, error = WRONG_SHAPES[name]
    with pytest.raises(error):
        create_dense(tmp_path / "parent" / "store", item_shape=item_shape)
    assert os.listdir(tmp_path) == []


def test_an_item_shape_takes_numpy_s_integers(tmp_path):
    array = np.zeros((3, 4, 5), np.int32)
    with create_dense(tmp_path / "store", item_shape=(np.int64(4), np.uint8(5))) as store:
        assert store.item_shape == (4, 5)
        store.append(array)


def test_the_widest_record_is_two_gib(tmp_path):
    """Nothing of that size is allocated when the store is made."""
    with create_dense(tmp_path / "widest", np.uint8, (2**31,)) as store:
        assert store.item_shape == (2**31,)
    with pytest.raises(ValueError):
        create_dense(tmp_path / "wider", np.uint8, (2**31 + 1,))
    assert os.listdir(tmp_path) == ["widest"]


@creators
def test_a_name_that_the_file_system_refuses_leaves_no_parents(create, tmp_path):
    path = tmp_path / "made" / "for" / ("x" * 300)
    with raises_zrecord(-2, "x" * 300):
        create(path)
    assert os.listdir(tmp_path) == []


@creators
def test_a_file_in_place_of_a_parent_is_an_error_and_left_alone(create, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises((ringloader.ZrecordError, OSError)) as caught:
        create(tmp_path / "file" / "store")
    assert str(tmp_path / "file") in str(caught.value)
    assert tree(tmp_path) == {"file": b"mine"}


@creators
def test_no_dtype_is_a_type_error(create, tmp_path):
    with pytest.raises(TypeError, match="dtype"):
        create(tmp_path / "store", None)
    assert os.listdir(tmp_path) == []


@creators
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_parent_is_an_error_and_left_alone(create, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    for path in (tmp_path / "locked" / "store", tmp_path / "locked" / "parent" / "store"):
        with raises_zrecord(-2, tmp_path / "locked"):
            create(path)
        assert os.listdir(tmp_path / "locked") == []


@creators
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read anything")
def test_a_store_that_may_not_be_looked_into_is_not_called_damaged(create, tmp_path):
    path = tmp_path / "store"
    create(path).close()
    path.chmod(0)
    try:
        for cls in (ringloader.DenseStore, ringloader.RaggedStore):
            with raises_zrecord(-2, path):
                cls.open(path)
    finally:
        path.chmod(0o700)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc here")
@creators
def test_a_file_system_that_takes_no_directories_is_an_error(create):
    with raises_zrecord(-2, "/proc/self"):
        create("/proc/self/parent/store")


def test_a_write_that_fails_half_way_leaves_nothing(kind, tmp_path):
    """Under a limit on file size one file after another is the first that cannot be written."""
    pytest.importorskip("resource")
    limits = [0, 1, 10, 11, 20, 24, 31]
    results = children.run("spawn", children.create_within_file_limits, kind, tmp_path, limits)
    for limit, result, left in results:
        assert isinstance(result, children.Failure), limit
        assert (result.name, result.code) == ("ZrecordError", -2), result
        assert str(tmp_path) in result.text
        assert left == [], limit


def test_of_many_creations_at_one_path_one_succeeds(kind, tmp_path):
    started = threading.Barrier(8)

    def create(_):
        started.wait(60)
        try:
            return kind.create(tmp_path / "parent" / "store")
        except ringloader.ZrecordError as error:
            assert error.code in (-12, -13), error
            return None

    with ThreadPoolExecutor(8) as pool:
        stores = [store for store in pool.map(create, range(8)) if store is not None]
    assert len(stores) == 1
    assert os.listdir(tmp_path) == ["parent"]
    assert os.listdir(tmp_path / "parent") == ["store"]
    assert stores[0].append(kind.batch(kind.records(3))) == 0
    stores[0].close()
    with kind.open(tmp_path / "parent" / "store", mode="r") as store:
        assert_same_records(store[:], kind.records(3))


def test_a_failed_creation_can_be_repeated(kind, tmp_path):
    with pytest.raises(ValueError):
        kind.store_class().create(tmp_path / "store", object, *([(4,)] if kind.geometry == "dense" else []))
    with kind.create(tmp_path / "store") as store:
        assert len(store) == 0
