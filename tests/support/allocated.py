"""How much memory Python's objects take during a piece of work."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

TRIES = 3


def peak_bytes(work: Callable[[], object], allowed: float) -> int:
    """Return the most bytes that Python's objects took while ``work`` ran.

    The threads of other services in this process count too, for a moment now and then. So the work runs again if it
    seems to have taken more than ``allowed``, and the least of its peaks is returned.
    """
    peaks = list[int]()
    while len(peaks) < TRIES and (not peaks or min(peaks) > allowed):
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
