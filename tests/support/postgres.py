"""Run a PostgreSQL server for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.db.schema import METADATA


@dataclass(frozen=True, slots=True)
class Cluster:
    """A PostgreSQL server. ``folder`` holds the socket; the superuser is ``postgres``."""

    folder: Path
    programs: Path

    def initialise(self) -> None:
        self._call("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self, *, durable: bool = False) -> None:
        """Start the server. With ``durable`` acknowledged changes are on disk, as in production."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c max_connections=200"
        speed = "" if durable else " -F -c autovacuum=off"
        self._call("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options + speed, "start")

    def kill(self) -> None:
        """Kill the server as a crash would: connections are cut, and nothing is flushed."""
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    def new_database(self, options: str = "") -> str:
        """Return the URL of a new database, made with the ``options`` of CREATE DATABASE."""
        return new_database(self.folder, options)

    def _call(self, program: str, *arguments: str) -> None:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # initdb refuses to run as root
        command = [*user, str(self.programs / program), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL)


def new_database(folder: Path, options: str = "") -> str:
    """Return the URL of a new database of the cluster whose socket is in ``folder``."""
    import psycopg  # noqa: PLC0415 - most tests do without

    name = f"likeness_{uuid.uuid4().hex}"
    with psycopg.connect(f"host={folder} user=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {options}".encode())
    return f"postgresql://postgres@/{name}?host={folder}"


def empty(url: str) -> bool:
    """Delete all rows, as if the database had only been opened. Return False if a test has changed its tables."""
    import psycopg  # noqa: PLC0415 - most tests do without
    from psycopg import sql  # noqa: PLC0415 - the same

    with psycopg.connect(url, autocommit=True) as connection:
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
        )
        connection.execute(others, [connection.info.backend_pid])
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        if {name for (name,) in found} != {*METADATA.tables, "alembic_version"}:
            return False
        for table in reversed(METADATA.sorted_tables):
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))
    return True


@contextmanager
def cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """Yield a cluster that runs until the block ends; skip the test if PostgreSQL's programs are missing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(found[-1]) if found else None)
    if initdb is None:
        pytest.skip("needs PostgreSQL's programs (Debian: apt install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="likeness-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    made = Cluster(folder, Path(initdb).parent)
    try:
        made.initialise()
        made.start(durable=durable)
        try:
            yield made
        finally:
            made.kill()
    finally:
        shutil.rmtree(folder)
