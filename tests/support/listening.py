"""What a service in this process asks its database.

Tests share a service whose threads ask its own database now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa


@contextmanager
def listening(database: str, **listeners: Callable[..., None]) -> Iterator[None]:
    """Call a listener for each event of SQLAlchemy that has its name, if the event's database is this one.

    ``database`` is a URL, or a folder with SQLite's file.
    """
    name = sa.make_url(database).database if "://" in database else database

    def only_here(listener: Callable[..., None]) -> Callable[..., None]:
        def heard(connection: sa.Connection, *others: Any) -> None:
            if str(connection.engine.url.database).startswith(str(name)):
                listener(connection, *others)

        return heard

    chosen = {event: only_here(listener) for event, listener in listeners.items()}
    for event, listener in chosen.items():
        sa.event.listen(sa.Engine, event, listener)
    try:
        yield
    finally:
        for event, listener in chosen.items():
            sa.event.remove(sa.Engine, event, listener)
