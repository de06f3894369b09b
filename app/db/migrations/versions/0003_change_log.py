"""The change log, and in each gallery the number and stamp of its last change."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    for name in ("last_change", "last_stamp"):
        op.add_column("galleries", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    changes = op.create_table(
        "changes",
        sa.Column("gallery_key", KEY, nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("stamp", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("subject_key", sa.BigInteger),
        sa.Column("face_key", sa.BigInteger),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("gallery_key", "number", name="pk_changes"),
        sa.ForeignKeyConstraint(["gallery_key"], ["galleries.key"], name="fk_changes_gallery_key", ondelete="CASCADE"),
    )
    op.create_index("ix_changes_created_at", "changes", ["created_at"])
    _begin_logs(op.get_bind(), changes)


def _begin_logs(connection: sa.Connection, changes: sa.Table) -> None:
    """Each gallery that is there already begins its log, at number 0, with the faces it has."""
    galleries = sa.table("galleries", sa.column("key"), sa.column("last_stamp"))
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    for key in connection.execute(sa.select(galleries.c.key)).scalars().all():
        stamp = secrets.randbits(63)
        connection.execute(sa.update(galleries).where(galleries.c.key == key).values(last_stamp=stamp))
        row = {"gallery_key": key, "number": 0, "stamp": stamp, "kind": "begin", "created_at": now}
        connection.execute(sa.insert(changes).values(row))


def downgrade() -> None:
    op.drop_table("changes")
    for name in ("last_stamp", "last_change"):
        op.drop_column("galleries", name)
