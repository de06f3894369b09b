"""Databases of earlier versions, for tests."""

from __future__ import annotations

from alembic import command
from alembic.config import Config

from app.db.migrations import MIGRATIONS
from tests.support.following import engine_of


def downgrade(url: str, revision: str) -> None:
    """Undo the migrations after `revision`."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    with engine_of(url).begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
