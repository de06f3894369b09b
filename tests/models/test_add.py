"""`likeness models add`: facts are stated or told by photos, and what separates nobody is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from app.errors import Unusable
from app.machine import memory_limit
from app.models.add import Added, NewPackage, add, within
from app.models.opening import open_embedder
from app.models.presets import PRESETS, Crops, Stated, choose
from app.package.folders import load_package
from app.package.golden import golden_crops
from app.package.manifest import Licence
from app.types import Vectors
from tests.conftest import PROJECT
from tests.support.commands import run
from tests.support.embedder_files import SMALL, bgr, floats, nchw, of_redness, sface_file, small, untrained
from tests.support.packages import flat_model, model_of
from tests.support.service import COLLINS, running
from training.data.drawn import ProceduralFaces

MIT = Licence(name="MIT", non_commercial=False)


def added(folder: Path, model: ModelProto, stated: Stated | None = None, crops: Crops | None = None) -> Added:
    file = folder / "given.onnx"
    file.write_bytes(model.SerializeToString())
    return add(NewPackage(file, "mine", MIT, folder / "models", folder / "cache"), stated, crops=crops)


def templates(folder: Path, cache: Path) -> Vectors:
    return open_embedder(load_package(folder), cache, "cpu").run(golden_crops())


@pytest.fixture(scope="module")
def drawn() -> Crops:
    """Three crops of each of 12 drawn people."""
    people = ProceduralFaces(12, 3, seed=1)
    return Crops(np.stack([people[place][0] for place in range(len(people))]), np.array(people.labels))


@pytest.mark.parametrize(
    ("make", "stated", "form"),
    [
        (small, Stated("rgb"), ("nhwc", "uint8", "rgb")),
        pytest.param(bgr, Stated("bgr"), ("nhwc", "uint8", "bgr"), marks=pytest.mark.long),
        pytest.param(nchw, Stated("rgb"), ("nchw", "uint8", "rgb"), marks=pytest.mark.long),
        pytest.param(floats, PRESETS["insightface"], ("nchw", "float32", "rgb"), marks=pytest.mark.long),
    ],
)
def test_stated_facts_make_a_package_with_the_files_templates(
    tmp_path: Path, make: Callable[[], ModelProto], stated: Stated, form: tuple[str, str, str]
) -> None:
    made = added(tmp_path, make(), stated)
    assert (made.form.layout, made.form.dtype, made.form.colour) == form
    assert made.tried == ()
    manifest = made.package.manifest
    assert (manifest.dimension, manifest.calibrations, manifest.licence.name) == (128, (), "MIT")
    assert manifest.golden is not None
    own = templates(made.package.folder, tmp_path / "cache")
    assert (own * templates(SMALL, tmp_path / "cache")).sum(axis=1).min() > 0.9999
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["mine"], "no draft stays"


@pytest.mark.parametrize(
    ("make", "stated"),
    [(floats, None), (floats, Stated("rgb")), (floats, Stated(mean=(0, 0, 0), std=(1, 1, 1))), (small, None)],
)
def test_what_nobody_stated_is_an_error_not_a_guess(
    tmp_path: Path, make: Callable[[], ModelProto], stated: Stated | None
) -> None:
    with pytest.raises(Unusable, match="--colour") as caught:
        added(tmp_path, make(), stated)
    assert caught.value.code == "model_facts_missing"


def test_a_statement_that_the_graph_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="takes uint8") as caught:
        added(tmp_path, small(), PRESETS["insightface"])
    assert caught.value.code == "model_input_contradicted"
    assert PRESETS["sface"].over(PRESETS["facenet"]) == Stated("rgb", (0, 0, 0), (1, 1, 1), 160)


@pytest.mark.long
def test_photos_tell_the_colour_order(tmp_path: Path, drawn: Crops) -> None:
    made = added(tmp_path, of_redness(), crops=drawn)
    assert [one.name for one in made.tried] == ["bgr", "rgb"]
    assert made.form.colour == "bgr"
    assert "12 people" in made.package.manifest.provenance.text


def test_a_tie_is_refused_with_figures_and_a_statement_settles_it(drawn: Crops) -> None:
    random = np.random.default_rng(0)
    centres = random.normal(size=(12, 64))

    def noisy(seed: int, noise: float) -> Vectors:
        made = centres[drawn.people] + noise * np.random.default_rng(seed).normal(size=(len(drawn.people), 64))
        unit: Vectors = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
        return unit

    tied = {"one": noisy(1, 0.5), "two": noisy(2, 0.5), "worse": noisy(3, 2.0)}
    with pytest.raises(Unusable, match="can't tell these presets apart") as caught:
        choose(tied, drawn.people)
    assert caught.value.code == "model_input_ambiguous"
    assert set(caught.value.details["separation"]) == set(tied)  # type: ignore[call-overload]
    assert "worse" not in caught.value.message
    assert choose(tied, drawn.people, "two")[0].name == "two"
    with pytest.raises(Unusable) as caught:
        choose(tied, drawn.people, "worse")
    assert caught.value.code == "model_input_contradicted"
    same = {"one": tied["one"], "again": tied["one"]}
    assert choose(same, drawn.people)[0].name == "one", "presets with the same templates are no tie"


@pytest.mark.long
def test_random_weights_are_refused_with_photos_and_without(tmp_path: Path, drawn: Crops) -> None:
    for crops, stated in ((drawn, None), (None, Stated("rgb"))):
        with pytest.raises(Unusable, match="trained face embedder") as caught:
            added(tmp_path, untrained(), stated, crops)
        assert caught.value.code == "model_separates_nothing"
        assert list(tmp_path.glob("models/*")) == []


def averaging(side: int | str) -> ModelProto:
    """A graph over pictures of this side: eight by eight averages of each channel."""
    nodes = [
        helper.make_node("AveragePool", ["in"], ["pooled"], kernel_shape=[20, 20], strides=[20, 20]),
        helper.make_node("Flatten", ["pooled"], ["out"]),
    ]
    inputs = [helper.make_tensor_value_info("in", TensorProto.FLOAT, ["N", 3, side, side])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", "D"])]
    return model_of(nodes, inputs, outputs)


@pytest.mark.parametrize("side", [160, 80])
def test_crops_are_resized_to_the_graphs_own_size(tmp_path: Path, side: int) -> None:
    made = added(tmp_path, averaging(side), PRESETS["facenet"])  # compares the prepared graph with the file
    assert made.form.cutout is not None
    assert (made.form.cutout.side, made.facts.dimension) == (side, 3 * (side // 20) ** 2)
    assert made.package.manifest.input.shape == ("N", 112, 112, 3)
    with pytest.raises(Unusable, match="exists already"):
        added(tmp_path, averaging(side), PRESETS["facenet"])


def endless() -> ModelProto:
    """A graph whose loop never ends."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Identity", ["was"], ["is"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("was", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("is", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("Flatten", ["in"], ["flat"]),
        helper.make_node("Loop", ["", "true", "flat"], ["out"], body=body),
    ]
    inputs = [helper.make_tensor_value_info("in", TensorProto.FLOAT, ["N", 3, 112, 112])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 37632])]
    return model_of(nodes, inputs, outputs, {"true": np.array(True)})


