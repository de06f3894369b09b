"""Memory that goes back to the system when nobody needs it any more.

glibc's malloc keeps much of what is freed: in each thread's arena all that lies before whatever lives on.
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
"""Bytes of an array from which on it is mapped by itself."""
HUGE_FROM = 4 * 1024 * 1024
"""Bytes from which on large pages are asked for, as NumPy does: a pass over all of it is quicker so."""
GROWTH = 1.5
RESERVED_FROM = 64 * 1024 * 1024
"""Bytes from which on what grows is given addresses for all the memory that the machine has."""


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of anything, for what grows: it goes back whole when it is replaced, and what isn't written to yet takes
    no memory. From malloc that holds for 32 MiB and more only."""
    size = math.prod(shape) * dtype.itemsize
    if size < MAPPED_FROM:
        return np.empty(shape, dtype)
    area = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # freed with the last array that shows it
    if size >= HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(area, dtype).reshape(shape)


def room_to_grow(rows: int, row: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """As `room`, for so many rows of that shape and more to come: half as many. From RESERVED_FROM on it is as many as
    the machine's memory holds, where addresses cost nothing: then all that comes finds its place, and there are never
    two copies of what is large while one is copied into the other."""
    size = math.prod(row) * dtype.itemsize
    more = int(rows * GROWTH)
    if rows * size >= RESERVED_FROM and _addresses_are_free():
        with suppress(OSError):
            return room((max(more, _installed() // size), *row), dtype)
    return room((more, *row), dtype)


def _addresses_are_free() -> bool:
    """Whether nobody counts them: neither a limit of this process nor the system, which may be set to promise no more
    memory than there is (vm.overcommit_memory 2)."""
    try:
        promises = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return False
    return promises != "2" and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def _installed() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
