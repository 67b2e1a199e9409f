"""The true limits of the format, reached with sparse files: chunks of 4 GiB, segments of 2^28."""

import os
import shutil
import sys

import loaderx
import numpy as np
import pytest
from helpers import LOCATION, Files, overwrite, raises_zrecord

import ringloader

CHUNK_END_MAX = 2**32 - 1
SEGMENT_RECORDS = 2**28
ITEM_SHAPE = (25,)
RECORD_BYTES = 100
DISK_BYTES_MAX = 1 << 20

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs sparse files")


def rows(first, count):
    return np.arange(first, first + count, dtype=np.int32)[:, None] * np.ones(ITEM_SHAPE, np.int32)


def raw_store(path, package, count):
    with package.zrecord.DenseStore.create(path, np.int32, ITEM_SHAPE, codec="raw") as store:
        store.append(rows(0, count))
    return Files(path)


@pytest.fixture
def both(tmp_path):
    """A place for a store of ours and one for loaderx's, emptied at once for their size."""
    places = {package: tmp_path / package.__name__ for package in (ringloader, loaderx)}
    yield places
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)


def sizes(files):
    return {path.name: path.stat().st_size for path in sorted(files.path.iterdir())}


def assert_sparse(files):
    used = sum(path.stat().st_blocks * 512 for path in files.path.iterdir())
    assert used < DISK_BYTES_MAX, f"{used} bytes on disk"


@pytest.mark.parametrize(
    ("room", "left_in_chunk_0"),
    [
        (5 * RECORD_BYTES, 5),
        (RECORD_BYTES, 1),
        (RECORD_BYTES - 1, 0),
        (2 * RECORD_BYTES + 50, 2),
        (0, 0),
    ],
    ids=["to the last byte", "one to the last byte", "one byte short", "in between", "full"],
)
def test_a_chunk_rolls_over_exactly_where_loaderx_s_does(both, room, left_in_chunk_0):
    """A record's end may be 2^32 - 1 in its chunk, and not 2^32."""
    tail = CHUNK_END_MAX - room
    for package, path in both.items():
        files = raw_store(path, package, 3)
        files.set_header(tail_offset=tail)
        os.truncate(files.file("0.chunk"), tail)
        with package.zrecord.DenseStore.open(path) as store:
            assert store.append(rows(100, 5)) == 3
            assert (store[:] == np.concatenate([rows(0, 3), rows(100, 5)])).all()
    ours, theirs = Files(both[ringloader]), Files(both[loaderx])
    assert ours.locations() == theirs.locations()
    assert ours.header == theirs.header
    assert sizes(ours) == sizes(theirs)
    chunks = [location.chunk for location in ours.locations()[3:]]
    assert chunks == [0] * left_in_chunk_0 + [1] * (5 - left_in_chunk_0)
    assert max(location.offset + RECORD_BYTES for location in ours.locations()) <= CHUNK_END_MAX
    for i in range(8):
        assert ours.payload(i) == theirs.payload(i)
    if left_in_chunk_0 < 5:
        assert ours.file("1.chunk").read_bytes() == theirs.file("1.chunk").read_bytes()
    assert_sparse(ours)


def test_stores_of_two_chunks_change_hands_and_compact_to_one(both):
    expected = np.concatenate([rows(0, 3), rows(100, 5)])
    for package, path in both.items():
        files = raw_store(path, package, 3)
        files.set_header(tail_offset=CHUNK_END_MAX - 250)
        os.truncate(files.file("0.chunk"), CHUNK_END_MAX - 250)
        with package.zrecord.DenseStore.open(path) as store:
            store.append(rows(100, 5))
    statistics = []
    for package, path in ((ringloader, both[loaderx]), (loaderx, both[ringloader])):
        with package.zrecord.DenseStore.open(path) as store:
            assert (store[:] == expected).all()
            statistics.append(store.stats())
            store.compact()
            assert (store[:] == expected).all()
            statistics.append(store.stats())
    assert statistics[:2] == statistics[2:]
    assert statistics[0]["chunk_bytes"] > 2**32
    assert statistics[1]["chunk_bytes"] == 8 * RECORD_BYTES
    for path in both.values():
        assert not Files(path).file("1.chunk").exists()
        assert Files(path).file("0.chunk").stat().st_size == 8 * RECORD_BYTES
    with ringloader.DenseStore.open(both[ringloader], mode="r") as store:
        assert (store[:] == expected).all()


