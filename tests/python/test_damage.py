"""Nothing that a store's files contain may crash, hang, exhaust memory or give wrong records.

The builders below make hostile stores by name. Each error names its code, the path and, where
one record is concerned, the record.
"""

import os
import re
import struct

import children
import msgpack
import numpy as np
import pytest
from helpers import (
    KINDS,
    Files,
    Kind,
    assert_same_records,
    overwrite,
    raises_zrecord,
    same,
    tree,
)

import ringloader

DECODE, INVALID = -7, -8
RECORDS = 12
VICTIM = 5

DENSE_RAW = Kind("raw", "dense")
RAGGED_RAW = Kind("raw", "ragged")
COMPRESSED = [kind for kind in KINDS if kind.codec != "raw"]


@pytest.fixture
def files(kind, tmp_path):
    """The files of a sound store of `RECORDS` records."""
    return Files(kind.build(tmp_path / "hostile", kind.records(RECORDS)))


def build(kind, tmp_path, count=RECORDS):
    return Files(kind.build(tmp_path / "hostile", kind.records(count)))


def assert_only_the_victim_is_unreadable(kind, files, codes, victim=VICTIM):
    """Alone and in a batch the victim is an error that names it; the others are as they were."""
    records = kind.records(RECORDS)
    others = [i for i in range(RECORDS) if i != victim]
    with kind.open(files.path, mode="r") as store:
        for attempt in (lambda: store[victim], lambda: store[:], lambda: store.gather([0, victim, 1])):
            with raises_zrecord(codes, files.path) as caught:
                attempt()
            assert re.search(rf"\brecord {victim}\b", str(caught.value)), str(caught.value)
        assert_same_records(store[others], [records[i] for i in others])


# --- paths that are no store -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_missing_path_is_file_not_found(kind, tmp_path, mode):
    for path in (tmp_path / "missing", tmp_path / "missing" / "further"):
        with pytest.raises(FileNotFoundError) as caught:
            kind.open(path, mode=mode)
        assert os.fspath(caught.value.filename) == str(path)
        assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def an_empty_directory(path):
    path.mkdir()


def a_directory_of_other_things(path):
    path.mkdir()
    (path / "notes.txt").write_text("hello")


def a_file(path):
    path.write_bytes(b"x" * 100)


def an_empty_file(path):
    path.touch()


def an_identity_alone(path):
    path.mkdir()
    (path / "store.zr").write_bytes(msgpack.dumps({"dtype": "<i4"}))


NO_STORES = [an_empty_directory, a_directory_of_other_things, a_file, an_empty_file, an_identity_alone]


