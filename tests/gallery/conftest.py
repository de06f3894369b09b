"""Galleries over each database, with one gallery, `staff`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.gallery.service import Galleries
from app.gallery.store import Store
from tests.support.following import quiet
from tests.support.galleries import DIMENSION, PACKAGE


@pytest.fixture
def galleries(database_url: str) -> Iterator[Galleries]:
    galleries = Galleries(Store(database_url))
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    yield galleries
    galleries.close()


@pytest.fixture
def alone(database_url: str) -> Iterator[Galleries]:
    """Galleries whose background work a test does by hand."""
    galleries = quiet(database_url)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    yield galleries
    galleries.close()


@pytest.fixture
def pair(database_url: str) -> Iterator[tuple[Galleries, Galleries]]:
    """The galleries of two processes, which follow when they are asked."""
    pair = quiet(database_url), quiet(database_url)
    pair[0].create_gallery("staff", PACKAGE, DIMENSION)
    yield pair
    for galleries in pair:
        galleries.close()