def test_a_compressed_store_rolls_over_and_reads_in_loaderx(both):
    path = both[ringloader]
    with ringloader.DenseStore.create(path, np.int32, ITEM_SHAPE, codec="zstd") as store:
        store.append(rows(0, 3))
    files = Files(path)
    files.set_header(tail_offset=CHUNK_END_MAX - 60)
    os.truncate(files.file("0.chunk"), CHUNK_END_MAX - 60)
    with ringloader.DenseStore.open(path) as store:
        store.append(rows(100, 20))
    assert {location.chunk for location in files.locations()} == {0, 1}
    assert max(location.offset + location.phys_length for location in files.locations()) <= CHUNK_END_MAX
    for package in (ringloader, loaderx):
        with package.zrecord.DenseStore.open(path) as store:
            assert (store[:] == np.concatenate([rows(0, 3), rows(100, 20)])).all()


def test_the_table_rolls_over_to_a_second_segment_where_loaderx_s_does(both):
    """2^28 - 2 records, of which only the last two are real; five more cross the segment."""
    length = SEGMENT_RECORDS - 2
    real = np.arange(length - 2, length + 5)
    expected = np.concatenate([rows(0, 2), rows(100, 5)])
    for package, path in both.items():
        files = raw_store(path, package, 2)
        entries = files.file("0.loc").read_bytes()
        os.truncate(files.file("0.loc"), 0)
        os.truncate(files.file("0.loc"), LOCATION.size * length)
        overwrite(files.file("0.loc"), LOCATION.size * (length - 2), entries)
        files.set_header(length=length)
        with package.zrecord.DenseStore.open(path) as store:
            assert len(store) == length
            assert store.append(rows(100, 5)) == length
            assert (store[real] == expected).all()
    ours, theirs = Files(both[ringloader]), Files(both[loaderx])
    assert sizes(ours) == sizes(theirs)
    assert sizes(ours)["0.loc"] == LOCATION.size * SEGMENT_RECORDS == 2**32
    assert sizes(ours)["1.loc"] == LOCATION.size * 3
    assert ours.file("1.loc").read_bytes() == theirs.file("1.loc").read_bytes()
    assert ours.file("0.chunk").read_bytes() == theirs.file("0.chunk").read_bytes()
    assert ours.header == theirs.header
    assert ours.header.length == SEGMENT_RECORDS + 3
    assert_sparse(ours)
    # Each reads the other's.
    with loaderx.zrecord.DenseStore.open(ours.path) as store:
        assert (store[real] == expected).all()
    for path in both.values():
        with ringloader.DenseStore.open(path, mode="r") as store:
            assert len(store) == SEGMENT_RECORDS + 3
            assert (store[real] == expected).all()
            assert (store[-1] == rows(104, 1)[0]).all()
            assert (store[-7:] == expected).all()
            # The sparse part names no bytes.
            with raises_zrecord(-8, path, "record 5"):
                store[5]
    # Deleting across the boundary brings the last records into the holes.
    for package, path in both.items():
        with package.zrecord.DenseStore.open(path) as store:
            store.delete([length - 2, length, SEGMENT_RECORDS + 2])
            assert len(store) == SEGMENT_RECORDS
            left = store[np.arange(length - 2, SEGMENT_RECORDS)][:, 0].tolist()
            assert left == [102, 1, 103, 101]