@pytest.mark.parametrize("make", NO_STORES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_what_is_no_store_is_invalid_and_left_alone(make, mode, geometry, tmp_path):
    make(tmp_path / "thing")
    before = tree(tmp_path)
    with raises_zrecord(INVALID, tmp_path / "thing"):
        Kind("raw", geometry).open(tmp_path / "thing", mode=mode)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_the_wrong_class_says_which_to_use(codec, tmp_path, mode):
    dense, ragged = Kind(codec, "dense"), Kind(codec, "ragged")
    dense.build(tmp_path / "dense", dense.records(3))
    ragged.build(tmp_path / "ragged", ragged.records(3))
    with raises_zrecord(INVALID, tmp_path / "dense", "DenseStore"):
        ragged.open(tmp_path / "dense", mode=mode)
    with raises_zrecord(INVALID, tmp_path / "ragged", "RaggedStore"):
        dense.open(tmp_path / "ragged", mode=mode)
    # The refused handle holds no lock.
    dense.open(tmp_path / "dense").close()
    ragged.open(tmp_path / "ragged").close()


# --- files that are missing, short or something else -----------------------------------------


def without(name):
    def damage(files):
        files.file(name).unlink()

    return damage


def shortened(name, by):
    def damage(files):
        os.truncate(files.file(name), files.file(name).stat().st_size - by)

    return damage


def emptied(name):
    def damage(files):
        os.truncate(files.file(name), 0)

    return damage


def replaced_by_a_symlink(name):
    def damage(files):
        target = files.path.parent / "target"
        files.file(name).rename(target)
        files.file(name).symlink_to(target)

    return damage


def replaced_by_a_dangling_symlink(name):
    def damage(files):
        files.file(name).unlink()
        files.file(name).symlink_to(files.path.parent / "nowhere")

    return damage


def replaced_by_a_device(name):
    def damage(files):
        files.file(name).unlink()
        files.file(name).symlink_to("/dev/zero")

    return damage


def replaced_by_a_directory(name):
    def damage(files):
        files.file(name).unlink()
        files.file(name).mkdir()

    return damage


def replaced_by_a_pipe(name):
    def damage(files):
        files.file(name).unlink()
        os.mkfifo(files.file(name))

    return damage


def header(**changes):
    def damage(files):
        files.set_header(**changes)

    return damage


def lengthened_header(files):
    with open(files.file("meta.zr"), "ab") as file:
        file.write(b"\0")


def tail_past_the_chunk(files):
    files.set_header(tail_offset=files.header.tail_offset + 1)


FILES = ("meta.zr", "store.zr", "0.loc", "0.chunk")
DAMAGED_FILES = {
    **{f"{name} is missing": without(name) for name in FILES},
    **{f"{name} is empty": emptied(name) for name in FILES},
    **{f"{name} is short by a byte": shortened(name, 1) for name in FILES},
    **{f"{name} is a symlink": replaced_by_a_symlink(name) for name in FILES},
    **{f"{name} is a dangling symlink": replaced_by_a_dangling_symlink(name) for name in FILES},
    **{f"{name} is a link to a device": replaced_by_a_device(name) for name in FILES},
    **{f"{name} is a directory": replaced_by_a_directory(name) for name in FILES},
    "meta.zr is cut to 17 bytes": shortened("meta.zr", 15),
    "meta.zr is a byte too long": lengthened_header,
    "0.loc is short by a record": shortened("0.loc", 16),
    "0.chunk is half": lambda files: os.truncate(
        files.file("0.chunk"), files.file("0.chunk").stat().st_size // 2
    ),
    "codec tag 3": header(codec=3),
    "codec tag 255": header(codec=255),
    "one record more than there are": header(length=RECORDS + 1),
    "2^28 records": header(length=2**28),
    "2^63 records": header(length=2**63),
    "2^64 - 1 records": header(length=2**64 - 1),
    "a tail chunk that is missing": header(tail_chunk=1),
    "the last possible tail chunk": header(tail_chunk=2**32 - 1),
    "a tail past the chunk's end": tail_past_the_chunk,
    "a tail at the end of 4 GiB": header(tail_offset=2**32 - 1),
}


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("name", DAMAGED_FILES)
@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_a_damaged_file_is_found_at_open(name, mode, geometry, tmp_path):
    kind = Kind("zstd", geometry)
    files = build(kind, tmp_path)
    DAMAGED_FILES[name](files)
    before = None if "device" in name else tree(files.path)
    with raises_zrecord(INVALID, files.path):
        kind.open(files.path, mode=mode)
    if before is not None:
        assert tree(files.path) == before


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize(
    "damage",
    [
        without("dict.zr"),
        emptied("dict.zr"),
        replaced_by_a_symlink("dict.zr"),
        replaced_by_a_directory("dict.zr"),
        lambda files: overwrite(files.file("dict.zr"), 8, b"\xff" * 200),
        lambda files: os.truncate(files.file("dict.zr"), 20),
        lambda files: os.truncate(files.file("dict.zr"), 2**33),
    ],
    ids=["missing", "empty", "symlink", "directory", "broken tables", "cut", "8 GiB"],
)
def test_a_damaged_dictionary_is_found_at_open(damage, mode, tmp_path):
    kind = Kind("zstd_dict", "dense")
    files = build(kind, tmp_path)
    damage(files)
    with raises_zrecord(INVALID, files.path):
        kind.open(files.path, mode=mode)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_pipe_in_place_of_a_file_is_invalid_and_nobody_waits_for_it(mode, tmp_path):
    kind = Kind("zstd_dict", "ragged")
    paths = []
    for name in (*FILES, "dict.zr"):
        files = build(kind, tmp_path / name)
        replaced_by_a_pipe(name)(files)
        paths.append(files.path)
    for path, result in zip(paths, children.run("spawn", children.open_each, kind, paths, mode), strict=True):
        assert isinstance(result, children.Failure)
        assert (result.name, result.code) == ("ZrecordError", INVALID)
        assert str(path) in result.text


def test_a_codec_tag_that_is_not_the_store_s_gives_no_records(kind, files):
    """Another known tag is found at open, or by each record; no record comes out wrong."""
    true_tag = files.header.codec
    for tag in {0, 1, 2} - {true_tag}:
        files.set_header(codec=tag)
        with raises_zrecord((DECODE, INVALID), files.path), kind.open(files.path, mode="r") as store:
            store[VICTIM]


def test_a_damaged_store_is_not_kept_locked(kind, files):
    sound = files.file("store.zr").read_bytes()
    files.file("store.zr").write_bytes(b"")
    with raises_zrecord(INVALID):
        kind.open(files.path)
    files.file("store.zr").write_bytes(sound)
    with kind.open(files.path) as store:
        assert_same_records(store[:], kind.records(RECORDS))


# --- the type identity -----------------------------------------------------------------------


def nested(depth):
    dtype = "<i4"
    for _ in range(depth):
        dtype = [["f", dtype]]
    return dtype


def identity(dtype="<i4", **more):
    return msgpack.dumps({"dtype": dtype, "item_shape": [4, 6], **more})


MALFORMED_IDENTITIES = {
    "empty": b"",
    "not msgpack": b"\xc1" * 20,
    "text": b"hello, world",
    "nil": msgpack.dumps(None),
    "a list": msgpack.dumps(["dtype", "<i4"]),
    "an empty map": msgpack.dumps({}),
    "an extra key": identity(codec="zstd"),
    "a missing dtype": msgpack.dumps({"item_shape": [4, 6]}),
    "another key": msgpack.dumps({"dtype": "<i4", "shape": [4, 6]}),
    "keys in the other order": msgpack.dumps({"item_shape": [4, 6], "dtype": "<i4"}),
    "a key twice": b"\x83" + identity()[1:] + b"\xa5dtype\xa3<i4",
    "a trailing byte": identity() + b"\0",
    "cut": identity()[:-1],
    "a key of bytes": msgpack.dumps({b"dtype": "<i4", b"item_shape": [4, 6]}),
    "an object dtype": identity("|O"),
    "an object field": identity([["a", "<i4"], ["b", "|O"]]),
    "an unknown dtype": identity("<q9"),
    "a dtype of code": identity("__import__('os')"),
    "a dtype with commas": identity("<i4,<i4"),
    "a dtype without byte order": identity("int32"),
    "a dtype of number": identity(4),
    "a dtype of nil": identity(None),
    "a dtype of map": identity({"names": ["a"], "formats": ["<i4"]}),
    "no fields": identity([]),
    "a field without type": identity([["a"]]),
    "a field of four": identity([["a", "<i4", [2], 1]]),
    "a field name of number": identity([[1, "<i4"]]),
    "fields of one name": identity([["a", "<i4"], ["a", "<i4"]]),
    "a field shape of -1": identity([["a", "<i4", [-1]]]),
    "a huge field shape": identity([["a", "<i4", [2**40, 2**40]]]),
    "a huge string": identity("<U4294967295"),
    "an endless number": identity("<U" + "9" * 10_000),
    "a shape of nil": identity(item_shape=None),
    "a shape of number": identity(item_shape=24),
    "a shape of text": identity(item_shape="46"),
    "a negative axis": identity(item_shape=[-4, 6]),
    "a fractional axis": identity(item_shape=[4.0, 6]),
    "a bool axis": identity(item_shape=[True, 6]),
    "an axis of zero": identity(item_shape=[0, 6]),
    "a record over 2 GiB": identity(item_shape=[2**29, 2]),
    "a product that overflows": identity(item_shape=[2**32, 2**32]),
    "a product that overflows to 24": identity(item_shape=[2**61, 2**61, 24]),
    "an axis of 2^64 - 1": identity(item_shape=[2**64 - 1]),
    "a thousand axes": identity(item_shape=[1] * 1000),
    "nested 100 deep": identity(nested(100)),
    "nested 100,000 deep": b"\x82\xa5dtype" + b"\x91\x92\xa1f" * 100_000,
    "a list that claims 2^32 - 1 entries": b"\x82\xa5dtype\xdd\xff\xff\xff\xff",
    "a string that claims 2^32 - 1 bytes": b"\x82\xa5dtype\xdb\xff\xff\xff\xff",
    "a map that claims 2^32 - 1 keys": b"\xdf\xff\xff\xff\xff\xa5dtype\xa3<i4",
    "2 MiB": identity([[f"f{i:06}", "<i4"] for i in range(150_000)]),
}


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("name", MALFORMED_IDENTITIES)
def test_a_malformed_dense_identity_is_invalid(name, mode, tmp_path):
    files = build(DENSE_RAW, tmp_path)
    files.file("store.zr").write_bytes(MALFORMED_IDENTITIES[name])
    with raises_zrecord(INVALID, files.path):
        DENSE_RAW.open(files.path, mode=mode)


DTYPE_FAULTS = [
    name for name in MALFORMED_IDENTITIES if "dtype" in name or "field" in name or "nested" in name
]


@pytest.mark.parametrize("name", [name for name in DTYPE_FAULTS if not name.startswith("a missing")])
def test_a_malformed_ragged_identity_is_invalid(name, tmp_path):
    files = build(RAGGED_RAW, tmp_path)
    content = MALFORMED_IDENTITIES[name]
    if content.endswith(b"\xaaitem_shape\x92\x04\x06") and content.startswith(b"\x82"):
        content = b"\x81" + content[1 : -len(b"\xaaitem_shape\x92\x04\x06")]
    files.file("store.zr").write_bytes(content)
    with raises_zrecord(INVALID, files.path):
        RAGGED_RAW.open(files.path, mode="r")


def test_an_identity_file_of_a_terabyte_is_refused_unread(kind, files):
    os.truncate(files.file("store.zr"), 2**40)
    with raises_zrecord(INVALID, files.path):
        kind.open(files.path, mode="r")


def test_an_identity_of_another_width_gives_no_records(codec, tmp_path):
    """The header and the table are right, but records are not what the identity says."""
    kind = Kind(codec, "dense")
    files = build(kind, tmp_path)
    for shape in ([4, 5], [4, 7], [2**28]):
        files.file("store.zr").write_bytes(identity(item_shape=shape))
        store = kind.open(files.path, mode="r")
        with store, raises_zrecord((DECODE, INVALID), files.path, "record 5"):
            store[VICTIM]


# --- the record table ------------------------------------------------------------------------

BAD_LOCATIONS = {
    "an offset past the chunk": {"offset": 10_000_000},
    "the last offset": {"offset": 2**32 - 1},
    "an end past 2^32": {"offset": 2**32 - 1, "phys_length": 2**32 - 1},
    "a length past the chunk": {"phys_length": 1_000_000},
    "the greatest length": {"phys_length": 2**32 - 1},
    "the next chunk": {"chunk": 1},
    "the last chunk": {"chunk": 2**32 - 1},
    "the last chunk but one": {"chunk": 2**32 - 2},
    "no stored bytes": {"phys_length": 0},
    "no decoded bytes": {"logic_length": 0},
    "a record over 2 GiB": {"logic_length": 2**31 + 1},
    "the greatest record": {"logic_length": 2**32 - 1},
    "nothing but ones": {
        "offset": 2**32 - 1,
        "phys_length": 2**32 - 1,
        "logic_length": 2**32 - 1,
        "chunk": 2**32 - 1,
    },
    "nothing but zeros": {"offset": 0, "phys_length": 0, "logic_length": 0, "chunk": 0},
}


@pytest.mark.parametrize("name", BAD_LOCATIONS)
def test_a_location_outside_its_chunk_is_invalid_and_named(kind, files, name):
    files.set_location(VICTIM, **BAD_LOCATIONS[name])
    assert_only_the_victim_is_unreadable(kind, files, INVALID)


@pytest.mark.parametrize("victim", [0, RECORDS - 1])
def test_the_first_and_the_last_record_are_checked_too(kind, files, victim):
    files.set_location(victim, offset=2**32 - 1)
    assert_only_the_victim_is_unreadable(kind, files, INVALID, victim)


def test_a_location_past_the_frontier_is_invalid_though_the_file_reaches_there(kind, files):
    """Slack behind the frontier is not data."""
    end = files.header.tail_offset
    with open(files.file("0.chunk"), "ab") as file:
        file.write(files.payload(VICTIM))
    files.set_location(VICTIM, offset=end)
    assert_only_the_victim_is_unreadable(kind, files, INVALID)


@pytest.mark.parametrize("change", [-1, 1, 4, -4])
def test_a_decoded_length_that_is_not_the_record_s_is_named(kind, files, change):
    files.set_location(VICTIM, logic_length=files.location(VICTIM).logic_length + change)
    assert_only_the_victim_is_unreadable(kind, files, (DECODE, INVALID))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_stored_length_that_is_not_the_record_s_is_named(kind, files, change):
    files.set_location(VICTIM, phys_length=files.location(VICTIM).phys_length + change)
    assert_only_the_victim_is_unreadable(kind, files, (DECODE, INVALID))


def test_a_small_frame_that_claims_gigabytes_is_refused(tmp_path):
    for kind in COMPRESSED:
        files = build(kind, tmp_path / str(kind))
        files.set_location(VICTIM, logic_length=2**31)
        assert_only_the_victim_is_unreadable(kind, files, (DECODE, INVALID))


def test_a_bad_location_stops_compaction_before_it_moves_anything(kind, files):
    files.set_location(VICTIM, offset=2**32 - 1)
    with kind.open(files.path) as store:
        store.delete(0)
        before = tree(files.path)
        with raises_zrecord(INVALID, files.path, "record 5"):
            store.compact()
        assert tree(files.path) == before


def test_a_bad_record_can_be_deleted(kind, files):
    files.set_location(VICTIM, offset=2**32 - 1, chunk=2**32 - 1)
    expected = kind.records(RECORDS)
    expected[VICTIM] = expected.pop()
    with kind.open(files.path) as store:
        store.delete(VICTIM)
        assert_same_records(store[:], expected)
        store.compact()
        assert_same_records(store[:], expected)


# --- record bytes ----------------------------------------------------------------------------

BAD_FRAMES = {
    "zeros": lambda frame: bytes(len(frame)),
    "ones": lambda frame: b"\xff" * len(frame),
    "reversed": lambda frame: frame[::-1],
    "another magic": lambda frame: b"\x29" + frame[1:],
    "a skippable frame": lambda frame: struct.pack("<II", 0x184D2A50, len(frame) - 8) + frame[8:],
    "an end of zeros": lambda frame: frame[:-6] + bytes(6),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
@pytest.mark.parametrize("kind", COMPRESSED, ids=str)
def test_a_damaged_frame_is_a_decode_error_and_named(kind, name, tmp_path):
    files = build(kind, tmp_path)
    files.set_payload(VICTIM, BAD_FRAMES[name](files.payload(VICTIM)))
    assert_only_the_victim_is_unreadable(kind, files, DECODE)


def test_a_frame_of_another_size_is_a_decode_error_and_named(tmp_path):
    """A whole and valid frame, of a record that is larger or smaller than the table says."""
    kind = Kind("zstd", "ragged")
    files = build(kind, tmp_path)
    sizes = [location.logic_length for location in files.locations()]
    other = next(i for i in range(RECORDS) if sizes[i] != sizes[VICTIM])
    logic_length = sizes[VICTIM]
    files.set_location(VICTIM, **files.location(other)._replace(logic_length=logic_length)._asdict())
    assert_only_the_victim_is_unreadable(kind, files, DECODE)


@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_a_foreign_dictionary_is_a_decode_error_and_named(geometry, tmp_path):
    kind = Kind("zstd_dict", geometry)
    files = build(kind, tmp_path)
    rng = np.random.default_rng(77)
    foreign = ringloader.train_dict(
        [rng.integers(0, 99, 300, dtype=np.int16) for _ in range(300)], tier="fast"
    )
    assert foreign != files.file("dict.zr").read_bytes()
    files.file("dict.zr").write_bytes(foreign)
    with kind.open(files.path, mode="r") as store:
        for i in range(RECORDS):
            with raises_zrecord(DECODE, files.path, f"record {i}"):
                store[i]
        with raises_zrecord(DECODE, files.path):
            store[:]


def prefixed(rank, *axes):
    return struct.pack(f"<{1 + len(axes)}Q", rank, *axes)


# The victim, record 5, has shape (6,): 16 bytes of prefix and 24 of payload.
BAD_PREFIXES = {
    "a rank past the record": prefixed(5),
    "a rank of 65": prefixed(65),
    "a rank of 2^61": prefixed(2**61),
    "a rank of 2^64 - 1": prefixed(2**64 - 1),
    "a rank that overflows to 0 bytes": prefixed(2**61 - 1),
    "rank zero with a payload of many": prefixed(0),
    "an axis too long": prefixed(1, 7),
    "an axis too short": prefixed(1, 5),
    "an axis of zero": prefixed(1, 0),
    "an axis of 2^63": prefixed(1, 2**63),
    "an axis of 2^64 - 1": prefixed(1, 2**64 - 1),
    "a size that overflows to 24": prefixed(1, 2**62 + 6),
    "a product that overflows": prefixed(2, 2**32, 2**32),
    "zero times a huge axis": prefixed(2, 0, 2**63),
    "a product of another size": prefixed(2, 3, 3),
    "no payload": prefixed(4, 1, 1, 1, 1),
}


@pytest.mark.parametrize("name", BAD_PREFIXES)
def test_a_bad_shape_prefix_is_a_decode_error_and_named(name, tmp_path):
    files = build(RAGGED_RAW, tmp_path)
    assert files.payload(VICTIM)[:16] == prefixed(1, 6)
    files.set_payload(VICTIM, BAD_PREFIXES[name])
    assert_only_the_victim_is_unreadable(RAGGED_RAW, files, DECODE)
    with RAGGED_RAW.open(files.path, mode="r") as store:
        with raises_zrecord(DECODE, files.path, f"record {VICTIM}"):
            store.gather_packed([VICTIM])
        with raises_zrecord(DECODE, files.path, f"record {VICTIM}"):
            store.gather([0, VICTIM], out=np.empty(100_000, np.uint8))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17])
