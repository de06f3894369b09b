"""`python -m training data`: aligning raw photos, checking a set, finding the people two sets share."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from typer.testing import CliRunner, Result

from app.errors import LikenessError, Unusable
from app.face.detect import Detector
from app.face.formats import Limits
from app.inference.embedders import unit
from app.models.packages import write_manifest
from app.package.folders import load_package
from app.pipeline import Pipeline
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.crops import png_of
from tests.support.images import encoded
from tests.support.ready import fill_cache
from tests.support.runs import small_recipe
from training.commands.data import app
from training.data import open_dataset, read_drop_list, rows_left
from training.data.dataset import decode_crop
from training.data.drawn import ProceduralFaces
from training.data.preparation.aligning import (
    AlignerSettings,
    Outcome,
    align_folder,
    detector_file,
    list_jobs,
    read_failed,
)
from training.data.preparation.checking import NEAR, doubts, near_duplicates, thumbnail
from training.data.preparation.overlap import best_means, find_overlap
from training.data.preparation.templates import CropTemplates, choose_threshold
from training.run.inputs import prepare_material

SAMPLES = PROJECT / "docs" / "samples"
MODELS = PROJECT / "models"
Vectors = NDArray[np.float32]


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


# --- align ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two people, a photo without a face, a damaged one, one of the wrong kind."""
    root = tmp_path / "photos"
    for person, names in {"Collins": ["collins.jpg", "collins_again.jpg"], "Hopper": ["hopper.jpg"]}.items():
        (root / person).mkdir(parents=True)
        for name in names:
            (root / person / name).write_bytes((SAMPLES / name).read_bytes())
    (root / "Nobody").mkdir()
    (root / "Nobody" / "wall.png").write_bytes(png_of(np.full((200, 200, 3), 128, np.uint8)))
    (root / "Nobody" / "cut.jpg").write_bytes((SAMPLES / "hopper.jpg").read_bytes()[:3000])
    (root / "Nobody" / "text.png").write_text("no picture")
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fill_cache(folder := tmp_path_factory.mktemp("cache"))
    return folder


def align(source: Path, target: Path, cache: Path, *options: object) -> Result:
    return run("align", source, target, "--models", MODELS, "--cache", cache, *options)


def test_photos_become_crops_once_and_what_failed_is_tried_again_when_asked(
    photos: Path, tmp_path: Path, cache: Path
) -> None:
    target = tmp_path / "crops"
    result = align(photos, target, cache, "--workers", 1)
    assert result.exit_code == 0
    assert "3 aligned" in result.output
    faces = open_dataset(target)
    assert faces.people == ["Collins", "Hopper"]
    assert faces.labels.tolist() == [0, 0, 1]
    with Image.open(target / "Collins" / "collins.jpg") as crop:
        assert crop.size == (112, 112)
    failed = read_failed(target)
    assert {name: outcome.code for name, outcome in failed.items()} == {
        "Nobody/cut.jpg": "invalid_image",
        "Nobody/text.png": "unsupported_image",
        "Nobody/wall.png": "no_face",
    }
    assert "no_face" in result.output
    assert not list(target.rglob("*.tmp"))
    # A second run makes only what is missing.
    (target / "Hopper" / "hopper.jpg").unlink()
    kept = target / "Collins" / "collins.jpg"
    kept.write_bytes(b"touched by nobody")
    result = align(photos, target, cache, "--workers", 1)
    assert "1 aligned, 2 were there, 0 failed, 3 had failed before" in result.output
    assert (target / "Hopper" / "hopper.jpg").is_file()
    assert kept.read_bytes() == b"touched by nobody"
    assert len((target / "failed.jsonl").read_text().splitlines()) == 3
    # What failed is tried again when asked.
    (photos / "Nobody" / "cut.jpg").write_bytes((SAMPLES / "hopper.jpg").read_bytes())
    result = align(photos, target, cache, "--workers", 1, "--retry")
    assert "1 aligned, 3 were there, 2 failed, 0 had failed before" in result.output
    assert set(read_failed(target)) == {"Nobody/text.png", "Nobody/wall.png"}


