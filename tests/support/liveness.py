"""Make tiny liveness packages: real ONNX graphs whose answer depends on the brightness of the picture."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from app.models.packages import write_manifest
from app.package.cards import RateInterval
from app.package.folders import Package, load_package
from app.package.manifest import (
    FileSource,
    Licence,
    LivenessCalibration,
    LivenessContract,
    LivenessCut,
    LivenessErrors,
    Manifest,
    Provenance,
    RewriteClassifier,
    RunAsIs,
    SourceInput,
    Tensor,
    liveness_digest,
)
from tests.support.packages import model_of
from tests.support.service import AGAIN, COLLINS

SIDE = 32
SQUARE = LivenessCut(scale=1.5)
FORM = SourceInput(layout="nchw", dtype="float32", std=(255.0, 255.0, 255.0))
SHARED = Path(__file__).parents[3] / "shared" / "data" / "liveness" / "minifasnet-v2-facenox-98.20.onnx"


def brightness_model(*, middle: float = 0.5, steepness: float = 12.0) -> ModelProto:
    """Return a model (1, 3, S, S) float32 0-1 -> 2 logits: the brighter the picture, the likelier the first class."""
    nodes = [
        helper.make_node("ReduceMean", ["in", "pixels"], ["mean"], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "last"], ["column"]),
        helper.make_node("MatMul", ["column", "weights"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["out"]),
    ]
    constants: dict[str, NDArray[np.generic]] = {
        "pixels": np.array([1, 2, 3], np.int64),
        "last": np.array([1], np.int64),
        "weights": np.array([[steepness, 0]], np.float32),
        "bias": np.array([-steepness * middle, 0], np.float32),
    }
    return model_of(nodes, *ends(2), constants)


def random_model(seed: int = 0, *, classes: int = 3) -> ModelProto:
    """Return a model (1, 3, S, S) float32 -> logits of a convolution with random weights."""
    random = np.random.default_rng(seed)
    constants: dict[str, NDArray[np.generic]] = {
        "kernel": (random.normal(size=(6, 3, 8, 8)) / 8).astype(np.float32),
        "weights": (random.normal(size=(6 * 16, classes)) / 4).astype(np.float32),
        "bias": random.normal(size=classes).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["in", "kernel"], ["seen"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Relu", ["seen"], ["bent"]),
        helper.make_node("Flatten", ["bent"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["out"]),
    ]
    return model_of(nodes, *ends(classes), constants)


def ends(classes: int) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
    """Return the inputs and outputs of a model with this number of classes."""
    inputs = [helper.make_tensor_value_info("in", TensorProto.FLOAT, [1, 3, SIDE, SIDE])]
    return inputs, [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, classes])]


def manifest(
    content: bytes,
    *,
    name: str = "bright",
    classes: tuple[str, ...] = ("live", "spoof"),
    prepare: RewriteClassifier | RunAsIs | None = None,
) -> Manifest:
    """Return a complete manifest for the file ``content``."""
    return Manifest(
        name=name,
        version="1",
        task="liveness",
        title="A tiny liveness model",
        source=FileSource(),
        sha256=hashlib.sha256(content).hexdigest(),
        prepare=prepare or RewriteClassifier(input=FORM),
        input=Tensor(shape=("N", SIDE, SIDE, 3), dtype="uint8", meaning="cuts"),
        output=Tensor(shape=("N", len(classes)), dtype="float32", meaning="probabilities"),
        licence=Licence(name="MIT", non_commercial=False),
        provenance=Provenance(text="made by a test"),
        liveness=LivenessContract(cut=SQUARE, classes=classes, live="live"),
    )


def install(
    models: Path,
    model: ModelProto | None = None,
    *,
    name: str = "bright",
    classes: tuple[str, ...] = ("live", "spoof"),
    prepare: RewriteClassifier | RunAsIs | None = None,
) -> Package:
    """Return a liveness package without operating points in the folder of packages ``models``."""
    content = (model or brightness_model()).SerializeToString()
    folder = models / name
    write_manifest(folder, manifest(content, name=name, classes=classes, prepare=prepare))
    (folder / "model.onnx").write_bytes(content)
    return load_package(folder)


def calibrate(
    first: Package, *others: Package, live_from: float, spoof_below: float, smallest: float = 20.0
) -> Package:
    """Write made-up operating points, measured with these packages together, into the first one's manifest."""
    points = {
        spoof_below: LivenessErrors(threshold=spoof_below, apcer=rate(0.2), bpcer=rate(0.01)),
        live_from: LivenessErrors(threshold=live_from, apcer=rate(0.01), bpcer=rate(0.2)),
    }
    if live_from == spoof_below:
        points = {live_from: LivenessErrors(threshold=live_from, apcer=rate(0.01), bpcer=rate(0.01))}
    made = LivenessCalibration(
        name="made-up",
        measured_on="-",
        live=1000,
        attacks={"print": 1000},
        smallest_face=smallest,
        points=tuple(points[threshold] for threshold in sorted(points)),
        measured_with=liveness_digest(package.manifest for package in (first, *others)),
    )
    installed = load_package(first.folder).manifest
    write_manifest(first.folder, installed.model_copy(update={"liveness_calibrations": (made,)}))
    return load_package(first.folder)


def asked_everywhere(client: httpx.Client, mode: str) -> list[httpx.Response]:
    """Return the answers of `verify` and of every operation on the gallery `staff` that may require liveness."""
    home, params = "/v1/galleries/staff", {"liveness": mode}
    return [
        client.post("/v1/verify", files={"image1": COLLINS, "image2": AGAIN}, params=params),
        client.post(f"{home}/identify", files={"image": COLLINS}, params=params),
        client.post(f"{home}/subjects/collins/verify", files={"image": COLLINS}, params=params),
        client.post(f"{home}/subjects/collins/faces", files={"images": COLLINS}, params=params),
    ]


def rate(value: float) -> RateInterval:
    return RateInterval(value=value, low=value / 2, high=min(1.0, value * 2))
