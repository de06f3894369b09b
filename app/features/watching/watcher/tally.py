"""Count what a camera has shown in the last hour, and report it to the service."""

from __future__ import annotations

import logging
import statistics
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from likeness_client import Client, ClientError

from app.concurrency.threads import Worker
from app.features.watching.watcher.looks import Look
from app.types import Reason

MINUTE_S: Final = 60.0
MINUTES: Final = 60
WIDTHS: Final = 50
"""Maximum number of faces' widths remembered per minute: enough for a median."""
TELL_S: Final = 30.0
FIRST_S: Final = 2.0
_log = logging.getLogger(__name__)


class Tally:
    """Counts the faces in a camera's frames, minute by minute, for an hour. Safe to share between threads."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[float, Counter[str], list[float]]] = deque(maxlen=MINUTES)
        """For each minute: when it began, the counts, and faces' widths in pixels."""
        self._lock = threading.Lock()

    def add(self, looks: Sequence[Look], at: float) -> None:
        """Count the faces of a frame; ``at`` is its time in seconds on the monotonic clock."""
        poor = [reason.value for look in looks if not look.usable for reason in look.quality.reasons]
        with self._lock:
            if not self._minutes or at - self._minutes[-1][0] >= MINUTE_S:
                self._minutes.append((at, Counter(), []))
            _, counts, widths = self._minutes[-1]
            counts.update(poor, frames=1, faces=len(looks), usable=sum(look.usable for look in looks))
            widths += [look.box.width for look in looks][: WIDTHS - len(widths)]

    def report(self, now: float) -> dict[str, Any]:
        """Return the last hour's counts as `app.features.watching.schemas.CameraReport` has them."""
        with self._lock:
            recent = [minute for minute in self._minutes if now - minute[0] < MINUTES * MINUTE_S]
            widths = [width for *_, kept in recent for width in kept]
            counts = sum((counts for _, counts, _ in recent), Counter[str]())
        return {
            **{name: counts[name] for name in ("frames", "faces", "usable")},
            "width": round(statistics.median(widths), 1) if widths else None,
            "reasons": {reason.value: counts[reason.value] for reason in Reason if counts[reason.value]},
        }


def telling(service: Client, gallery: str, cameras: Callable[[], Sequence[Mapping[str, Any]]]) -> Worker:
    """Start and return a thread that reports the cameras' state to the service. A failed report is not repeated: the
    next one covers its hour too.

    ``cameras`` returns the reports as `app.features.watching.schemas.CameraTold` has them.
    """

    def tell() -> float:
        try:
            if told := cameras():
                service.tell_cameras(gallery, told)
        except ClientError as error:
            _log.info("The service was not told how the cameras are: %s", error)
        return TELL_S

    worker = Worker("telling", tell)
    worker.wake(FIRST_S)
    return worker
