"""Evaluation reads pair lists strictly, counts what it could not see as errors, and runs without torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tarfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from app.errors import NoFace
from app.models.calibration import operating_points as points
from app.models.calibration.intervals import Interval, wilson
from app.models.packages import write_manifest
from app.package.folders import load_package
from app.package.manifest import Calibration, Manifest, Point
from app.package.thresholds import Thresholds
from app.types import Vector
from tests.conftest import PROJECT
from tests.support.crops import png, write_pack
from tests.support.images import encoded
from tests.support.ready import fill_cache
from training.commands.evaluate import app, with_calibration
from training.commands.options import TemplateOptions
from training.evaluation import identification as searching
from training.evaluation import metrics, protocols
from training.evaluation.pairs import PackPhotos, Pair, PairList, person_of, read_pairs
from training.evaluation.photos import Templates, make_templates, open_photos

VIEW2 = "2\t2\nAnn\t1\t2\nBo\t1\t3\nAnn\t1\tBo\t2\nAnn\t2\tCy\t1\nBo\t2\t3\nCy\t1\t2\nBo\t1\tCy\t1\nAnn\t3\tCy\t2\n"
VIEW1 = "1\nAnn 1 2\nAnn 1 Bo 2\n"
SFACE = ("--package", "sface", "--models", str(PROJECT / "models"), "--cache", str(PROJECT / "data" / "cache"))


def unit(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float32]:
    x = rng.normal(size=(n, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def faces(
    rng: np.random.Generator, people: int, photos_each: int, noise: float = 0.35, d: int = 16
) -> tuple[list[str], NDArray[np.float32]]:
    """Names person/person_0001… and unit vectors that scatter around each person's own."""
    centres = unit(rng, people, d)
    x = np.repeat(centres, photos_each, axis=0) + noise * unit(rng, people * photos_each, d)
    names = [f"p{i:03d}/p{i:03d}_{j + 1:04d}" for i in range(people) for j in range(photos_each)]
    return names, np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def templates(names: Sequence[str], vectors: NDArray[np.float32], missing: Sequence[str] = ()) -> Templates:
    found = np.array([name not in missing for name in names])
    return Templates(
        "toy@1", tuple(names), vectors * found[:, None], found, np.full(len(names), 50, np.float32),
        dict.fromkeys(missing, "no_face"), 1.0,
    )  # fmt: skip


# --- Pair lists ------------------------------------------------------------------------------------------------------


def test_lists_with_and_without_folds_are_read(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text(VIEW2)
    listed = read_pairs(tmp_path / "pairs.txt")
    assert listed.folds == 2
    assert listed.pairs[0] == Pair("Ann/Ann_0001", "Ann/Ann_0002", mated=True, fold=0)
    assert listed.pairs[3] == Pair("Ann/Ann_0002", "Cy/Cy_0001", mated=False, fold=0)
    assert listed.fold_of.tolist() == [0] * 4 + [1] * 4
    assert listed.mated.tolist() == [True, True, False, False] * 2
    assert person_of(listed.photos[0]) == "Ann"
    (tmp_path / "pairs.txt").write_text(VIEW1)
    listed = read_pairs(tmp_path / "pairs.txt")
    assert (listed.folds, len(listed.pairs)) == (1, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("ten\n", "line 1"),
        ("0\n", "line 1"),
        ("1\t2\t3\n", "line 1"),
        ("2\nAnn 1 2\nAnn 1 Bo 2\n", "announces 4 pairs and holds 2"),
        ("1\nAnn 1 Bo 2\nAnn 1 2\n", "line 2"),
        ("1\nAnn 1 x\nAnn 1 Bo 2\n", "line 2"),
        ("1\nAnn 1\nAnn 1 Bo 2\n", "line 2: expected 3 or 4 columns"),
    ],
)
def test_a_list_that_breaks_the_format_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_pairs(tmp_path / "pairs.txt")


# --- Photos and templates --------------------------------------------------------------------------------------------


