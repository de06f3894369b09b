"""Report tracks to the service; while it can't be reached, reports wait and are sent later."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from likeness_client import ApiError, Client, Unreachable

from app.concurrency.threads import Worker
from app.errors import LikenessError, Unusable
from app.features.surroundings import to_jpeg
from app.features.watching.watcher.looks import Look
from app.types import utc_text

MOST: Final = 500
"""Maximum number of waiting tracks, of about 100 kB each. A further one replaces the oldest, and this is logged."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
"""The first and the longest wait, in seconds, before the service is tried again; doubled each time."""
EXPECTED: Final = frozenset({"no_face", "sighting_not_found"})
"""Codes of refusals that need nobody's attention: of a track without a usable face, and news of such a track."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """A report on a track. Times are in seconds since 1970; ``looks`` is empty if the service need not decide again."""

    track: str
    camera: str
    began: float
    last: float
    ended: bool
    looks: tuple[Look, ...] = ()
    zone: str | None = None
    """The camera's zone in which the face was last."""

    def after(self, other: Report) -> Report:
        """Return this report merged with an earlier one of the same track."""
        began, ended = min(self.began, other.began), self.ended or other.ended
        looks, zone = self.looks or other.looks, self.zone or other.zone
        return replace(self, began=began, ended=ended, looks=looks, zone=zone)


class Reporter:
    """A thread that sends waiting reports to the service. Safe to share between threads."""

    def __init__(
        self, service: Client, gallery: str, answered: Callable[[Report, Any], None] = lambda *_: None
    ) -> None:
        """``answered`` is called with each report that the service has taken, and its answer."""
        self._service, self._gallery, self._answered = service, gallery, answered
        self._due: OrderedDict[str, Report] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        """The tracks that the service already knows, at most MOST. Reports on other tracks are sent first."""
        self._changed = threading.Condition()
        self._busy = False
        self._wait_s, self._not_before = FIRST_WAIT_S, 0.0
        self._worker = Worker("reporter", self._tell_next)

    def tell(self, report: Report) -> None:
        """Report a track, together with earlier reports of it that were not sent yet."""
        with self._changed:
            self._due[report.track] = report.after(self._due.pop(report.track, report))
            if len(self._due) > MOST:
                self._due.popitem(last=False)
                _log.warning("The service is away for too long: a track was dropped")
        self._worker.wake(max(0.0, self._not_before - time.monotonic()))

    def wait(self, timeout_s: float) -> bool:
        """Wait until all reports are sent; return False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._due and not self._busy, timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Send the waiting reports for at most ``timeout_s`` seconds, then end.

        Raises Unusable if it didn't take all of them.
        """
        is_empty = self.wait(timeout_s)
        self._worker.close(timeout_s)
        if not is_empty:
            left = len(self._due) + self._busy
            raise Unusable(f"The service did not take the reports on {left} visits in time.", code="unusable")

    def _tell_next(self) -> float | None:
        """Report a track to the service; return the seconds until the next call, or None if no report waits."""
        with self._changed:
            if not self._due:
                return None
            self._busy = True
            first = next((track for track in self._due if track not in self._known), next(iter(self._due)))
            report = self._due.pop(first)
        try:
            return self._tell(report)
        finally:  # also if `answered` raises, as when nobody reads what it prints any more
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _tell(self, report: Report) -> float:
        try:
            answer = self._send(report)
        except (Unreachable, ApiError, LikenessError) as error:
            if not _is_final(error, report):
                _log.warning("The service is tried again: %s", error)
                self._put_back(report)
                wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
                self._not_before = time.monotonic() + wait_s
                return wait_s
            level = logging.INFO if getattr(error, "code", None) in EXPECTED else logging.WARNING
            _log.log(level, "A track was not taken: %s", error)
        else:
            self._wait_s = FIRST_WAIT_S
            self._known[report.track] = None
            if len(self._known) > MOST:
                self._known.popitem(last=False)
            self._answered(report, answer)
        return 0.0

    def _send(self, report: Report) -> Any:
        if not report.looks:
            changes = {"last_at": utc_text(report.last), "ended": report.ended, "zone": report.zone}
            return self._service.hear_sighting(self._gallery, report.track, changes)
        return self._service.tell_sighting(
            self._gallery,
            report.track,
            images=[to_jpeg(look.photo) for look in report.looks],
            camera=report.camera,
            zone=report.zone,
            first_at=datetime.fromtimestamp(report.began, UTC),
            last_at=datetime.fromtimestamp(report.last, UTC),
            ended=report.ended,
        )

    def _put_back(self, report: Report) -> None:
        with self._changed:
            self._due[report.track] = self._due.pop(report.track, report).after(report)
            self._due.move_to_end(report.track, last=False)
            self._busy = False


def _is_final(error: Exception, report: Report) -> bool:
    """Return whether the service will never accept the report, such as one without a usable face."""
    if not isinstance(error, ApiError) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return False
    if error.status == HTTPStatus.NOT_FOUND:
        # If the report has looks, the gallery is missing or watching is off, which a person may still correct.
        return not report.looks
    return error.status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
