"""The tables of version 0.2.0 for watching cameras (`app.features.watching`) and for sign-ins that last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from app.db.migrations.tables import ID, KEY, TIME, numbered, owner, table

revision = "0028"
down_revision = "0024"


def upgrade() -> None:
    _create_sign_ins()
    _create_sightings()
    _create_events()
    _create_webhooks()


def _create_sign_ins() -> None:
    op.drop_table("sign_in_codes")  # a code lasts minutes
    table(
        "sign_ins",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
    )


def _create_sightings() -> None:
    numbered(
        "strangers",
        sa.Column("id", ID, nullable=False, unique=True),
        owner("gallery_key", KEY, "galleries.key"),
        sa.Column("ignored", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("note", sa.Text),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "expires_at"),
    )
    numbered(
        "sightings",
        sa.Column("id", ID, nullable=False, unique=True),
        owner("gallery_key", KEY, "galleries.key"),
        owner("subject_key", KEY, "subjects.key", nullable=True),
        owner("stranger_key", KEY, "strangers.key", nullable=True),
        sa.Column("camera", sa.Text, nullable=False),
        sa.Column("zone", sa.Text),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("margin", sa.Float),
        sa.Column("threshold", sa.Float, nullable=False),
        sa.Column("fpir", sa.Float, nullable=False),
        sa.Column("frames", sa.Integer, nullable=False),
        sa.Column("quality", sa.Float, nullable=False),
        sa.Column("first_at", TIME, nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("said", sa.String(16)),
        sa.Column("settled", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("heard_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("crop_until", TIME),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("template", sa.LargeBinary),
        sa.Column("crop", sa.LargeBinary),
        sa.Index(None, "gallery_key", "key"),
        sa.Index(None, "subject_key"),
        sa.Index(None, "stranger_key"),
        sa.Index(None, "expires_at"),
    )
    table(
        "cameras",
        owner("gallery_key", KEY, "galleries.key", primary=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("told_at", TIME, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )


def _create_events() -> None:
    table(
        "events",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", ID, nullable=False, unique=True),
        owner("gallery_key", KEY, "galleries.key"),
        owner("sighting_key", KEY, "sightings.key"),
        sa.Column("subject_key", KEY),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("camera", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "sighting_key"),
    )
    table(
        "event_numbers",
        sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
    )
    table(
        "event_cursors",
        sa.Column("name", ID, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("until", TIME, nullable=False),
    )


def _create_webhooks() -> None:
    numbered(
        "webhooks",
        sa.Column("id", ID, nullable=False, unique=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("galleries", sa.Text),
        sa.Column("kinds", sa.Text, nullable=False),
        sa.Column("cameras", sa.Text),
        sa.Column("personal", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("quiet_s", sa.Float, nullable=False, server_default="0"),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("failing_since", TIME),
        sa.Column("not_before", TIME, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("delivered_at", TIME),
        sa.Column("created_at", TIME, nullable=False),
    )
    table(
        "webhook_subjects",
        owner("webhook_key", KEY, "webhooks.key", primary=True),
        owner("subject_key", KEY, "subjects.key", primary=True),
        sa.Index(None, "subject_key"),
    )