def test_a_tar_file_gives_the_same_photos_as_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    for name in ("Ann/Ann_0001.jpg", "Bo/Bo_0001.png", "Bo/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(folder, "root")
    in_folder, in_tar = open_photos(folder), open_photos(tmp_path / "root.tar")
    assert sorted(in_folder.names) == sorted(in_tar.names) == ["Ann/Ann_0001", "Bo/Bo_0001"]
    assert all(in_folder.read(name) == in_tar.read(name) for name in in_folder.names)


def test_two_photos_of_one_name_are_refused(tmp_path: Path) -> None:
    for path in ("a/Ann/Ann_0001.jpg", "b/Ann/Ann_0001.jpg"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"")
    with pytest.raises(ValueError, match="two photos are called Ann/Ann_0001"):
        open_photos(tmp_path)


def test_templates_keep_order_and_failures_through_a_file(tmp_path: Path) -> None:
    def embed(name: str) -> tuple[Vector, float]:
        if name == "b/b_1":
            raise NoFace("nothing there")
        return np.eye(3, dtype=np.float32)[ord(name[0]) % 3], 40.0

    made = make_templates("toy@1", 3, ["c/c_1", "b/b_1", "a/a_1"], embed, threads=2)
    assert made.failures == {"b/b_1": "no_face"}
    assert made.found.tolist() == [True, False, True]
    made.save(tmp_path / "kept.npz")
    kept = Templates.load(tmp_path / "kept.npz")
    assert kept.names == made.names
    np.testing.assert_array_equal(kept.vectors, made.vectors)
    only = kept.only(["a/a_1", "b/b_1"])
    assert (only.names, dict(only.failures)) == (("a/a_1", "b/b_1"), {"b/b_1": "no_face"})
    with pytest.raises(ValueError, match="no templates of 1 photos"):
        kept.only(["d/d_1"])


# --- Protocols -------------------------------------------------------------------------------------------------------


def pair_list(names: Sequence[str]) -> PairList:
    both = [(a, b, person_of(a) == person_of(b)) for a, b in combinations(names, 2)]
    return PairList(tuple(Pair(a, b, mated=m, fold=i % 5) for i, (a, b, m) in enumerate(both)), 5)


def test_a_photo_without_a_face_fails_its_mated_pairs_and_passes_its_nonmated_ones() -> None:
    names, vectors = faces(np.random.default_rng(0), 8, 3, noise=0.05)
    listed = pair_list(names)
    whole = protocols.verification(templates(names, vectors), listed, folds=listed.fold_of, rounds=50)
    assert whole.accuracy is not None
    assert (whole.accuracy.mean, whole.equal_error_rate, whole.pairs_without_face) == (1, 0, 0)
    assert whole.accuracy_interval == Interval(1, 1, 1)
    assert whole.equal_error_rate_interval == Interval(0, 0, 0)
    holed = protocols.verification(templates(names, vectors, [names[0]]), listed, folds=listed.fold_of, rounds=50)
    assert holed.photos_without_face == {names[0]: "no_face"}
    assert holed.pairs_without_face == len(names) - 1
    assert holed.accuracy is not None
    # Two of the pairs with it are mated: exactly those are lost.
    assert holed.accuracy_interval is not None
    assert holed.accuracy_interval.low < holed.accuracy.mean
    assert holed.equal_error_rate_interval.high > holed.equal_error_rate
    assert holed.best_accuracy == pytest.approx(1 - 2 / len(listed.pairs))
    assert all(rate.match.value == pytest.approx(1 - 2 / 24) for rate in holed.match_rates)


def test_a_draw_enrolls_searches_and_keeps_strangers_apart() -> None:
    names, _ = faces(np.random.default_rng(2), 20, 3)
    names += [f"q{i}/q{i}_0001" for i in range(5)]
    draw = searching.draw_people(names, 12, seed=3)
    people = [person_of(photo) for photo in draw.enrolled]
    assert people == [person_of(photo) for photo in draw.mates]
    assert len(set(people)) == 12
    assert not set(draw.enrolled) & set(draw.mates)
    assert len(draw.strangers) == 13
    assert not {person_of(photo) for photo in draw.strangers} & set(people)
    assert draw == searching.draw_people(names, 12, seed=3) != searching.draw_people(names, 12, seed=4)
    assert len(searching.draw_people(names, 12, seed=3, strangers=4).strangers) == 4
    with pytest.raises(ValueError, match="21 people"):
        searching.draw_people(names, 21, seed=0)


def test_identification_counts_a_mate_without_a_face_as_missed() -> None:
    names, vectors = faces(np.random.default_rng(4), 40, 2, noise=0.05)
    draw = searching.draw_people(names, 20, seed=0)
    (found,) = searching.measure(
        templates(names, vectors), [draw], fpirs=(0.1,), service_threshold=lambda _fpir: 2.0, rounds=50
    ).draws
    assert [(served.fpir, served.fnir) for served in found.served] == [(0, 1)]  # nothing reaches a threshold of 2
    assert (found.rank1.value, found.match_rates[0].match.value) == (1, 1)
    assert found.rank1.low == wilson(20, 20).low
    (missed,) = searching.measure(templates(names, vectors, [draw.mates[0]]), [draw], fpirs=(0.1,), rounds=50).draws
    assert (missed.rank1.value, missed.match_rates[0].match.value) == (19 / 20, 19 / 20)
    assert missed.cmc[-1] == 19 / 20
    assert [served.value for served in missed.cmc_intervals] == list(missed.cmc)
    assert missed.rank1.low < 19 / 20 < missed.rank1.high


def test_what_all_draws_come_to_has_an_interval_over_the_people_of_them_all() -> None:
    names, vectors = faces(np.random.default_rng(4), 60, 3, noise=1.1)
    draws = [searching.draw_people(names, 30, seed) for seed in range(3)]
    found = searching.measure(templates(names, vectors), draws, fpirs=(0.1, 1e-9), rounds=100, seed=1)
    again = searching.measure(templates(names, vectors), draws, fpirs=(0.1, 1e-9), rounds=100, seed=1)
    assert (found.summary, found.cmc, found.draws) == (again.summary, again.cmc, again.draws)
    assert list(found.summary) == ["rank-1", "FNIR at FPIR 0.1"], "a rate that the strangers can't measure is left out"
    for row in found.summary.values():
        assert row.least <= row.mean <= row.most
        assert 0 < row.interval.low < row.mean < row.interval.high < 1
        assert row.mean == row.interval.value
    alone = searching.measure(templates(names, vectors), draws[:1], fpirs=(0.1,), rounds=100, seed=1)
    assert alone.summary["rank-1"].interval == alone.draws[0].rank1
    assert found.cmc[0] == found.summary["rank-1"].interval
    for draw, curve in zip(found.draws, found.curves, strict=True):
        rate = draw.match_rates[0]
        place = int(np.searchsorted(curve.threshold, rate.threshold))
        assert 1 - curve.fnmr[place] == pytest.approx(rate.match.value)
        assert curve.fmr[place] <= 0.1
        assert curve.fnmr[0] == pytest.approx(1 - draw.rank1.value)


def test_without_strangers_there_is_no_rate_of_theirs() -> None:
    names, vectors = faces(np.random.default_rng(4), 20, 2)
    draw = searching.draw_people(names, 20, seed=0)
    found = searching.measure(templates(names, vectors), [draw], service_threshold=lambda _fpir: 0.5, rounds=20)
    assert not found.curves
    assert not found.draws[0].match_rates
    assert np.isnan(found.draws[0].served[0].fpir)
    assert found.draws[0].served[0].fnir < 1


@pytest.mark.long
def test_retrieval_intervals_hold_their_figures() -> None:
    names, vectors = faces(np.random.default_rng(5), 30, 4, noise=0.9)
    people = points.number_people([person_of(name) for name in names])
    figures = protocols.retrieval_figures(vectors, people, rounds=200, seed=0)
    plain = metrics.retrieval(vectors, people)
    assert figures["MAP@R"].value == pytest.approx(plain.average_precision.mean())
    assert figures["Recall@1"].value == pytest.approx(plain.recall_of[1].mean())
    assert all(figure.low <= figure.value <= figure.high for figure in figures.values())
    assert figures["MAP@R"].low < figures["MAP@R"].high
    clustered = protocols.retrieval_figures(vectors, people, rounds=50, seed=0, nmi=True)["NMI"]
    assert clustered.value == pytest.approx(
        metrics.normalised_mutual_information(people, metrics.clusters(vectors, len(np.unique(people))))
    )
    assert clustered.low < clustered.high < 1


# --- Operating points ------------------------------------------------------------------------------------------------


def test_operating_points_equal_counting_over_all_pairs() -> None:
    names, vectors = faces(np.random.default_rng(6), 60, 3, noise=0.6)
    people = points.number_people([person_of(name) for name in names])
    compared = points.compare_all(vectors, people)
    measured = points.measure(compared, people, rates=(1e-2, 1e-3, 1e-4, 1e-6), rounds=40)
    scores = [(float(a @ b), i == j) for (a, i), (b, j) in combinations(list(zip(vectors, people, strict=True)), 2)]
    nonmated = np.array([score for score, mate in scores if not mate])
    mated = np.array([score for score, mate in scores if mate])
    assert (measured.comparisons, len(compared.mated)) == (len(nonmated), len(mated))
    # Of 15,930 pairs 1e-4 are too few to rest on, 1e-6 none at all: neither is reported.
    assert [point.fmr for point in measured.points] == [1e-2, 1e-3]
    for point in measured.points:
        assert point.threshold.value == pytest.approx(metrics.threshold_at_fmr(nonmated, point.fmr), abs=1e-6)
        assert point.fnmr.value == pytest.approx(metrics.fnmr_at(point.threshold.value, mated), abs=1e-3)
        assert (nonmated >= point.threshold.value).mean() <= point.fmr
        assert point.threshold.low <= point.threshold.value <= point.threshold.high
    # A rate rests on ten pairs of people, however many photos they have.
    many, whose = np.repeat(vectors, 4, axis=0), np.repeat(people, 4)  # each photo four times: 16 pairs where was one
    compared = points.compare_all(many, whose)
    copied = points.measure(compared, whose, rates=(1e-2, 1e-3, 1e-4), rounds=5)
    assert [point.fmr for point in copied.points] == [1e-2, 1e-3]
    assert compared.nonmated_count * 1e-4 > 2 * points.LEAST_ERRORS, "pairs of photos alone would do"


def test_people_under_two_names_misplaced_photos_and_copies_are_found_and_left_out() -> None:
    names, vectors = faces(np.random.default_rng(7), 80, 6, noise=0.7, d=256)
    true = points.number_people([person_of(name) for name in names])
    vectors[-1] = vectors[-7]  # the last person's last photo is the last but one's
    said = true.copy()
    said[:2] = 80  # the first person's first two photos under a name of their own
    said[12] = 5  # one photo of the third person in the sixth's folder
    compared = points.compare_all(vectors, said)
    same = points.same_people(vectors, said, compared, above=0.5)
    assert (same.people, same.copies) == (1, 1)
    # The copy is a photo of the last but one, in the last one's folder; the split person's photos show each other.
    wrong = {(i, j) for i, j in combinations(range(480), 2) if true[i] == true[j] and said[i] != said[j]}
    found = set(zip((same.keys // 480).tolist(), (same.keys % 480).tolist(), strict=True))
    copied = {(i, 479) for i in range(468, 474)}
    assert found == wrong | copied
    apart = points.measure(compared, said, rates=(1e-3,), rounds=20)
    without = points.measure(compared, said, same=same, rates=(1e-3,), rounds=20)
    assert without.comparisons == apart.comparisons - len(found)
    assert int(without.left_out.sum()) == len(found)
    scores = np.array(
        [
            float(vectors[i] @ vectors[j])
            for i, j in combinations(range(480), 2)
            if said[i] != said[j] and (i, j) not in found
        ]
    )
    assert without.points[0].threshold.value == pytest.approx(metrics.threshold_at_fmr(scores, 1e-3), abs=1e-6)
    assert without.points[0].threshold.value <= apart.points[0].threshold.value


def test_calibrations_replace_their_namesake_and_leave_one_default() -> None:
    manifest = load_package(PROJECT / "models" / "sface").manifest.model_copy(update={"calibrations": ()})

    def calibrated(to: Manifest, name: str, threshold: float, *, default: bool) -> Manifest:
        row = {"threshold_low": threshold - 0.1, "threshold_high": threshold + 0.1}
        both = (Point(fmr=0.01, threshold=threshold, **row), Point(fmr=0.001, threshold=threshold + 0.05, **row))
        new = Calibration(
            name=name, measured_on="toys", pairs="all", comparisons=9, mated=1, points=both, default=default
        )
        return with_calibration(to, new)

    first = calibrated(manifest, "a", 0.3, default=False)
    assert [calibration.default for calibration in first.calibrations] == [True]
    second = calibrated(first, "b", 0.4, default=True)
    assert [(calibration.name, calibration.default) for calibration in second.calibrations] == [
        ("a", False),
        ("b", True),
    ]
    third = calibrated(second, "a", 0.2, default=False)
    assert Thresholds(third).threshold(0.01) == pytest.approx(0.4)
    assert [calibration.points[0].threshold for calibration in third.calibrations if calibration.name == "a"] == [0.2]


# --- Commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path, astronaut: NDArray[np.uint8]) -> Path:
    """One real person twice, the second time smaller; the same photo as it would look without a face: cut in half."""
    folder = tmp_path / "photos"
    picture = Image.fromarray(astronaut)
    pictures = {
        "Eileen/Eileen_0001.jpg": picture,
        "Eileen/Eileen_0002.jpg": picture.resize((400, 400)),
        "Nobody/Nobody_0001.jpg": picture.crop((0, 260, 512, 512)),
    }
    for name, image in pictures.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / name, quality=92)
    return folder


@pytest.mark.long
def test_pairs_are_measured_with_the_services_own_pipeline(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("1\nEileen 1 2\nEileen 1 Nobody 1\n")
    command = [
        "pairs", *SFACE, "--images", str(photos), "--pairs", str(tmp_path / "pairs.txt"), "--out",
        str(tmp_path / "out"), "--templates", str(tmp_path / "kept.npz"), "--rounds", "20", "--threads", "1",
    ]  # fmt: skip
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["verification"]["photos_without_face"] == {"Nobody/Nobody_0001": "no_face"}
    assert result["verification"]["best_accuracy"] == 1
    rows = (tmp_path / "out" / "scores.csv").read_text().splitlines()
    assert float(rows[1].rsplit(",", 1)[1]) > 0.9
    assert float(rows[2].rsplit(",", 1)[1]) == protocols.NO_MATCH
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"det.svg", "scores.svg"}
    assert set(result["verification"]["equal_error_rate_interval"]) == {"value", "low", "high"}
    again = CliRunner().invoke(app, [*command, "--no-draw"])
    assert again.exit_code == 0, again.output
    picture = tmp_path / "compared.svg"
    both = [str(tmp_path / "out" / "result.json")] * 2
    compared = CliRunner().invoke(app, ["compare", *both, "--out", str(picture), "--labels", "a", "--labels", "b"])
    assert compared.exit_code == 0, compared.output
    assert picture.read_bytes().startswith(b"<?xml")


def test_a_packs_people_are_those_that_its_mated_pairs_join(tmp_path: Path) -> None:
    crops = [png(shade) for shade in range(6)]
    pairs = [(0, 1, True), (2, 3, False), (1, 4, True), (0, 5, False)]
    content = [crops[place] for first, second, _ in pairs for place in (first, second)]
    write_pack(tmp_path / "own.bin", content, [mated for *_, mated in pairs])
    listed = PackPhotos(tmp_path / "own.bin").pairs
    assert [(pair.mated, pair.fold) for pair in listed.pairs] == [(True, 0), (False, 1), (True, 2), (False, 3)]
    assert len(listed.photos) == 6
    first, second, third, fourth = [(person_of(pair.first), person_of(pair.second)) for pair in listed.pairs]
    assert first == third == ("00000", "00000")
    assert second == ("00002", "00003")
    assert fourth == ("00000", "00005")


@pytest.mark.long
def test_a_verification_pack_is_measured_like_the_photos_in_it(tmp_path: Path, astronaut: NDArray[np.uint8]) -> None:
    face = Image.fromarray(astronaut).crop((160, 60, 290, 190)).resize((112, 112))
    crops = [encoded(face, "PNG"), encoded(face.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "PNG"), png(90)]
    write_pack(tmp_path / "own.bin", [crops[0], crops[1], crops[0], crops[2]], [True, False])
    command = ["pairs", *SFACE, "--pack", str(tmp_path / "own.bin"), "--out", str(tmp_path / "out")]
    command += ["--rounds", "20", "--no-draw"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    rows = (tmp_path / "out" / "scores.csv").read_text().splitlines()[1:]
    mirrored, flat = (float(row.rsplit(",", 1)[1]) for row in rows)
    assert mirrored > 0.8 > flat
    run = CliRunner().invoke(app, [*command, "--images", str(tmp_path)])
    assert run.exit_code == 2
    assert "--pack alone" in run.output


@pytest.mark.long
def test_packages_are_timed_beside_each_other(tmp_path: Path) -> None:
    command = ["speed", "sface", "sface", "--batch", "1", "--batch", "3", "--rounds", "3", *SFACE[2:]]
    run = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert run.exit_code == 0, run.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [row["batch"] for row in result["speed"]] == [1, 3]
    for row in result["speed"]:
        assert row["milliseconds"] > 0
        assert row["ratio"] == {"value": 1, "low": 1, "high": 1}  # with itself: the first is what it is compared to
    assert CliRunner().invoke(app, ["speed", "nonesuch", "--out", str(tmp_path)]).exit_code == 2


def test_what_the_caller_got_wrong_is_told_in_one_line(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("1\nEileen 1 9\nEileen 1 Nobody 1\n")
    command = ["pairs", "--images", str(photos), "--pairs", str(tmp_path / "pairs.txt"), "--out", str(tmp_path / "out")]
    for package, named in (("sface", "Eileen/Eileen_0009"), ("nonesuch", "nonesuch")):
        run = CliRunner().invoke(app, [*command, "--package", package, "--models", str(PROJECT / "models")])
        assert (run.exit_code, named in run.output) == (2, True), run.output


@pytest.fixture
def toy(tmp_path: Path) -> tuple[Path, list[str]]:
    """A folder with a copy of SFace's package, and arguments that name it, a pair list and made-up templates."""
    shutil.copytree(PROJECT / "models" / "sface", tmp_path / "models" / "sface")
    manifest = load_package(tmp_path / "models" / "sface").manifest
    write_manifest(tmp_path / "models" / "sface", manifest.model_copy(update={"calibrations": ()}))
    names, vectors = faces(np.random.default_rng(8), 100, 3, noise=0.5, d=128)
    shutil.copytree(PROJECT / "models" / "yunet", tmp_path / "models" / "yunet")
    made_by = TemplateOptions(package="sface", models=tmp_path / "models").facts(tmp_path)
    dataclasses.replace(templates(names, vectors), package=manifest.id, made_by=made_by).save(tmp_path / "kept.npz")
    lines = [f"p{i:03d}\t1\t{k}" for i in range(100) for k in (2, 3)]
    lines += [f"p{i:03d}\t1\tp{(i + k) % 100:03d}\t2" for i in range(100) for k in (1, 2)]
    (tmp_path / "pairs.txt").write_text("\n".join(["200", *lines]))
    named = ["--photos-of", str(tmp_path / "pairs.txt"), "--templates", str(tmp_path / "kept.npz")]
    return tmp_path, [*named, "--images", str(tmp_path), "--package", "sface", "--models", str(tmp_path / "models")]


@pytest.mark.long
def test_operating_points_are_written_into_the_manifest(toy: tuple[Path, list[str]]) -> None:
    folder, named = toy
    told = ["--name", "toys", "--measured-on", "toys", "--rounds", "20", "--same-above", "0.9", "--write"]
    run = CliRunner().invoke(app, ["operating-points", *named, *told, "--out", str(folder / "out")])
    assert run.exit_code == 0, run.output
    manifest = load_package(folder / "models" / "sface").manifest
    assert manifest.golden == load_package(PROJECT / "models" / "sface").manifest.golden, "those that it has stay"
    written = manifest.calibrations
    assert [(calibration.name, calibration.default, calibration.mated) for calibration in written] == [
        ("toys", True, 300)
    ]
    result = json.loads((folder / "out" / "result.json").read_text())
    assert [point.fmr for point in written[0].points] == [point["fmr"] for point in result["points"]]
    assert (folder / "out" / "scores.svg").is_file()
    scores = written[0].scores
    assert scores is not None
    assert sum(scores.mated) == 300
    assert sum(scores.nonmated) == 300 * 297 // 2  # 100 people with 3 photos each

    # Where there are no golden vectors they are written beside the points.
    known = manifest.golden
    write_manifest(folder / "models" / "sface", manifest.model_copy(update={"golden": None}))
    fill_cache(folder / "cache")
    again = ["operating-points", *named, *told, "--no-draw", "--out", str(folder / "out")]
    run = CliRunner().invoke(app, [*again, "--cache", str(folder / "cache")])
    assert run.exit_code == 0, run.output
    made = load_package(folder / "models" / "sface").manifest.golden
    assert made is not None
    assert known is not None
    assert made.crops == known.crops
    assert np.allclose(made.templates, known.templates, atol=1e-4)


def test_templates_kept_of_other_options_are_refused(toy: tuple[Path, list[str]]) -> None:
    folder, named = toy
    told = ["--name", "toys", "--measured-on", "toys", "--rounds", "20", "--out", str(folder / "out")]
    for other in (["--flip"], ["--aligned"], ["--images", "."]):
        run = CliRunner().invoke(app, ["operating-points", *named, *told, *other])
        assert run.exit_code == 2, other
        assert "was made otherwise" in " ".join(run.output.split())  # a line ends where a long path fills it


def test_identification_and_retrieval_are_written_with_their_settings(toy: tuple[Path, list[str]]) -> None:
    folder, named = toy
    run = CliRunner().invoke(
        app, ["identification", *named, "--people", "15", "--seeds", "2", "--rounds", "20", "--out", str(folder / "a")]
    )
    assert run.exit_code == 0, run.output
    assert "95 % interval" in run.output
    result = json.loads((folder / "a" / "result.json").read_text())
    assert [draw["seed"] for draw in result["draws"]] == [0, 1]
    assert result["summary"]["rank-1"]["mean"] == 1
    assert result["summary"]["rank-1"]["interval"] == result["cmc"][0]
    assert result["cmc"][0]["low"] < 1
    assert all((folder / "a" / name).read_bytes().startswith(b"<?xml") for name in ("cmc.svg", "fnir.svg"))
    run = CliRunner().invoke(app, ["retrieval", *named, "--nmi", "--rounds", "20", "--out", str(folder / "b")])
    assert run.exit_code == 0, run.output
    figures = json.loads((folder / "b" / "result.json").read_text())["retrieval"]
    assert figures["Recall@1"]["value"] == 1
    assert 0 < figures["NMI"]["low"] <= figures["NMI"]["high"] <= 1
    run = CliRunner().invoke(app, ["retrieval", *named, "--rounds", "20", "--out", str(folder / "c")])
    assert run.exit_code == 0, run.output
    assert [path.name for path in (folder / "c").iterdir()] == ["result.json"]


@pytest.mark.long
def test_the_study_of_quality_drops_the_worst(tmp_path: Path) -> None:
    samples = PROJECT / "docs" / "samples"
    photos = {"Collins/1": "collins", "Collins/2": "collins_again", "Hopper/1": "hopper"}
    for name, sample in photos.items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(samples / f"{sample}.jpg", tmp_path / "photos" / f"{name}.jpg")
    command = ["quality", *SFACE, "--images", str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(app, [*command, "--fmr", "0.5"])
    assert run.exit_code == 0, run.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["mated"] == 1
    assert [row["pairs"] for row in result["discard"]["by_quality"]] == [1] * 7
    assert (tmp_path / "out" / "discard.svg").is_file()