def test_several_processes_make_the_same_crops_as_one(photos: Path, tmp_path: Path, cache: Path) -> None:
    single, several = tmp_path / "one", tmp_path / "two"
    settings = AlignerSettings(photos, single, detector_file(MODELS, cache))
    steps: list[tuple[int, int | None]] = []
    first = align_folder(settings, 1, progress=lambda more, total=None: steps.append((more, total)))
    second = align_folder(replace(settings, target=several), 2)
    assert first == second
    assert steps == [(0, 6)] + [(1, None)] * 6
    crops = sorted(path.relative_to(single) for path in single.rglob("*.jpg"))
    assert crops == sorted(path.relative_to(several) for path in several.rglob("*.jpg"))
    for crop in crops:
        assert (single / crop).read_bytes() == (several / crop).read_bytes()
    assert read_failed(single) == read_failed(several)


def test_poor_crops_are_left_out_where_a_quality_is_asked_for(photos: Path, tmp_path: Path, cache: Path) -> None:
    blurred = photos / "Hopper" / "blurred.png"
    with Image.open(SAMPLES / "hopper.jpg") as photo:
        photo.filter(ImageFilter.GaussianBlur(photo.width / 60)).save(blurred)
    pipeline = Pipeline(Detector(detector_file(MODELS, cache)), Limits())
    score = pipeline.detect(blurred.read_bytes()).faces[0].quality.score
    for least, outcomes in ((score - 0.1, {}), (score + 0.1, {"blurred.png": "low_quality"})):
        target = tmp_path / f"crops above {least}"
        align(photos / "Hopper", target, cache, "--workers", 1, "--min-quality", least)
        assert {name: outcome.code for name, outcome in read_failed(target).items()} == outcomes


def test_photos_that_differ_in_their_ending_alone_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "b.JPG"):
        (tmp_path / name).write_bytes(b"")
    assert [(job.photo, job.crop) for job in list_jobs(tmp_path)] == [
        ("a.jpg", "a.jpg.jpg"),
        ("a.png", "a.png.jpg"),
        ("b.JPG", "b.jpg"),
    ]


def test_a_failure_list_cut_short_by_a_crash_is_read_up_to_there(tmp_path: Path) -> None:
    (tmp_path / "failed.jsonl").write_text('{"photo": "a", "code": "no_face", "message": "x"}\n{"photo": "b", "co')
    assert read_failed(tmp_path) == {"a": Outcome("a", "no_face", "x")}


def test_a_folder_that_is_not_there_is_one_line_and_status_one(tmp_path: Path, cache: Path) -> None:
    result = align(tmp_path / "none", tmp_path / "crops", cache)
    assert result.exit_code == 2
    assert "is not a folder" in result.output
    assert "Traceback" not in result.output


# --- templates and thresholds --------------------------------------------------------------------------------------


def templates(vectors: Vectors, labels: list[int], broken: tuple[int, ...] = ()) -> CropTemplates:
    rows = unit(np.asarray(vectors, np.float32))
    rows[list(broken)] = 0
    people = [f"p{label}" for label in range(max(labels) + 1)]
    return CropTemplates(rows, np.array(labels, np.int64), people, {index: LikenessError("broken") for index in broken})


def random_templates(seed: int, people: int, images: int, dimension: int = 8) -> CropTemplates:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(people), rng.integers(1, images + 1, people)).tolist()
    centres = rng.normal(size=(people, dimension))
    rows = centres[labels] + 0.5 * rng.normal(size=(len(labels), dimension))
    return templates(rows.astype(np.float32), labels)


def test_a_threshold_comes_from_the_package_or_is_asked_for(tmp_path: Path) -> None:
    package = packages.package(tmp_path / "tiny")
    assert choose_threshold(package, 10, 0.01, 0.4) == (0.4, "as given")
    with pytest.raises(Unusable) as needed:
        choose_threshold(package, 10, 0.01, None)
    assert needed.value.code == "threshold_needed"
    points = {"calibrations": (packages.calibration({1e-2: 0.3, 1e-4: 0.5}),)}
    write_manifest(package.folder, package.manifest.model_copy(update=points))
    measured = load_package(package.folder)
    assert choose_threshold(measured, 1, 0.01, None)[0] == pytest.approx(0.3)
    threshold, origin = choose_threshold(measured, 10**6, 0.01, None)
    assert threshold == pytest.approx(0.5)
    assert "lowest measured" in origin