def test_a_record_too_short_for_its_prefix_is_a_decode_error(length, tmp_path):
    files = build(RAGGED_RAW, tmp_path)
    files.set_location(VICTIM, phys_length=length, logic_length=length)
    assert_only_the_victim_is_unreadable(RAGGED_RAW, files, DECODE)


# --- files that change while the store is open ------------------------------------------------


def test_a_chunk_truncated_under_an_open_store_is_an_error_and_not_a_dead_process(kind, files):
    records = kind.records(RECORDS)
    with kind.open(files.path, mode="r") as store:
        assert_same_records(store[:], records)
        cut = files.location(VICTIM).offset
        os.truncate(files.file("0.chunk"), cut)
        whole = [i for i in range(RECORDS) if files.location(i).offset + files.location(i).phys_length <= cut]
        assert_same_records(store[whole], [records[i] for i in whole])
        for attempt in (lambda: store[VICTIM], lambda: store[:]):
            with raises_zrecord(INVALID, files.path):
                attempt()


def test_a_table_truncated_under_an_open_store_is_an_error(kind, files):
    with kind.open(files.path, mode="r") as store:
        os.truncate(files.file("0.loc"), 16 * VICTIM)
        with raises_zrecord(INVALID, files.path):
            store[RECORDS - 1]


