"""How templates and crops lie in SQL: as they are, or sealed where there is a key.

Each sealed blob is bound to its kind and its face's id: put into another row, it does not open. Plain and sealed ones
may lie side by side while a database is being sealed; which is which shows in the blob itself. A template is a whole
number of float32, a sealed one OVERHEAD = 33 bytes longer, so never; a JPEG begins with FF, a sealed one with FORMAT.

For every key that anything is sealed with, the database has a mark: a row of `secrets` that only this key opens. So a
start without the right key says so at once.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.encryption import FORMAT, HEADER_BYTES, Sealer
from app.db.schema import CROPS, FACES, SECOND_TEMPLATES, SECRETS
from app.db.upsert import inserting
from app.errors import SealedUnreadable

BlobKind: TypeAlias = Literal["template", "second", "crop"]
"""``second``: a face's other template, sealed as the one in its row is, so that they can change places."""
MARK_PREFIX = "faces-key/"
_FLOAT_BYTES = 4


class Blobs:
    """`sealer` None: everything is plain. With `seals` off its keys only open, and what is written is plain."""

    def __init__(self, sealer: Sealer | None = None, *, seals: bool = True) -> None:
        self._ring = sealer
        self._sealer = sealer if seals else None

    @property
    def key_id(self) -> str | None:
        """Of the key that new blobs are sealed with; None where they are plain."""
        return self._sealer.key_ids[0] if self._sealer else None

    def pack(self, kind: BlobKind, face_id: str, data: bytes) -> bytes:
        """As it is to be stored."""
        return self._sealer.seal(data, _purpose(kind, face_id)) if self._sealer else data

    def unpack(self, kind: BlobKind, face_id: str, stored: bytes) -> bytes:
        """As it was. Raises Unusable ``sealed_unreadable``."""
        if not is_sealed(kind, stored):
            return stored
        if self._ring is None:
            key = stored[1:HEADER_BYTES].hex()
            raise SealedUnreadable(f"Stored data is sealed with key {key}, and there is none.")
        return self._ring.open(stored, _purpose(kind, face_id))

    def is_due(self, kind: BlobKind) -> sa.ColumnElement[bool]:
        """SQL for the blobs that are not as `pack` would make them now."""
        if self._sealer is None:
            return sealed_rows(kind)
        column = column_of(kind)
        return ~sealed_rows(kind) | (sa.func.substr(column, 1, HEADER_BYTES, type_=column.type) != self._sealer.mark)

    def mark(self, connection: Connection) -> None:
        """Called by who writes blobs, in the same transaction: leaves the key's mark, and holds it until the end."""
        if self._sealer is None:
            return
        name = MARK_PREFIX + self._sealer.key_ids[0]
        query = sa.select(SECRETS.c.name).where(SECRETS.c.name == name).with_for_update(read=True, key_share=True)
        if connection.execute(query).scalar() is None:
            values = {"name": name, "sealed": self._sealer.seal(b"", name.encode())}
            insert = inserting(connection.dialect.name)
            connection.execute(insert(SECRETS).values(values).on_conflict_do_nothing())

    def check(self, connection: Connection) -> None:
        """Raises Unusable ``sealed_unreadable`` where the database holds what none of the keys opens."""
        for name, sealed in marks(connection).items():
            if self._ring is None:
                message = f"The database's faces are sealed with key {name.removeprefix(MARK_PREFIX)}; no key is set."
                raise SealedUnreadable(message)
            self._ring.open(sealed, name.encode())


def marks(connection: Connection) -> dict[str, bytes]:
    """The marks of all keys in use, by name."""
    query = sa.select(SECRETS).where(SECRETS.c.name.startswith(MARK_PREFIX, autoescape=True))
    return {row.name: bytes(row.sealed) for row in connection.execute(query)}


def is_sealed(kind: BlobKind, stored: bytes) -> bool:
    return stored[:1] == bytes([FORMAT]) if kind == "crop" else len(stored) % _FLOAT_BYTES == 1


def sealed_rows(kind: BlobKind) -> sa.ColumnElement[bool]:
    """`is_sealed` in SQL."""
    column = column_of(kind)
    if kind == "crop":
        return sa.func.substr(column, 1, 1, type_=column.type) == bytes([FORMAT])
    return sa.func.length(column) % _FLOAT_BYTES == 1


def column_of(kind: BlobKind) -> sa.Column[bytes]:
    return {"template": FACES.c.template, "second": SECOND_TEMPLATES.c.template, "crop": CROPS.c.jpeg}[kind]


def _purpose(kind: BlobKind, face_id: str) -> bytes:
    return f"{'crop' if kind == 'crop' else 'template'}\0{face_id}".encode()
