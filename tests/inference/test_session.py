"""Sessions run where they were asked to and embedders keep the package contract, or say why not."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

from app.choices import Used
from app.errors import Unusable
from app.inference.session import (
    CUDA,
    INSTALLED_BY,
    OPENVINO,
    PROVIDERS,
    EmbedderSession,
    OnGpu,
    Session,
    resolve_device,
)
from app.models.opening import open_embedder
from app.package.folders import find_packages, select
from app.types import Pixels
from tests.conftest import PROJECT
from tests.support import packages

no_cuda_here = pytest.mark.skipif(CUDA in ort.get_available_providers(), reason="this ONNX Runtime has CUDA")


def crops(count: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, 112, 112, 3), np.uint8)


@pytest.fixture
def embedder(tmp_path: Path) -> EmbedderSession:
    return open_embedder(packages.package(tmp_path), tmp_path / "cache", "cpu")


def test_a_batch_is_what_its_crops_are_alone(embedder: EmbedderSession) -> None:
    batch = crops(5)
    together = embedder.run(batch)
    alone = np.concatenate([embedder.run(crop[None]) for crop in batch])
    assert together.dtype == np.float32
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert (together * alone).sum(axis=1).min() > 0.999999


def test_threads_may_share_a_session(embedder: EmbedderSession) -> None:
    batches = [crops(1 + seed % 3, seed) for seed in range(24)]
    expected = [embedder.run(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(embedder.run, batches))
    for wanted, vectors in zip(expected, found, strict=True):
        assert np.array_equal(wanted, vectors)


# --- Devices ---------------------------------------------------------------------------------------------------------


@no_cuda_here
def test_cuda_that_is_not_there_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="built without CUDA") as caught:
        open_embedder(packages.package(tmp_path), tmp_path, "cuda")
    assert caught.value.code == "device_unavailable"
    with pytest.raises(Unusable) as caught:
        Session(packages.contract_model().SerializeToString(), "cuda")
    assert caught.value.code == "device_unavailable"


@pytest.mark.parametrize("device", sorted(INSTALLED_BY))
def test_a_device_that_is_not_there_is_an_error_that_says_what_brings_it(device: Used) -> None:
    if PROVIDERS[device][0] in ort.get_available_providers():
        pytest.skip("it is there")
    with pytest.raises(Unusable) as caught:
        resolve_device(device)
    assert (caught.value.code, caught.value.details["device"]) == ("device_unavailable", device)
    assert INSTALLED_BY[device] in caught.value.message


def test_memory_on_a_gpu_is_limited_and_grows_by_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is asked for it; what a GPU makes of that was never seen."""
    asked: list[object] = []

    def made(_model: object, _options: object, providers: list[object]) -> object:
        asked.append(providers)
        raise RuntimeError("no GPU here")

    monkeypatch.setattr(ort, "InferenceSession", made)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    with pytest.raises(Unusable, match="no GPU here"):
        Session(b"model", "cuda", gpu=OnGpu(memory_mib=512))
    with pytest.raises(Unusable, match="no GPU here"):
        Session(b"model", "cuda", gpu=OnGpu(math="nhwc"))
    options = {"arena_extend_strategy": "kSameAsRequested"}
    limited, channels_last = options | {"gpu_mem_limit": 512 * 2**20}, options | {"prefer_nhwc": "1"}
    assert asked == [[(CUDA, chosen), "CPUExecutionProvider"] for chosen in (limited, channels_last)]


