"""Typed record stores and their gathers, for training loops on one machine.

Write records once into a `DenseStore` (one shape) or a `RaggedStore` (each its own), then draw random
batches at the bandwidth of memory and disk:

>>> import numpy as np, tempfile
>>> from ringloader import DenseStore
>>> path = tempfile.mkdtemp() + "/squares"
>>> with DenseStore.create(path, np.int64, ()) as store:
...     store.append(np.arange(10) ** 2)
0
>>> with DenseStore.open(path, mode="r") as store:
...     store[[2, 5, -1]]
array([ 4, 25, 81])
"""

from ._batch import RaggedBatch
from ._errors import ZrecordError
from ._ringloader import __VERSION__ as __version__
from ._ringloader import DenseStore, RaggedStore, configure, engine_info
from .utils import train_dict
from .zrecord import DICT_TIERS

__all__ = [
    "DICT_TIERS",
    "DenseStore",
    "RaggedBatch",
    "RaggedStore",
    "ZrecordError",
    "__version__",
    "configure",
    "engine_info",
    "train_dict",
]
