"""Several embedders become one, whose score is the weighted mean of theirs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from app.errors import InvalidInput, Unusable
from app.inference.embedders import unit
from app.models.fuse import Member, add_fused, strictest, weigh
from app.models.opening import open_embedder
from app.models.packages import write_manifest
from app.package.folders import Package, load_package
from app.package.golden import check_crops, golden_crops
from app.package.manifest import Licence
from app.types import Pixels, Vectors
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.commands import run

CROPS = np.concatenate([golden_crops(), check_crops()])


def tiny(folder: Path, name: str = "tiny") -> Package:
    made = packages.install(folder, name, seed=len(name))
    landmarks = small().manifest.canonical_landmarks
    write_manifest(made.folder, made.manifest.model_copy(update={"canonical_landmarks": landmarks}))
    return load_package(made.folder)


def small() -> Package:
    return load_package(PROJECT / "models" / "sface-slim")


def vectors_of(package: Package, cache: Path, crops: Pixels = CROPS) -> Vectors:
    return open_embedder(package, cache, "cpu").run(np.ascontiguousarray(crops))


@pytest.mark.parametrize("mirror", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_score_is_the_weighted_mean_of_the_members_scores(tmp_path: Path, mirror: bool) -> None:
    first, second = small(), tiny(tmp_path)
    fused = add_fused([Member(first, 3, mirror), Member(second, 1)], "pair", "By hand.", tmp_path, tmp_path / "cache")
    one, other = vectors_of(first, tmp_path), vectors_of(second, tmp_path)
    if mirror:
        one = unit(one + vectors_of(first, tmp_path, CROPS[:, :, ::-1]))
    found = vectors_of(fused, tmp_path / "cache")
    np.testing.assert_allclose(found @ found.T, 0.75 * one @ one.T + 0.25 * other @ other.T, atol=1e-5)
    assert fused.manifest.dimension == 136
    assert fused.manifest.golden is not None
    assert fused.manifest.licence.non_commercial, "sface-slim's forbids commerce"
    for each in (first, second):
        assert each.manifest.sha256 in fused.manifest.provenance.text


def test_what_cannot_be_fused_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    first, detector = tiny(tmp_path), load_package(PROJECT / "models" / "yunet")
    for members in ([first], [first, first], [first, detector]):
        with pytest.raises(Unusable) as caught:
            add_fused([Member(each, 1) for each in members], "pair", "", tmp_path, tmp_path / "cache")
        assert caught.value.code == "members_unsuitable"
    with pytest.raises(Unusable, match="weight"):
        add_fused([Member(first, 1), Member(small(), 0)], "pair", "", tmp_path, tmp_path / "cache")
    with pytest.raises(Unusable) as caught:
        add_fused([Member(first, 1), Member(small(), 1)], "tiny-1", "", tmp_path, tmp_path / "cache")
    assert caught.value.code == "package_exists"
    assert not (tmp_path / "pair").exists()


def test_the_strictest_licence_names_all() -> None:
    free, strict = Licence(name="MIT", non_commercial=False, url="a"), Licence(name="NC", non_commercial=True, url="b")
    assert strictest([free, free]) == free
    assert strictest([free, strict]) == Licence(name="MIT AND NC", non_commercial=True, url="a b")


def people_of(noise: float, *, people: int = 60, seed: int) -> tuple[Vectors, Vectors]:
    """(240, 16) unit vectors of people with four photos each, and of the mirror images, which are as noisy."""
    random = np.random.default_rng(seed)
    centres = np.repeat(random.normal(size=(people, 16)), 4, axis=0)
    plain, mirrored = (unit((centres + random.normal(0, noise, centres.shape)).astype(np.float32)) for _ in range(2))
    return plain, mirrored


WHO = np.repeat(np.arange(60), 4)


def test_the_better_member_weighs_more_and_the_mirror_image_is_taken_where_it_pays() -> None:
    good, bad = people_of(0.55, seed=1), people_of(1.5, seed=2)
    best, *_ = tried = weigh([good[0], bad[0]], [good[1], bad[1]], WHO)
    assert best.weights[0] > best.weights[1]
    assert best.mirrors[0]
    assert len(tried) == 4
    assert all(best.cost <= each.cost for each in tried)


def test_a_mirror_image_that_brings_nothing_is_left_out() -> None:
    first, second = people_of(0.7, seed=3)[0], people_of(0.7, seed=4)[0]
    assert weigh([first, second], [first, second], WHO)[0].mirrors == (False, False)


def test_too_few_people_choose_nothing() -> None:
    vectors = people_of(0.5, seed=5)[0][:40]
    with pytest.raises(InvalidInput) as caught:
        weigh([vectors, vectors], [vectors, vectors], WHO[:40])
    assert caught.value.code == "too_few_people"


def test_the_command_fuses_as_stated(tmp_path: Path) -> None:
    tiny(tmp_path, "one")
    tiny(tmp_path, "second")
    words = ("models", "fuse", "one", "second", "--name", "pair")
    done = run(
        tmp_path / "data",
        *words,
        "--weight",
        "0.7",
        "--weight",
        "0.3",
        "--mirror",
        "one",
        "--json",
        models_dir=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.rows[0]["model"] == "pair@1"
    assert done.rows[0]["members"] == [
        {"model": "one@1", "weight": 0.7, "mirror": True},
        {"model": "second@1", "weight": 0.3, "mirror": False},
    ]
    assert json.loads((tmp_path / "data" / "packages" / "pair" / "manifest.json").read_text())["dimension"] == 16
    wrong = run(tmp_path / "data", *words[:-1], "other", "--weight", "1", models_dir=tmp_path)
    assert wrong.returncode == 2
