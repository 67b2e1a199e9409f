"""Dictionary training for ``zstd_dict`` stores."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._ringloader import DenseStore, RaggedStore, train_dictionary
from .zrecord import DICT_TIERS

__all__ = ["train_dict"]

_PREVIEW_RECORDS = 32
"""Records of a ragged store that are looked at to estimate the mean size."""


def train_dict(
    source: npt.NDArray[Any] | DenseStore | RaggedStore | Iterable[Any],
    tier: str | None = "balanced",
    path: str | os.PathLike[str] | None = None,
) -> bytes:
    """Train a zstd dictionary for the ``dict_bytes`` of a ``zstd_dict`` store.

    Parameters
    ----------
    source : ndarray, DenseStore, RaggedStore or iterable
        Records to learn from: an array's rows, a store's records, or array-likes and bytes. An array or a store is
        sampled evenly up to the tier's bytes; an iterable is read until they are reached.
    tier : {"fast", "balanced", "max"}
        A preset of `DICT_TIERS`; ``None`` is ``"balanced"``.
    path : path-like, optional
        Also write the dictionary to this file.

    Returns
    -------
    bytes
        The dictionary. It can serve any number of stores.

    Raises
    ------
    ValueError
        If the tier is unknown, there are no records, or a record is of objects.
    ZrecordError
        With code -9 if the records are too few or too small to learn from.
    """
    name = "balanced" if tier is None else tier
    if name not in DICT_TIERS:
        raise ValueError(f"unknown dict tier {tier!r}, expected one of {sorted(DICT_TIERS)}")
    preset = DICT_TIERS[name]
    records = _sample(source, preset["samples"])
    if not records:
        raise ValueError("train_dict needs at least one record")
    dictionary = train_dictionary(b"".join(records), [len(record) for record in records], preset["size"])
    if path is not None:
        Path(path).write_bytes(dictionary)
    return dictionary


def _sample(source: Any, budget: int) -> list[bytes]:
    """The bytes of records of `source`, up to about `budget` of them."""
    if isinstance(source, (np.ndarray, DenseStore, RaggedStore)):
        rows = source if not isinstance(source, np.ndarray) or source.ndim else source.reshape(1)
        return [_bytes(record) for record in rows[_evenly(len(rows), _mean_bytes(rows), budget)]]
    records: list[bytes] = []
    total = 0
    for record in source:
        records.append(_bytes(record))
        total += len(records[-1])
        if total >= budget:
            break
    return records


def _mean_bytes(rows: Any) -> int:
    if isinstance(rows, RaggedStore):
        preview = rows[:_PREVIEW_RECORDS]
        return sum(record.nbytes for record in preview) // max(len(preview), 1)
    if isinstance(rows, DenseStore):
        return int(np.prod(rows.item_shape, dtype=np.int64)) * rows.dtype.itemsize
    return int(rows.nbytes) // max(len(rows), 1)


def _evenly(length: int, record_bytes: int, budget: int) -> npt.NDArray[np.int64]:
    """Indices of up to `budget` bytes of records, evenly over the whole."""
    count = min(length, max(1, budget // max(record_bytes, 1)))
    return np.unique(np.linspace(0, max(length - 1, 0), count).astype(np.int64))


def _bytes(record: Any) -> bytes:
    if isinstance(record, (bytes, bytearray, memoryview)):
        return bytes(record)
    array = np.asarray(record)
    if array.dtype.hasobject:
        raise ValueError(f"a record of dtype {array.dtype} has no bytes to learn from")
    return array.tobytes()
