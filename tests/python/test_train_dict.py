"""Dictionaries: trained on anything that holds records, sized by a tier."""

import loaderx.utils
import numpy as np
import pytest
from helpers import Kind, assert_same_records, raises_zrecord

import ringloader

ARRAY = np.stack(Kind("raw", "dense").records(600))
SEQUENCES = Kind("raw", "ragged").records(600)


def assert_trained(dictionary, tier):
    assert type(dictionary) is bytes
    assert dictionary[:4] == b"\x37\xa4\x30\xec"
    assert 0 < len(dictionary) <= ringloader.DICT_TIERS[tier]["size"]


SOURCES = {
    "array": lambda: ARRAY,
    "array that is not contiguous": lambda: ARRAY.transpose(0, 2, 1)[::-1],
    "list of arrays": lambda: SEQUENCES,
    "tuple of arrays": lambda: tuple(SEQUENCES),
    "generator": lambda: (record for record in SEQUENCES),
    "bytes": lambda: [record.tobytes() for record in SEQUENCES],
    "bytearrays": lambda: [bytearray(record.tobytes()) for record in SEQUENCES],
}


@pytest.mark.parametrize("tier", ["fast", "balanced", "max"])
@pytest.mark.parametrize("source", SOURCES)
def test_any_source_trains_in_every_tier(source, tier):
    assert_trained(ringloader.train_dict(SOURCES[source](), tier=tier), tier)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_store_trains(kind, tmp_path, mode):
    path = kind.build(tmp_path / "store", kind.records(600))
    with kind.open(path, mode=mode) as store:
        assert_trained(ringloader.train_dict(store, tier="fast"), "fast")
        assert len(store) == 600


def test_the_default_tier_is_balanced():
    balanced = ringloader.train_dict(SEQUENCES, tier="balanced")
    assert ringloader.train_dict(SEQUENCES) == balanced
    assert ringloader.train_dict(SEQUENCES, None) == balanced


def test_training_is_reproducible():
    assert ringloader.train_dict(ARRAY, "fast") == ringloader.train_dict(ARRAY.copy(), "fast")


def test_a_tier_bounds_what_is_read_of_an_iterable():
    record = np.arange(1 << 14, dtype=np.int32)  # 64 KiB
    seen = 0

    def records():
        nonlocal seen
        for i in range(1000):
            seen += 1
            yield record + i

    assert_trained(ringloader.train_dict(records(), tier="fast"), "fast")
    # 4 MiB
    assert 64 <= seen <= 66


def test_a_path_receives_the_dictionary(tmp_path):
    trained = ringloader.train_dict(SEQUENCES, tier="fast", path=tmp_path / "trained.dict")
    assert (tmp_path / "trained.dict").read_bytes() == trained
    assert ringloader.train_dict(SEQUENCES, "fast", str(tmp_path / "again.dict")) == trained
    assert (tmp_path / "again.dict").read_bytes() == trained


def test_a_trained_dictionary_makes_records_smaller_and_gives_them_back(tmp_path):
    sizes = {}
    for codec in ("zstd", "zstd_dict"):
        trained = ringloader.train_dict(SEQUENCES, tier="fast") if codec == "zstd_dict" else None
        with ringloader.RaggedStore.create(tmp_path / codec, np.int32, codec, trained) as store:
            store.append(SEQUENCES)
            assert_same_records(store[:], SEQUENCES)
            sizes[codec] = store.stats()["live_bytes"]
    assert sizes["zstd_dict"] < sizes["zstd"]


def test_one_dictionary_serves_many_stores(tmp_path):
    trained = ringloader.train_dict(SEQUENCES, tier="fast")
    for name in ("one", "two"):
        with ringloader.RaggedStore.create(tmp_path / name, np.int32, "zstd_dict", trained) as store:
            store.append(SEQUENCES[:20])
    for name in ("one", "two"):
        with ringloader.RaggedStore.open(tmp_path / name, mode="r") as store:
            assert store.has_dict()
            assert_same_records(store[:], SEQUENCES[:20])


def test_our_dictionary_is_as_good_as_loaderx_s(tmp_path):
    sizes = []
    for package in (ringloader, loaderx):
        trained = package.utils.train_dict(SEQUENCES, tier="fast")
        path = tmp_path / package.__name__
        with ringloader.RaggedStore.create(path, np.int32, "zstd_dict", trained) as store:
            store.append(SEQUENCES)
            sizes.append(store.stats()["live_bytes"])
    assert sizes[0] <= 1.1 * sizes[1]


@pytest.mark.parametrize("tier", ["huge", "", "FAST", 4096])
def test_an_unknown_tier_is_a_value_error_that_names_the_tiers(tier):
    with pytest.raises(ValueError, match=r"balanced.*fast.*max"):
        ringloader.train_dict(SEQUENCES, tier=tier)


EMPTY_SOURCES = [[], (), iter(()), np.zeros((0, 4, 6), np.int32)]


@pytest.mark.parametrize("source", EMPTY_SOURCES, ids=lambda source: type(source).__name__)
def test_an_empty_source_is_a_value_error(source):
    with pytest.raises(ValueError) as caught:
        ringloader.train_dict(source)
    assert not isinstance(caught.value, ringloader.ZrecordError)


def test_an_empty_store_is_a_value_error(kind, tmp_path):
    with kind.create(tmp_path / "store") as store, pytest.raises(ValueError, match="empty|at least one"):
        ringloader.train_dict(store)


def test_a_closed_store_is_a_value_error(kind, closed_store):
    store = kind.open(closed_store, mode="r")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        ringloader.train_dict(store)


@pytest.mark.parametrize(
    "source", [[b"x"], [b"ab"] * 3, [np.zeros(1, np.uint8)]], ids=["one", "three", "array"]
)
def test_too_few_samples_are_a_training_failure(source, tmp_path):
    with raises_zrecord(-9):
        ringloader.train_dict(source, path=tmp_path / "trained.dict")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", [5, None, object()], ids=lambda source: type(source).__name__)
def test_what_holds_no_records_is_a_type_error(source):
    with pytest.raises(TypeError):
        ringloader.train_dict(source)


def test_an_object_array_is_refused():
    with pytest.raises((TypeError, ValueError)):
        ringloader.train_dict(np.array([object()] * 100, dtype=object))
