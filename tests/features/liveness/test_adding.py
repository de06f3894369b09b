"""`likeness models add --task liveness`: what a graph does not say must be stated."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from onnx import ModelProto

from app.errors import Unusable
from app.features.liveness.adding import add_liveness
from app.models.add import NewPackage
from app.models.download import known_models
from app.models.prepare import rewrite_classifier
from app.models.presets import PRESETS, Stated
from app.package.manifest import Licence, LivenessContract, LivenessCut, RewriteClassifier
from tests.conftest import PROJECT
from tests.support import liveness
from tests.support.commands import run
from tests.support.packages import flat_model
from tests.support.service import COLLINS, running

CUT = LivenessCut(scale=2.7, shape="box", edge="move", resize="linear")
CONTRACT = LivenessContract(cut=CUT, classes=("print", "live", "replay"), live="live")


def file_of(folder: Path, model: ModelProto) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "given.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def new(file: Path) -> NewPackage:
    licence = Licence(name="MIT", non_commercial=False)
    return NewPackage(file, "mine", licence, file.parent / "models", file.parent / "cache")


def test_stated_facts_make_a_package_and_nothing_is_tried(tmp_path: Path) -> None:
    file = file_of(tmp_path, liveness.random_model())
    added = add_liveness(new(file), CONTRACT, PRESETS["opencv"])
    manifest = added.package.manifest
    assert (manifest.task, manifest.input.shape, manifest.output.shape) == ("liveness", ("N", 32, 32, 3), ("N", 3))
    assert manifest.liveness == CONTRACT
    assert isinstance(manifest.prepare, RewriteClassifier)
    assert (manifest.prepare.input.layout, manifest.prepare.input.colour) == ("nchw", "bgr")
    assert manifest.prepare.output == "logits"
    assert manifest.liveness_calibrations == ()
    with pytest.raises(Unusable) as caught:
        add_liveness(new(file), CONTRACT, PRESETS["opencv"])
    assert caught.value.code == "package_exists"


def test_a_file_that_answers_probabilities_is_seen_to(tmp_path: Path) -> None:
    prepared = rewrite_classifier(liveness.random_model(), RewriteClassifier(input=liveness.FORM), liveness.SIDE)
    added = add_liveness(new(file_of(tmp_path, prepared)), CONTRACT, PRESETS["sface"])
    assert added.facts.normalised
    assert (added.facts.layout, added.facts.dtype) == ("nhwc", "uint8")


def test_what_nobody_stated_is_an_error_not_a_guess(tmp_path: Path) -> None:
    file = file_of(tmp_path, liveness.random_model())
    with pytest.raises(Unusable, match="--preset") as caught:
        add_liveness(new(file), CONTRACT, Stated("rgb"))
    assert caught.value.code == "model_facts_missing"
    assert not (tmp_path / "models" / "mine").exists()


@pytest.mark.parametrize("classes", [("live", "spoof"), ("live", "a", "b", "c")])
def test_statements_that_the_graph_contradicts_are_refused(tmp_path: Path, classes: tuple[str, ...]) -> None:
    file = file_of(tmp_path, liveness.random_model())
    with pytest.raises(Unusable, match="3 classes") as caught:
        add_liveness(new(file), CONTRACT.model_copy(update={"classes": classes}), PRESETS["sface"])
    assert caught.value.code == "model_input_contradicted"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (flat_model([1, 3, 8, 8], 192), "no square of 16"),
        (flat_model([1, 3, 32, 64], 6144), "no square of 16"),
        (flat_model([1, 1, 32, 32], 1024), "no square of 16"),
        (flat_model([1, 3, "S", "S"], 6144), "no square of 16"),
        (flat_model([1, 3, 32, 32], 3072), "not 2 to 16 classes"),
    ],
)
def test_a_file_that_is_no_liveness_model_is_refused(tmp_path: Path, model: ModelProto, says: str) -> None:
    with pytest.raises(Unusable, match=says) as caught:
        add_liveness(new(file_of(tmp_path, model)), CONTRACT, PRESETS["sface"])
    assert caught.value.code == "model_unsuitable"


def test_the_command_adds_a_package_that_a_running_server_uses_at_once(tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models", models)
    file = file_of(tmp_path, liveness.brightness_model())
    words = ("models", "add", file, "--task", "liveness", "--name", "bright", "--licence", "MIT")
    assert "--cut, --scale" in run(tmp_path / "data", *words, models_dir=models).stderr
    shown = ("--cut", "square", "--scale", "1.5")
    assert "--classes" in run(tmp_path / "data", *words, *shown, models_dir=models).stderr
    for classes in ("live,Spoof!", "a,b", "live,live"):
        bad = run(tmp_path / "data", *words, *shown, "--classes", classes, models_dir=models)
        assert (bad.returncode, "--classes" in bad.stderr) == (2, True), classes
    with running(tmp_path / "data", models_dir=models) as client:
        photos = {"image1": COLLINS, "image2": COLLINS}
        assert client.post("/v1/verify", files=photos, params={"liveness": "report"}).status_code == 503
        stated = ("--classes", "live,spoof", "--preset", "unit", "--json")
        done = run(tmp_path / "data", *words, *shown, *stated, models_dir=models)
        assert done.returncode == 0, done.stderr
        assert (done.rows[0]["side"], done.rows[0]["classes"]) == (32, ["live", "spoof"])
        (model,) = [each for each in client.get("/v1/models").json()["models"] if each["task"] == "liveness"]
        assert model["id"] == "bright@1"


def test_known_liveness_models_are_described_in_full() -> None:
    known = {name: model for name, model in known_models().items() if model.task == "liveness"}
    assert set(known) == {"minifasnet-v2", "minifasnet-v1se", "minifasnet-v2se-facenox", "anti-spoof-mn3"}
    for model in known.values():
        assert model.sha256 is not None
        assert model.liveness is not None
        assert model.liveness.live in model.liveness.classes
        assert model.licence.non_commercial == ("CelebA-Spoof" in (model.training_data or ""))
    if liveness.SHARED.is_file():
        assert known["minifasnet-v2se-facenox"].sha256 == hashlib.sha256(liveness.SHARED.read_bytes()).hexdigest()
