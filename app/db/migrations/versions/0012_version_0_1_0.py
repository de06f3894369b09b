"""The schema of version 0.1.0, the first that was released."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TABLES = (
    "receipts",
    "reembeddings",
    "second_templates",
    "answered_requests",
    "face_origins",
    "collections",
    "job_refusals",
    "jobs",
    "secrets",
    "changes",
    "audit",
    "api_keys",
    "crops",
    "faces",
    "subjects",
    "galleries",
)


def upgrade() -> None:
    _create_galleries()
    _create_belongings()
    _create_jobs()
    _create_server_tables()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)


def _create_galleries() -> None:
    op.create_table(
        "galleries",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("embedder", sa.Text, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        sa.Column("store", sa.String(8), nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("last_change", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_stamp", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("search", sa.String(16), nullable=False, server_default="fp32"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "subjects",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("gallery_key", KEY, _owner("galleries.key"), nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("folded", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("updated_at", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.String(32)),
        sa.Column("consent", sa.Text),
        sa.UniqueConstraint("gallery_key", "id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "faces",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("gallery_key", KEY, _owner("galleries.key"), nullable=False),
        sa.Column("subject_key", KEY, _owner("subjects.key"), nullable=False),
        sa.Column("face_id", sa.String(32), nullable=False, unique=True),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("template", sa.LargeBinary, nullable=False),
        sa.Column("quality", sa.Float, nullable=False),
        sa.Column("reasons", sa.Text, nullable=False),
        sa.Column("x", sa.Float, nullable=False),
        sa.Column("y", sa.Float, nullable=False),
        sa.Column("width", sa.Float, nullable=False),
        sa.Column("height", sa.Float, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_subjects_gallery_key_key", "subjects", ["gallery_key", "key"])
    op.create_index("ix_subjects_expires_at", "subjects", ["expires_at"])
    op.create_index("ix_faces_gallery_key_key", "faces", ["gallery_key", "key"])
    op.create_index("ix_faces_subject_key_key", "faces", ["subject_key", "key"])


def _create_belongings() -> None:
    op.create_table(
        "crops",
        sa.Column("face_key", KEY, _owner("faces.key"), primary_key=True, autoincrement=False),
        sa.Column("jpeg", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "face_origins",
        sa.Column("face_key", KEY, _owner("faces.key"), primary_key=True, autoincrement=False),
        sa.Column("gallery_key", KEY, nullable=False),
        sa.Column("image_id", sa.String(32), nullable=False),
        sa.Column("external_id", sa.Text),
        sa.Column("width", sa.Integer, nullable=False),
        sa.Column("height", sa.Integer, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
    )
    op.create_index("ix_face_origins_gallery_key_image_id", "face_origins", ["gallery_key", "image_id"])
    op.create_table(
        "second_templates",
        sa.Column("face_key", KEY, _owner("faces.key"), primary_key=True, autoincrement=False),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("template", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "reembeddings",
        sa.Column("gallery_key", KEY, _owner("galleries.key"), primary_key=True, autoincrement=False),
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
        sa.Column("source_generation", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("target_generation", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_table(
        "changes",
        sa.Column("gallery_key", KEY, _owner("galleries.key"), primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("stamp", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("subject_key", sa.BigInteger),
        sa.Column("face_key", sa.BigInteger),
        sa.Column("created_at", sa.String(32), nullable=False),
    )
    op.create_index("ix_changes_created_at", "changes", ["created_at"])
    op.create_table(
        "answered_requests",
        sa.Column("gallery_key", KEY, _owner("galleries.key"), primary_key=True, autoincrement=False),
        sa.Column("operation", sa.String(32), primary_key=True),
        sa.Column("token", sa.String(64), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
    )
    op.create_index("ix_answered_requests_created_at", "answered_requests", ["created_at"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("gallery_key", KEY, _owner("galleries.key")),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("done", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("total", sa.BigInteger),
        sa.Column("params", sa.Text, nullable=False),
        sa.Column("saved", sa.Text, nullable=False, server_default="{}"),
        sa.Column("counts", sa.Text, nullable=False, server_default="{}"),
        sa.Column("result", sa.Text),
        sa.Column("secret", sa.LargeBinary),
        sa.Column("place", sa.String(32)),
        sa.Column("who", sa.Text),
        sa.Column("cancel_asked", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("lease_owner", sa.String(32)),
        sa.Column("lease_until", sa.String(32)),
        sa.Column("not_before", sa.String(32)),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("started_at", sa.String(32)),
        sa.Column("finished_at", sa.String(32)),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_gallery_key", "jobs", ["gallery_key"])
    op.create_table(
        "job_refusals",
        sa.Column("job_key", KEY, _owner("jobs.key"), primary_key=True, autoincrement=False),
        sa.Column("item", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("reasons", sa.Text, nullable=False),
    )


def _create_server_tables() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(63), nullable=False, unique=True),
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
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("who", sa.Text),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("gallery", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("target", sa.Text),
        sa.Column("status", sa.Integer),
        sa.Column("request_id", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "collections",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("gallery_key", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("touched_at", sa.String(32), nullable=False),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_index("ix_collections_gallery_key", "collections", ["gallery_key"])
    op.create_table(
        "receipts",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("gallery", sa.Text, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )


def _owner(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")
