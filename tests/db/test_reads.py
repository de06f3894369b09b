"""Reading: what one query costs the database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import GALLERIES
from app.errors import DatabaseBusy


def test_a_single_query_begins_and_ends_no_transaction(tmp_path: Path) -> None:
    """Each statement on SQLite hands Python's lock over several times: two less for every answer."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        statements.append(statement)

    with closing(Database(f"sqlite:///{tmp_path / 'likeness.db'}")) as database:
        sa.event.listen(database._engine, "before_cursor_execute", note)
        try:
            assert database.rows(sa.select(GALLERIES.c.id)) == []
            assert len(statements) == 1
            with database.read(one_moment=True) as connection:
                connection.execute(sa.select(GALLERIES.c.id)).all()
            assert "BEGIN" in statements
        finally:
            sa.event.remove(database._engine, "before_cursor_execute", note)


def test_whoever_finds_every_connection_taken_is_told_that_the_database_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.opening.POOL_SIZE", 1)
    with closing(Database(f"sqlite:///{tmp_path / 'likeness.db'}")) as database:
        assert database.scrub()  # nothing else takes a connection any more
        monkeypatch.setattr(database._engine.pool, "_timeout", 0.01)
        with database.read(), database.read():
            for open_one in (database.connect, database.read, database.write):
                with pytest.raises(DatabaseBusy, match="All database connections are busy"), open_one():
                    raise AssertionError
            assert not database._scrub_once()
        with database.write(), database.connect() as connection:
            assert connection.execute(sa.select(GALLERIES.c.id)).all() == []
