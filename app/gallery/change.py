"""A change to one gallery: a transaction that holds the gallery, and the change log's entries for what it did.

`app.gallery.service.Galleries.change` opens one, and so does `Store.change` for what no index has to follow. The locks
come in one order everywhere: the index's, the transaction, the gallery's row. Who holds the row is alone with the
gallery's subjects and faces, so nobody who changes them waits in a circle or takes another's change for its own.

What changes a gallery are functions over a `Change`, in `subjects`, `enrolling` and `moving`; several of them may share
one. Raising inside undoes it all. The answer to a request with a token is kept with the change that it reports, so that
a repeated request gets the same answer and is not carried out again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.opening import Inserting
from app.db.schema import ANSWERED_REQUESTS
from app.db.sealed_columns import Blobs
from app.gallery import change_log
from app.gallery.records import Gallery
from app.timestamps import utc_now


@dataclass(eq=False, slots=True)
class Change:
    """An open transaction, alone with the gallery."""

    gallery: Gallery
    """As it is in this transaction."""
    connection: Connection
    insert: Inserting
    """INSERT with ON CONFLICT, in the database's dialect."""
    blobs: Blobs
    max_metadata_bytes: int
    now: str = field(default_factory=utc_now)
    overwrites: bool = False
    """Whether something is deleted or replaced, of which SQLite's files must not keep a copy."""
    entries: list[change_log.Entry] = field(default_factory=list)
    """What the change log gets at the end."""

    def log(self, kind: str, faces: Iterable[tuple[int, int | None]]) -> None:
        """Note what happened to these faces, given by their subjects' keys and their own (None: the subject's all)."""
        self.overwrites |= kind != change_log.ADD
        self.entries += [(kind, subject, face) for subject, face in faces]


ANSWERS_KEPT = timedelta(days=1)
"""How long a request that is repeated under its token gets the same answer."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to a request that carries a token; ``digest`` is of the request."""

    operation: str
    token: str
    digest: bytes
    answer: str


class AlreadyAnswered(Exception):
    """Another process has just answered a request with this token; nothing was written."""


def keep_answer(change: Change, answer: KeptAnswer) -> None:
    """Store the answer with the change that it reports. Raises AlreadyAnswered."""
    mine = ANSWERED_REQUESTS.c.gallery_key == change.gallery.key
    change.connection.execute(sa.delete(ANSWERED_REQUESTS).where(mine & _is_old()))
    values = asdict(answer) | {"gallery_key": change.gallery.key, "created_at": change.now}
    insert = change.insert(ANSWERED_REQUESTS).values(values).on_conflict_do_nothing()
    if change.connection.execute(insert.returning(ANSWERED_REQUESTS.c.token)).one_or_none() is None:
        raise AlreadyAnswered


def recall_answer(connection: Connection, gallery: Gallery, operation: str, token: str) -> tuple[bytes, str] | None:
    """Return the digest of the request that had this token, and its answer; None if there was none lately."""
    query = sa.select(ANSWERED_REQUESTS.c.digest, ANSWERED_REQUESTS.c.answer).where(
        ANSWERED_REQUESTS.c.gallery_key == gallery.key,
        ANSWERED_REQUESTS.c.operation == operation,
        ANSWERED_REQUESTS.c.token == token,
        ~_is_old(),
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (bytes(row.digest), row.answer)


def forget_answer(change: Change, operation: str, token: str) -> None:
    same = (ANSWERED_REQUESTS.c.gallery_key == change.gallery.key) & (ANSWERED_REQUESTS.c.token == token)
    change.connection.execute(sa.delete(ANSWERED_REQUESTS).where(same & (ANSWERED_REQUESTS.c.operation == operation)))


def prune_answers(connection: Connection) -> None:
    """Delete all galleries' old answers."""
    connection.execute(sa.delete(ANSWERED_REQUESTS).where(_is_old()))


def _is_old() -> sa.ColumnElement[bool]:
    return ANSWERED_REQUESTS.c.created_at <= utc_now(-ANSWERS_KEPT)
