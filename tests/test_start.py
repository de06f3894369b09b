"""From process start to the first identification, from a snapshot and from SQL.

`python -m pytest tests/test_start.py --full -s` does it with 1,000,000 faces and prints the figures.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import httpx
import numpy as np
import sqlalchemy as sa

from app.gallery.store import Store
from app.gallery.tables import FACES, SUBJECTS
from app.runtime.package import find_packages, select
from tests.conftest import PROJECT
from tests.following import engine_of
from tests.live import LiveServer, serving
from tests.service import COLLINS

DIMENSION = 128
FEW, MANY = 20_000, 1_000_000
AT_ONCE = 10_000
NOW = "2026-01-01T00:00:00.000000Z"


def fill(url: str, count: int) -> None:
    """A gallery of `count` subjects with a face each, random unit vectors, straight into SQL."""
    store = Store(url)
    package = select(find_packages(PROJECT / "models"), "sface").id
    gallery = store.create_gallery("many", package, DIMENSION, "none")
    store.close()
    generator = np.random.default_rng(1)
    with engine_of(url).begin() as connection:
        for start in range(1, count, AT_ONCE):
            vectors = generator.standard_normal((AT_ONCE, DIMENSION), dtype=np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            keys = range(start, start + AT_ONCE)
            whose = {"gallery_key": gallery.key, "created_at": NOW}
            subject = whose | {"name": None, "metadata": "{}", "updated_at": NOW}
            face = whose | {
                "package": package,
                "quality": 50.0,
                "reasons": "[]",
                "x": 0,
                "y": 0,
                "width": 1,
                "height": 1,
            }
            connection.execute(
                sa.insert(SUBJECTS), [subject | {"key": key, "id": f"s{key}", "folded": f"s{key}"} for key in keys]
            )
            connection.execute(
                sa.insert(FACES),
                [
                    face | {"key": key, "subject_key": key, "face_id": uuid.uuid4().hex, "template": vector.tobytes()}
                    for key, vector in zip(keys, vectors, strict=True)
                ],
            )
        if connection.dialect.name == "postgresql":  # which numbers on from where it stopped numbering by itself
            for table in (SUBJECTS, FACES):
                name = table.name
                connection.execute(
                    sa.text(f"SELECT setval(pg_get_serial_sequence('{name}', 'key'), (SELECT max(key) FROM {name}))")  # noqa: S608 (names of our own tables)
                )


def identify(server: LiveServer) -> list[tuple[str, float]]:
    answer = httpx.post(
        f"{server.url}/v1/galleries/many/identify",
        content=COLLINS,
        headers={"x-api-key": server.key, "content-type": "image/jpeg"},
        timeout=60,
    )
    (face,) = answer.raise_for_status().json()["faces"]
    return [(candidate["subject"], candidate["score"]) for candidate in face["candidates"]]


def start_and_identify(data_dir: Path, **settings: object) -> tuple[list[tuple[str, float]], float]:
    """The candidates, and the seconds since the process was started."""
    begin = time.monotonic()
    with serving(data_dir, settings) as server:
        candidates = identify(server)
        return candidates, time.monotonic() - begin


def test_the_first_identification_after_a_start(tmp_path: Path, full: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    fill(f"sqlite:///{data / 'likeness.db'}", MANY if full else FEW)
    first, _ = start_and_identify(data)  # prepares the model, and leaves a snapshot when it stops
    assert len(list((data / "snapshots").glob("*.snapshot"))) == 1
    from_snapshot, fast = start_and_identify(data)
    from_sql, slow = start_and_identify(data, SNAPSHOT_SECONDS=0)
    assert first == from_snapshot == from_sql
    assert not (data / "snapshots").exists()  # switched off, it leaves no copy
    assert "warning" not in (tmp_path / "data.log").read_text()
    print(f"first identification after {fast:.1f} s from the snapshot, {slow:.1f} s from SQL")  # noqa: T201 (what --full is for)
