"""Read lists in pages, with opaque cursors."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.db.engine import Database
from app.errors import InvalidInput

T = TypeVar("T")
_CHECK_BYTES = 6
"""Length of a cursor's checksum."""
_LARGEST_KEY = 2**63 - 1
"""The largest integer in a database; a larger number is not a key, even with a right checksum."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; ``next_cursor`` continues it, None at the end."""

    items: tuple[T, ...]
    next_cursor: str | None


def read_page(
    database: Database,
    query: sa.Select[Any],
    key: sa.Column[int],
    convert: Callable[[Row[Any]], T],
    *,
    listing: str,
    cursor: str | None,
    limit: int,
    offset: int = 0,
    newest_first: bool = False,
) -> Page[T]:
    """Return up to `limit` rows of `query` after `cursor`, ordered by `key`, which is among the query's columns.

    The first `offset` of them are left out.

    `listing` names the list, since a cursor is valid only for its own list. Raises InvalidInput ``invalid_cursor``.
    """
    if cursor is not None:
        last = decode_cursor(listing, cursor)
        query = query.where(key < last if newest_first else key > last)
    query = query.order_by(key.desc() if newest_first else key)
    query = query.limit(limit + 1).offset(offset or None)  # an additional row shows whether more follow
    rows = database.rows(query)
    more = encode_cursor(listing, getattr(rows[limit - 1], key.name)) if len(rows) > limit else None
    return Page(tuple(convert(row) for row in rows[:limit]), more)


def encode_cursor(listing: str, last_key: int) -> str:
    """Return an opaque cursor that continues the list called `listing` after `last_key`."""
    payload = last_key.to_bytes(8, "big")
    # Detects typing errors and cursors of other lists. It need not be secret: the caller may read every key.
    checksum = hashlib.blake2s(listing.encode() + b"\0" + payload, digest_size=_CHECK_BYTES).digest()
    return base64.urlsafe_b64encode(payload + checksum).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str) -> int:
    """Return the key to continue after. Raises InvalidInput ``invalid_cursor`` if this isn't a cursor of `listing`."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    key = int.from_bytes(raw[:8], "big")
    if key > _LARGEST_KEY or cursor != encode_cursor(listing, key):
        raise InvalidInput(
            "This cursor is not of this list: send an answer's next_cursor, or none.", code="invalid_cursor"
        )
    return key
