"""loaderx 1.8.6 opens, reads and maintains what we write, and we what it writes."""

import loaderx
import loaderx.utils
import loaderx.zrecord
import numpy as np
import pytest
from helpers import (
    MANIFEST,
    Files,
    Kind,
    assert_same_records,
    copy_fixture,
    fixture_records,
    same,
    swap_delete,
    tree,
)

import ringloader

WRITERS = {"ringloader": ringloader, "loaderx": loaderx}
DIRECTIONS = [("ringloader", "loaderx"), ("loaderx", "ringloader")]
directions = pytest.mark.parametrize(
    ("writer", "reader"),
    [(WRITERS[writer], WRITERS[reader]) for writer, reader in DIRECTIONS],
    ids=["-to-".join(direction) for direction in DIRECTIONS],
)


def read_all(kind, path, package):
    with kind.open(path, package) as store:
        return list(store[:])


@directions
def test_the_other_reads_every_record(kind, writer, reader, tmp_path):
    records = kind.records(200)
    path = kind.build(tmp_path / "store", records, writer)
    assert_same_records(read_all(kind, path, reader), records)


@directions
def test_the_other_opens_an_empty_store_and_fills_it(kind, writer, reader, tmp_path):
    path = kind.build(tmp_path / "store", [], writer)
    records = kind.records(10)
    with kind.open(path, reader) as store:
        assert len(store) == 0
        assert store.append(kind.batch(records)) == 0
    assert_same_records(read_all(kind, path, writer), records)


@directions
def test_the_other_reads_after_each_maintenance_step(kind, writer, reader, tmp_path):
    expected = kind.records(80)
    path = kind.build(tmp_path / "store", expected, writer)
    more = kind.records(15, seed=1)

    def append(store):
        assert store.append(kind.batch(more)) == len(expected)
        expected.extend(more)

    def delete(store):
        store.delete([3, 40, 79, 0, 78])
        swap_delete(expected, [3, 40, 79, 0, 78])

    def compact(store):
        store.compact()

    for step in (delete, append, compact, append, delete, delete, compact, compact):
        with kind.open(path, writer) as store:
            step(store)
        assert_same_records(read_all(kind, path, reader), expected)
        assert_same_records(read_all(kind, path, writer), expected)


@directions
def test_the_other_maintains_the_store_and_its_writer_reads_the_result(kind, writer, reader, tmp_path):
    expected = kind.records(60)
    path = kind.build(tmp_path / "store", expected, writer)
    with kind.open(path, reader) as store:
        more = kind.records(20, seed=2)
        assert store.append(kind.batch(more)) == 60
        expected.extend(more)
    assert_same_records(read_all(kind, path, writer), expected)
    with kind.open(path, reader) as store:
        store.delete(np.arange(0, 80, 3))
        swap_delete(expected, range(0, 80, 3))
    assert_same_records(read_all(kind, path, writer), expected)
    with kind.open(path, reader) as store:
        store.compact()
    assert_same_records(read_all(kind, path, writer), expected)
    with kind.open(path, writer) as store:
        more = kind.records(5, seed=3)
        assert store.append(kind.batch(more)) == len(expected)
        expected.extend(more)
        assert store.stats()["records"] == len(expected)
    assert_same_records(read_all(kind, path, reader), expected)


def test_a_store_changes_hands_many_times(kind, tmp_path):
    """Writers alternate; after each turn both see the records of a plain list."""
    rng = np.random.default_rng(11)
    expected = kind.records(30)
    path = kind.build(tmp_path / "store", expected)
    for turn in range(12):
        package = (loaderx, ringloader)[turn % 2]
        with kind.open(path, package) as store:
            chosen = rng.choice(len(expected), size=5, replace=False)
            store.delete(chosen)
            swap_delete(expected, chosen)
            if turn % 3 == 2:
                store.compact()
            more = kind.records(8, seed=turn + 10)
            store.append(kind.batch(more))
            expected.extend(more)
        for reader in (ringloader, loaderx):
            assert_same_records(read_all(kind, path, reader), expected)


