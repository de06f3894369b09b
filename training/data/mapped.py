"""Arrays and strings in files, written piece by piece and mapped into memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray


class ArrayWriter:
    """Appends to a one-dimensional `.npy` file whose length is not known before."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self._count = 0
        self._write_header()
        self._start = self._file.tell()

    def append(self, values: Sequence[int] | NDArray[np.generic]) -> None:
        array = np.ascontiguousarray(values, self._dtype)
        array.tofile(self._file)
        self._count += len(array)

    def close(self) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()
            # NumPy pads the header of an array that may grow, so that its length can be written again in its place.
            if self._file.tell() != self._start:
                raise AssertionError("the header has grown")

    def _write_header(self) -> None:
        shape = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._count,)}
        npy.write_array_header_1_0(self._file, shape)


class StringWriter:
    """Appends to a list of strings: their UTF-8 bytes in `NAME.bin`, where each ends in `NAME.npy`."""

    def __init__(self, path: Path) -> None:
        self._bytes = path.with_suffix(".bin").open("wb")
        self._ends = ArrayWriter(path.with_suffix(".npy"), np.int64)
        self._at = 0

    def append(self, strings: Iterable[str]) -> None:
        encoded = [text.encode("utf-8", "surrogateescape") for text in strings]
        ends = list(itertools.accumulate(map(len, encoded), initial=self._at))[1:]
        self._bytes.write(b"".join(encoded))
        self._ends.append(np.array(ends, np.int64))
        self._at = ends[-1] if ends else self._at

    def close(self) -> None:
        self._bytes.close()
        self._ends.close()


class Strings(Sequence[str]):
    """What a `StringWriter` wrote, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self._ends = open_array(path.with_suffix(".npy"))
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

    __hash__ = None  # type: ignore[assignment]  # as lists


def open_array(path: Path) -> NDArray[np.int64]:
    """Map a `.npy` file of whole numbers, read-only."""
    array: NDArray[np.int64] = np.load(path, mmap_mode="r")
    return array