# --- overlap -------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), threshold=st.floats(0.2, 0.95), pair=st.floats(0.2, 0.95))
def test_shared_people_are_those_that_a_plain_loop_finds(seed: int, threshold: float, pair: float) -> None:
    a, b = random_templates(seed, 6, 4), random_templates(seed + 1, 5, 4)
    slow = {}
    for person, name in enumerate(a.people):
        vectors = a.vectors[a.labels == person]
        means = [_cosine(vectors.sum(0), b.vectors[b.labels == other].sum(0)) for other in range(len(b.people))]
        pairs = vectors @ b.vectors.T
        if max(means) >= threshold or pairs.max() >= pair:
            other = int(np.argmax(means)) if max(means) >= threshold else int(b.labels[pairs.max(0).argmax()])
            slow[name] = (b.people[other], max(means), pairs.max())
    found = {m.drop: (m.matches, m.score, m.best_pair) for m in find_overlap(a, b, threshold, pair)}
    assert found.keys() == slow.keys()
    for name, (matches, score, best_pair) in found.items():
        assert matches == slow[name][0]
        assert (score, best_pair) == pytest.approx(slow[name][1:], abs=1e-4)


def _cosine(x: Vectors, y: Vectors) -> float:
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_the_images_named_are_the_most_alike_ones() -> None:
    a = templates(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32), [0, 0, 1])
    b = templates(np.array([[0.9, 0, 0.1], [0, 1, 0.05], [1, 1, 0]], np.float32), [0, 1, 1])
    (match,) = find_overlap(a, b, 0.9, 0.9)
    assert match.drop == "p0"
    assert match.images == (1, 1)
    assert match.best_pair == pytest.approx(_cosine(a.vectors[1], b.vectors[1]), abs=1e-4)


def test_people_without_a_readable_image_match_nobody() -> None:
    a = templates(np.eye(3, dtype=np.float32), [0, 1, 2], broken=(0,))
    b = templates(np.eye(3, dtype=np.float32), [0, 1, 2], broken=(1,))
    assert [match.drop for match in find_overlap(a, b, 0.0001, 0.0001)] == ["p2"]
    assert best_means(a, b)[0][0] == -1


def _coloured(root: Path, people: dict[str, list[tuple[int, int, int]]]) -> Path:
    """Crops of one noisy colour: what the tiny package tells people apart by."""
    rng = np.random.default_rng(len(people))
    for person, colours in people.items():
        (root / person).mkdir(parents=True)
        for number, colour in enumerate(colours):
            pixels = np.clip(np.array(colour) + rng.normal(0, 6, (112, 112, 3)), 0, 255).astype(np.uint8)
            (root / person / f"{number}.png").write_bytes(png_of(pixels))
    return root


RED, GREEN, BLUE, DIM_RED = (220, 20, 20), (20, 220, 20), (20, 20, 220), (120, 11, 11)


def test_the_command_writes_the_list_of_people_to_drop(tmp_path: Path) -> None:
    packages.package(tmp_path / "models" / "tiny")
    a = _coloured(tmp_path / "a", {"ann": [RED, DIM_RED], "ben": [GREEN]})
    b = _coloured(tmp_path / "b", {"Ann A.": [DIM_RED], "Cy": [BLUE, BLUE]})
    (b / "Cy" / "9.png").write_bytes(b"damaged")
    options = ["--package", "tiny", "--models", tmp_path / "models", "--cache", tmp_path / "cache", "--threshold", 0.98]
    for ending in ("json", "csv"):
        out = tmp_path / f"drop.{ending}"
        result = run("overlap", a, b, *options, "--out", out)
        assert result.exit_code == 0, result.output
        assert "1 of 2 people" in result.output
        assert read_drop_list(out) == ({"ann"}, set())
    facts = json.loads((tmp_path / "drop.json").read_text())
    assert facts["threshold"] == 0.98
    assert facts["matches"][0]["matches"] == "Ann A."
    assert len(facts["best_scores"]) == 2
    with (tmp_path / "drop.csv").open() as file:
        assert [row["matches"] for row in csv.DictReader(file)] == ["Ann A."]