@pytest.mark.parametrize("name", [name for name in sorted(MANIFEST) if MANIFEST[name]["records"]])
def test_every_fixture_dtype_that_we_write_reads_in_loaderx(name, codec, tmp_path):
    expected = fixture_records(name)
    kind = Kind(codec, MANIFEST[name]["geometry"])
    with kind.open(copy_fixture(name, tmp_path), mode="r") as source:
        arguments = {"item_shape": source.item_shape} if kind.geometry == "dense" else {}
        dtype = source.dtype
    path = tmp_path / "ours"
    with kind.store_class().create(path, dtype, **arguments, **kind.options) as store:
        store.append(kind.batch(expected))
    with kind.open(path, loaderx) as store:
        assert store.dtype == dtype
        assert store.dtype.str == dtype.str
        assert store.codec == codec
        assert_same_records(store[:], expected)
        store.append(kind.batch(expected[:1]))
        store.delete([0])
        store.compact()
    # The copy of the first record took the place of the first.
    with kind.open(path, mode="r") as store:
        assert_same_records(store[:], expected)


@pytest.mark.parametrize("name", [name for name in sorted(MANIFEST) if MANIFEST[name]["records"] > 5])
def test_a_fixture_that_we_maintain_reads_in_loaderx(name, tmp_path):
    path = copy_fixture(name, tmp_path)
    kind = Kind(MANIFEST[name]["codec"], MANIFEST[name]["geometry"])
    expected = fixture_records(name)
    with kind.open(path) as store:
        store.delete([0, 2, -1])
        swap_delete(expected, [0, 2, len(expected) - 1])
        store.append(kind.batch([expected[1]]))
        expected.append(expected[1])
        store.compact()
    assert_same_records(read_all(kind, path, loaderx), expected)


@directions
def test_both_report_the_same_statistics_of_one_store(kind, writer, reader, tmp_path):
    def statistics(package):
        with kind.open(path, package) as store:
            return store.stats()

    path = kind.build(tmp_path / "store", kind.records(50), writer)
    steps = [
        lambda store: None,
        lambda store: store.delete([1, 5, 49, 48]),
        lambda store: store.append(kind.batch(kind.records(3, seed=4))),
        lambda store: store.compact(),
        lambda store: store.delete(slice(None)),
        lambda store: store.compact(),
    ]
    for step in steps:
        with kind.open(path, writer) as store:
            step(store)
            live = store.stats()
        assert statistics(writer) == statistics(reader) == live
        assert all(type(value) is int for value in statistics(ringloader).values())


def test_statistics_add_up(kind, tmp_path):
    path = kind.build(tmp_path / "store", kind.records(50))
    files = Files(path)
    with kind.open(path) as store:
        before = store.stats()
        store.delete([7, 8, 9])
        after = store.stats()
        store.compact()
        compacted = store.stats()
    assert sorted(before) == ["chunk_bytes", "live_bytes", "reclaimable", "records"]
    assert (before["records"], after["records"], compacted["records"]) == (50, 47, 47)
    assert before["reclaimable"] == 0
    assert before["live_bytes"] == before["chunk_bytes"]
    assert after["chunk_bytes"] == before["chunk_bytes"]
    assert after["reclaimable"] == after["chunk_bytes"] - after["live_bytes"] > 0
    assert compacted["reclaimable"] == 0
    assert compacted["chunk_bytes"] == compacted["live_bytes"] == after["live_bytes"]
    assert compacted["live_bytes"] == sum(location.phys_length for location in files.locations())
    assert files.file("0.chunk").stat().st_size == compacted["chunk_bytes"]
    assert files.file("0.loc").stat().st_size == 47 * 16


def operations(kind, seed):
    """A reproducible sequence of deletes, appends, compactions and reopenings."""
    rng = np.random.default_rng(seed)
    length = 0
    for step in range(30):
        choice = rng.choice(["append", "append", "delete", "compact", "reopen"])
        if choice == "append" or length == 0:
            count = int(rng.integers(1, 20))
            length += count
            yield "append", kind.batch(kind.records(count, seed=1000 * seed + step))
        elif choice == "delete":
            chosen = rng.integers(0, length, int(rng.integers(1, min(12, length + 1))))
            length -= len(set(chosen.tolist()))
            yield "delete", chosen
        else:
            yield choice, None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_compact", [False, True], ids=["no-compact", "compact"])
