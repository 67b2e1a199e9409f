"""Every element type comes back as itself, and is persisted as loaderx persists it."""

import subprocess
import sys

import loaderx
import ml_dtypes
import msgpack
import numpy as np
import pytest
from helpers import assert_same_records, same

import ringloader

NESTED = np.dtype([("x", "<i4"), ("y", "<f4", (2,)), ("p", [("a", "<i2"), ("b", ">i2", (2, 3))])])
TITLED = np.dtype([(("a title", "value"), "<f8"), ("n", "|u1")])

# What loaderx takes and gives back as itself.
SHARED_DTYPES = [
    "?",
    *("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
    *("f2", "f4", "f8", "c8", "c16"),
    *(">i2", ">i4", ">u8", ">f4", ">f8", ">c8"),
    *("M8[ns]", "M8[D]", "M8[25s]", "M8", ">M8[ms]", "m8[us]", "m8", ">m8[h]"),
    *("S1", "S5", "U1", "U3", ">U2", "V7"),
    [("a", "<i4")],
    [("a", "?"), ("b", ">f8"), ("c", "S3"), ("d", "U2"), ("e", "M8[s]")],
    NESTED,
    TITLED,
    [("ü", "<i4"), ("with space", "<i2")],
]
if np.dtype("g").itemsize == 16:
    SHARED_DTYPES += ["f16", "c32"]

# Structured types with bytes that belong to no field; loaderx opens their stores, but gives the
# padding names.
PADDED_DTYPES = {
    "aligned": np.dtype([("a", "u1"), ("b", "<f8"), ("c", "<i2")], align=True),
    "offsets": np.dtype({"names": ["a", "b"], "formats": ["u1", "<i4"], "offsets": [2, 8]}),
    "itemsize": np.dtype({"names": ["a"], "formats": ["<i4"], "offsets": [0], "itemsize": 24}),
    "nested": np.dtype([("p", np.dtype([("a", "u1"), ("b", "<i4")], align=True)), ("q", "<i2")]),
    "nested array": np.dtype([("p", np.dtype([("a", "u1"), ("b", "<i4")], align=True), (2,))], align=True),
}

EXTENSION_NAMES = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
    "int2",
    "int4",
    "uint2",
    "uint4",
]
EXTENSION_DTYPES = [name for name in EXTENSION_NAMES if hasattr(ml_dtypes, name)]


def name_of(dtype):
    return str(np.dtype(dtype)).replace(" ", "")


