"""The packed form of a ragged batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class RaggedBatch(NamedTuple):
    """Records of different shapes in one array, for kernels that take ragged input.

    Record ``i`` is ``values[offsets[i]:offsets[i + 1]]``, with the shape in row ``i`` of ``shapes``.
    """

    values: npt.NDArray[Any]
    """The elements of all records, one record behind the other: ``(elements,)`` of the store's dtype."""

    offsets: npt.NDArray[np.int64]
    """Where each record begins in `values`, and where the last ends, in elements: ``(records + 1,)``."""

    shapes: npt.NDArray[np.int64]
    """The shape of each record: ``(records, axes)``, with -1 for axes that a record does not have."""