@pytest.fixture
def two_chunks(kind, files):
    """The same store in two chunks, as if the first had been full half-way."""
    half = sorted(location.offset for location in files.locations())[RECORDS // 2]
    content = files.file("0.chunk").read_bytes()
    files.file("0.chunk").write_bytes(content[:half])
    files.file("1.chunk").write_bytes(content[half:])
    for i, location in enumerate(files.locations()):
        if location.offset >= half:
            files.set_location(i, chunk=1, offset=location.offset - half)
    files.set_header(tail_chunk=1, tail_offset=len(content) - half)
    with kind.open(files.path, mode="r") as store:
        assert_same_records(store[:], kind.records(RECORDS))
    return files


@pytest.mark.parametrize(
    "damage",
    [emptied, without, replaced_by_a_symlink, replaced_by_a_directory],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_chunk_that_is_not_the_last_is_found_by_its_records(kind, two_chunks, damage):
    """Opening looks at the last chunk only."""
    records = kind.records(RECORDS)
    first, second = [], []
    for i, location in enumerate(two_chunks.locations()):
        (first, second)[location.chunk].append(i)
    damage("0.chunk")(two_chunks)
    with kind.open(two_chunks.path, mode="r") as store:
        assert_same_records(store[second], [records[i] for i in second])
        for attempt in (lambda: store[first[0]], lambda: store[:]):
            with raises_zrecord(INVALID, two_chunks.path):
                attempt()


# --- fuzzing ---------------------------------------------------------------------------------


def read_everything(kind, path):
    """The records of the store, or the one kind of error that there may be."""
    try:
        with kind.open(path, mode="r") as store:
            return list(store[:])
    except ringloader.ZrecordError as error:
        assert error.code in (DECODE, INVALID), f"{error.code}: {error}"
        assert str(path) in str(error)
        return error


def test_any_changed_byte_gives_an_error_or_right_records(kind, files):
    """One byte of one file is changed at a time. What no checksum covers, such as raw record
    bytes, may come out changed; anything else is right or an error."""
    records = kind.records(RECORDS)
    rng = np.random.default_rng(2024)
    errors = 0
    for name in sorted(path.name for path in files.path.iterdir()):
        content = files.file(name).read_bytes()
        places = range(len(content)) if len(content) <= 200 else rng.integers(0, len(content), 150).tolist()
        for place in places:
            changed = content[place] ^ int(rng.integers(1, 256))
            overwrite(files.file(name), place, bytes([changed]))
            found = read_everything(kind, files.path)
            context = (name, place, content[place], changed)
            if isinstance(found, ringloader.ZrecordError):
                errors += 1
            elif name == "dict.zr" or (name == "0.chunk" and kind.codec != "raw"):
                assert len(found) == RECORDS and all(map(same, found, records)), context
            elif name == "meta.zr":
                assert all(same(a, b) for a, b in zip(found, records, strict=False)), context
                assert len(found) <= RECORDS, context
            elif kind.geometry == "dense" and name != "store.zr":
                assert [record.shape for record in found] == [(4, 6)] * RECORDS, context
            overwrite(files.file(name), place, content[place : place + 1])
    assert errors > 50
    assert_same_records(read_everything(kind, files.path), records)


def test_random_files_give_errors_only(kind, files):
    """Files whose every byte is random, cut or repeated: no crash, no other exception."""
    rng = np.random.default_rng(99)
    sound = {path.name: path.read_bytes() for path in files.path.iterdir()}
    for _ in range(150):
        name = str(rng.choice(sorted(sound)))
        content = sound[name]
        form = rng.integers(4)
        if form == 0:
            hostile = rng.bytes(len(content))
        elif form == 1:
            hostile = content[: int(rng.integers(len(content)))]
        elif form == 2:
            hostile = content + rng.bytes(int(rng.integers(1, 100)))
        else:
            start = int(rng.integers(len(content)))
            hostile = content[:start] + rng.bytes(min(8, len(content) - start)) + content[start + 8 :]
        files.file(name).write_bytes(hostile)
        read_everything(kind, files.path)
        files.file(name).write_bytes(content)
    assert_same_records(read_everything(kind, files.path), kind.records(RECORDS))


@pytest.mark.parametrize("kind", COMPRESSED, ids=str)
def test_no_flipped_bit_of_a_frame_goes_unnoticed(kind, tmp_path):
    """Every bit of every frame: an error that names the record, or, for the few bits of a frame
    header that mean nothing, exactly the record."""
    files = build(kind, tmp_path)
    records = kind.records(RECORDS)
    harmless = flips = 0
    with kind.open(files.path, mode="r") as store, open(files.file("0.chunk"), "r+b", buffering=0) as chunk:
        for i, location in enumerate(files.locations()):
            frame = files.payload(i)
            for bit in range(8 * len(frame)):
                place, mask = divmod(bit, 8)
                os.pwrite(chunk.fileno(), bytes([frame[place] ^ (1 << mask)]), location.offset + place)
                flips += 1
                try:
                    found = store[i]
                except ringloader.ZrecordError as error:
                    assert error.code == DECODE
                    assert f"record {i} " in f"{error} "
                else:
                    assert same(found, records[i]), (i, place, mask)
                    harmless += 1
                os.pwrite(chunk.fileno(), frame[place : place + 1], location.offset + place)
        assert_same_records(store[:], records)
    assert flips > 1_000
    assert harmless <= 4 * RECORDS
