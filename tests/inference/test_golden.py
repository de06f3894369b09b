"""A package that makes other templates here than its manifest says is not opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from app.errors import Unusable
from app.face.formats import Limits
from app.models.opening import open_detector, open_embedder
from app.models.packages import write_manifest
from app.package import golden
from app.package.folders import Package, find_packages, load_package, select
from app.pipeline import Pipeline, crop_of
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.ready import fill_cache
from tests.support.service import COLLINS, HOPPER

SHIPPED = find_packages(PROJECT / "models")


def turned(vector: NDArray[np.float64], cosine: float) -> NDArray[np.float64]:
    """A unit vector at that cosine to ``vector``."""
    other = np.roll(vector, 1)
    other -= (other @ vector) * vector
    return cosine * vector + float(np.sqrt(1 - cosine**2)) * other / np.linalg.norm(other)


def with_templates(folder: Path, cosine: float, *, of: str | None = None) -> Package:
    """A tiny package whose manifest's templates have that cosine to those that it makes; ``of``: of other crops."""
    package = packages.package(folder)
    session = open_embedder(package, folder, "cpu")
    made = golden.record(session.run)
    rows = tuple(tuple(turned(np.array(row) / np.linalg.norm(row), cosine).tolist()) for row in made.templates)
    changed = made.model_copy(update={"templates": rows, "crops": of or made.crops})
    write_manifest(folder, package.manifest.model_copy(update={"golden": changed}))
    return load_package(folder)


def test_the_crops_are_those_of_the_sample_photos(tmp_path: Path) -> None:
    fill_cache(tmp_path)
    pipeline = Pipeline(open_detector(select(SHIPPED, "yunet"), tmp_path), Limits())
    cut = np.stack([crop_of(face) for photo in (COLLINS, HOPPER) for face in pipeline.detect(photo).faces])
    assert golden.golden_crops().shape == cut.shape == (2, 112, 112, 3)
    # JPEG decoders differ slightly, landmarks by a pixel from version to version: the crops stay, so manifests hold.
    assert np.abs(golden.golden_crops().astype(int) - cut).mean() < 15


def test_every_embedder_that_comes_along_is_checked(tmp_path: Path) -> None:
    fill_cache(tmp_path)
    embedders = [package for package in SHIPPED.values() if package.manifest.task == "embed"]
    assert {package.manifest.name for package in embedders} == {"sface", "sface-slim"}
    for package in embedders:
        assert package.manifest.golden is not None
        assert package.manifest.golden.crops == golden.crops_digest()
        vectors = open_embedder(package, tmp_path, "cpu").run(golden.golden_crops())
        lowest = (vectors * np.array(package.manifest.golden.templates)).sum(axis=1).min()
        assert lowest > 0.99999, "float32 agrees from one processor to another far better than is needed"


@pytest.mark.parametrize("cosine", [1.0, 0.9995])
def test_rounding_is_no_difference(tmp_path: Path, cosine: float) -> None:
    assert open_embedder(with_templates(tmp_path, cosine), tmp_path, "cpu").dimension == packages.DIMENSION


@pytest.mark.parametrize("cosine", [0.998, 0.0, -1.0])
def test_other_templates_are_refused_with_the_cosine(tmp_path: Path, cosine: float) -> None:
    package = with_templates(tmp_path, cosine)
    with pytest.raises(Unusable, match="makes other templates here") as caught:
        open_embedder(package, tmp_path, "cpu")
    assert caught.value.code == "package_templates_differ"
    details = caught.value.details
    assert (details["package"], details["device"], details["needed"]) == ("tiny@1", "cpu", golden.LEAST_COSINE)
    assert details["cosine"] == pytest.approx(cosine, abs=1e-4)


def test_no_number_is_refused(tmp_path: Path) -> None:
    package = with_templates(tmp_path, 1)
    with pytest.raises(Unusable) as caught:
        golden.check(package, np.full((2, packages.DIMENSION), np.nan, np.float32), "cpu")
    assert caught.value.code == "package_templates_differ"


def test_one_wrong_template_of_two_is_enough(tmp_path: Path) -> None:
    package = with_templates(tmp_path, 1)
    assert package.manifest.golden is not None
    vectors = np.array(package.manifest.golden.templates, np.float32)
    golden.check(package, vectors, "cpu")
    with pytest.raises(Unusable):
        golden.check(package, np.stack([vectors[0], -vectors[1]]), "cpu")


def test_packages_without_them_or_with_those_of_other_crops_are_opened(tmp_path: Path) -> None:
    assert packages.package(tmp_path / "plain").manifest.golden is None
    for package in (load_package(tmp_path / "plain"), with_templates(tmp_path / "other", 0.0, of="0" * 64)):
        assert open_embedder(package, tmp_path, "cpu").dimension == packages.DIMENSION


def _shorter(rows: list[list[float]]) -> None:
    rows[0].pop()


def _longer_than_unit(rows: list[list[float]]) -> None:
    rows[1] = [value * 1.01 for value in rows[1]]


def _none(rows: list[list[float]]) -> None:
    rows.clear()


@pytest.mark.parametrize("harm", [_shorter, _longer_than_unit, _none])
def test_a_manifest_with_templates_that_are_none_is_refused(
    tmp_path: Path, harm: Callable[[list[list[float]]], None]
) -> None:
    folder = with_templates(tmp_path, 1).folder
    described = json.loads((folder / "manifest.json").read_text())
    harm(described["golden"]["templates"])
    (folder / "manifest.json").write_text(json.dumps(described))
    with pytest.raises(Unusable, match="golden") as caught:
        load_package(folder)
    assert caught.value.code == "package_manifest_invalid"


def test_a_missing_picture_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "CROPS_FILE", tmp_path / "none.png")
    golden.golden_crops.cache_clear()
    with pytest.raises(Unusable, match="install Likeness again"):
        golden.golden_crops()
