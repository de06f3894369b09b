"""Crops become templates in their order, whoever else is embedding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.errors import Overloaded
from app.inference import session as sessions
from app.inference.embedders import CPU_MAX_BATCH, Embedder, unit
from app.inference.session import EmbedderSession, Session
from app.models.opening import open_embedder
from app.types import Pixels
from tests.support import packages


def crops(count: int, seed: int = 0) -> list[Pixels]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, 112, 112, 3), np.uint8))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> EmbedderSession:
    folder = tmp_path_factory.mktemp("package")
    return open_embedder(packages.package(folder), folder, "cpu")


@pytest.fixture
def embedder(session: EmbedderSession) -> Iterator[Embedder]:
    with Embedder(session, workers=2) as made:
        yield made


def test_templates_come_in_order_with_their_package(embedder: Embedder, session: EmbedderSession) -> None:
    given_ = crops(11)
    templates, batch = embedder.embed(given_)
    expected = np.concatenate([session.run(crop[None]) for crop in given_])
    assert {template.package for template in templates} == {"tiny@1"}
    assert np.allclose([template.vector for template in templates], expected, atol=1e-6)
    assert 1 <= batch <= CPU_MAX_BATCH


def test_no_crops_need_no_batch(embedder: Embedder) -> None:
    assert embedder.embed([]) == ([], 0)


def test_a_template_does_not_keep_its_batch_in_memory(embedder: Embedder) -> None:
    for template in embedder.embed(crops(4))[0]:
        assert template.vector.base is None


def test_flipping_averages_with_the_mirror_image(session: EmbedderSession) -> None:
    crop = crops(1)[0]
    with Embedder(session, flip=True) as embedder:
        found = embedder.embed([crop])[0][0].vector
        mirrored = embedder.embed([crop[:, ::-1]])[0][0].vector
    both = session.run(np.stack([crop, crop[:, ::-1]])).astype(np.float64).sum(axis=0)
    assert np.allclose(found, both / np.linalg.norm(both), atol=1e-6)
    assert np.allclose(found, mirrored, atol=1e-6)


def test_opposite_vectors_average_to_zero_not_nan() -> None:
    assert np.array_equal(unit(np.zeros((2, 3), np.float32)), np.zeros((2, 3)))


def test_a_closed_embedder_takes_nothing(session: EmbedderSession) -> None:
    embedder = Embedder(session)
    embedder.close()
    with pytest.raises(Overloaded):
        embedder.embed(crops(1))


def test_a_photo_with_more_faces_than_may_wait_is_embedded(session: EmbedderSession) -> None:
    with Embedder(session, queue_limit=2, workers=1) as embedder:
        assert len(embedder.embed(crops(7))[0]) == 7


def test_a_gpu_runs_few_crops_in_a_session_of_their_own(
    session: EmbedderSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands in for it."""
    monkeypatch.setitem(sessions.FIXED_BATCH, "cpu", 9)
    monkeypatch.setitem(sessions.FEW, "cpu", 2)
    loaded = Session(packages.package(tmp_path).folder / "model.onnx", "cpu", shape=(9, 112, 112, 3))
    for count in (1, 2, 3, 4, 5, 9, 20):
        batch = np.stack(crops(count, count))
        assert np.allclose(loaded.run(batch)[0], session.run(batch), atol=1e-6)
    assert loaded.shapes == {(9, 112, 112, 3): 5}  # of 5, of 9, and of 20 crops, none of fewer


@pytest.mark.parametrize("flip", [False, True])
def test_a_gpu_sees_one_shape_whatever_is_embedded(
    session: EmbedderSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flip: bool
) -> None:
    """The CPU stands in for it."""
    monkeypatch.setitem(sessions.FIXED_BATCH, "cpu", 4)
    package = packages.package(tmp_path)
    loaded = Session(package.folder / "model.onnx", "cpu", shape=(4, 112, 112, 3))
    with Embedder(EmbedderSession(package, loaded), flip=flip) as fixed, Embedder(session, flip=flip) as plain:
        for count in (1, 3, 4, 9, 2):
            expected, found = plain.embed(crops(count, count))[0], fixed.embed(crops(count, count))[0]
            assert len(found) == count
            for template, wanted in zip(found, expected, strict=True):
                assert np.allclose(template.vector, wanted.vector, atol=1e-6)
    assert set(loaded.shapes) == {(4, 112, 112, 3)}
