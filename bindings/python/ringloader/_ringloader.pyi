import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypedDict, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from ._batch import RaggedBatch

_Path: TypeAlias = str | os.PathLike[str]
_Codec: TypeAlias = Literal["raw", "zstd", "zstd_dict"]
_Mode: TypeAlias = Literal["r", "r+"]
_Io: TypeAlias = Literal["auto", "uring", "pread", "mmap"]
_One: TypeAlias = int | np.integer[Any]
_Many: TypeAlias = (
    slice | Sequence[int] | Sequence[bool] | npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]
)

class _Stats(TypedDict):
    records: int
    live_bytes: int
    chunk_bytes: int
    reclaimable: int

class _EngineInfo(TypedDict):
    io: Literal["uring", "pread", "mmap"]
    io_reason: str
    ring_refused: str | None
    mapping: str
    depth: int
    workers: int
    pinned: bool
    cores: list[int]
    local_rank: tuple[int, int] | None
    pool_idle_bytes: int

__VERSION__: str

class _Store:
    @property
    def path(self) -> Path: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def codec(self) -> _Codec: ...
    @property
    def mode(self) -> _Mode: ...
    @property
    def closed(self) -> bool: ...
    def has_dict(self) -> bool: ...
    def __len__(self) -> int: ...
    def delete(self, idx: _One | _Many) -> None: ...
    def compact(self) -> None: ...
    def stats(self) -> _Stats: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

class DenseStore(_Store):
    @classmethod
    def create(
        cls,
        path: _Path,
        dtype: npt.DTypeLike,
        item_shape: Sequence[int],
        codec: _Codec = "zstd",
        dict_bytes: bytes | bytearray | memoryview | None = None,
    ) -> DenseStore: ...
    @classmethod
    def open(cls, path: _Path, mode: _Mode = "r+", io: _Io = "auto") -> DenseStore: ...
    @property
    def item_shape(self) -> tuple[int, ...]: ...
    def append(self, records: npt.ArrayLike) -> int: ...
    @overload
    def __getitem__(self, index: _One) -> Any: ...
    @overload
    def __getitem__(self, index: _Many) -> npt.NDArray[Any]: ...
    def gather(self, idx: _One | _Many, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]: ...
    def __getitems__(self, idx: _Many) -> npt.NDArray[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...

class RaggedStore(_Store):
    @classmethod
    def create(
        cls,
        path: _Path,
        dtype: npt.DTypeLike,
        codec: _Codec = "zstd",
        dict_bytes: bytes | bytearray | memoryview | None = None,
    ) -> RaggedStore: ...
    @classmethod
    def open(cls, path: _Path, mode: _Mode = "r+", io: _Io = "auto") -> RaggedStore: ...
    def append(self, records: Iterable[npt.ArrayLike | bytes | bytearray | memoryview]) -> int: ...
    @overload
    def __getitem__(self, index: _One) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: _Many) -> list[npt.NDArray[Any]]: ...
    def gather(
        self, idx: _One | _Many, out: npt.NDArray[np.uint8] | None = None
    ) -> list[npt.NDArray[Any]]: ...
    def gather_packed(self, idx: _One | _Many) -> RaggedBatch: ...
    def __getitems__(self, idx: _Many) -> list[npt.NDArray[Any]]: ...
    def __iter__(self) -> Iterator[npt.NDArray[Any]]: ...

def configure(
    workers: int | None = None, pin: bool | None = None, io: _Io | None = None, depth: int | None = None
) -> None: ...
def engine_info() -> _EngineInfo: ...
def train_dictionary(samples: bytes, lengths: Sequence[int], size: int) -> bytes: ...
