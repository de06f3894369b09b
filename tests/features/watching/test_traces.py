"""What has expired leaves no byte of a template or crop in any file: subjects, sightings, strangers."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.db.engine import MARK_BITS, Database
from app.db.schema import CROPS, FACES, METADATA, SIGHTINGS, STRANGERS, SUBJECTS
from app.search.snapshots import Snapshots
from tests.support.following import PAST, engine_of
from tests.support.postgres import new_database
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled, running
from tests.support.sighted import HOME, make_home, told
from tests.support.waiting import until

LATER = "2999-01-01T00:00:00Z"
PIECE = 64
"""Bytes of a template or crop that are looked for: of 16 numbers, or of the pixels' codes. SQLite may keep the rest of
a blob on another page."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'data' / 'likeness.db'}"
    return new_database(request.getfixturevalue("postgresql"))


def pieces(url: str) -> dict[str, bytes]:
    """A piece of each stored template and crop, by what it is of."""
    found = {}
    with engine_of(url).connect() as connection:
        for column in (FACES.c.template, CROPS.c.jpeg, SIGHTINGS.c.template, SIGHTINGS.c.crop):
            for number, blob in enumerate(connection.execute(sa.select(column)).scalars()):
                found[f"{column} {number}"] = bytes(blob)[-PIECE - 200 : -200]
    return found


def files_of(data_dir: Path, url: str) -> list[Path]:
    """All files of the data folder, and those of the tables where PostgreSQL has them."""
    files = [path for path in data_dir.rglob("*") if path.is_file()]
    if url.startswith("postgresql"):
        with engine_of(url).connect() as connection:
            folder = Path(connection.exec_driver_sql("SHOW data_directory").scalar_one())
            own = connection.exec_driver_sql("SELECT oid FROM pg_database WHERE datname = current_database()")
            files += [path for path in (folder / "base" / str(own.scalar_one())).iterdir() if path.is_file()]
    return files


def left(data_dir: Path, url: str, wanted: dict[str, bytes]) -> dict[str, list[str]]:
    """The names of the files that hold each of the pieces, of those that any holds."""
    contents = {path.name: path.read_bytes() for path in files_of(data_dir, url)}
    holding = {what: [name for name, content in contents.items() if piece in content] for what, piece in wanted.items()}
    return {what: names for what, names in holding.items() if names}


def let_end(url: str, **where: sa.ColumnElement[bool]) -> None:
    """Have the end come of rows, as `following.let_expire` does."""
    tables = {"subjects": SUBJECTS, "sightings": SIGHTINGS, "strangers": STRANGERS}
    with engine_of(url).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA user_version = {secrets.randbits(MARK_BITS)}")
        for name, condition in where.items():
            connection.execute(sa.update(tables[name]).where(condition).values(expires_at=PAST))


def rewrite(url: str) -> None:
    """Have PostgreSQL write its tables anew, as its operator does: until then old rows stay in its files."""
    if url.startswith("postgresql"):
        with closing(Database(url)) as database:
            database.vacuum([table.name for table in METADATA.sorted_tables], full=True)
        with engine_of(url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("CHECKPOINT")


def test_expired_subjects_sightings_and_strangers_leave_no_byte(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Snapshots.__init__, "__kwdefaults__", {"min_faces": 1, "sealer": None})
    data_dir = tmp_path / "data"
    settings: dict[str, Any] = {
        "database_url": database_url,
        "expiry_seconds": 0.2,
        "snapshot_seconds": 0.2,
        "stranger_days": 3,
    }
    with running(data_dir, watching="on", **settings) as api:
        make_home(api)
        enrolled(api, HOME, "eileen", COLLINS, expires_at=LATER)
        told(api, AGAIN, AGAIN, ended=True)
        stranger = told(api, HOPPER, HOPPER, ended=True)["stranger"]
        assert stranger is not None
        gone = pieces(database_url)
        assert len(gone) == 6
        until(lambda: list(data_dir.rglob("*.snapshot")))
        rewrite(database_url)
        before = left(data_dir, database_url, gone)
        assert before.keys() == gone.keys(), "the search finds what there is"
        assert any(name.endswith(".snapshot") for name in before[f"{FACES.c.template} 0"])
        let_end(database_url, subjects=SUBJECTS.c.id == "eileen")
        until(lambda: not _listed(api, "subjects"))
        let_end(database_url, sightings=SIGHTINGS.c.stranger_key.is_(None), strangers=STRANGERS.c.id == stranger)
        until(lambda: not _listed(api, "sightings") and not _listed(api, "strangers"))

        def is_clean() -> bool:
            rewrite(database_url)  # anew: what has expired is listed no more, and deleted a moment later
            return not left(data_dir, database_url, gone)

        until(is_clean)
    assert left(data_dir, database_url, gone) == {}


def _listed(api: httpx.Client, what: str) -> list[object]:
    rows: list[object] = api.get(f"{HOME}/{what}").raise_for_status().json()[what]
    return rows
