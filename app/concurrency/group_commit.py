"""Group commit: what one caller at a time can do is done for all who wait for it at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.errors import Conflict, InvalidInput, LikenessError, NotFound

T = TypeVar("T")
R = TypeVar("R")

MOST = 64
"""Items in one go: the first of them waits for the others."""
OWN_FAULTS = (InvalidInput, NotFound, Conflict)
"""One item's own, and said before anything is written: the others are done without it."""


@dataclass(slots=True)
class _Waiting(Generic[T, R]):
    item: T
    results: list[R] = field(default_factory=list)
    error: Exception | None = None
    woken: threading.Event = field(default_factory=threading.Event)
    """It is done, or its thread is to do what waits."""

    @property
    def is_done(self) -> bool:
        return bool(self.results) or self.error is not None


class GroupCommit(Generic[T, R]):
    """Safe to share between threads; `most` is how many items are done in one go, 1 for each by itself."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lines: dict[Hashable, list[_Waiting[T, R]]] = {}  # of each kind that is worked on: what waits meanwhile
        self._guard = threading.Lock()

    def run(self, kind: Hashable, item: T, work: Callable[[Sequence[T]], Sequence[R]]) -> R:
        """The item's result. `work`, all or nothing, is called with the items of one kind that wait, from one thread
        at a time; where it raises one of OWN_FAULTS for several, it is called for each of them by itself. Other errors
        are everybody's."""
        mine: _Waiting[T, R] = _Waiting(item)
        with self._guard:
            is_first = kind not in self._lines
            self._lines.setdefault(kind, []).append(mine)
        if not is_first:
            mine.woken.wait()
        if not mine.is_done:  # then it is the first that waits
            try:
                self._work(kind, work)
            finally:
                self._hand_over(kind)
        if mine.error is not None:
            raise mine.error.with_traceback(None)
        return mine.results[0]

    def _work(self, kind: Hashable, work: Callable[[Sequence[T]], Sequence[R]]) -> None:
        with self._guard:
            line = self._lines[kind]
            batch, line[:] = line[: self._most], line[self._most :]
        try:
            if not _try(batch, work):
                for one in batch:
                    _try([one], work)
        finally:
            for one in batch:
                if not one.is_done:  # this thread is told to stop: nobody may wait for ever
                    one.error = LikenessError("The work was not finished.")
                one.woken.set()

    def _hand_over(self, kind: Hashable) -> None:
        """To the first that has come meanwhile: who is done waits for nobody's work."""
        with self._guard:
            if line := self._lines[kind]:
                line[0].woken.set()
            else:
                del self._lines[kind]


def _try(batch: Sequence[_Waiting[T, R]], work: Callable[[Sequence[T]], Sequence[R]]) -> bool:
    """False where each should be tried by itself."""
    try:
        results = work([one.item for one in batch])
    except OWN_FAULTS as error:
        if len(batch) > 1:
            return False
        batch[0].error = error
    except Exception as error:  # noqa: BLE001 (the worker's edge: whoever waits hears of it)
        for one in batch:
            one.error = error
    else:
        for one, result in zip(batch, results, strict=True):
            one.results.append(result)
    return True
