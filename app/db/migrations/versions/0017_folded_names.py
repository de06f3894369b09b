"""Ids and names are searched without accents, and with `_`, `-` and `.` as spaces."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

AT_ONCE = 5_000
SPACES = str.maketrans("_-.", "   ")
SUBJECTS = sa.table("subjects", sa.column("key"), sa.column("id"), sa.column("name"), sa.column("folded"))


def upgrade() -> None:
    _refold(_bare)


def downgrade() -> None:
    _refold(lambda text: unicodedata.normalize("NFC", text.casefold()))


def _bare(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(part for part in parts if not unicodedata.combining(part))
    return unicodedata.normalize("NFC", bare).translate(SPACES)


def _refold(fold: Callable[[str], str]) -> None:
    """Write `folded` of every subject anew, AT_ONCE rows at a time."""
    connection = op.get_bind()
    some = sa.select(SUBJECTS.c.key, SUBJECTS.c.id, SUBJECTS.c.name, SUBJECTS.c.folded).order_by(SUBJECTS.c.key)
    update = sa.update(SUBJECTS).where(SUBJECTS.c.key == sa.bindparam("of")).values(folded=sa.bindparam("new"))
    last = 0
    while rows := connection.execute(some.where(SUBJECTS.c.key > last).limit(AT_ONCE)).all():
        last = rows[-1].key
        folds = [(row, "\n".join(fold(text) for text in (row.id, row.name) if text)) for row in rows]
        if changed := [{"of": row.key, "new": new} for row, new in folds if new != row.folded]:
            connection.execute(update, changed)
