"""A liveness package keeps its contract, or is refused with the reason; scores are means over packages, in batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from pydantic import ValidationError

from app.errors import Overloaded, Unusable
from app.features.liveness.scorer import Scorer, open_liveness
from app.models.opening import open_embedder
from app.models.prepare import check_classifier, rewrite_classifier, softmax
from app.models.reference import run_plain
from app.package.folders import load_package
from app.package.golden import check_crops
from app.package.manifest import Manifest, RewriteClassifier, RunAsIs, liveness_digest
from app.types import Pixels
from tests.support import liveness
from tests.support.packages import package

PLAN = RewriteClassifier(input=liveness.FORM)


def test_random_weights_answer_as_the_file_does_one_or_many(tmp_path: Path) -> None:
    """The live class in the middle, three classes, a graph made for one picture at a time."""
    model = liveness.random_model()
    made = liveness.install(tmp_path / "models", model, classes=("print", "live", "replay"))
    session = open_liveness(made, tmp_path / "cache", "cpu")
    cuts = check_crops(liveness.SIDE)
    expected = softmax(run_plain(model, liveness.FORM, cuts))[:, 1]
    assert session.scores(list(cuts)) == pytest.approx(expected, abs=1e-5)
    assert [session.scores([cut])[0] for cut in cuts] == pytest.approx(expected, abs=1e-5)


def test_colour_order_and_range_are_part_of_the_graph(tmp_path: Path) -> None:
    model = liveness.random_model()
    bgr = liveness.FORM.model_copy(update={"colour": "bgr", "mean": (1.0, 2.0, 3.0)})
    made = liveness.install(
        tmp_path / "models", model, classes=("a", "live", "b"), prepare=RewriteClassifier(input=bgr)
    )
    cuts = check_crops(liveness.SIDE)
    scores = open_liveness(made, tmp_path / "cache", "cpu").scores(list(cuts))
    assert scores == pytest.approx(softmax(run_plain(model, bgr, cuts))[:, 1], abs=1e-5)
    assert scores != pytest.approx(softmax(run_plain(model, liveness.FORM, cuts))[:, 1], abs=1e-3)


def test_a_graph_that_is_rewritten_wrongly_is_refused() -> None:
    model = liveness.random_model()
    other = rewrite_classifier(liveness.random_model(1), PLAN, liveness.SIDE)
    with pytest.raises(Unusable, match="differs from its source") as caught:
        check_classifier(model, other, PLAN, check_crops(liveness.SIDE))
    assert caught.value.code == "package_not_preparable"


def _raw(*, softmax_in: bool) -> ModelProto:
    """A prepared graph, which is run as it is; without its softmax where asked for."""
    return rewrite_classifier(
        liveness.random_model(),
        RewriteClassifier(input=liveness.FORM, output="logits" if softmax_in else "probabilities"),
        liveness.SIDE,
    )


def test_a_file_that_keeps_the_contract_runs_as_it_is(tmp_path: Path) -> None:
    made = liveness.install(tmp_path, _raw(softmax_in=True), classes=("a", "live", "b"), prepare=RunAsIs())
    assert len(open_liveness(made, tmp_path, "cpu").scores(list(check_crops(liveness.SIDE)))) == 4


@pytest.mark.parametrize(
    ("model", "classes", "says"),
    [
        (_raw(softmax_in=False), ("a", "live", "b"), "not probabilities"),
        (_raw(softmax_in=True), ("a", "live"), "it answers"),
        (liveness.random_model(), ("a", "live", "b"), "its input is"),
    ],
    ids=["logits", "other classes", "other input"],
)
def test_a_model_that_breaks_the_contract_is_refused(
    tmp_path: Path, model: ModelProto, classes: tuple[str, ...], says: str
) -> None:
    made = liveness.install(tmp_path, model, classes=classes, prepare=RunAsIs())
    with pytest.raises(Unusable, match=says) as caught:
        open_liveness(made, tmp_path, "cpu")
    assert caught.value.code == "package_contract_broken"


def test_tasks_are_not_mixed_up(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="task is embed"):
        open_liveness(package(tmp_path / "tiny"), tmp_path, "cpu")
    raw = liveness.install(tmp_path, _raw(softmax_in=True), classes=("a", "live", "b"), prepare=RunAsIs())
    with pytest.raises(Unusable, match="task is liveness"):
        open_embedder(raw, tmp_path, "cpu")


def changed(**changes: Any) -> dict[str, Any]:
    return {**liveness.manifest(b"").model_dump(), **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"liveness": None}, "needs its liveness contract"),
        ({"task": "detect"}, "belong to the task liveness"),
        ({"input": {"shape": ("N", 8, 8, 3), "dtype": "uint8", "meaning": ""}}, "S from 16"),
        ({"input": {"shape": ("N", 32, 64, 3), "dtype": "uint8", "meaning": ""}}, "input is"),
        ({"output": {"shape": ("N", 3), "dtype": "float32", "meaning": ""}}, "output is"),
        ({"liveness": {"cut": {"scale": 1.5}, "classes": ("a", "b"), "live": "live"}}, "one of them"),
        ({"liveness": {"cut": {"scale": 1.5}, "classes": ("live", "live"), "live": "live"}}, "different names"),
        ({"liveness": {"cut": {"scale": 99.0}, "classes": ("live", "b"), "live": "live"}}, "less than or equal"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Manifest.model_validate(changed(**changes))


def test_points_are_bound_to_the_files_and_to_what_they_are_shown(tmp_path: Path) -> None:
    one, two = (liveness.install(tmp_path, name=name).manifest for name in ("one", "two"))
    assert liveness_digest([one, two]) == liveness_digest([two, one])
    assert liveness_digest([one]) != liveness_digest([one, two])
    assert one.liveness is not None
    wider = one.liveness.model_copy(update={"cut": one.liveness.cut.model_copy(update={"scale": 2.7})})
    assert liveness_digest([one.model_copy(update={"liveness": wider})]) != liveness_digest([one])


@pytest.mark.skipif(not liveness.SHARED.is_file(), reason="the published model is not beside this checkout")
def test_the_published_model_is_prepared_as_it_answers() -> None:
    model = onnx.load(liveness.SHARED)
    form = liveness.FORM
    rewritten = rewrite_classifier(model, RewriteClassifier(input=form), 128)
    assert check_classifier(model, rewritten, RewriteClassifier(input=form), check_crops(128)) < 1e-4


def test_a_manifest_with_points_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = liveness.calibrate(liveness.install(tmp_path), live_from=0.9, spoof_below=0.25)
    assert load_package(made.folder).manifest == made.manifest
    falling = made.manifest.model_dump()
    falling["liveness_calibrations"][0]["points"] = falling["liveness_calibrations"][0]["points"][::-1]
    with pytest.raises(ValidationError, match="thresholds must rise"):
        Manifest.model_validate(falling)


# --- Scores -----------------------------------------------------------------------------------------------------------


def cuts(count: int, seed: int = 0) -> list[Pixels]:
    levels = np.random.default_rng(seed).integers(0, 256, count)
    return [np.full((liveness.SIDE, liveness.SIDE, 3), level, np.uint8) for level in levels]


def scorer(folder: Path, *names: str) -> Scorer:
    packages = [
        liveness.install(folder / "models", liveness.brightness_model(middle=0.3 + 0.2 * place), name=name)
        for place, name in enumerate(names)
    ]
    return Scorer([open_liveness(package, folder / "cache", "cpu") for package in packages])


def test_scores_are_the_models_own_in_the_callers_order(tmp_path: Path) -> None:
    with_one = scorer(tmp_path, "one")
    pictures = cuts(20)
    expected = [1 / (1 + np.exp(-12 * (each[0, 0, 0] / 255 - 0.3))) for each in pictures]
    assert with_one.score([[each] for each in pictures]) == pytest.approx(expected, abs=1e-4)
    assert with_one.score([]) == []
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: with_one.score([[each]])[0], pictures))
    assert together == pytest.approx(expected, abs=1e-4)
    with_one.close()
    with pytest.raises(Overloaded):
        with_one.score([[pictures[0]]])


def test_several_packages_are_averaged(tmp_path: Path) -> None:
    both, first = scorer(tmp_path / "both", "one", "two"), scorer(tmp_path / "first", "one")
    picture = cuts(1)[0]
    second = 1 / (1 + np.exp(-12 * (picture[0, 0, 0] / 255 - 0.5)))
    assert len(both.cuts) == 2
    (mean,) = both.score([[picture, picture]])
    assert mean == pytest.approx((first.score([[picture]])[0] + second) / 2, abs=1e-4)
    both.close()
    first.close()
