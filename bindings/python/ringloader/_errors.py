"""The exceptions of stores. The engine raises them; their codes are the reference's."""

from __future__ import annotations

_TEXTS = {
    -1: "out of memory",
    -2: "file I/O failed",
    -3: "index out of range",
    -4: "record exceeds the 2147483648 byte limit",
    -5: "store is full",
    -6: "buffer too small",
    -7: "stored record failed to decode",
    -8: "not a valid store",
    -9: "zstd dictionary training failed (too few or too small samples)",
    -11: "store not found",
    -12: "store already exists",
    -13: "store is busy (already open by another handle or process)",
}


class ZrecordError(RuntimeError):
    """A store could not do what was asked.

    Attributes
    ----------
    code : int
        -1 out of memory, -2 I/O failed, -3 index out of range, -4 record over 2 GiB, -5 store full, -6 buffer
        too small, -7 record failed to decode, -8 not a valid store, -9 dictionary training failed, -12 already
        exists, -13 busy. (-11, not found, is raised as `FileNotFoundError`.)
    """

    code: int

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(message or _TEXTS.get(code, f"unknown error {code}"))
        self.code = code

    def __reduce__(self) -> tuple[type[ZrecordError], tuple[int, str]]:
        return type(self), (self.code, str(self))


class ZrecordIndexError(ZrecordError, IndexError):
    """An index that names no record: a `ZrecordError` of code -3 that is an `IndexError` too."""