@pytest.mark.parametrize(
    ("flags", "embeds", "precision"),
    [("avx2 amx_bf16", True, "bf16"), ("avx512_bf16", True, "bf16"), ("avx2", True, "f32"), ("amx_bf16", False, "f32")],
)
def test_openvino_makes_templates_with_small_numbers_where_the_processor_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, embeds: bool, precision: str
) -> None:
    """Other models keep their numbers, and as many calls run at once as there are cores."""
    asked: list[tuple[str, dict[str, str]]] = []

    def made(_model: object, _options: object, providers: list[tuple[str, dict[str, str]]]) -> object:
        asked.append(providers[0])
        raise RuntimeError("no OpenVINO here")

    monkeypatch.setattr(ort, "InferenceSession", made)
    monkeypatch.setattr(ort, "get_available_providers", lambda: [OPENVINO, "CPUExecutionProvider"])
    monkeypatch.setattr("app.inference.session.cpuinfo", lambda _field: flags)
    monkeypatch.setattr("app.inference.session.cores", lambda: 3)
    package = packages.package(tmp_path)
    opening = partial(open_embedder, package, tmp_path) if embeds else partial(Session, b"model")
    with pytest.raises(Unusable, match="no OpenVINO here"):
        opening("openvino", 2)
    [(name, options)] = asked
    given = json.loads(options["load_config"])["CPU"]
    assert (name, options["device_type"], given["INFERENCE_PRECISION_HINT"]) == (OPENVINO, "CPU", precision)
    assert (given["NUM_STREAMS"], given["INFERENCE_NUM_THREADS"], given["ENABLE_CPU_PINNING"]) == (3, 6, False)


@no_cuda_here
def test_auto_is_the_cpu_without_cuda(tmp_path: Path) -> None:
    assert resolve_device("auto") == "cpu"
    assert open_embedder(packages.package(tmp_path), tmp_path, "auto").device == "cpu"


def test_a_file_that_is_no_model_is_not_loadable(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(Unusable, match=r"model\.onnx") as caught:
        Session(tmp_path / "model.onnx", "cpu")
    assert caught.value.code == "model_not_loadable"


# --- The contract ----------------------------------------------------------------------------------------------------


def _with_input(kind: int, shape: list[int | str]) -> ModelProto:
    model = packages.contract_model()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("in", kind, shape))
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (packages.contract_model(unit=False), "lengths"),
        (packages.contract_model(packages.DIMENSION + 1), "answers"),
        (packages.contract_model(batch=1), "two crops at once"),
        (_with_input(TensorProto.FLOAT, ["N", 112, 112, 3]), "its input is"),
        (_with_input(TensorProto.UINT8, ["N", 48, 784]), "its input is"),
    ],
    ids=["not unit", "wrong dimension", "one crop only", "wrong type", "wrong shape"],
)
def test_a_model_that_breaks_the_contract_is_refused(tmp_path: Path, model: ModelProto, says: str) -> None:
    with pytest.raises(Unusable, match=says) as caught:
        open_embedder(packages.package(tmp_path, model), tmp_path, "cpu")
    assert caught.value.code == "package_contract_broken"


def test_a_detector_is_no_embedder(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="task is detect"):
        EmbedderSession(
            select(find_packages(PROJECT / "models"), "yunet"),
            Session(packages.contract_model().SerializeToString(), "cpu"),
        )
    with pytest.raises(Unusable):
        open_embedder(select(find_packages(PROJECT / "models"), "yunet"), tmp_path, "cpu")


REPORTED = """
import os, time
from pathlib import Path
from app.models.opening import open_embedder
from tests.support import packages
folder = Path(os.environ["HOME"]).parent
(folder / "packages").mkdir()
open_embedder(packages.package(folder / "packages"), folder / "cache", "cpu")
time.sleep(0.5)
sockets = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink() and "socket" in os.readlink(path)]
assert not sockets, sockets
"""


@pytest.mark.long
def test_onnx_runtime_reports_nothing_to_anybody(tmp_path: Path) -> None:
    """Its wheels would: to its maker, over the network, from a database in the home folder."""
    home = tmp_path / "home"
    home.mkdir()
    plain = {"HOME": str(home)}  # it keeps still by itself where a variable says that this is a test or CI
    subprocess.run([sys.executable, "-c", REPORTED], cwd=PROJECT, env=plain, check=True)
    assert not list(home.rglob("*"))
