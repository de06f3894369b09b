"""The server answers what the evaluation measures: the same scores for LFW pairs, over HTTP and in process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from likeness_client import Client

from app.models.stages import open_stages
from app.package.folders import load_package
from tests.conftest import PROJECT
from tests.support.live import LiveServer
from training.evaluation.pairs import read_pairs
from training.evaluation.photos import open_photos

pytestmark = pytest.mark.long

FOLD_PAIRS = 600
SAMPLE = 40
TOLERANCE = 1e-5


def test_scores_over_http_are_those_of_the_evaluation(
    live_server: LiveServer, shared_data: Path, tmp_path: Path, full: bool
) -> None:
    """The first two folds of LFW's View 2 with --full, a spread sample of them without."""
    lfw = shared_data / "lfw"
    photos = open_photos(lfw / "lfw-deepfunneled.tar")
    listed = read_pairs(lfw / "pairs.txt")
    chosen = range(0, 2 * FOLD_PAIRS, 1 if full else 2 * FOLD_PAIRS // SAMPLE)
    pairs = [(listed.pairs[i].first, listed.pairs[i].second) for i in chosen]

    names = sorted({name for pair in pairs for name in pair})
    models = PROJECT / "models"
    package, detector = (load_package(models / name) for name in ("sface", "yunet"))
    with open_stages(package, detector, tmp_path, workers=2) as service, ThreadPoolExecutor(2) as pool:
        vectors = dict(zip(names, pool.map(lambda name: service.embed_photo(photos.read(name))[0], names), strict=True))
    expected = np.array([vectors[a] @ vectors[b] for a, b in pairs])

    def ask(pair: tuple[str, str]) -> float:
        return client.verify(photos.read(pair[0]), photos.read(pair[1])).score

    with Client(live_server.url, live_server.key) as client, ThreadPoolExecutor(4) as pool:
        answered = np.array(list(pool.map(ask, pairs)))
    assert len(answered) == (2 * FOLD_PAIRS if full else SAMPLE)
    np.testing.assert_allclose(answered, expected, atol=TOLERANCE, rtol=0)
    print(f"{len(answered)} scores, largest difference {np.abs(answered - expected).max():.1e}")  # noqa: T201 (pytest -s)
