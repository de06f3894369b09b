"""Galleries on their way from one package to another, the second templates of their faces; collections by package."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "second_templates",
        sa.Column("face_key", KEY, nullable=False, autoincrement=False),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("template", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("face_key", name="pk_second_templates"),
        sa.ForeignKeyConstraint(["face_key"], ["faces.key"], name="fk_second_templates_face_key", ondelete="CASCADE"),
    )
    op.create_table(
        "reembeddings",
        sa.Column("gallery_key", KEY, nullable=False, autoincrement=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("source_dimension", sa.Integer, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("target_dimension", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("without_crop", sa.String(8), nullable=False),
        sa.Column("missing", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("keep_days", sa.Float, nullable=False),
        sa.Column("job", sa.String(32)),
        sa.Column("started_at", sa.String(32), nullable=False),
        sa.Column("switched_at", sa.String(32)),
        sa.Column("keep_until", sa.String(32)),
        sa.PrimaryKeyConstraint("gallery_key", name="pk_reembeddings"),
        sa.ForeignKeyConstraint(
            ["gallery_key"], ["galleries.key"], name="fk_reembeddings_gallery_key", ondelete="CASCADE"
        ),
    )
    op.add_column("collections", sa.Column("package", sa.Text, nullable=False, server_default=""))
    op.execute(
        "UPDATE collections SET package = COALESCE("
        "(SELECT embedder FROM galleries WHERE galleries.key = collections.gallery_key), '')"
    )
    with op.batch_alter_table("collections") as collections:
        collections.alter_column("package", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("collections") as collections:
        collections.drop_column("package")
    op.drop_table("reembeddings")
    op.drop_table("second_templates")