def test_the_same_operations_give_the_same_store(kind, seed, with_compact, tmp_path):
    """Same contents in the same order; for raw also the same bytes.

    What lies behind the live entries of the table is left over from deletes and differs. A
    compaction of ours may put records in another order on disk, because it never overwrites
    bytes that are still referenced.
    """
    paths = {package: tmp_path / package.__name__ for package in (ringloader, loaderx)}
    stores = {package: kind.create(path, package) for package, path in paths.items()}
    expected = []
    for operation, argument in operations(kind, seed):
        for package, path in paths.items():
            if operation == "append":
                assert stores[package].append(argument) == len(expected)
            elif operation == "delete":
                stores[package].delete(argument)
            elif operation == "compact" and with_compact:
                stores[package].compact()
            elif operation == "reopen":
                stores[package].close()
                stores[package] = kind.open(path, package)
        if operation == "append":
            expected.extend(argument)
        elif operation == "delete":
            swap_delete(expected, argument)
        for store in stores.values():
            assert_same_records(store[:], expected)
        if kind.codec == "raw":
            assert stores[ringloader].stats() == stores[loaderx].stats()
    for store in stores.values():
        store.close()
    ours, theirs = Files(paths[ringloader]), Files(paths[loaderx])
    assert ours.file("store.zr").read_bytes() == theirs.file("store.zr").read_bytes()
    if kind.codec != "raw":
        return
    assert ours.file("meta.zr").read_bytes() == theirs.file("meta.zr").read_bytes()
    if not with_compact:
        assert ours.file("0.chunk").read_bytes() == theirs.file("0.chunk").read_bytes()
        assert ours.locations() == theirs.locations()


def test_appends_alone_write_loaderx_s_bytes(kind, tmp_path):
    """A raw store that only grew is the same to the last byte, and so is everything but the frames."""
    batches = [kind.batch(kind.records(count, seed=count)) for count in (1, 7, 30)]
    trees = []
    for package in (ringloader, loaderx):
        with kind.create(tmp_path / package.__name__, package) as store:
            for batch in batches:
                store.append(batch)
        trees.append(tree(tmp_path / package.__name__))
    ours, theirs = trees
    assert sorted(ours) == sorted(theirs)
    exact = (
        sorted(ours) if kind.codec == "raw" else [name for name in ours if name in ("store.zr", "dict.zr")]
    )
    for name in exact:
        assert ours[name] == theirs[name], name


def test_our_frames_carry_a_content_checksum(tmp_path):
    kind = Kind("zstd", "dense")
    files = Files(kind.build(tmp_path / "store", kind.records(20)))
    for i in range(20):
        frame = files.payload(i)
        assert frame[:4] == b"\x28\xb5\x2f\xfd"
        assert frame[4] & 0b100, "the frame header's checksum flag"


def test_bytes_that_loaderx_kept_in_the_header_are_kept(kind, tmp_path):
    """Bytes 17..31 of meta.zr are reserved: any value opens, and every change keeps it."""
    files = Files(kind.build(tmp_path / "store", kind.records(20), loaderx))
    files.set_header(reserved=bytes(range(100, 115)))
    expected = kind.records(20)
    with kind.open(files.path) as store:
        assert_same_records(store[:], expected)
        store.append(kind.batch(kind.records(2, seed=5)))
        store.delete([0])
        store.compact()
    expected.extend(kind.records(2, seed=5))
    swap_delete(expected, [0])
    assert_same_records(read_all(kind, files.path, loaderx), expected)


def test_extra_files_and_slack_are_tolerated(kind, tmp_path):
    expected = kind.records(20)
    files = Files(kind.build(tmp_path / "store", expected, loaderx))
    files.file("notes.txt").write_text("mine")
    for name in ("0.chunk", "0.loc"):
        with open(files.file(name), "ab") as file:
            file.write(b"\xff" * 1000)
    with kind.open(files.path) as store:
        assert_same_records(store[:], expected)
        store.append(kind.batch(expected[:3]))
        store.delete([1])
        store.compact()
    expected = expected + expected[:3]
    swap_delete(expected, [1])
    assert_same_records(read_all(kind, files.path, loaderx), expected)
    assert files.file("notes.txt").read_text() == "mine"


@directions
def test_a_dictionary_trained_by_one_serves_the_other(writer, reader, tmp_path):
    kind = Kind("zstd_dict", "ragged")
    records = kind.records(400)
    trained = writer.utils.train_dict(records, tier="fast")
    with reader.zrecord.RaggedStore.create(tmp_path / "store", np.int32, "zstd_dict", trained) as store:
        store.append(records)
    for package in (writer, reader):
        assert_same_records(read_all(kind, tmp_path / "store", package), records)


def test_a_whole_store_is_copied_from_one_package_to_the_other(kind, tmp_path):
    """The migration in the documentation: read with one, append with the other."""
    source = kind.build(tmp_path / "source", kind.records(40), loaderx)
    with kind.open(source, loaderx) as old, kind.create(tmp_path / "copy") as new:
        assert new.append(old[:]) == 0
        assert all(same(new[i], old[i]) for i in range(40))
