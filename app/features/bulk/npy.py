"""Read and write NumPy's file format as a stream of rows."""

from __future__ import annotations

import io
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy

from app.errors import InvalidInput
from app.features.tar_stream import PieceReader
from app.types import Vectors

DTYPES = frozenset({"float16", "float32", "float64"})
MAX_HEADER = 4096
"""Maximum bytes of a header; numpy writes 118 bytes for an array of floats."""
SKIP_BYTES = 1024 * 1024


class RowReader:
    """Reads the rows of an .npy file with a (rows, dimension) array of float16, float32 or float64.

    Raises InvalidInput ``invalid_archive`` for any other content, ``invalid_template`` for rows of another length.
    """

    def __init__(self, file: PieceReader, dimension: int) -> None:
        self._file = file
        try:
            shape, in_columns, dtype = _read_header(file)
        except (
            ValueError,
            TypeError,
            SyntaxError,
            TokenError,
            RecursionError,
            MemoryError,
        ) as error:  # numpy parses the header as an expression, which may raise any of these
            raise InvalidInput("The templates are not a NumPy file.", code="invalid_archive") from error
        if len(shape) != 2 or shape[0] < 0 or in_columns or dtype.name not in DTYPES:
            message = "Templates must be a two-dimensional array of floats in C order."
            raise InvalidInput(message, code="invalid_archive")
        if shape[1] != dimension:
            message = f"The gallery's templates have {dimension} numbers, not {shape[1]}."
            raise InvalidInput(message, code="invalid_template")
        self._dtype = dtype
        self._dimension = dimension
        self.count = int(shape[0])

    def read(self, rows: int) -> Vectors:
        """Return the next rows, (rows, dimension) float32. Raises InvalidInput ``invalid_archive`` if there are
        fewer."""
        size = rows * self._dimension * self._dtype.itemsize
        data = self._file.read(size)
        if len(data) != size:
            raise InvalidInput("The templates are truncated.", code="invalid_archive")
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # values beyond float32's range become inf; such templates are rejected later
            return np.frombuffer(data, self._dtype).reshape(rows, self._dimension).astype(np.float32)

    def skip(self, rows: int) -> None:
        """Skip rows. Raises what `read` raises."""
        left = rows * self._dimension * self._dtype.itemsize
        while left:
            piece = self._file.read(min(left, SKIP_BYTES))
            if not piece:
                raise InvalidInput("The templates are truncated.", code="invalid_archive")
            left -= len(piece)


def _read_header(file: PieceReader) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order, and dtype. The header's length is limited: numpy alone would read up to 4 GiB."""
    opened: Any = file  # numpy calls only `read`
    version = npy.read_magic(opened)
    prefix = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        raise ValueError("The header is too long.")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return read(io.BytesIO(prefix + file.read(length)))


def head(rows: int, dimension: int) -> bytes:
    """Return the .npy header of a (rows, dimension) array of little-endian float32."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)})
    return file.getvalue()
