"""Rebuild indexes by hand."""

from __future__ import annotations

from app.gallery.records import Gallery
from app.gallery.service import Galleries


def rebuild(galleries: Galleries, gallery: Gallery) -> None:
    """Build the gallery's index again from the database."""
    with galleries.indexes.inspecting(gallery.index_specs) as index, index._lock:
        index._build()
