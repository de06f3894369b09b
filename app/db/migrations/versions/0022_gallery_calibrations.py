"""Operating points measured among a gallery's own subjects, and whether they decide."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("galleries", sa.Column("calibration", sa.String(16), nullable=False, server_default="package"))
    op.add_column("galleries", sa.Column("allow_laxer", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "gallery_calibrations",
        sa.Column("gallery_key", KEY, _cascade("galleries"), primary_key=True, autoincrement=False),
        sa.Column("job", sa.String(32)),
        sa.Column("package", sa.Text),
        sa.Column("document", sa.Text),
        sa.Column("calibration", sa.Text),
        sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("measured_at", sa.String(32)),
    )
    op.create_table(
        "calibration_pairs",
        sa.Column("gallery_key", KEY, _cascade("galleries"), primary_key=True, autoincrement=False),
        sa.Column("first_key", KEY, _cascade("faces"), primary_key=True, autoincrement=False),
        sa.Column("second_key", KEY, _cascade("faces"), primary_key=True, autoincrement=False),
        sa.Column("score", sa.Float, nullable=False),
    )
    op.create_index("ix_calibration_pairs_first_key", "calibration_pairs", ["first_key"])
    op.create_index("ix_calibration_pairs_second_key", "calibration_pairs", ["second_key"])


def downgrade() -> None:
    op.drop_table("calibration_pairs")
    op.drop_table("gallery_calibrations")
    op.drop_column("galleries", "allow_laxer")
    op.drop_column("galleries", "calibration")


def _cascade(table: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"{table}.key", ondelete="CASCADE")