def values(dtype, shape, seed=0):
    """Reproducible values of `dtype`: any bytes where any are valid (NaN and NaT among them)."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    array = np.zeros(shape, dtype)
    if dtype.names is not None:
        for i, name in enumerate(dtype.names):
            array[name] = values(dtype[name].base, array[name].shape, seed + i + 1)
    elif dtype.kind == "b":
        array[...] = rng.integers(0, 2, shape)
    elif dtype.kind in "SU":
        letters = np.array(
            ["", "a", "bc", "def", "ghijk", "é", "日本"] if dtype.kind == "U" else [b"", b"a", b"xyz"]
        )
        array[...] = letters[rng.integers(0, len(letters), shape)]
    elif dtype in (np.dtype("f16"), np.dtype("c32")) if np.dtype("g").itemsize == 16 else False:
        array[...] = rng.standard_normal(shape)
    else:
        array = np.frombuffer(rng.bytes(array.nbytes), dtype).reshape(shape).copy()
    return array


@pytest.mark.parametrize("dtype", SHARED_DTYPES, ids=name_of)
def test_a_dense_store_gives_back_its_dtype(dtype, tmp_path):
    dtype = np.dtype(dtype)
    array = values(dtype, (20, 3))
    with ringloader.DenseStore.create(tmp_path / "store", dtype, (3,)) as store:
        assert store.dtype == dtype
        store.append(array)
        assert same(store[:], array)
    for package in (ringloader, loaderx):
        with package.zrecord.DenseStore.open(tmp_path / "store") as store:
            assert store.dtype == dtype
            assert store[:].dtype == dtype
            assert same(store[:], array)
            assert same(store[7], array[7])


@pytest.mark.parametrize("dtype", SHARED_DTYPES, ids=name_of)
def test_a_store_of_scalars_gives_back_its_dtype(dtype, tmp_path):
    array = values(dtype, (20,))
    with ringloader.DenseStore.create(tmp_path / "store", dtype, (), codec="raw") as store:
        store.append(array)
        assert same(store[:], array)
        assert type(store[4]) is type(array[4])
        assert same(store[4], array[4])


@pytest.mark.parametrize("dtype", SHARED_DTYPES, ids=name_of)
def test_a_ragged_store_gives_back_its_dtype(dtype, tmp_path):
    records = [values(dtype, shape, seed=i) for i, shape in enumerate([(3,), (), (2, 2), (7,), (1, 1, 1)])]
    with ringloader.RaggedStore.create(tmp_path / "store", dtype) as store:
        store.append(records)
        assert_same_records(store[:], records)
    for package in (ringloader, loaderx):
        with package.zrecord.RaggedStore.open(tmp_path / "store") as store:
            assert store.dtype == np.dtype(dtype)
            assert_same_records(store[:], records)


@pytest.mark.parametrize("dtype", [*SHARED_DTYPES, *PADDED_DTYPES.values()], ids=name_of)
def test_the_identity_has_loaderx_s_bytes(dtype, tmp_path):
    written = []
    for package in (ringloader, loaderx):
        stores = tmp_path / package.__name__
        stores.mkdir()
        package.zrecord.DenseStore.create(stores / "dense", dtype, (2, 1), codec="raw").close()
        package.zrecord.RaggedStore.create(stores / "ragged", dtype, codec="raw").close()
        written.append([(stores / kind / "store.zr").read_bytes() for kind in ("dense", "ragged")])
    assert written[0] == written[1]
    dense, ragged = (msgpack.loads(identity) for identity in written[0])
    assert list(dense) == ["dtype", "item_shape"]
    assert list(ragged) == ["dtype"]


@pytest.mark.parametrize("name", PADDED_DTYPES)
def test_a_padded_structured_dtype_comes_back_as_itself(name, tmp_path):
    dtype = PADDED_DTYPES[name]
    array = values(dtype, (20, 2))
    with ringloader.DenseStore.create(tmp_path / "dense", dtype, (2,)) as store:
        assert store.append(array) == 0
    with ringloader.RaggedStore.create(tmp_path / "ragged", dtype) as store:
        store.append([array[0], array[3:5]])
    with ringloader.DenseStore.open(tmp_path / "dense", mode="r") as store:
        assert store.dtype == dtype
        assert store.dtype.names == dtype.names
        assert store.dtype.fields == dtype.fields
        assert store.dtype.itemsize == dtype.itemsize
        assert same(store[:], array)
    with ringloader.RaggedStore.open(tmp_path / "ragged") as store:
        assert store.dtype == dtype
        assert_same_records(store[:], [array[0], array[3:5]])
        # What it gave, it takes.
        store.append(store[:])
        assert len(store) == 4


@pytest.mark.parametrize("name", PADDED_DTYPES)
def test_loaderx_opens_a_store_of_a_padded_dtype(name, tmp_path):
    dtype = PADDED_DTYPES[name]
    array = values(dtype, (6,))
    with ringloader.DenseStore.create(tmp_path / "store", dtype, ()) as store:
        store.append(array)
    with loaderx.zrecord.DenseStore.open(tmp_path / "store") as store:
        found = store[:]
    assert found.dtype.itemsize == dtype.itemsize
    for field in dtype.names:
        if dtype[field].base.names is None:
            assert same(found[field], array[field])


@pytest.mark.parametrize("name", EXTENSION_DTYPES)
def test_an_extension_dtype_comes_back_as_itself(name, codec, tmp_path):
    dtype = np.dtype(getattr(ml_dtypes, name))
    rng = np.random.default_rng(4)
    # Every bit pattern of a one-byte type; the narrow ones use the low bits only.
    array = rng.integers(-1, 2, (40, 8)).astype(dtype)
    if name.startswith(("bfloat", "float8")):
        array = np.frombuffer(rng.bytes(array.nbytes), dtype).reshape(array.shape)
    options = {"codec": "raw"} if codec == "zstd_dict" else {"codec": codec}
    with ringloader.DenseStore.create(tmp_path / "dense", dtype, (8,), **options) as store:
        store.append(array)
        assert store.dtype is dtype or store.dtype == dtype
    with ringloader.RaggedStore.create(tmp_path / "ragged", getattr(ml_dtypes, name), **options) as store:
        store.append([array[0], array[1:3], array[3, 3]])
    with ringloader.DenseStore.open(tmp_path / "dense") as store:
        assert store.dtype == dtype
        assert store.dtype.type is getattr(ml_dtypes, name)
        assert store[:].dtype == dtype
        assert store[:].tobytes() == array.tobytes()
        assert store[3].tobytes() == array[3].tobytes()
        store.append(store[:1])
    with ringloader.RaggedStore.open(tmp_path / "ragged") as store:
        assert_same_records(store[:], [array[0], array[1:3], np.asarray(array[3, 3])])
        batch = store.gather_packed([0, 1])
        assert batch.values.dtype == dtype
        assert batch.values.tobytes() == array[:3].tobytes()


@pytest.mark.parametrize("name", EXTENSION_DTYPES)
def test_an_extension_dtype_is_persisted_by_name(name, tmp_path):
    ringloader.DenseStore.create(tmp_path / "dense", getattr(ml_dtypes, name), (4,)).close()
    ringloader.RaggedStore.create(tmp_path / "ragged", getattr(ml_dtypes, name)).close()
    assert msgpack.loads((tmp_path / "dense" / "store.zr").read_bytes()) == {"dtype": name, "item_shape": [4]}
    assert msgpack.loads((tmp_path / "ragged" / "store.zr").read_bytes()) == {"dtype": name}


def test_an_extension_dtype_without_its_package_names_what_to_install(tmp_path):
    ringloader.DenseStore.create(tmp_path / "store", ml_dtypes.bfloat16, (4,)).close()
    script = """
