"""A gallery's row, with what a re-embedding makes of the gallery: it has two packages until that is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.errors import NotFound
from app.gallery.records import Gallery, SecondPackage
from app.gallery.tables import GALLERIES, REEMBEDDINGS

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


def gallery_not_found(gallery_id: str) -> NotFound:
    return NotFound(f"There is no gallery {gallery_id!r}.", code="gallery_not_found", gallery=gallery_id)
