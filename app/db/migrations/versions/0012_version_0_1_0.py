"""The schema of version 0.1.0, the first that was released. Only its databases have it: new ones are made whole."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = None
branch_labels = None
depends_on = None

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
    raise NotImplementedError


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
