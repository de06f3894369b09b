"""Encrypt the columns that hold templates, crops and the keys of jobs' files.

Each sealed blob is bound to its kind and to the id of its row's face, correction, sighting or job, so that it does not
open in another row.
Plain and sealed blobs may be mixed while a database is being encrypted, and can be told apart: a plain template is a
whole number of float32 long, a plain job's key 32 bytes, and a sealed one OVERHEAD = 33 bytes longer; a JPEG begins
with FF, a plain correction with 0, and a sealed crop or correction with FORMAT.

For every key in use the database has a mark, a row of `secrets` that only this key opens, so that a start without the
right key fails at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.encryption import FORMAT, HEADER_BYTES, Sealer
from app.db.opening import inserting
from app.db.schema import CORRECTIONS, CROPS, FACES, JOBS, SECOND_TEMPLATES, SECRETS, SIGHTINGS
from app.errors import SealedUnreadable

BlobKind: TypeAlias = Literal["template", "second", "crop", "job", "correction", "sighting", "sighting_crop"]
"""``job`` is the key of a job's files; ``second`` is a face's second template, sealed like the first one, so that the
two can be swapped."""
MARK_PREFIX = "faces-key/"
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """The place of blobs of one kind: their column, their rows' key, and the id that each is bound to."""

    blob: sa.Column[bytes]
    key: sa.Column[int]
    owner: sa.Column[str]
    told_by_first_byte: bool = False

    @property
    def head(self) -> sa.ColumnElement[bytes]:
        """Return the bytes of a sealed blob that name its key."""
        return sa.func.substr(self.blob, 1, HEADER_BYTES, type_=self.blob.type)

    @property
    def is_sealed(self) -> sa.ColumnElement[bool]:
        if self.told_by_first_byte:
            return sa.func.substr(self.blob, 1, 1, type_=self.blob.type) == bytes([FORMAT])
        return sa.func.length(self.blob) % _FLOAT_BYTES == 1


SEALED_COLUMNS: Mapping[BlobKind, SealedColumn] = {
    "template": SealedColumn(FACES.c.template, FACES.c.key, FACES.c.face_id),
    "second": SealedColumn(SECOND_TEMPLATES.c.template, SECOND_TEMPLATES.c.face_key, FACES.c.face_id),
    "crop": SealedColumn(CROPS.c.jpeg, CROPS.c.face_key, FACES.c.face_id, told_by_first_byte=True),
    "job": SealedColumn(JOBS.c.secret, JOBS.c.key, JOBS.c.id),
    "correction": SealedColumn(CORRECTIONS.c.probe, CORRECTIONS.c.key, CORRECTIONS.c.id, told_by_first_byte=True),
    "sighting": SealedColumn(SIGHTINGS.c.template, SIGHTINGS.c.key, SIGHTINGS.c.id),
    "sighting_crop": SealedColumn(SIGHTINGS.c.crop, SIGHTINGS.c.key, SIGHTINGS.c.id, told_by_first_byte=True),
}


class Blobs:
    """Encrypts with `sealer`, if given. Without `seals`, its keys only decrypt, and new blobs are plain."""

    def __init__(self, sealer: Sealer | None = None, *, seals: bool = True) -> None:
        self._ring = sealer
        self._sealer = sealer if seals else None

    @property
    def key_id(self) -> str | None:
        """Return the id of the key that seals new blobs; None if they are plain."""
        return self._sealer.key_ids[0] if self._sealer else None

    def pack(self, kind: BlobKind, owner: str, data: bytes) -> bytes:
        """Return `data` in the form to store; ``owner`` is the id that it is bound to."""
        return self._sealer.seal(data, _purpose(kind, owner)) if self._sealer else data

    def unpack(self, kind: BlobKind, owner: str, stored: bytes) -> bytes:
        """Return the plain bytes of a stored blob. Raises Unusable ``sealed_unreadable``."""
        by_first_byte = SEALED_COLUMNS[kind].told_by_first_byte  # as `SealedColumn.is_sealed`
        if not (stored[:1] == bytes([FORMAT]) if by_first_byte else len(stored) % _FLOAT_BYTES == 1):
            return stored
        if self._ring is None:
            key = stored[1:HEADER_BYTES].hex()
            raise SealedUnreadable(f"Stored data is sealed with key {key}, and no key is set.")
        return self._ring.open(stored, _purpose(kind, owner))

    def is_due(self, kind: BlobKind) -> sa.ColumnElement[bool]:
        """Return SQL for the blobs that `pack` would now store in another form."""
        column = SEALED_COLUMNS[kind]
        if self._sealer is None:
            return column.is_sealed
        return ~column.is_sealed | (column.head != self._sealer.mark)

    def mark(self, connection: Connection) -> None:
        """Write and lock the key's mark; call it in every transaction that writes blobs."""
        if self._sealer is None:
            return
        name = MARK_PREFIX + self._sealer.key_ids[0]
        query = sa.select(SECRETS.c.name).where(SECRETS.c.name == name).with_for_update(read=True, key_share=True)
        if connection.execute(query).scalar() is None:
            values = {"name": name, "sealed": self._sealer.seal(b"", name.encode())}
            insert = inserting(connection.dialect.name)
            connection.execute(insert(SECRETS).values(values).on_conflict_do_nothing())

    def check(self, connection: Connection) -> None:
        """Check that the ring has all keys in use. Raises Unusable ``sealed_unreadable``."""
        for name, sealed in marks(connection).items():
            if self._ring is None:
                message = f"The database's faces are sealed with key {name.removeprefix(MARK_PREFIX)}; no key is set."
                raise SealedUnreadable(message)
            self._ring.open(sealed, name.encode())


def marks(connection: Connection) -> dict[str, bytes]:
    """Return the marks of all keys in use, by name."""
    query = sa.select(SECRETS).where(SECRETS.c.name.startswith(MARK_PREFIX, autoescape=True))
    return {row.name: bytes(row.sealed) for row in connection.execute(query)}


def _purpose(kind: BlobKind, owner: str) -> bytes:
    return f"{'template' if kind == 'second' else kind}\0{owner}".encode()
