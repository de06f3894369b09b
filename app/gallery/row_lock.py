"""A gallery's row: held while somebody writes, and with what a re-embedding makes of it, two packages until that is
over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.schema import GALLERIES, REEMBEDDINGS
from app.gallery.records import Gallery, SecondPackage, gallery_not_found

SECOND_STATES: Mapping[str, Literal["filling", "complete", "leaving"]] = {
    "embedding": "filling",
    "ready": "complete",
    "switched": "complete",
    "ending": "leaving",
}
"""What the state of a re-embedding means for the other package."""
MOVING_GALLERIES = sa.select(
    GALLERIES,
    *(REEMBEDDINGS.c[name].label(f"re_{name}") for name in ("source", "target", "state")),
    REEMBEDDINGS.c.source_dimension,
    REEMBEDDINGS.c.source_generation,
    REEMBEDDINGS.c.target_dimension,
    REEMBEDDINGS.c.target_generation,
).select_from(GALLERIES.outerjoin(REEMBEDDINGS))


def moving_gallery(row: Row[Any]) -> Gallery:
    """Of a row of MOVING_GALLERIES."""
    return replace(gallery_of(row), second=second_of(row))


def second_of(row: Row[Any]) -> SecondPackage | None:
    if row.re_state is None:
        return None
    state = SECOND_STATES[row.re_state]
    if row.embedder == row.re_source:
        return SecondPackage(row.re_target, row.target_dimension, state, row.target_generation)
    return SecondPackage(row.re_source, row.source_dimension, state, row.source_generation)


def gallery_of(row: Row[Any]) -> Gallery:
    metadata, package = json.loads(row.metadata), (row.embedder, row.dimension)
    return Gallery(row.key, row.id, *package, row.store, metadata, row.created_at, None, row.generation, row.search)


def hold(connection: Connection, gallery: Gallery, *, exclusively: bool = False) -> None:
    """Makes sure that the gallery is there until the transaction ends: every writer takes it before anything else, so
    that none wait for each other in a circle. Raises NotFound (``gallery_not_found``)."""
    query = sa.select(GALLERIES.c.key).where(GALLERIES.c.key == gallery.key)
    query = query.with_for_update(read=not exclusively, key_share=not exclusively)
    if connection.execute(query).one_or_none() is None:
        raise gallery_not_found(gallery.id)
