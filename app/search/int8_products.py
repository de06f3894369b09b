"""Products of small integers by NumKong: the processor's 8-bit instructions (VNNI, AMX), which neither numpy nor FAISS
reaches for more than one query at a time."""

from __future__ import annotations

from typing import Any, TypeAlias

import numkong
import numpy as np
from numpy.typing import NDArray

Levels: TypeAlias = NDArray[np.int8]
"""Within ±LARGEST."""
LARGEST = 127


class Columns:
    """(Q, D) levels, made ready to be multiplied by many rows."""

    def __init__(self, levels: Levels) -> None:
        self._packed: Any = numkong.dots_pack(np.ascontiguousarray(levels), dtype="int8")

    def products(self, rows: Levels) -> NDArray[np.int32]:
        """(N, Q) exact products of the rows, (N, D), N >= 1. One thread a call, any number of callers."""
        return np.asarray(numkong.dots_packed(rows, self._packed), np.int32)
