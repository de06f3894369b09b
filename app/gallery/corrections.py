"""Read corrections: probes that were wrongly taken for a subject. Similar faces are not taken for this subject again.

A correction holds the probe's template and, if the gallery keeps crops, its crop, sealed like those of faces. It is
erased with its subject and with its gallery, expires, and is dropped when its subject is merged. While a gallery is
re-embedded, a correction has a row for each of the two packages. `app.features.corrected` writes them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.db.engine import select_in
from app.db.schema import CORRECTIONS, SUBJECTS
from app.db.sealed_columns import Blobs
from app.gallery.records import Gallery, from_bytes
from app.gallery.store import Store
from app.types import Vectors, utc_now

PLAIN = b"\0"
"""The first byte of an unsealed probe, which tells it from a sealed one."""
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Wrong:
    """The recorded wrong probes of a subject: ids, and templates (N, D)."""

    ids: tuple[str, ...]
    vectors: Vectors


def wrong_probes(store: Store, gallery: Gallery, package: str, subjects: Collection[str]) -> dict[str, Wrong]:
    """Return the recorded wrong probes of these subjects, as templates of this package, by the subjects' ids."""
    rows_of = wrong_rows(store, gallery, package, SUBJECTS.c.id, subjects)
    return {
        subject: Wrong(tuple(row.id for row in rows), templates(store.blobs, rows))
        for (_, subject), rows in rows_of.items()
    }


def wrong_rows(
    store: Store, gallery: Gallery, package: str, column: sa.ColumnElement[Any], subjects: Collection[int | str]
) -> dict[tuple[int, str], list[Row[Any]]]:
    """Return the subjects' corrections, oldest first, by subject key and id; `column` selects the subjects."""
    rows_of: dict[tuple[int, str], list[Row[Any]]] = {}
    if gallery.corrected:
        with store.database.read() as connection:
            query = current_rows(gallery, package).order_by(CORRECTIONS.c.key)
            for row in select_in(connection, query, column, subjects):
                rows_of.setdefault((row.subject_key, row.subject), []).append(row)
    return rows_of


def all_rows(gallery: Gallery) -> sa.Select[Any]:
    """Return the query for the gallery's corrections, including expired ones, with their subjects' ids as `subject`."""
    query = sa.select(CORRECTIONS, SUBJECTS.c.id.label("subject")).join_from(CORRECTIONS, SUBJECTS)
    return query.where(CORRECTIONS.c.gallery_key == gallery.key)


def current_rows(gallery: Gallery, package: str) -> sa.Select[Any]:
    """Return the query for the gallery's corrections that have not expired, with templates of this package."""
    return all_rows(gallery).where((CORRECTIONS.c.package == package) & (CORRECTIONS.c.expires_at > utc_now()))


def templates(blobs: Blobs, rows: Collection[Row[Any]]) -> Vectors:
    """Return the rows' templates, (N, D)."""
    return np.stack([from_bytes(unpack(blobs, row)[0]) for row in rows])


def unpack(blobs: Blobs, row: Row[Any]) -> tuple[bytes, bytes | None]:
    """Return the template and the crop of a row."""
    plain = blobs.unpack("correction", row.id, bytes(row.probe))[len(PLAIN) :]
    end = _LENGTH_BYTES + int.from_bytes(plain[:_LENGTH_BYTES], "little")
    return plain[_LENGTH_BYTES:end], plain[end:] or None


def pack(blobs: Blobs, correction_id: str, template: bytes, crop: bytes | None) -> bytes:
    """Return the bytes that `unpack` reads."""
    plain = PLAIN + len(template).to_bytes(_LENGTH_BYTES, "little") + template + (crop or b"")
    return blobs.pack("correction", correction_id, plain)
