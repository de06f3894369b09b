"""Wait until a condition is true, even on a slow machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

PATIENCE_S = 60.0
OFTEN_S = 0.01
SELDOM_S = 0.2


def until(true: Callable[[], object], patience_s: float = PATIENCE_S, longest_pause_s: float = OFTEN_S) -> None:
    """Wait until ``true`` returns something true.

    A condition that stays true may be checked at growing intervals, since each check takes processor time from the
    work that it waits for.
    """
    end, pause_s = time.monotonic() + patience_s, OFTEN_S
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, longest_pause_s)


def job_ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """Wait until the job is done, failed or cancelled, and return it."""
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(client.get(f"/v1/jobs/{job}").raise_for_status().json())
        return found["state"] not in {"queued", "running"}

    until(over, 2 * PATIENCE_S, SELDOM_S)
    return found
