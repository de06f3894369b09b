"""Tiny model packages for tests: real ONNX graphs, made with onnx.helper."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.inference.cards import BiasCard, Group, GroupRate
from app.inference.manifest import (
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
    contract_output,
)
from app.inference.package import Package, load_package, write_manifest
from tests.conftest import PROJECT

DIMENSION = 8
MEASURED = {1e-1: 0.5, 1e-2: 0.7, 1e-3: 0.9, 1e-6: 0.99}
LANDMARKS = ((38.0, 51.0), (73.0, 51.0), (56.0, 71.0), (41.0, 92.0), (70.0, 92.0))


def contract_model(
    dimension: int = DIMENSION, *, unit: bool = True, batch: int | str = "N", seed: int = 1
) -> ModelProto:
    """(N, 112, 112, 3) uint8 -> (N, D): a random projection of the mean colour of each of 16 stripes."""
    weights = np.random.default_rng(seed).normal(size=(48, dimension)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["in"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["float", "stripes"], ["striped"]),
        helper.make_node("ReduceMean", ["striped", "pixels"], ["means"], keepdims=0),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["raw" if unit else "out"]),
    ]
    if unit:
        nodes.append(helper.make_node("LpNormalization", ["raw"], ["out"], axis=1, p=2))
    constants = [
        numpy_helper.from_array(np.array([0, 16, 784, 3], np.int64), "stripes"),
        numpy_helper.from_array(np.array([2], np.int64), "pixels"),
        numpy_helper.from_array(weights, "weights"),
    ]
    inputs = [helper.make_tensor_value_info("in", TensorProto.UINT8, [batch, 112, 112, 3])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [batch, dimension])]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def manifest(
    content: bytes = b"",
    *,
    source: FileSource | CarrierSource | UrlSource | None = None,
    prepare: RunAsIs | Rewrite | None = None,
    non_commercial: bool = False,
    version: str = "1",
    name: str = "tiny",
    dimension: int = DIMENSION,
    calibrations: tuple[Calibration, ...] = (),
) -> Manifest:
    """A complete embedder's manifest for the file ``content``."""
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
        licence=Licence(name="CC-BY-NC-4.0" if non_commercial else "MIT", non_commercial=non_commercial),
        provenance=Provenance(text="made by a test"),
        calibrations=calibrations,
    )


def package(folder: Path, model: ModelProto | None = None, prepare: RunAsIs | Rewrite | None = None) -> Package:
    """A package in ``folder`` with its model file beside the manifest."""
    content = (model or contract_model()).SerializeToString()
    write_manifest(folder, manifest(content, prepare=prepare))
    (folder / "model.onnx").write_bytes(content)
    return load_package(folder)


def calibration(thresholds: Mapping[float, float]) -> Calibration:
    """Made-up operating points: thresholds by FMR."""
    points = tuple(Point(fmr=f, threshold=t, threshold_low=t, threshold_high=t) for f, t in thresholds.items())
    return Calibration(name="made-up", measured_on="-", pairs="-", comparisons=1, mated=0, points=points, default=True)


def install(models: Path, name: str, *, dimension: int = DIMENSION, seed: int = 1, version: str = "1") -> Package:
    """A package that can decide, in the folder of packages ``models``."""
    folder = models / f"{name}-{version}"
    content = contract_model(dimension, seed=seed).SerializeToString()
    described = manifest(
        content, name=name, version=version, dimension=dimension, calibrations=(calibration(MEASURED),)
    )
    write_manifest(folder, described)
    (folder / "model.onnx").write_bytes(content)
    return load_package(folder)


STATED = {1e-2: 0.3085, 1e-4: 0.4411}
"""Thresholds of the card by stated FMR: a little on either side of SFace's own."""


def card(manifest: Manifest) -> BiasCard:
    """Return a card: of `children` 20 % pass both thresholds, of `adults` as many as stated or fewer."""
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