# --- check ---------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), threshold=st.floats(0.1, 0.9))
def test_doubted_images_are_those_that_a_plain_loop_doubts(seed: int, threshold: float) -> None:
    found = random_templates(seed, 6, 5)
    slow: dict[int, tuple[bool, float, int, float]] = {}
    for index, (vector, label) in enumerate(zip(found.vectors, found.labels, strict=True)):
        siblings = np.flatnonzero((found.labels == label) & (np.arange(len(found.labels)) != index))
        if len(siblings) < 2:
            continue
        own_score = _cosine(vector, found.vectors[siblings].sum(0))
        others = {p: _cosine(vector, found.vectors[found.labels == p].sum(0)) for p in range(6) if p != label}
        nearest = max(others, key=lambda p: others[p])
        if own_score < threshold:
            slow[index] = (others[nearest] >= threshold, own_score, nearest, others[nearest])
    misplaced, outliers = doubts(found, threshold)
    fast = {index: (True, own_score, nearest, score) for index, own_score, nearest, score in misplaced}
    fast |= {index: (False, own_score, nearest, score) for index, own_score, nearest, score in outliers}
    assert fast.keys() == slow.keys()
    for index, facts in fast.items():
        assert facts == pytest.approx(slow[index], abs=1e-4)


def test_the_same_shot_is_near_and_another_of_the_same_person_is_not() -> None:
    """Re-encoded, brightened or shifted by half a pixel stays near; two drawn images of one person do not."""
    faces = ProceduralFaces(12, 2, seed=2)
    for index in range(0, 24, 2):
        crop = faces[index][0]
        recoded = decode_crop(encoded(Image.fromarray(crop), "JPEG", quality=75))
        brighter = np.clip(crop.astype(float) * 0.9 + 8, 0, 255).astype(np.uint8)
        for same in (recoded, brighter):
            assert thumbnail(crop) @ thumbnail(same) >= NEAR
        assert thumbnail(crop) @ thumbnail(faces[index + 1][0]) < NEAR


def test_near_duplicates_are_grouped_with_all_their_kin_and_within_people_in_large_sets() -> None:
    rng = np.random.default_rng(0)
    base = unit(rng.normal(size=(3, 50)).astype(np.float32))
    rows = unit((base[[0, 1, 0, 2, 0]] + 0.003 * rng.normal(size=(5, 50))).astype(np.float32))
    indices, labels = np.array([10, 11, 12, 13, 14]), np.array([0, 0, 0, 0, 1])
    assert near_duplicates(rows, indices, labels) == [[10, 12, 14]]
    assert near_duplicates(rows, indices, labels, limit=1) == [[10, 12]]


def test_the_command_reports_all_that_is_wrong(tmp_path: Path) -> None:
    packages.package(tmp_path / "models" / "tiny")
    root = _coloured(
        tmp_path / "set", {"ann": [RED] * 9 + [BLUE], "ben": [BLUE] * 3, "cy": [GREEN], "dee": [GREEN] * 2}
    )
    (root / "ben" / "8.png").write_bytes((root / "ben" / "1.png").read_bytes())
    with Image.open(root / "dee" / "0.png") as image:
        image.save(root / "dee" / "9.jpg", quality=98, subsampling=0)
    (root / "dee" / "bad.png").write_bytes(b"no picture")
    options = ["--package", "tiny", "--models", tmp_path / "models", "--cache", tmp_path / "cache", "--threshold", 0.98]
    result = run("check", root, *options, "--report", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["images"], report["people"]) == (19, 4)
    assert [entry["image"] for entry in report["broken"]] == ["dee/bad.png"]
    assert report["broken"][0]["code"] == "unsupported_image"
    assert report["single"] == ["cy"]
    assert report["exact_duplicates"] == [["ben/1.png", "ben/8.png"]]
    assert [(entry["image"], entry["nearest"]) for entry in report["misplaced"]] == [("ann/9.png", "ben")]
    assert [entry["people"] for entry in report["alike"]] == [["cy", "dee"]]
    assert report["outliers"] == []
    for line in ("broken images", "people with one image", "images of somebody else", "people alike"):
        assert re.search(rf"{line}\W+1\b", result.output), result.output
    faces = open_dataset(root)
    left = rows_left(faces, tmp_path / "report.json").tolist()
    gone = {"dee/bad.png", "ann/9.png"}
    assert {faces.describe(index) for index in left} == {faces.describe(i) for i in range(19)} - gone
    data = {"source": str(root), "drop": str(tmp_path / "report.json"), "min_images": 4, "held_out": 0.0}
    data["indexes"] = str(tmp_path / "indexes")
    kept = prepare_material(small_recipe(data=data), PROJECT / "models").crops
    assert dict(zip(kept.people, np.bincount(kept.labels), strict=True)) == {"ann": 9, "ben": 4}
