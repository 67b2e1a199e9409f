"""Stores that the loaderx 1.8.6 wheel wrote open and give exactly their arrays."""

import hashlib

import numpy as np
import pytest
from helpers import FIXTURES, MANIFEST, Kind, assert_same_records, copy_fixture, fixture_records, same, tree

NAMES = sorted(MANIFEST)


def kind_of(name):
    return Kind(MANIFEST[name]["codec"], MANIFEST[name]["geometry"])


@pytest.mark.parametrize("name", NAMES)
def test_the_fixture_is_as_loaderx_wrote_it(name):
    written = MANIFEST[name]["files"]
    assert sorted(p.name for p in (FIXTURES / name).iterdir()) == sorted(written)
    for file, expected in written.items():
        content = (FIXTURES / name / file).read_bytes()
        assert len(content) == expected["bytes"]
        assert hashlib.sha256(content).hexdigest() == expected["sha256"]


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("name", NAMES)
def test_a_store_of_loaderx_gives_its_records(name, mode, tmp_path):
    path = copy_fixture(name, tmp_path)
    expected = fixture_records(name)
    with kind_of(name).open(path, mode=mode) as store:
        assert len(store) == MANIFEST[name]["records"] == len(expected)
        assert store.codec == MANIFEST[name]["codec"]
        assert store.has_dict() == (store.codec == "zstd_dict")
        assert store.mode == mode
        assert_same_records(store[:], expected)
        assert_same_records([store[i] for i in range(len(store))], expected)
        assert_same_records(list(store), expected)


@pytest.mark.parametrize("name", [name for name in NAMES if MANIFEST[name]["geometry"] == "dense"])
def test_a_dense_store_of_loaderx_gives_its_whole_array(name, tmp_path):
    expected = np.load(FIXTURES / f"{name}.npy")
    with kind_of(name).open(copy_fixture(name, tmp_path), mode="r") as store:
        assert store.dtype == expected.dtype
        assert store.item_shape == expected.shape[1:]
        found = store[:]
        assert same(found, expected)
        assert found.dtype.str == expected.dtype.str


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("name", NAMES)
def test_reading_a_store_of_loaderx_changes_none_of_its_files(name, mode, tmp_path):
    path = copy_fixture(name, tmp_path)
    before = tree(path)
    with kind_of(name).open(path, mode=mode) as store:
        store[:]
        store.stats()
    assert tree(path) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_store_of_loaderx_can_be_extended(name, tmp_path):
    path = copy_fixture(name, tmp_path)
    kind, expected = kind_of(name), fixture_records(name)
    if not expected:
        return
    more = [expected[-1], expected[0]]
    with kind.open(path) as store:
        assert store.append(kind.batch(more)) == len(expected)
    with kind.open(path, mode="r") as store:
        assert_same_records(store[:], expected + more)
