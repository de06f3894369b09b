"""`likeness models pull anti-spoof-mn3`, with a file of the published one's form in its place: that one is not here."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.features.liveness.scorer import open_liveness
from app.models import download
from app.models.download import KnownModel, known_models
from app.package.folders import load_package
from app.package.manifest import RewriteClassifier
from tests.conftest import PROJECT
from tests.support import liveness
from tests.support.commands import Done, run
from tests.support.service import AGAIN, COLLINS, error_of, running

NAME = "anti-spoof-mn3"
WEIGHTS = np.array([[2, 0], [1, 0], [0.5, 0]], np.float32)
"""Of red, green and blue in the logits: bright is live, and each channel counts differently."""


def stand_in() -> ModelProto:
    """`actual_input_1` (1, 3, 128, 128) float32 -> `output1` (1, 2) probabilities, as Open Model Zoo describes them."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["actual_input_1"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["output1"], axis=1),
    ]
    inputs = [helper.make_tensor_value_info("actual_input_1", TensorProto.FLOAT, [1, 3, 128, 128])]
    outputs = [helper.make_tensor_value_info("output1", TensorProto.FLOAT, [1, 2])]
    graph = helper.make_graph(nodes, "mn3", inputs, outputs, [numpy_helper.from_array(WEIGHTS, "weights")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class Counting(SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what was asked for."""

    asked: list[str]

    def log_message(self, *_: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KnownModel]:
    """The catalogue's entry, with the address of a local server that has the stand-in."""
    content = stand_in().SerializeToString()
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "anti-spoof-mn3.onnx").write_bytes(content)
    monkeypatch.setattr(Counting, "asked", [], raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Counting, directory=str(tmp_path / "www")))
    thread = Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/anti-spoof-mn3.onnx"
    here = known_models()[NAME].model_copy(update={"url": url})
    monkeypatch.setattr(download, "known_models", lambda: {NAME: here})
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


def pull(folder: Path, *words: str) -> Done:
    return run(folder / "data", "models", "pull", NAME, *words, models_dir=folder / "models")


def test_terms_have_to_be_accepted_before_anything_is_fetched_and_another_file_is_refused(
    published: KnownModel, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    refused = pull(tmp_path)
    assert refused.returncode == 4
    for words in ("non-commercial", "MIT", "CelebA-Spoof", published.licence.url, "--accept-non-commercial"):
        assert words in refused.stderr
    assert Counting.asked == []
    assert (published.sha256, published.max_bytes) == (
        "c4c99af04603b62d7e44f6f4daeb33e0daeccc696008c0b1d62f6f5cebbb3262",
        12_270_179,
    )
    refused = pull(tmp_path, "--accept-non-commercial")
    assert (refused.returncode, "package_hash_mismatch" in refused.stderr) == (4, True)
    assert len(Counting.asked) == 1
    assert not (tmp_path / "data" / "packages").exists()


@pytest.mark.long
def test_the_pulled_package_shows_the_model_what_it_was_trained_on_and_a_server_scores_with_it(
    published: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = hashlib.sha256(stand_in().SerializeToString()).hexdigest()
    here = published.model_copy(update={"sha256": own})  # as if it were the one that the catalogue pins
    monkeypatch.setattr(download, "known_models", lambda: {NAME: here})
    shutil.copytree(PROJECT / "models", tmp_path / "models")
    done = pull(tmp_path, "--accept-non-commercial")
    assert done.returncode == 0, done.stderr
    assert "It decides nothing yet" in done.stdout
    assert "probabilities" in done.stdout
    package = load_package(tmp_path / "data" / "packages" / NAME)
    assert package.manifest.licence.non_commercial
    assert package.manifest.liveness_calibrations == ()
    assert isinstance(package.manifest.prepare, RewriteClassifier)
    assert package.manifest.prepare.output == "probabilities"
    session = open_liveness(package, tmp_path / "cache", "cpu")
    colours = np.array([[200, 100, 50], [50, 100, 200], [255, 255, 255]])
    normalised = (colours - [151.2405, 119.5950, 107.8395]) / [63.0105, 56.4570, 55.0035]
    expected = 1 / (1 + np.exp(-normalised @ WEIGHTS[:, 0]))
    pictures = [np.broadcast_to(colour, (128, 128, 3)).astype(np.uint8) for colour in colours]
    assert session.scores(pictures) == pytest.approx(expected, abs=1e-4)
    files = {"image1": COLLINS, "image2": AGAIN}
    with running(tmp_path / "data", models_dir=tmp_path / "models") as client:
        face = client.post("/v1/verify", files=files, params={"liveness": "report"}).json()["face1"]["liveness"]
        assert (face["live"], face["reason"]) == ("not_measured", "no_operating_points")
        assert 0 < face["live_score"] < 1
        unmeasured = client.post("/v1/verify", files=files, params={"liveness": "require"})
        assert error_of(unmeasured, 503, "liveness_not_measured")["models"] == [f"{NAME}@1"]
        lenient = face["live_score"] / 10
        liveness.calibrate(package, live_from=lenient, spoof_below=lenient)
        assert client.post("/v1/verify", files=files, params={"liveness": "require"}).status_code == 200
