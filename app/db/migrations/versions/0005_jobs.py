"""Jobs, and what each of them refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("gallery_key", KEY),
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
        sa.PrimaryKeyConstraint("key", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.ForeignKeyConstraint(["gallery_key"], ["galleries.key"], name="fk_jobs_gallery_key", ondelete="CASCADE"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_gallery_key", "jobs", ["gallery_key"])
    op.create_table(
        "job_refusals",
        sa.Column("job_key", KEY, nullable=False, autoincrement=False),
        sa.Column("item", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("reasons", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_key", "item", name="pk_job_refusals"),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_job_refusals_job_key", ondelete="CASCADE"),
    )


def downgrade() -> None:
    op.drop_table("job_refusals")
    op.drop_table("jobs")
