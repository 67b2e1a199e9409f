"""`ZrecordError` is loaderx's: its codes, a RuntimeError; and errors travel."""

import copy
import pickle

import loaderx.zrecord
import numpy as np
import pytest
from helpers import Kind

import ringloader

CODES = [-1, -2, -3, -4, -5, -6, -7, -8, -9, -11, -12, -13]


def test_a_code_alone_says_what_it_means():
    texts = [str(ringloader.ZrecordError(code)) for code in CODES]
    assert len(set(texts)) == len(CODES)
    assert all(texts)
    for code in [*CODES, -10, -99, 0, 7]:
        assert ringloader.ZrecordError(code).code == loaderx.zrecord.ZrecordError(code).code == code
    for unknown in (-10, -99, 0, 7):
        assert str(unknown) in str(ringloader.ZrecordError(unknown))


def test_zrecord_error_is_a_runtime_error():
    assert issubclass(ringloader.ZrecordError, RuntimeError)
    assert not issubclass(ringloader.ZrecordError, (ValueError, IndexError, OSError))


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_zrecord_error_pickles(code, protocol):
    error = pickle.loads(pickle.dumps(ringloader.ZrecordError(code), protocol))
    assert type(error) is ringloader.ZrecordError
    assert error.code == code
    assert str(error) == str(ringloader.ZrecordError(code))


def caught(function):
    with pytest.raises(Exception) as info:
        function()
    return info.value


def errors_of_a_store(tmp_path):
    """Every error class that a store raises, by a real failure."""
    kind = Kind("raw", "ragged")
    path = kind.build(tmp_path / "store", kind.records(5))
    with kind.open(path) as store:
        yield caught(lambda: store[5])
        yield caught(lambda: kind.open(path))
        yield caught(lambda: store.gather([0], out=np.empty(1, np.uint8)))
        yield caught(lambda: kind.create(path))
        yield caught(lambda: Kind("raw", "dense").open(path.parent))
        yield caught(lambda: store.append([np.arange(3)]))
        yield caught(lambda: kind.open(tmp_path / "missing"))
        yield caught(lambda: store[np.ones(2, bool)])
    yield caught(lambda: store[0])


@pytest.mark.parametrize(
    "through", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickle", "copy"]
)
def test_an_error_of_a_store_keeps_class_code_and_message(through, tmp_path):
    errors = list(errors_of_a_store(tmp_path))
    codes = [getattr(error, "code", None) for error in errors]
    assert codes == [-3, -13, -6, -12, -8, None, None, None, None]
    for error in errors:
        again = through(error)
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert getattr(again, "code", None) == getattr(error, "code", None)
        assert again.args == error.args


def test_an_index_out_of_range_is_caught_as_either_class(tmp_path):
    kind = Kind("raw", "dense")
    with kind.open(kind.build(tmp_path / "store", kind.records(3))) as store:
        for cls in (IndexError, LookupError, ringloader.ZrecordError, RuntimeError):
            with pytest.raises(cls):
                store[3]


def test_a_missing_store_is_found_by_errno_and_name(tmp_path):
    error = caught(lambda: ringloader.DenseStore.open(tmp_path / "missing"))
    assert type(error) is FileNotFoundError
    assert error.errno == 2
    assert str(error.filename) == str(tmp_path / "missing")


def test_loaderx_s_handler_works_unchanged(tmp_path):
    """What code written for loaderx does: read `.code` of a ZrecordError."""
    from ringloader.zrecord import DenseStore, ZrecordError

    DenseStore.create(tmp_path / "store", np.int32, (2,)).close()
    with DenseStore.open(tmp_path / "store"):
        try:
            DenseStore.open(tmp_path / "store")
        except ZrecordError as error:
            assert error.code == -13
        else:
            pytest.fail("a second handle was opened")
