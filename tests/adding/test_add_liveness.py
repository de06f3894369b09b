"""`likeness models add --task liveness`: what a graph and live photos tell is found, the rest must be stated."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from app.adding.catalogue import known_models
from app.adding.liveness import StatedLiveness, add_liveness
from app.adding.new_package import NewPackage
from app.errors import Unusable
from app.inference.manifest import Licence, LivenessCut, RewriteClassifier
from app.inference.prepare import rewrite_classifier
from app.types import Pixels
from tests.conftest import PROJECT
from tests.support import liveness
from tests.support.commands import run
from tests.support.service import COLLINS, SAMPLES, running

CUT = LivenessCut(scale=2.7, shape="box", edge="move", resize="linear")


def bright(side: int) -> Pixels:
    """Cuts that are brighter than any drawn face, and differ."""
    levels = np.linspace(225, 255, 40).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (40, side, side, 3)).copy()


def file_of(folder: Path, model: ModelProto) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "given.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def new(file: Path) -> NewPackage:
    licence = Licence(name="MIT", non_commercial=False)
    return NewPackage(file, "mine", licence, file.parent / "models", file.parent / "cache")


def test_stated_facts_make_a_package_and_nothing_is_tried(tmp_path: Path) -> None:
    stated = StatedLiveness(CUT, ("print", "live", "replay"), "bgr", "0-255")
    file = file_of(tmp_path, liveness.random_model())
    added = add_liveness(new(file), stated)
    manifest = added.package.manifest
    assert (manifest.task, manifest.input.shape, manifest.output.shape) == ("liveness", ("N", 32, 32, 3), ("N", 3))
    assert manifest.liveness is not None
    assert (manifest.liveness.classes, manifest.liveness.live) == (("print", "live", "replay"), "live")
    assert manifest.liveness.cut == CUT
    assert isinstance(manifest.prepare, RewriteClassifier)
    assert (manifest.prepare.input.layout, manifest.prepare.input.colour) == ("nchw", "bgr")
    assert manifest.prepare.output == "logits"
    assert manifest.liveness_calibrations == ()
    with pytest.raises(Unusable) as caught:
        add_liveness(new(file), stated)
    assert caught.value.code == "package_exists"


def test_a_file_that_answers_probabilities_is_seen_to(tmp_path: Path) -> None:
    prepared = rewrite_classifier(liveness.random_model(), RewriteClassifier(input=liveness.FORM), liveness.SIDE)
    stated = StatedLiveness(CUT, ("print", "live", "replay"), "rgb", "0-255")
    added = add_liveness(new(file_of(tmp_path, prepared)), stated)
    assert added.facts.probabilities
    assert (added.facts.layout, added.facts.dtype) == ("nhwc", "uint8")


def test_what_nobody_stated_is_an_error_not_a_guess(tmp_path: Path) -> None:
    file = file_of(tmp_path, liveness.random_model())
    with pytest.raises(Unusable, match="--classes") as caught:
        add_liveness(new(file), StatedLiveness(CUT))
    assert caught.value.code == "liveness_facts_missing"
    assert not (tmp_path / "models" / "mine").exists()


def test_live_photos_tell_which_class_is_live(tmp_path: Path) -> None:
    file = file_of(tmp_path, liveness.brightness_model(classes=3, live=1, middle=0.8, steepness=60))
    stated = StatedLiveness(CUT, colour="rgb", normalisation="0-1")
    added = add_liveness(new(file), stated, live_cuts=bright)
    assert added.chosen.live == 1
    assert added.package.manifest.liveness is not None
    assert added.package.manifest.liveness.classes == ("spoof-0", "live", "spoof-2")
    assert added.faces == 40
    best, *others = added.readings
    assert (best.separation or 0) > 0.9 > max(one.separation or 0 for one in others)


def test_photos_that_tell_nothing_are_an_error_with_figures(tmp_path: Path) -> None:
    file = file_of(tmp_path, liveness.brightness_model(middle=0.8, steepness=60))
    stated = StatedLiveness(CUT)  # which range the file wants, brightness alone does not tell
    with pytest.raises(Unusable, match="don't tell") as caught:
        add_liveness(new(file), stated, live_cuts=bright)
    assert caught.value.code == "model_input_ambiguous"
    figures = caught.value.details["separation"]
    assert isinstance(figures, dict)
    assert len(figures) == 5 * 2 * 2
    with pytest.raises(Unusable) as caught:
        add_liveness(new(file), stated, live_cuts=lambda side: bright(side)[:5])
    assert caught.value.code == "too_few_faces"


@pytest.mark.parametrize("classes", [("live", "spoof"), ("a", "b", "c"), ("live", "live", "a")])
def test_statements_that_the_graph_contradicts_are_refused(tmp_path: Path, classes: tuple[str, ...]) -> None:
    file = file_of(tmp_path, liveness.random_model())
    with pytest.raises(Unusable, match="3 classes") as caught:
        add_liveness(new(file), StatedLiveness(CUT, classes))
    assert caught.value.code == "model_input_contradicted"


def _flat(shape: list[int | str], width: int) -> ModelProto:
    """A graph that only flattens its input, so that its output has ``width`` numbers."""
    nodes = [helper.make_node("Flatten", ["in"], ["out"])]
    inputs = [helper.make_tensor_value_info("in", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, width])]
    graph = helper.make_graph(nodes, "flat", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (_flat([1, 3, 8, 8], 192), "no square of 16"),
        (_flat([1, 3, 32, 64], 6144), "no square of 16"),
        (_flat([1, 1, 32, 32], 1024), "no square of 16"),
        (_flat([1, 3, "S", "S"], 6144), "no square of 16"),
        (_flat([1, 3, 32, 32], 3072), "not 2 to 16 classes"),
    ],
)
def test_a_file_that_is_no_liveness_model_is_refused(tmp_path: Path, model: ModelProto, says: str) -> None:
    with pytest.raises(Unusable, match=says) as caught:
        add_liveness(new(file_of(tmp_path, model)), StatedLiveness(CUT))
    assert caught.value.code == "model_unsuitable"


@pytest.mark.parametrize("content", [b"", b"\x08\x07no graph", liveness.random_model().SerializeToString()[:500]])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.onnx").write_bytes(content)
    with pytest.raises(Unusable) as caught:
        add_liveness(new(tmp_path / "broken.onnx"), StatedLiveness(CUT))
    assert caught.value.code == "model_unsuitable"


def test_the_command_adds_a_package_that_a_running_server_uses_at_once(tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models", models)
    file = file_of(tmp_path, liveness.brightness_model())
    words = ("models", "add", file, "--task", "liveness", "--name", "bright", "--licence", "MIT")
    assert "--cut, --scale" in run(tmp_path / "data", *words, models_dir=models).stderr
    shown = ("--cut", "square", "--scale", "1.5")
    assert "liveness_facts_missing" in run(tmp_path / "data", *words, *shown, models_dir=models).stderr
    bad = run(tmp_path / "data", *words, *shown, "--classes", "live,Spoof!", models_dir=models)
    assert (bad.returncode, "--classes" in bad.stderr) == (2, True)
    with running(tmp_path / "server", models_dir=models) as client:
        photos = {"image1": COLLINS, "image2": COLLINS}
        assert client.post("/v1/verify", files=photos, params={"liveness": "report"}).status_code == 503
        stated = ("--classes", "live,spoof", "--colour", "rgb", "--normalisation", "0-1", "--json")
        done = run(tmp_path / "data", *words, *shown, *stated, models_dir=models)
        assert done.returncode == 0, done.stderr
        assert (done.rows[0]["side"], done.rows[0]["classes"]) == (32, ["live", "spoof"])
        (model,) = [one for one in client.get("/v1/models").json()["models"] if one["task"] == "liveness"]
        assert model["id"] == "bright@1"
    few = run(
        tmp_path / "data",
        *words[:5],
        "--name",
        "other",
        "--licence",
        "MIT",
        *shown,
        "--photos",
        SAMPLES,
        models_dir=models,
    )
    assert "too_few_faces" in few.stderr


def test_known_liveness_models_are_described_in_full() -> None:
    found = {name: model for name, model in known_models().items() if model.task == "liveness"}
    assert {"minifasnet-v2", "minifasnet-v1se", "minifasnet-v2se-facenox"} == set(found)
    for model in found.values():
        assert model.sha256 is not None
        assert model.liveness is not None
        assert model.liveness.live in model.liveness.classes
        assert (model.colour is None, model.normalisation is None) == (False, False)
        assert (model.licence.name, model.licence.non_commercial) == ("Apache-2.0", False)
    if liveness.SHARED.is_file():
        assert found["minifasnet-v2se-facenox"].sha256 == hashlib.sha256(liveness.SHARED.read_bytes()).hexdigest()
