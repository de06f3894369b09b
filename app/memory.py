"""Allocate large arrays whose memory returns to the system when they are freed.

glibc's malloc keeps much freed memory: in each thread's arena, everything before the last used block.
"""

from __future__ import annotations

import math
import mmap
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAPPED_FROM = 1024 * 1024
"""Arrays of at least this size, in bytes, get their own memory mapping."""
HUGE_FROM = 4 * 1024 * 1024
"""Mappings of at least this size, in bytes, ask for large pages, as NumPy's do, which makes a pass over them faster."""
GROWTH = 1.5
RESERVED_FROM = 64 * 1024 * 1024
"""Growing arrays of at least this size, in bytes, reserve addresses for all of the machine's memory. So an index of
1,000,000 vectors peaks at 565 MB, not 994, and pauses for at most 0.3 s while it grows, not 4 s."""


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an uninitialised array. Its memory returns to the system when it is freed; unwritten pages take none.

    malloc guarantees that only from 32 MiB on.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < MAPPED_FROM:
        return np.empty(shape, dtype)
    area = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # freed with the last array that shows it
    if size >= HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(area, dtype).reshape(shape)


def room_to_grow(rows: int, row: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array as `room` does, with space for one and a half times the rows.

    From RESERVED_FROM bytes on it has space for as many rows as fit in the machine's memory, if addresses are free, so
    that it never has to be copied into a larger array while both are in memory.
    """
    size = math.prod(row) * dtype.itemsize
    more = int(rows * GROWTH)
    if rows * size >= RESERVED_FROM and _addresses_are_free():
        with suppress(OSError):
            installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            return room((max(more, installed // size), *row), dtype)
    return room((more, *row), dtype)


def _addresses_are_free() -> bool:
    """Return whether unused addresses cost nothing: no limit on this process, and no vm.overcommit_memory 2."""
    try:
        promises = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return False
    return promises != "2" and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
