"""Make tiny model packages for tests: real ONNX graphs, by onnx.helper."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from app.models.packages import contract_output, write_manifest
from app.package.cards import BiasCard, Group, GroupRate
from app.package.folders import Package, load_package
from app.package.manifest import (
    CONTRACT_INPUT,
    Calibration,
    CarrierSource,
    FileSource,
    Licence,
    Manifest,
    Point,
    Provenance,
    Rewrite,
    RunAsIs,
    UrlSource,
)
from app.package.thresholds import Thresholds
from tests.conftest import PROJECT

DIMENSION = 8
MEASURED = {1e-1: 0.5, 1e-2: 0.7, 1e-3: 0.9, 1e-6: 0.99}
LANDMARKS = ((38.0, 51.0), (73.0, 51.0), (56.0, 71.0), (41.0, 92.0), (70.0, 92.0))


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Mapping[str, NDArray[np.generic]] | None = None,
) -> ModelProto:
    """Return a model with these constants by name."""
    initializers = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "made by a test", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def flat_model(shape: Sequence[int | str], width: int | str) -> ModelProto:
    """Return a model that only flattens its input of this shape, so that its output has ``width`` numbers."""
    nodes = [helper.make_node("Flatten", ["in"], ["out"])]
    inputs = [helper.make_tensor_value_info("in", TensorProto.FLOAT, shape)]
    return model_of(nodes, inputs, [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", width])])


def contract_model(
    dimension: int = DIMENSION, *, unit: bool = True, batch: int | str = "N", seed: int = 1
) -> ModelProto:
    """Return a model (N, 112, 112, 3) uint8 -> (N, D): a random projection of the mean colours of 16 stripes."""
    nodes = [
        helper.make_node("Cast", ["in"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["float", "stripes"], ["striped"]),
        helper.make_node("ReduceMean", ["striped", "pixels"], ["means"], keepdims=0),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["raw" if unit else "out"]),
    ]
    if unit:
        nodes.append(helper.make_node("LpNormalization", ["raw"], ["out"], axis=1, p=2))
    constants: dict[str, NDArray[np.generic]] = {
        "stripes": np.array([0, 16, 784, 3], np.int64),
        "pixels": np.array([2], np.int64),
        "weights": np.random.default_rng(seed).normal(size=(48, dimension)).astype(np.float32),
    }
    inputs = [helper.make_tensor_value_info("in", TensorProto.UINT8, [batch, 112, 112, 3])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [batch, dimension])]
    return model_of(nodes, inputs, outputs, constants)


def manifest(
    content: bytes = b"",
    *,
    source: FileSource | CarrierSource | UrlSource | None = None,
    prepare: RunAsIs | Rewrite | None = None,
    version: str = "1",
    name: str = "tiny",
    dimension: int = DIMENSION,
    calibrations: tuple[Calibration, ...] = (),
) -> Manifest:
    """Return a complete embedder's manifest for the file ``content``."""
    return Manifest(
        name=name,
        version=version,
        task="embed",
        title="A tiny embedder",
        source=source or FileSource(),
        sha256=hashlib.sha256(content).hexdigest(),
        prepare=prepare or RunAsIs(),
        input=CONTRACT_INPUT,
        output=contract_output(dimension),
        dimension=dimension,
        canonical_landmarks=LANDMARKS,
        licence=Licence(name="MIT", non_commercial=False),
        provenance=Provenance(text="made by a test"),
        calibrations=calibrations,
    )


def package(folder: Path, model: ModelProto | None = None, prepare: RunAsIs | Rewrite | None = None) -> Package:
    """Return a package in ``folder`` with its model file beside the manifest."""
    content = (model or contract_model()).SerializeToString()
    write_manifest(folder, manifest(content, prepare=prepare))
    (folder / "model.onnx").write_bytes(content)
    return load_package(folder)


def calibration(thresholds: Mapping[float, float]) -> Calibration:
    """Return made-up operating points: thresholds by FMR."""
    points = tuple(Point(fmr=f, threshold=t, threshold_low=t, threshold_high=t) for f, t in thresholds.items())
    return Calibration(name="made-up", measured_on="-", pairs="-", comparisons=1, mated=0, points=points, default=True)


def install(models: Path, name: str, *, dimension: int = DIMENSION, seed: int = 1, version: str = "1") -> Package:
    """Write a package with operating points into the folder of packages ``models``, and return it."""
    folder = models / f"{name}-{version}"
    content = contract_model(dimension, seed=seed).SerializeToString()
    described = manifest(
        content, name=name, version=version, dimension=dimension, calibrations=(calibration(MEASURED),)
    )
    write_manifest(folder, described)
    (folder / "model.onnx").write_bytes(content)
    return load_package(folder)


def thresholds(points: Mapping[float, float]) -> Thresholds:
    """Return the thresholds of a package with these points by FMR; without points, of one that was not measured."""
    return Thresholds(manifest(calibrations=(calibration(points),) if points else ()))


STATED = {1e-2: 0.3085, 1e-4: 0.4411}
"""Thresholds of the card by stated FMR: one slightly below, one slightly above SFace's own."""


def card(manifest: Manifest) -> BiasCard:
    """Return a card: 20 % of `children` pass both thresholds, and of `adults` at most as many as stated."""
    low, high = ({"low": found * 0.9, "found": found, "high": found * 1.1} for found in (0.2, 1e-4))
    rates = {
        "children": [GroupRate(fmr=fmr, threshold=at, **low) for fmr, at in STATED.items()],
        "adults": [GroupRate(fmr=fmr, threshold=at, **high) for fmr, at in STATED.items()],
    }
    groups = [Group(name=name, photos=100, comparisons=4950, rates=tuple(found)) for name, found in rates.items()]
    return BiasCard(
        measured_on="a test's photos",
        calibration="made-up",
        repeats="nothing",
        groups=tuple(groups),
        measured_with=manifest.recipe_digest,
    )


def models_with_a_card(folder: Path) -> Path:
    """Fill a folder with the project's detector and SFace, whose manifest has the card."""
    (folder / "sface").mkdir(parents=True)
    (folder / "yunet").symlink_to(PROJECT / "models" / "yunet")
    (folder / "sface-slim").symlink_to(PROJECT / "models" / "sface-slim")
    sface = load_package(PROJECT / "models" / "sface").manifest
    write_manifest(folder / "sface", sface.model_copy(update={"bias_card": card(sface)}))
    return folder
