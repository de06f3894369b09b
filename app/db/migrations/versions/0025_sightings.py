"""Sightings, strangers, events and webhooks (`app.features.watching`)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TABLES = ("events", "sightings", "strangers", "event_numbers", "event_cursors", "webhooks")


def upgrade() -> None:
    _create_strangers()
    _create_sightings()
    _create_events()
    _create_webhooks()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)


def _create_strangers() -> None:
    op.create_table(
        "strangers",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        _reference("gallery_key", "galleries.key", nullable=False),
        sa.Column("ignored", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("note", sa.Text),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.String(32), nullable=False),
        sqlite_autoincrement=True,
    )
    _index("strangers", "gallery_key")
    _index("strangers", "expires_at")


def _create_sightings() -> None:
    op.create_table(
        "sightings",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        _reference("gallery_key", "galleries.key", nullable=False),
        _reference("subject_key", "subjects.key"),
        _reference("stranger_key", "strangers.key"),
        sa.Column("camera", sa.Text, nullable=False),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("margin", sa.Float),
        sa.Column("threshold", sa.Float, nullable=False),
        sa.Column("fpir", sa.Float, nullable=False),
        sa.Column("frames", sa.Integer, nullable=False),
        sa.Column("quality", sa.Float, nullable=False),
        sa.Column("first_at", sa.String(32), nullable=False),
        sa.Column("last_at", sa.String(32), nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("said", sa.String(16)),
        sa.Column("settled", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("heard_at", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.String(32), nullable=False),
        sa.Column("crop_until", sa.String(32)),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("template", sa.LargeBinary),
        sa.Column("crop", sa.LargeBinary),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_sightings_gallery_key_key", "sightings", ["gallery_key", "key"])
    for column in ("subject_key", "stranger_key", "expires_at"):
        _index("sightings", column)


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        _reference("gallery_key", "galleries.key", nullable=False),
        _reference("sighting_key", "sightings.key", nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("camera", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    _index("events", "gallery_key")
    _index("events", "sighting_key")
    op.create_table(
        "event_numbers",
        sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "event_cursors",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("until", sa.String(32), nullable=False),
    )


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("galleries", sa.Text),
        sa.Column("kinds", sa.Text, nullable=False),
        sa.Column("cameras", sa.Text),
        sa.Column("quiet_s", sa.Float, nullable=False, server_default="0"),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("failing_since", sa.String(32)),
        sa.Column("not_before", sa.String(32), nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("delivered_at", sa.String(32)),
        sa.Column("created_at", sa.String(32), nullable=False),
        sqlite_autoincrement=True,
    )


def _reference(name: str, target: str, *, nullable: bool = True) -> sa.Column[int]:
    return sa.Column(name, KEY, sa.ForeignKey(target, ondelete="CASCADE"), nullable=nullable)


def _index(table: str, column: str) -> None:
    op.create_index(f"ix_{table}_{column}", table, [column])
