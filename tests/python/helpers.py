"""What several test files share: records, the files of a store taken apart, comparisons."""

import functools
import json
import shutil
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import loaderx.utils
import loaderx.zrecord
import numpy as np
import pytest

import ringloader

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "loaderx-1.8.6"
MANIFEST = json.loads((FIXTURES / "manifest.json").read_text())

CODECS = ("raw", "zstd", "zstd_dict")
GEOMETRIES = ("dense", "ragged")
ITEM_SHAPE = (4, 6)

LONG_DOUBLES = [np.dtype(code).newbyteorder(order) for code in "gG" for order in "<>"]

HEADER = struct.Struct("<QIIB15s")
LOCATION = struct.Struct("<4I")


@functools.cache
def dictionary():
    """Dictionary bytes that suit the records of every `Kind`."""
    dense = Kind("raw", "dense").records(500, seed=100)
    ragged = Kind("raw", "ragged").records(500, seed=101)
    return loaderx.utils.train_dict(dense + ragged, tier="fast")


@dataclass(frozen=True)
class Kind:
    """A codec and a geometry, and the stores and records that the tests make of them."""

    codec: str
    geometry: str

    def __str__(self):
        return f"{self.codec}-{self.geometry}"

    @property
    def options(self):
        return {"codec": self.codec, "dict_bytes": dictionary() if self.codec == "zstd_dict" else None}

    def store_class(self, package=ringloader):
        zrecord = package.zrecord
        return zrecord.DenseStore if self.geometry == "dense" else zrecord.RaggedStore

    def create(self, path, package=ringloader):
        arguments = {"item_shape": ITEM_SHAPE} if self.geometry == "dense" else {}
        return self.store_class(package).create(path, dtype=np.int32, **arguments, **self.options)

    def open(self, path, package=ringloader, **options):
        return self.store_class(package).open(path, **options)

    def records(self, count, seed=0):
        """`count` compressible int32 records, every one of them different."""
        rng = np.random.default_rng([seed, count])
        records = []
        for i in range(count):
            if self.geometry == "dense":
                shape = ITEM_SHAPE
            else:
                shape = ((), (1 + i % 40,), (2, 1 + i % 9), (1, 3, 2))[i % 4]
            record = rng.integers(0, 4, shape, dtype=np.int32)
            record.reshape(-1)[0] = seed * 1_000_000 + i
            records.append(record)
        return records

    def batch(self, records):
        """`records` in the form that append takes."""
        if self.geometry == "ragged":
            return records
        # Not np.stack, which gives native byte order.
        batch = np.empty((len(records), *np.shape(records[0])), np.asarray(records[0]).dtype)
        for i, record in enumerate(records):
            batch[i] = record
        return batch

    def build(self, path, records, package=ringloader):
        """A closed store at `path` that holds `records`."""
        with self.create(path, package) as store:
            if records:
                store.append(self.batch(records))
        return Path(path)


KINDS = [Kind(codec, geometry) for codec in CODECS for geometry in GEOMETRIES]


def same(left, right):
    """Whether two records are the same type, shape and bytes; padding does not count."""
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.base in LONG_DOUBLES:
        # Ten bytes of value in sixteen, and numpy leaves anything in the rest.
        return np.array_equal(left, right)
    if left.dtype.names is None:
        return left.tobytes() == right.tobytes()
    return all(same(left[name], right[name]) for name in left.dtype.names)


def assert_same_records(found, expected):
    assert len(found) == len(expected)
    for i, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert same(left, right), f"record {i}: {left!r} is not {right!r}"


def swap_delete(records, indices):
    """The reference's delete on a list: from the highest index down, the last fills the hole."""
    for index in sorted({int(i) for i in indices}, reverse=True):
        records[index] = records[-1]
        records.pop()


@contextmanager
def raises_zrecord(code, *texts):
    """Expects `ZrecordError` with `code` (or one of several) and `texts` in its message."""
    codes = code if isinstance(code, tuple) else (code,)
    with pytest.raises(ringloader.ZrecordError) as caught:
        yield caught
    assert caught.value.code in codes, f"{caught.value.code}: {caught.value}"
    for text in texts:
        assert str(text) in str(caught.value)


def tree(path):
    """Every file and directory under `path` with its contents."""
    return {
        str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None
        for entry in sorted(Path(path).rglob("*"))
    }


def copy_fixture(name, to):
    return Path(shutil.copytree(FIXTURES / name, Path(to) / name))


def fixture_records(name):
    """The records that the fixture `name` must give, in order."""
    if MANIFEST[name]["geometry"] == "dense":
        return list(np.load(FIXTURES / f"{name}.npy"))
    with np.load(FIXTURES / f"{name}.npz") as arrays:
        return [arrays[key] for key in sorted(arrays.files) if key.startswith("r")]


class Header(NamedTuple):
    length: int
    tail_chunk: int
    tail_offset: int
    codec: int
    reserved: bytes


class Location(NamedTuple):
    offset: int
    phys_length: int
    logic_length: int
    chunk: int


class Files:
    """The files of a closed store, to be looked at and changed by what they mean."""

    def __init__(self, path):
        self.path = Path(path)

    def file(self, name):
        return self.path / name

    @property
    def header(self):
        return Header(*HEADER.unpack(self.file("meta.zr").read_bytes()))

    def set_header(self, **changes):
        self.file("meta.zr").write_bytes(HEADER.pack(*self.header._replace(**changes)))

    def location(self, index):
        return Location(*LOCATION.unpack_from(self.file("0.loc").read_bytes(), index * LOCATION.size))

    def locations(self):
        return [self.location(i) for i in range(self.header.length)]

    def set_location(self, index, **changes):
        location = self.location(index)._replace(**changes)
        overwrite(self.file("0.loc"), index * LOCATION.size, LOCATION.pack(*location))

    def payload(self, index):
        location = self.location(index)
        with open(self.file(f"{location.chunk}.chunk"), "rb") as chunk:
            chunk.seek(location.offset)
            return chunk.read(location.phys_length)

    def set_payload(self, index, payload):
        location = self.location(index)
        assert len(payload) <= location.phys_length
        overwrite(self.file(f"{location.chunk}.chunk"), location.offset, payload)


def overwrite(file, offset, payload):
    with open(file, "r+b") as opened:
        opened.seek(offset)
        opened.write(payload)
