"""Integers and strings in files, written piece by piece and mapped into memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

FORMAT = 3
"""Version of the format: raise it when such files change, so that indexes are remade."""


def append_numbers(file: BinaryIO, values: ArrayLike) -> None:
    """Append (n,) integers to a file, for `open_array`."""
    np.ascontiguousarray(values, np.int64).tofile(file)


def open_array(path: Path, mode: Literal["r", "r+"] = "r") -> NDArray[np.int64]:
    """Map a file of int64 numbers."""
    return np.memmap(path, np.int64, mode) if path.stat().st_size else np.empty(0, np.int64)


class StringWriter:
    """Appends to a list of strings: their UTF-8 bytes in `NAME.bin`, the end of each in `NAME.i64`."""

    def __init__(self, path: Path) -> None:
        self._bytes, self._ends = (path.with_suffix(suffix).open("wb") for suffix in (".bin", ".i64"))
        self._at = 0

    def append(self, strings: Iterable[str]) -> None:
        encoded = [text.encode("utf-8", "surrogateescape") for text in strings]
        ends = list(itertools.accumulate(map(len, encoded), initial=self._at))[1:]
        self._bytes.write(b"".join(encoded))
        append_numbers(self._ends, ends)
        self._at = ends[-1] if ends else self._at

    def close(self) -> None:
        self._bytes.close()
        self._ends.close()


class Strings(Sequence[str]):
    """Reads the strings of a `StringWriter`, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self._ends = open_array(path.with_suffix(".i64"))
        file = path.with_suffix(".bin")
        self._bytes = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # raises IndexError beyond the end
        start = int(self._ends[place - 1]) if place else 0
        return self._bytes[start : int(self._ends[place])].tobytes().decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # unhashable, as lists are
