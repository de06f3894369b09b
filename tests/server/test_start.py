"""From process start to the first identification, from a snapshot and from SQL.

`python -m pytest tests/server/test_start.py --full -s` does it with 1,000,000 faces and prints the figures.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.live import LiveServer, serving
from tests.support.service import COLLINS
from tests.support.stores import fill

FEW, MANY = 20_000, 1_000_000


def identify(server: LiveServer) -> list[tuple[str, float]]:
    with server.client() as client:
        answer = client.post("/v1/galleries/many/identify", files={"image": COLLINS})
    (face,) = answer.raise_for_status().json()["faces"]
    return [(candidate["subject"], candidate["score"]) for candidate in face["candidates"]]


def start_and_identify(
    data_dir: Path, *, models: bool = True, **settings: object
) -> tuple[list[tuple[str, float]], float]:
    """The candidates, and the seconds since the process was started."""
    begin = time.monotonic()
    with serving(data_dir, settings, models=models) as server:
        candidates = identify(server)
        return candidates, time.monotonic() - begin


@pytest.mark.long
def test_the_first_identification_after_a_start(tmp_path: Path, full: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    fill(f"sqlite:///{data / 'likeness.db'}", MANY if full else FEW)
    first, _ = start_and_identify(data, models=False)  # prepares the model, and leaves a snapshot when it stops
    assert len(list((data / "snapshots").glob("*.snapshot"))) == 1
    from_snapshot, fast = start_and_identify(data)
    from_sql, slow = start_and_identify(data, SNAPSHOT_SECONDS=0)
    assert first == from_snapshot == from_sql
    assert not (data / "snapshots").exists()  # switched off, it leaves no copy
    assert "warning" not in (tmp_path / "data.log").read_text()
    print(f"first identification after {fast:.1f} s from the snapshot, {slow:.1f} s from SQL")  # noqa: T201 (what --full is for)
