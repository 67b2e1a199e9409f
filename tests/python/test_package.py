"""What `import ringloader` gives, and that loaderx's module names lead to the same things."""

import re

import loaderx.zrecord
import pytest

import ringloader
import ringloader.utils
import ringloader.zrecord

PUBLIC = [
    "DenseStore",
    "RaggedStore",
    "RaggedBatch",
    "ZrecordError",
    "DICT_TIERS",
    "train_dict",
    "engine_info",
    "configure",
    "__version__",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_package_has_its_public_names(name):
    assert hasattr(ringloader, name)


def test_the_version_is_a_version():
    assert re.match(r"\d+\.\d+\.\d+", ringloader.__version__)


@pytest.mark.parametrize("name", ["DenseStore", "RaggedStore", "ZrecordError", "DICT_TIERS"])
def test_the_zrecord_module_of_loaderx_has_the_same_objects(name):
    assert getattr(ringloader.zrecord, name) is getattr(ringloader, name)


def test_the_utils_module_of_loaderx_has_the_same_train_dict():
    assert ringloader.utils.train_dict is ringloader.train_dict


def test_the_dictionary_tiers_are_those_of_loaderx():
    assert ringloader.DICT_TIERS == loaderx.zrecord.DICT_TIERS


@pytest.mark.parametrize("name", ["DenseStore", "RaggedStore", "train_dict", "engine_info", "configure"])
def test_public_names_are_documented(name):
    assert len(getattr(ringloader, name).__doc__.strip()) > 40


@pytest.mark.parametrize("cls", [ringloader.DenseStore, ringloader.RaggedStore])
@pytest.mark.parametrize(
    "method", ["create", "open", "gather", "append", "delete", "compact", "stats", "sync", "close"]
)
def test_every_method_of_a_store_is_documented(cls, method):
    assert len(getattr(cls, method).__doc__.strip()) > 20
