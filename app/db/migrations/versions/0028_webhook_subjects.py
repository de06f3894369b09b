"""Webhooks of some people alone (`app.features.watching`): they go with their subject."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("personal", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "webhook_subjects",
        _key("webhook_key", "webhooks.key"),
        _key("subject_key", "subjects.key"),
    )
    op.create_index("ix_webhook_subjects_subject_key", "webhook_subjects", ["subject_key"])


def downgrade() -> None:
    """A webhook of some people goes: without them it would get what happens to everybody."""
    op.execute("DELETE FROM webhooks WHERE personal")
    op.drop_table("webhook_subjects")
    op.drop_column("webhooks", "personal")


def _key(name: str, target: str) -> sa.Column[int]:
    reference = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(name, KEY, reference, primary_key=True, autoincrement=False)
