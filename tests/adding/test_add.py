"""`likeness models add`: the form of a file's input is measured, and what separates nobody is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from app.adding.add import PEOPLE, VIEWS, Added, Stated, add, drawn_crops
from app.adding.new_package import NewPackage
from app.errors import Unusable
from app.inference.golden import golden_crops
from app.inference.manifest import Licence
from app.inference.package import load_package
from app.inference.session import open_embedder
from app.types import Vectors
from tests.conftest import PROJECT
from tests.support.commands import run
from tests.support.embedder_files import SMALL, bgr, floats, nchw, sface_file, small, untrained
from tests.support.service import COLLINS, running
from training.data.drawn.dataset import ProceduralFaces

MIT = Licence(name="MIT", non_commercial=False)
JPEG_ERROR = 6.0
"""Mean difference in 0-255 that compression makes."""


def added(folder: Path, model: ModelProto, stated: Stated | None = None) -> Added:
    file = folder / "given.onnx"
    file.write_bytes(model.SerializeToString())
    return add(NewPackage(file, "mine", MIT, folder / "models", folder / "cache"), stated=stated)


def templates(folder: Path, cache: Path) -> Vectors:
    return open_embedder(load_package(folder), cache, "cpu").run(golden_crops())


def test_the_packaged_crops_are_the_drawn_people() -> None:
    drawn = ProceduralFaces(PEOPLE, VIEWS)
    crops = drawn_crops()
    assert crops.people.tolist() == drawn.labels.tolist()
    for place in (0, 1, len(drawn) - 1):
        difference = crops.pixels[place].astype(float) - drawn[place][0]
        assert np.abs(difference).mean() < JPEG_ERROR


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "form"),
    [(small, ("nhwc", "uint8", "rgb")), (bgr, ("nhwc", "uint8", "bgr")), (nchw, ("nchw", "uint8", "rgb"))],
)
def test_layout_and_colour_are_found(
    tmp_path: Path, make: Callable[[], ModelProto], form: tuple[str, str, str]
) -> None:
    found = added(tmp_path, make())
    chosen = found.chosen.candidate.form
    assert (chosen.layout, chosen.dtype, chosen.colour) == form
    manifest = found.package.manifest
    assert (manifest.dimension, manifest.calibrations, manifest.licence.name) == (128, (), "MIT")
    assert manifest.golden is not None
    own = templates(found.package.folder, tmp_path / "cache")
    assert (own * templates(SMALL, tmp_path / "cache")).sum(axis=1).min() > 0.9999
    wrong = next(row for row in found.comparison.rows if row is not found.chosen)
    assert wrong.is_clearly_worse


@pytest.mark.long
def test_a_tie_is_an_error_with_figures_and_can_be_stated(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="can't tell these inputs apart") as caught:
        added(tmp_path, floats())
    assert caught.value.code == "model_input_ambiguous"
    figures = caught.value.details["separation"]
    assert isinstance(figures, dict)
    assert len(figures) == 10
    assert caught.value.details["pairs"] == {"mated": PEOPLE * 3, "nonmated": 10152}
    assert not (tmp_path / "models" / "mine").exists()
    with pytest.raises(Unusable, match="contradicts the measurement") as caught:
        added(tmp_path, floats(), Stated("bgr", "imagenet"))
    assert caught.value.code == "model_input_contradicted"
    # (x - 127.5) / 127.5 and / 128 make the same templates: no tie
    found = added(tmp_path, floats(), Stated(normalisation="127.5"))
    assert found.chosen.candidate.name == "rgb 127.5"
    own = templates(found.package.folder, tmp_path / "cache")
    assert (own * templates(SMALL, tmp_path / "cache")).sum(axis=1).min() > 0.9999


def test_random_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="tells nobody apart") as caught:
        added(tmp_path, untrained())
    assert caught.value.code == "model_separates_nothing"
    assert not (tmp_path / "models" / "mine").exists()


@pytest.mark.long
def test_a_statement_that_the_graph_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="takes uint8") as caught:
        added(tmp_path, small(), Stated(normalisation="127.5"))
    assert caught.value.code == "model_input_contradicted"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no readable ONNX"),
        (b"\x08\x07not a graph", "no readable ONNX"),
        (small().SerializeToString()[:100_000], "no readable ONNX"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "broken.onnx"
    file.write_bytes(content)
    with pytest.raises(Unusable, match=says) as caught:
        add(NewPackage(file, "mine", MIT, tmp_path, tmp_path))
    assert caught.value.code == "model_unsuitable"


@pytest.mark.parametrize("shape", [[1, 3, 160, 160], [1, 1, 112, 112], [1, 112, 112], [8, 3, 112, 112]])
def test_a_graph_that_takes_no_crops_is_refused(tmp_path: Path, shape: list[int]) -> None:
    nodes = [helper.make_node("Flatten", ["in"], ["out"])]
    inputs = [helper.make_tensor_value_info("in", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", "D"])]
    graph = helper.make_graph(nodes, "flat", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(Unusable, match="takes no 112×112 crops") as caught:
        added(tmp_path, model)
    assert caught.value.code == "model_unsuitable"


@pytest.mark.long
def test_the_command_asks_for_a_licence_and_a_running_server_finds_the_package(tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models", models)
    words = ("models", "add", SMALL / "model.onnx", "--name", "mine")
    refused = run(tmp_path / "data", *words, models_dir=models)
    assert (refused.returncode, "--licence" in refused.stderr) == (2, True)
    assert run(tmp_path / "data", *words[:-1], "../mine", "--licence", "MIT").returncode == 2
    with running(tmp_path / "server", models_dir=models) as client:
        done = run(tmp_path / "data", *words, "--licence", "MIT", "--json", models_dir=models)
        assert done.returncode == 0, done.stderr
        assert done.rows[0]["input"] == "rgb 0-255"
        client.post("/v1/galleries", json={"id": "own", "embedder": "mine"}).raise_for_status()
        client.post("/v1/galleries/own/subjects/e/faces", files={"images": COLLINS}).raise_for_status()
        refusal = client.post("/v1/galleries/own/identify", files={"image": COLLINS})
        assert refusal.status_code == httpx.codes.UNPROCESSABLE_ENTITY, "it has no operating points yet"
    again = run(tmp_path / "data", *words, "--licence", "MIT", models_dir=models)
    assert (again.returncode, "package_exists" in again.stderr) == (4, True)


@pytest.mark.long
def test_sface_under_another_name_is_described_as_its_own_manifest_describes_it(tmp_path: Path) -> None:
    sface, file = load_package(PROJECT / "models" / "sface").manifest, sface_file()
    assert hashlib.sha256(file.read_bytes()).hexdigest() == sface.sha256
    own = added(tmp_path, onnx.load(file)).package.manifest
    assert own.prepare == sface.prepare
    assert (own.dimension, json.loads(own.model_dump_json())["canonical_landmarks"]) == (
        sface.dimension,
        json.loads(sface.model_dump_json())["canonical_landmarks"],
    )
