"""Ask an index for more rows until enough of them count, for features that leave some of the found subjects out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from app.search.index import WIDEN

R = TypeVar("R")


def widened(search: Callable[[Sequence[int], int], Sequence[R | None]], count: int, wanted: int) -> list[R]:
    """Search for `count` probes, and again for those with too short a result: for WIDEN times as many rows each time.

    `search` takes the probes' indexes and the number of rows, and returns for each its result, or None if more rows
    may lead to a better one.
    """
    found: dict[int, R] = {}
    while short := [place for place in range(count) if place not in found]:
        results = zip(short, search(short, wanted), strict=True)
        found |= {place: result for place, result in results if result is not None}
        wanted *= WIDEN
    return [found[place] for place in range(count)]
