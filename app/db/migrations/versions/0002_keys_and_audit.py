"""API keys and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(63), nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("galleries", sa.Text),
        sa.Column("rate", sa.Text),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("old_digest", sa.LargeBinary),
        sa.Column("old_until", sa.String(32)),
        sa.Column("declared", sa.LargeBinary),
        sa.Column("expires_at", sa.String(32)),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("rotated_at", sa.String(32)),
        sa.Column("revoked_at", sa.String(32)),
        sa.PrimaryKeyConstraint("key", name="pk_api_keys"),
        sa.UniqueConstraint("id", name="uq_api_keys_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("key", KEY, nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("who", sa.Text),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("gallery", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("target", sa.Text),
        sa.Column("status", sa.Integer),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])


def downgrade() -> None:
    for table in ("audit", "api_keys"):
        op.drop_table(table)
