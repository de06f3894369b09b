"""Where faces came from, and which requests were answered already."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "face_origins",
        sa.Column("face_key", KEY, nullable=False, autoincrement=False),
        sa.Column("gallery_key", KEY, nullable=False),
        sa.Column("image_id", sa.String(32), nullable=False),
        sa.Column("external_id", sa.Text),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("height", sa.Integer, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("face_key", name="pk_face_origins"),
        sa.ForeignKeyConstraint(["face_key"], ["faces.key"], name="fk_face_origins_face_key", ondelete="CASCADE"),
    )
    op.create_index("ix_face_origins_gallery_key_image_id", "face_origins", ["gallery_key", "image_id"])
    op.create_table(
        "answered_requests",
        sa.Column("gallery_key", KEY, nullable=False, autoincrement=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("gallery_key", "operation", "token", name="pk_answered_requests"),
        sa.ForeignKeyConstraint(
            ["gallery_key"], ["galleries.key"], name="fk_answered_requests_gallery_key", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_answered_requests_created_at", "answered_requests", ["created_at"])


def downgrade() -> None:
    op.drop_table("answered_requests")
    op.drop_table("face_origins")
