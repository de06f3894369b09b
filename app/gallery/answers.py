"""Answers to requests with a token, kept with the change they report: a repeated request gets the same answer and is
not carried out again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.schema import ANSWERED_REQUESTS
from app.gallery.change import Change
from app.gallery.records import Gallery
from app.timestamps import utc_now

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
    """Forget the answer, if there is one, so that the request is carried out again."""
    same = (ANSWERED_REQUESTS.c.gallery_key == change.gallery.key) & (ANSWERED_REQUESTS.c.token == token)
    change.connection.execute(sa.delete(ANSWERED_REQUESTS).where(same & (ANSWERED_REQUESTS.c.operation == operation)))


def prune_answers(connection: Connection) -> None:
    """Delete all galleries' old answers."""
    connection.execute(sa.delete(ANSWERED_REQUESTS).where(_is_old()))


def _is_old() -> sa.ColumnElement[bool]:
    return ANSWERED_REQUESTS.c.created_at <= utc_now(-ANSWERS_KEPT)
