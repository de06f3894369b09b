"""Galleries on each kind of database, with one gallery, `staff`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.gallery.service import Galleries
from tests.support.following import quiet
from tests.support.galleries import DIMENSION, PACKAGE


@pytest.fixture
def galleries(database_url: str) -> Iterator[Galleries]:
    """Galleries whose background work a test does by hand."""
    galleries = quiet(database_url)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    yield galleries
    galleries.close()
