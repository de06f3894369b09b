"""Make one change of a gallery in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.gallery.store import Change, Store

P = ParamSpec("P")
R = TypeVar("R")


def changed(
    galleries: Galleries, gallery: str, verb: Callable[Concatenate[Change, P], R], *args: P.args, **options: P.kwargs
) -> R:
    """Call one of `app.gallery`'s functions in a change of its own."""
    with galleries.change(galleries.store.gallery(gallery)) as change:
        return verb(change, *args, **options)


def written(
    store: Store, gallery: Gallery, verb: Callable[Concatenate[Change, P], R], *args: P.args, **options: P.kwargs
) -> R:
    """Call one of them in the database only."""
    with store.change(gallery) as change:
        return verb(change, *args, **options)
