"""Remember failed attempts to open model packages, so that they are not repeated at once."""

from __future__ import annotations

import time

from app.errors import LikenessError

RETRY_S = 5.0
"""Seconds until a package that failed to open is tried again: each attempt hashes its file, which may be large."""


class Attempts:
    """The last failure to open something. For one thread at a time."""

    def __init__(self) -> None:
        self._failure: LikenessError | None = None
        self._failed_at = 0.0

    def check(self, retry_s: float) -> None:
        """Raise the last failure if it is younger than ``retry_s`` seconds."""
        if self._failure is not None and time.monotonic() - self._failed_at < retry_s:
            raise self._failure.with_traceback(None)

    def failed(self, error: LikenessError) -> None:
        """Remember the error for the next attempts."""
        self._failure, self._failed_at = error, time.monotonic()
