"""Sixteen clients at once on a real server: enrolling, identifying, verifying and deleting, each its own people."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.live import serving
from tests.support.soak import play

pytestmark = pytest.mark.long

MINUTES, FULL_MINUTES = float(os.environ.get("LIKENESS_SOAK_MINUTES", "2")), 10.0
MIB_PER_MINUTE, FULL_MIB_PER_MINUTE = 40.0, 8.0
"""Growth of the server's memory over the second half of the time, at most: pools and the index fill up at first."""


def test_sixteen_clients_leave_index_and_database_in_step_and_memory_as_it_was(tmp_path: Path, full: bool) -> None:
    """No error, everything acknowledged is there, nothing deleted is, and the gallery is in order.

    Each client has at most fifty people at a time. `LIKENESS_SOAK_MINUTES` is how long; ten with `--full`.
    """
    with serving(tmp_path / "data") as server:
        found = asyncio.run(play(server, FULL_MINUTES if full else MINUTES))
        log = server.log.read_text()
    print(found)  # noqa: T201 (shown by `pytest -s`)
    assert found["milliseconds"].keys() == {
        "enroll", "add_face", "identify", "verify", "delete", "delete_face"
    }  # fmt: skip
    assert found["memory_mib_per_minute"] <= (FULL_MIB_PER_MINUTE if full else MIB_PER_MINUTE)
    assert found["people_as_acknowledged"]
    assert found["gallery_in_order"]
    assert '"level": "error"' not in log
    assert '"status": 500' not in log
