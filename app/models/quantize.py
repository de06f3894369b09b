"""Quantise a model to 8-bit integers, which some processors multiply faster than floats (AVX-512 VNNI and the like).

The quantised graph computes other vectors than its source, so it is a package of its own, with its own operating
points.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from app.errors import InvalidInput, Unusable
from app.inference.embedders import unit
from app.inference.session import Session
from app.models.packages import locate, new_folder, sha256_of, write_manifest
from app.models.prepare import rewrite
from app.models.reference import run_plain
from app.package import golden
from app.package.folders import Package, load_package
from app.package.manifest import FileSource, Golden, Manifest, Provenance, Rewrite, RunAsIs
from app.types import Pixels, Vectors

CALIBRATION_CROPS = 256
"""Maximum number of crops whose activations set the ranges."""
LEAST_CROPS = 16
"""Minimum number of crops: ranges from fewer would be too narrow for other faces."""
COMPARED_CROPS = 64
"""Maximum number of crops whose vectors are compared with the source's."""
LARGEST_WEIGHT = 64
"""Maximum absolute value of a weight. x86 processors without VNNI add two products of uint8 and int8 in 16 bits, with
saturation: 2 × 255 × 64 = 32,640 fits, 2 × 255 × 127 = 64,770 does not. VNNI, AMX and ARM's dot products use 32
bits."""
VERSION_SUFFIX = "-w7"
"""Marks packages with 7-bit weights, since packages of earlier versions, with 8-bit weights, make other templates."""
WEIGHTED = ("Conv", "Gemm", "MatMul", "BatchNormalization")


def quantize_package(package: Package, crops: Pixels, models_dir: Path, cache: Path, *, ranges_from: str) -> Package:
    """Make the package NAME-int8 in ``models_dir`` from ``package``. It has no operating points yet.

    ``crops``, (N, 112, 112, 3) uint8 RGB, aligned, set the ranges; ``ranges_from`` describes them for the manifest.

    Raises InvalidInput too_few_crops; Unusable package_not_preparable, package_exists, and what `locate` raises.
    """
    if package.manifest.task != "embed":
        raise Unusable(f"{package.id} is no embedder.", code="package_not_preparable", package=package.id)
    if len(crops) < LEAST_CROPS:
        message = f"{len(crops)} faces are too few to set the ranges by: give {LEAST_CROPS} at least, better 256."
        raise InvalidInput(message, code="too_few_crops", found=len(crops), needed=LEAST_CROPS)
    folder = models_dir / f"{package.manifest.name}-int8"
    if folder.exists():
        raise Unusable(f"{folder} is there already; remove it first.", code="package_exists", folder=str(folder))
    source: ModelProto = ModelProto.FromString(locate(package, cache).read_bytes())
    plan = package.manifest.prepare if isinstance(package.manifest.prepare, Rewrite) else Rewrite()
    model = quantize(rewrite(source, plan, "cpu", for_quantising=True), crops)
    session = Session(model.SerializeToString(), "cpu")

    def run(given: Pixels) -> Vectors:
        vectors: Vectors = session.run(given)[0].astype(np.float32, copy=False)
        return vectors

    compared = spread(crops, COMPARED_CROPS)
    cosines = (run(compared) * unit(run_plain(source, plan.input, compared).astype(np.float64))).sum(axis=1)
    figures = {
        "cosine_to_source_mean": round(float(cosines.mean()), 6),
        "cosine_to_source_lowest": round(float(cosines.min()), 6),
    }
    with new_folder(folder) as draft:
        path = draft / FileSource().path
        path.write_bytes(model.SerializeToString())
        write_manifest(draft, _manifest(package, sha256_of(path), figures, golden.record(run), ranges_from))
    return load_package(folder)


def spread(crops: Pixels, count: int) -> Pixels:
    """Return up to ``count`` of the crops, (N, 112, 112, 3), evenly spread."""
    chosen: Pixels = crops[np.linspace(0, len(crops) - 1, num=min(count, len(crops)), dtype=np.int64)]
    return chosen


def _manifest(package: Package, sha256: str, figures: dict[str, float], vectors: Golden, ranges_from: str) -> Manifest:
    source = package.manifest
    words = (
        f"{source.provenance.text} Rewritten and quantised to int8 (7-bit weights per channel) from {package.id}, "
        f"SHA-256 {source.sha256}; ranges from {ranges_from}."
    )
    return source.model_copy(
        update={
            "name": f"{source.name}-int8",
            "version": f"{source.version}{VERSION_SUFFIX}",
            "title": f"{source.title}, int8",
            "description": f"{source.name} in 8-bit integers; its templates do not compare with {source.id}'s.",
            "source": FileSource(),
            "sha256": sha256,
            "prepare": RunAsIs(),
            "provenance": Provenance(text=words, url=source.provenance.url, figures=dict(figures)),
            "golden": vectors,
            "calibrations": (),
        }
    )


def quantize(model: ModelProto, crops: Pixels) -> ModelProto:
    """Return the graph in 8-bit integers (QDQ): uint8 activations, int8 weights per channel within ±`LARGEST_WEIGHT`.

    ``model`` fulfils the contract and has no subgraphs. Up to `CALIBRATION_CROPS` of ``crops``, (N, 112, 112, 3) uint8,
    set the activations' ranges. Nodes before the first convolution and after the last layer with weights stay in
    float32.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static  # noqa: PLC0415 - slow to import

    with tempfile.TemporaryDirectory() as folder:
        ready, path = Path(folder) / "ready.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), ready)
        quantize_static(
            str(ready),
            str(path),
            _Calibration(model.graph.input[0].name, spread(crops, CALIBRATION_CROPS)),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,  # to ±LARGEST_WEIGHT
            nodes_to_exclude=[node.name for node in outside_network(onnx.load(ready))],
        )
        quantised: ModelProto = onnx.load(path)
        return quantised


class _Calibration:
    """Gives ONNX Runtime the crops one by one, as its CalibrationDataReader does."""

    def __init__(self, name: str, crops: Pixels) -> None:
        self._inputs = ({name: crop[None]} for crop in crops)

    def get_next(self) -> dict[str, Pixels] | None:
        return next(self._inputs, None)


def outside_network(model: ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes before the first convolution, which convert pixels, and those after the last layer with weights,
    which normalise. Raises Unusable ``package_not_preparable``."""
    nodes = list(model.graph.node)
    for position, node in enumerate(nodes):
        node.name = node.name or f"node_{position}"
    first = next((i for i, node in enumerate(nodes) if node.op_type == "Conv"), None)
    if first is None:
        raise Unusable("The graph has no convolution where a network could begin.", code="package_not_preparable")
    last = max(i for i, node in enumerate(nodes) if node.op_type in WEIGHTED)
    return nodes[:first] + nodes[last + 1 :]
