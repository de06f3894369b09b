"""False match rates within groups: counted right, with intervals that know that pairs share photos."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from app.package.cards import BiasCard
from app.package.folders import load_package
from tests.conftest import PROJECT
from tests.support import packages
from training.commands import options
from training.commands.evaluate import app
from training.commands.options import TemplateOptions
from training.data.preparation.checking import thumbnail
from training.evaluation import groups
from training.evaluation.groups import (
    SPREAD_FMR,
    age,
    bias_card,
    by_years,
    measure_groups,
    near_copies,
    read_labels,
    spread,
    utkface,
    with_doubt,
)
from training.evaluation.photos import Templates

D = 8


def unit(rng: np.random.Generator, n: int, spread: float = 1.0) -> np.typing.NDArray[np.float32]:
    """Unit vectors around one direction, the closer the smaller ``spread``."""
    centre = np.zeros(D)
    centre[0] = 1
    x = centre + spread * rng.normal(size=(n, D))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


# --- Labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("utkface/0_1_2_2017", ("children-0-3", "children-0-3/female-asian")),
        ("utkface/3_0_0_2017", ("children-0-3", "children-0-3/male-white")),
        ("utkface/12_0_1_2017", ("children-4-12", "children-4-12/male-black")),
        ("utkface/17_1_4_2017", ("youths-13-17",)),
        ("utkface/59_1_3_2017", ("adults-18-59", "adults-18-59/female-indian")),
        ("utkface/116_1_3_2017", ("adults-60-plus", "adults-60-plus/female-indian")),
        ("utkface/61_1_20170109150557335", ()),
        ("utkface/anybody", ()),
    ],
)
def test_names_of_utkface_are_read(name: str, groups: tuple[str, ...]) -> None:
    assert tuple(utkface(name)) == groups


def test_a_csv_or_folders_name_groups_and_people(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("file,group,person\na/1.jpg,staff,ann\na/1.jpg,night,\na/2.jpg,staff,ann\n")
    labels = read_labels(str(path), ["a/1", "a/2", "a/3"])
    assert labels.groups == {"all": ("a/1", "a/2"), "night": ("a/1",), "staff": ("a/1", "a/2")}
    assert (labels.people, labels.unlabelled) == ({"a/1": "ann", "a/2": "ann"}, 1)
    # So may folders.
    assert read_labels("folder", ["b/1", "a/1"]).groups == {"a": ("a/1",), "all": ("b/1", "a/1"), "b": ("b/1",)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file,person\n", "needs the columns"),
        ("file,group\na/9.jpg,staff\n", "line 2.*not among the photos"),
        ("file,group\na/1.jpg,Night shift\n", "no group"),
        ("file,group\n", "none of the 1 photos"),
    ],
)
def test_a_csv_that_labels_nobody_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "groups.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        read_labels(str(path), ["a/1"])
    with pytest.raises(ValueError, match="neither utkface, folder nor a CSV file"):
        read_labels("nowhere.csv", ["a/1"])


# --- Rates -----------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), same_above=st.sampled_from([math.inf, 0.9, 0.97]), persons=st.integers(3, 12))
def test_rates_are_those_of_an_explicit_loop(seed: int, same_above: float, persons: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, people = unit(rng, 12, 0.4), [f"p{i % persons}" for i in range(12)]
    (found,) = measure_groups(
        vectors, {"g": np.arange(12)}, people, {1e-2: 0.3, 1e-3: 0.6}, same_above=same_above, rounds=5
    )
    pairs = [(a, b) for a, b in combinations(range(12), 2) if people[a] != people[b]]
    scores = np.array([(vectors[[a]] @ vectors[[b]].T).item() for a, b in pairs])
    kept = scores[scores < same_above]
    assert (found.comparisons, found.same_person) == (len(kept), len(scores) - len(kept))
    for rate in found.rates:
        assert rate.false_matches == int((kept >= rate.threshold).sum())
        assert rate.rate.value == pytest.approx(float((kept >= rate.threshold).mean()))
        assert rate.rate.low <= rate.rate.value <= rate.rate.high


def test_intervals_are_wider_than_those_of_independent_pairs_and_cover_the_truth() -> None:
    """Faces that resemble everybody make errors come together: a plain interval would be far too narrow."""
    threshold, truth, covered, trials = {1e-2: 0.5}, [], 0, 30

    def faces(rng: np.random.Generator, n: int) -> np.typing.NDArray[np.float32]:
        return np.concatenate([unit(rng, n - n // 5, 1.0), unit(rng, n // 5, 0.15)])

    for seed in range(4):
        vectors = faces(np.random.default_rng(1000 + seed), 1500)
        (large,) = measure_groups(
            vectors, {"g": np.arange(1500)}, [str(i) for i in range(1500)], threshold, same_above=math.inf, rounds=2
        )
        truth.append(large.rates[0].rate.value)
    for seed in range(trials):
        vectors = faces(np.random.default_rng(seed), 60)
        (found,) = measure_groups(
            vectors, {"g": np.arange(60)}, [str(i) for i in range(60)], threshold, same_above=math.inf, rounds=200
        )
        rate = found.rates[0].rate
        covered += rate.low <= float(np.mean(truth)) <= rate.high
        plain = 2 * 1.96 * np.sqrt(rate.value * (1 - rate.value) / found.comparisons)
        assert rate.high - rate.low > 1.5 * plain
    assert covered >= 0.8 * trials


def test_where_no_pair_passes_the_interval_still_ends_above_zero() -> None:
    vectors = np.eye(D, dtype=np.float32)
    (found,) = measure_groups(
        vectors, {"g": np.arange(D)}, list("abcdefgh"), {1e-3: 0.5}, same_above=math.inf, rounds=10
    )
    rate = found.rates[0]
    assert (rate.false_matches, rate.rate.value, rate.rate.low, rate.exceeds) == (0, 0, 0, False)
    assert 0.1 < rate.rate.high < 0.2


def test_a_rate_exceeds_the_stated_one_only_if_no_pair_in_doubt_makes_it() -> None:
    vectors = np.concatenate([unit(np.random.default_rng(1), 12, 0.02), np.eye(D, dtype=np.float32)])
    rows, people = {"g": np.arange(20)}, [str(i) for i in range(20)]
    found, strict = (
        measure_groups(vectors, rows, people, {1e-2: 0.4}, same_above=cut, rounds=50) for cut in (math.inf, 0.9)
    )
    assert found[0].rates[0].exceeds
    (doubted,) = with_doubt(found, strict)
    assert doubted.rates[0].rate.value == found[0].rates[0].rate.value
    assert doubted.rates[0].rate.low == strict[0].rates[0].rate.low < found[0].rates[0].rate.low


def test_near_copies_are_found_and_the_first_is_kept() -> None:
    rng = np.random.default_rng(0)
    photos = rng.integers(0, 256, (3, 100, 90, 3)).astype(np.uint8)
    resaved = np.clip(photos[0].astype(int) + rng.integers(-9, 10, photos[0].shape), 0, 255).astype(np.uint8)
    small = np.stack([thumbnail(photo) for photo in (*photos, resaved, photos[1][:, :80])])
    assert near_copies(small, 0.97).tolist() == [False, False, False, True, False]
    assert not near_copies(small, 1.1).any()


# --- The command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """Photos of two groups, `shade/…`: the templates, which are given, lie close together in one of them."""
    for folder in ("wide", "close"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for number in range(8):
            pixels = np.random.default_rng([number, len(folder)]).integers(0, 256, (40, 40, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / folder / f"{number}.png")
    names = tuple(sorted(f"{folder}/{number}" for folder in ("wide", "close") for number in range(8)))
    rng = np.random.default_rng(3)
    vectors = np.concatenate([unit(rng, 8, 0.05), np.eye(8, dtype=np.float32)])
    package = packages.install(tmp_path / "models", "tiny", dimension=D)
    shutil.copytree(PROJECT / "models" / "yunet", tmp_path / "models" / "yunet")
    made_by = TemplateOptions(package="tiny", models=tmp_path / "models").facts(tmp_path / "photos")
    quality = np.full(16, 50, np.float32)
    made = Templates(package.id, names, vectors, np.ones(16, bool), quality, {}, 1.0, made_by)
    made.save(tmp_path / "templates.npz")
    return tmp_path


def run(folder: Path, *words: str) -> tuple[int, str]:
    options = ("--images", folder / "photos", "--package", "tiny", "--models", folder / "models", "--out",
               folder / "out", "--templates", folder / "templates.npz", "--measured-on", "shades",
               "--least", "4", "--rounds", "20")  # fmt: skip
    done = CliRunner().invoke(app, ["groups", *map(str, options), *words])
    return done.exit_code, f"{done.output} {done.exception!r}"


def test_the_command_writes_the_card_into_the_manifest(shown: Path) -> None:
    code, said = run(shown, "--groups", "folder", "--same-above", "1.1", "--doubt-above", "1.1", "--write")
    assert code == 0, said
    result = json.loads((shown / "out" / "result.json").read_text())
    rates = {group["name"]: [rate["rate"]["value"] for rate in group["rates"]] for group in result["groups"]}
    assert rates["wide"] == [0, 0, 0, 0, 0]
    assert rates["close"][0] == 1
    manifest = load_package(shown / "models" / "tiny-1").manifest
    card = manifest.bias_card
    assert isinstance(card, BiasCard)
    assert (card.measured_on, card.calibration, card.measured_with) == ("shades", "made-up", manifest.recipe_digest)
    close = card.find("close")
    assert close is not None
    assert (close.photos, close.comparisons, close.rates[0].found) == (8, 28, 1.0)
    assert "upper bounds" in card.repeats


def test_pairs_above_the_cut_count_as_one_person(shown: Path) -> None:
    code, said = run(shown, "--groups", "folder", "--same-above", "0.5")
    assert (code, "close: no pair is left to compare" in said) == (2, True), said
    code, said = run(shown, "--groups", "folder", "--same-above", "0.98", "--doubt-above", "0.98")
    assert code == 0, said
    result = json.loads((shown / "out" / "result.json").read_text())
    (whole,) = (group for group in result["groups"] if group["name"] == "all")
    assert 0 < whole["same_person"] < 28
    assert load_package(shown / "models" / "tiny-1").manifest.bias_card is None


def test_people_of_a_csv_are_no_false_matches(shown: Path) -> None:
    with (shown / "groups.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "group", "person"])
        rows.writerows([f"close/{number}.png", "close", "ann" if number < 4 else ""] for number in range(8))
    code, said = run(shown, "--groups", str(shown / "groups.csv"), "--same-above", "1.1", "--doubt-above", "1.1")
    assert code == 0, said
    result = json.loads((shown / "out" / "result.json").read_text())
    assert {group["name"]: group["comparisons"] for group in result["groups"]} == {"all": 22, "close": 22}
    assert result["unlabelled"] == 8


def test_the_spread_of_another_package_is_shown_beside(shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates_of = options.templates_of

    def of_either(images: Path, pairs: list[Path], way: TemplateOptions) -> Templates:
        if way.package == "tiny":
            return templates_of(images, pairs, way)
        made = templates_of(images, pairs, replace(way, package="tiny", templates=shown / "templates.npz"))
        return replace(made, package="other@1", vectors=made.vectors[::-1])  # what is close is wide

    monkeypatch.setattr(options, "templates_of", of_either)
    code, said = run(shown, "--groups", "folder", "--same-above", "1.1", "--doubt-above", "1.1", "--beside", "other")
    assert code == 0, said
    mine, other = json.loads((shown / "out" / "result.json").read_text())["spread"].values()
    assert (mine["close"], mine["wide"]) == (other["wide"], other["close"])
    assert "other@1" in said


def test_a_package_without_operating_points_is_refused(shown: Path) -> None:
    manifest = shown / "models" / "tiny-1" / "manifest.json"
    described = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(described | {"calibrations": []}))
    code, said = run(shown, "--groups", "folder")
    assert (code, "no operating points yet" in said) == (2, True)


def test_rounding_never_turns_an_interval_inside_out() -> None:
    rng = np.random.default_rng(5)
    figures = measure_groups(
        unit(rng, 40, 0.3), {"g": np.arange(40)}, [str(i) for i in range(40)], {1e-2: 0.2, 1e-3: 0.8},
        same_above=math.inf, rounds=30,
    )  # fmt: skip
    card = bias_card(packages.manifest(), figures, measured_on="-", calibration="x", repeats="-")
    assert all(rate.low <= rate.found <= rate.high for rate in card.groups[0].rates)


def test_the_spread_of_two_packages_is_taken_at_one_mean_rate() -> None:
    rng = np.random.default_rng(2)
    rows = {"even": np.arange(300), "close": np.arange(300, 600)}
    before = np.concatenate([unit(rng, 300, 3.0), unit(rng, 300, 0.6)])
    after = np.concatenate([unit(rng, 300, 3.0), unit(rng, 300, 3.0)])
    found = spread({"before": before, "after": after}, rows, same_above=math.inf)
    for rates in found.values():
        assert np.mean(list(rates.values())) == pytest.approx(SPREAD_FMR, rel=0.05)
    assert found["before"]["close"] > found["after"]["close"]
    nothing = spread({"before": before}, rows, same_above=-1.0)
    assert nothing == {"before": {}}


def test_the_spread_is_taken_of_at_most_so_many_photos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "SPREAD_PHOTOS", 4)
    vectors = np.eye(D, dtype=np.float32)
    vectors[1:7:2] = vectors[0]  # every second photo is like the first: found only if all seven are compared
    assert spread({"p": vectors}, {"g": np.arange(7)}, same_above=math.inf) == {"p": {"g": 0.0}}


def test_years_that_nobody_lives_are_no_age() -> None:
    assert [age(f"a/{years}_0_0_1") for years in (1, 199, 200, 999)] == [1, 199, None, None]
    vectors = np.eye(D, dtype=np.float32)[:2]
    found = by_years(vectors, np.array([0, 199]), {1e-2: -1.0}, same_above=math.inf)
    assert found["children"]["less than 200 years apart"] == [1.0]


def test_rates_by_years_are_those_of_a_loop_over_pairs() -> None:
    rng = np.random.default_rng(4)
    vectors, ages = unit(rng, 40, 0.2), rng.integers(0, 60, 40)
    found = by_years(vectors, ages, {1e-2: 0.3}, same_above=0.9)
    pairs: dict[tuple[str, str], list[bool]] = {}
    for first in range(40):
        for second in range(first + 1, 40):
            score, years = float(vectors[first] @ vectors[second]), abs(int(ages[first] - ages[second]))
            last = next(end for end in (2, 5, 10, 20, 200) if years < end)
            who = "children" if min(ages[first], ages[second]) <= 12 else "others"
            if score < 0.9:
                pairs.setdefault((who, f"less than {last} years apart"), []).append(score >= 0.3)
    for who, rates in found.items():
        for name, (rate,) in rates.items():
            assert rate == pytest.approx(np.mean(pairs.get((who, name), [False]))), (who, name)
