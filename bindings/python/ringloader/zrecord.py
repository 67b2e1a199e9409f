"""The stores, under the name that they have in loaderx."""

from ._errors import ZrecordError
from ._ringloader import DenseStore, RaggedStore

__all__ = ["DICT_TIERS", "DenseStore", "RaggedStore", "ZrecordError"]

DICT_TIERS: dict[str, dict[str, int]] = {
    "fast": {"size": 32 << 10, "samples": 4 << 20},
    "balanced": {"size": 128 << 10, "samples": 16 << 20},
    "max": {"size": 1 << 20, "samples": 64 << 20},
}
"""Dictionary presets: bytes of the dictionary and bytes of the sample that trains it.

A larger dictionary compresses better and is slower to gather from, since every record's decoding touches it.
"""
