"""Galleries of the two removed search kinds are searched as ``int8``, which gives exact answers too."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("UPDATE galleries SET search = 'int8' WHERE search IN ('fp16', 'approximate')")


def downgrade() -> None:
    """``int8`` stays: earlier versions know it too."""
