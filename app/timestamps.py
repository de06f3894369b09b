"""Times as text: UTC, ISO 8601, of equal length, so that they sort as text in the order of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

Precision = Literal["seconds", "microseconds"]
SKEW_S = 5.0
"""Maximum seconds by which the clocks of a database's servers may differ."""


def utc_now(offset: timedelta = timedelta(), precision: Precision = "microseconds") -> str:
    """Return the current time plus `offset`."""
    return utc_text(datetime.now(UTC) + offset, precision)


def utc_text(time: datetime | float, precision: Precision = "microseconds") -> str:
    """Return a time as text, such as ``2026-01-31T09:30:00.000000Z``; `time` is in seconds since 1970 or has a zone."""
    moment = time if isinstance(time, datetime) else datetime.fromtimestamp(time, UTC)
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def utc_seconds(text: str) -> float:
    """Return the seconds since 1970 of a time in the form of `utc_text`."""
    return datetime.fromisoformat(text).timestamp()
