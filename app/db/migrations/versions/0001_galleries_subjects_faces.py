"""Galleries, subjects, faces and their crops."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "galleries",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("embedder", sa.Text, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        sa.Column("store", sa.String(8), nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_galleries"),
        sa.UniqueConstraint("id", name="uq_galleries_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "subjects",
        sa.Column("key", KEY, nullable=False),
        sa.Column("gallery_key", KEY, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("folded", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("updated_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_subjects"),
        sa.ForeignKeyConstraint(["gallery_key"], ["galleries.key"], name="fk_subjects_gallery_key", ondelete="CASCADE"),
        sa.UniqueConstraint("gallery_key", "id", name="uq_subjects_gallery_key_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_subjects_gallery_key_key", "subjects", ["gallery_key", "key"])
    op.create_table(
        "faces",
        sa.Column("key", KEY, nullable=False),
        sa.Column("gallery_key", KEY, nullable=False),
        sa.Column("subject_key", KEY, nullable=False),
        sa.Column("face_id", sa.String(32), nullable=False),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("template", sa.LargeBinary, nullable=False),
        sa.Column("quality", sa.Float, nullable=False),
        sa.Column("reasons", sa.Text, nullable=False),
        sa.Column("x", sa.Float, nullable=False),
        sa.Column("y", sa.Float, nullable=False),
        sa.Column("width", sa.Float, nullable=False),
        sa.Column("height", sa.Float, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_faces"),
        sa.ForeignKeyConstraint(["gallery_key"], ["galleries.key"], name="fk_faces_gallery_key", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["subject_key"], ["subjects.key"], name="fk_faces_subject_key", ondelete="CASCADE"),
        sa.UniqueConstraint("face_id", name="uq_faces_face_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_faces_gallery_key_key", "faces", ["gallery_key", "key"])
    op.create_index("ix_faces_subject_key_key", "faces", ["subject_key", "key"])
    op.create_table(
        "crops",
        sa.Column("face_key", KEY, nullable=False, autoincrement=False),
        sa.Column("jpeg", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("face_key", name="pk_crops"),
        sa.ForeignKeyConstraint(["face_key"], ["faces.key"], name="fk_crops_face_key", ondelete="CASCADE"),
    )


def downgrade() -> None:
    for table in ("crops", "faces", "subjects", "galleries"):
        op.drop_table(table)