def test_a_graph_that_never_ends_is_given_up(tmp_path: Path) -> None:
    file = tmp_path / "given.onnx"
    file.write_bytes(endless().SerializeToString())
    words = ("models", "add", file, "--name", "mine", "--licence", "MIT", "--preset", "sface", "--time-limit", 3)
    done = run(tmp_path / "data", *words)
    assert (done.returncode, "model_too_slow" in done.stderr) == (4, True), done.stderr
    assert not list(tmp_path.glob("data/packages/*"))


def greedy() -> int:
    return len(bytearray(memory_limit() + 2**28)[:: 2**20])


@pytest.mark.long
def test_a_model_that_needs_more_memory_than_there_is_ends_its_own_process() -> None:
    with pytest.raises(Unusable) as caught:
        within(60, greedy)
    assert caught.value.code == "model_check_failed"


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
        add(NewPackage(file, "mine", MIT, tmp_path, tmp_path), Stated("rgb"))
    assert caught.value.code == "model_unsuitable"


@pytest.mark.parametrize(
    "shape", [[1, 3, 1024, 1024], [1, 3, 112, 96], [1, 1, 112, 112], [1, 112, 112], [8, 3, 112, 112]]
)
def test_a_graph_that_takes_no_crops_is_refused(tmp_path: Path, shape: list[int]) -> None:
    with pytest.raises(Unusable, match="is no square of pixels") as caught:
        added(tmp_path, flat_model(shape, "D"), PRESETS["sface"])
    assert caught.value.code == "model_unsuitable"


@pytest.mark.long
def test_the_command_asks_for_a_licence_and_a_running_server_finds_the_package(tmp_path: Path) -> None:
    words = ("models", "add", SMALL / "model.onnx", "--colour", "rgb", "--name", "mine")
    refused = run(tmp_path / "data", *words)
    assert (refused.returncode, "--licence" in refused.stderr) == (2, True)
    assert run(tmp_path / "data", *words[:-1], "../mine", "--licence", "MIT").returncode == 2
    with running(tmp_path / "data") as client:
        done = run(tmp_path / "data", *words, "--licence", "MIT", "--json")
        assert done.returncode == 0, done.stderr
        assert done.rows[0]["input"]["colour"] == "rgb"
        client.post("/v1/galleries", json={"id": "own", "embedder": "mine", "force": True}).raise_for_status()
        client.post("/v1/galleries/own/subjects/e/faces", files={"images": COLLINS}).raise_for_status()
        refusal = client.post("/v1/galleries/own/identify", files={"image": COLLINS})
        assert refusal.status_code == httpx.codes.UNPROCESSABLE_ENTITY, "it has no operating points yet"
    again = run(tmp_path / "data", *words, "--licence", "MIT")
    assert (again.returncode, "package_exists" in again.stderr) == (4, True)


@pytest.mark.long
def test_sface_under_another_name_is_described_as_its_own_manifest_describes_it(tmp_path: Path) -> None:
    sface, file = load_package(PROJECT / "models" / "sface").manifest, sface_file()
    assert hashlib.sha256(file.read_bytes()).hexdigest() == sface.sha256
    own = added(tmp_path, onnx.load(file), PRESETS["sface"]).package.manifest
    assert own.prepare == sface.prepare
    assert (own.dimension, json.loads(own.model_dump_json())["canonical_landmarks"]) == (
        sface.dimension,
        json.loads(sface.model_dump_json())["canonical_landmarks"],
    )