import sys
sys.modules["ml_dtypes"] = None
import ringloader
try:
    ringloader.DenseStore.open(sys.argv[1], mode="r")
except ImportError as error:
    print("ImportError:", error)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "store")]
    output = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert output.returncode == 0, output.stderr
    assert output.stdout.startswith("ImportError:")
    assert "ml_dtypes" in output.stdout
    # The failed open left no lock behind.
    with ringloader.DenseStore.open(tmp_path / "store") as store:
        assert len(store) == 0


def test_the_dtype_may_be_given_in_any_form_numpy_takes(tmp_path):
    for i, form in enumerate([np.float32, "float32", "<f4", "f", np.dtype("f4"), float, [("a", "i4")]]):
        with ringloader.DenseStore.create(tmp_path / str(i), form, (1,)) as store:
            assert store.dtype == np.dtype(form)


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]})
REFUSED_DTYPES = {
    "object": np.dtype("O"),
    "structured with an object": np.dtype([("a", "i4"), ("b", "O")]),
    "nested object": np.dtype([("p", [("a", "O")])]),
    "array of objects": np.dtype([("a", "O", (2,))]),
    "subarray": np.dtype(("<i4", (2,))),
    "no bytes (S0)": np.dtype("S0"),
    "no bytes (U0)": np.dtype("U0"),
    "no bytes (V0)": np.dtype("V0"),
    "no fields": np.dtype([]),
    "overlapping fields": OVERLAPPING,
}
if hasattr(np.dtypes, "StringDType"):
    REFUSED_DTYPES["variable-width strings"] = np.dtypes.StringDType()


@pytest.mark.parametrize("name", REFUSED_DTYPES)
@pytest.mark.parametrize("geometry", ["dense", "ragged"])
def test_a_dtype_that_cannot_be_stored_is_refused_and_nothing_is_made(name, geometry, tmp_path):
    with pytest.raises(ValueError):
        if geometry == "dense":
            ringloader.DenseStore.create(tmp_path / "store", REFUSED_DTYPES[name], (4,))
        else:
            ringloader.RaggedStore.create(tmp_path / "store", REFUSED_DTYPES[name])
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_dtype_is_a_type_error(tmp_path):
    with pytest.raises(TypeError):
        ringloader.DenseStore.create(tmp_path / "store", "no such dtype", (4,))
    assert list(tmp_path.iterdir()) == []


def test_nan_payloads_and_signed_zeros_are_kept(codec, tmp_path):
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0x00000001], dtype=np.uint32)
    options = {"codec": "zstd" if codec == "zstd_dict" else codec}
    with ringloader.DenseStore.create(tmp_path / "store", np.float32, (5,), **options) as store:
        store.append(bits.view(np.float32)[None])
        assert store[0].view(np.uint32).tolist() == bits.tolist()
