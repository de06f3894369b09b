"""Large galleries without photos: templates written straight into a database."""

from __future__ import annotations

import numpy as np

from app.gallery.enrolling import write_many
from app.gallery.records import StoredFace
from app.gallery.store import Store
from app.inference.package import find_packages, select
from app.types import Quality
from tests.conftest import PROJECT
from tests.support.changing import written

DIMENSION = 128


AT_ONCE = 10_000


def fill(url: str, count: int) -> None:
    """A gallery of `count` subjects with a face each, random unit vectors, written as an import does."""
    store = Store(url)
    package = select(find_packages(PROJECT / "models"), "sface").id
    gallery = store.create_gallery("many", package, DIMENSION, store="none")
    generator = np.random.default_rng(1)
    for start in range(1, count, AT_ONCE):
        vectors = generator.standard_normal((AT_ONCE, DIMENSION), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        written(
            store,
            gallery,
            write_many,
            gallery.embedder,
            [],
            [StoredFace(f"s{start + n}", vectors[n].tobytes(), Quality(50.0, ())) for n in range(AT_ONCE)],
        )
    store.close()
