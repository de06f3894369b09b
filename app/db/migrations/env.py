"""Alembic runs this; the connection, its transaction begun, comes from `app.db.engine`."""

from __future__ import annotations

from alembic import context

from app.db.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,  # SQLite's too: the store begins its transactions itself
)
with context.begin_transaction():
    context.run_migrations()
