"""Waiting until something has come to be, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

PATIENCE_S = 60.0


def until(true: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)


def job_ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """The job, once it is over: done, failed or cancelled."""
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(client.get(f"/v1/jobs/{job}").raise_for_status().json())
        return found["state"] not in {"queued", "running"}

    until(over, 2 * PATIENCE_S)
    return found
