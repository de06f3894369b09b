"""A server's gates open with the packages that are installed now, or say what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.errors import LivenessUnavailable, Overloaded, Unusable
from app.features.liveness.gate import LivenessGates
from app.inference.session import Session
from app.models.opening import open_prepared
from app.package.folders import Package, find_packages
from app.recognition.gate import Gate
from app.types import Box, Face, Quality, Verdict
from tests.support import liveness
from tests.support.logged import messages
from tests.support.packages import install as install_embedder

LEVEL = 141
"""Brightness of a picture that `brightness_model` gives a score of 0.65."""


def gates(folder: Path, *names: str) -> LivenessGates:
    """The gates of a server whose packages lie in ``folder``, for an APCER and BPCER of 0.05."""

    def open_one(package: Package) -> Session:
        return open_prepared(package, folder / "cache", "cpu")

    return LivenessGates(lambda: find_packages(folder / "models"), open_one, names, 0.05, 0.05)


def verdict(gate: Gate) -> Verdict:
    """What the gate says of a face of brightness `LEVEL`."""
    pictures = tuple(np.full((cut.side, cut.side, 3), LEVEL, np.uint8) for cut in gate.cuts)
    box, landmarks, crop = Box(0, 0, 100, 100), np.zeros((5, 2), np.float32), np.zeros((112, 112, 3), np.uint8)
    face = Face(box, landmarks, 1.0, Quality(100, ()), crop, cuts=pictures)
    assert gate.judge is not None
    (made,) = gate.judge([face])
    return made.verdict


def test_without_a_package_the_error_says_what_to_do_and_one_that_is_added_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.liveness.gate.RETRY_S", 3600.0)
    (tmp_path / "models").mkdir()
    install_embedder(tmp_path / "models", "tiny")
    made = gates(tmp_path)
    with pytest.raises(LivenessUnavailable, match="models add") as caught:
        made.judging("report")
    assert caught.value.details["reason"] == "none_installed"
    liveness.install(tmp_path / "models")
    with pytest.raises(LivenessUnavailable):  # not tried again at once
        made.judging("report")
    assert (dict(made.devices), len(made.batchers)) == ({}, 0)
    monkeypatch.setattr("app.features.liveness.gate.RETRY_S", 0.0)
    assert verdict(made.judging("report")) is Verdict.NOT_MEASURED
    assert (dict(made.devices), dict(made.batch_sizes)) == ({"bright@1": "cpu"}, {1: 1})
    made.close()
    with pytest.raises(Overloaded):
        made.judging("report")


def test_a_name_that_cannot_be_used_is_in_the_log_from_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").mkdir()
    gates(tmp_path)
    assert not messages(caplog), "nothing was named"
    made = gates(tmp_path, "bright")
    assert "bright" in caplog.text
    liveness.install(tmp_path / "models")
    assert verdict(made.judging("report")) is Verdict.NOT_MEASURED


def test_of_several_packages_those_to_average_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        liveness.install(tmp_path / "models", name=name)
    with pytest.raises(LivenessUnavailable, match="LIKENESS_LIVENESS") as caught:
        gates(tmp_path).judging("report")
    assert caught.value.details["reason"] == "not_named"
    named = gates(tmp_path, "two", "one", "two")
    assert len(named.judging("report").cuts) == 2
    assert list(named.devices) == ["two@1", "one@1"]
    named.close()
    with pytest.raises(LivenessUnavailable, match="no model package 'three'"):
        gates(tmp_path, "three").judging("report")


def test_a_damaged_file_is_an_error_not_a_silent_pass(tmp_path: Path) -> None:
    made = liveness.install(tmp_path / "models")
    (made.folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(LivenessUnavailable) as caught:
        gates(tmp_path).judging("report")
    assert caught.value.details["reason"] == "package_hash_mismatch"


def test_operating_points_hold_for_the_packages_they_were_measured_with(tmp_path: Path) -> None:
    one, two = (liveness.install(tmp_path / "models", name=name) for name in ("one", "two"))
    liveness.install(tmp_path / "models", liveness.random_model(classes=2), name="three")
    alone, both, other = gates(tmp_path, "one"), gates(tmp_path, "two", "one"), gates(tmp_path, "one", "three")
    assert verdict(alone.judging("report")) is Verdict.NOT_MEASURED
    liveness.calibrate(one, live_from=0.6, spoof_below=0.4)
    assert verdict(alone.judging("report")) is Verdict.LIVE  # written while the packages are in use
    assert verdict(both.judging("report")) is Verdict.NOT_MEASURED
    liveness.calibrate(two, one, live_from=0.7, spoof_below=0.3)
    assert verdict(both.judging("report")) is Verdict.UNCERTAIN
    assert verdict(alone.judging("require")) is Verdict.LIVE
    with pytest.raises(Unusable, match=r"one@1, three@1 was not measured") as caught:
        other.judging("require")
    assert (caught.value.code, caught.value.details["models"]) == ("liveness_not_measured", ["one@1", "three@1"])
    for each in (alone, both, other):
        each.close()
