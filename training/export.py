"""Export a checkpoint as a model package: ONNX by torch's exporter, checked, measured, with its manifest.

`fp16` and `int8` variants are separate packages (`NAME-fp16`, `NAME-int8`), because templates of different graphs must
not be compared. Every figure and operating point is measured on the exported file in ONNX Runtime, not on the torch
model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import nn

from app.errors import Unusable
from app.inference.session import Session
from app.models.calibration import operating_points
from app.models.calibration.fusion import measure_fusion
from app.models.graph import tidy
from app.models.packages import contract_output, sha256_of, write_manifest
from app.models.prepare import check_prepared, rewrite
from app.models.quantize import outside_network, quantize
from app.package import golden
from app.package.manifest import (
    CONTRACT_INPUT,
    CROP_SIDE,
    Calibration,
    FileSource,
    Golden,
    Licence,
    Manifest,
    Provenance,
    Rewrite,
    RunAsIs,
)
from app.types import CANONICAL_LANDMARKS, Pixels, Vectors
from training import checkpoint
from training.data.crops import Crops
from training.evaluation import metrics
from training.recipe import Recipe

Variant: TypeAlias = Literal["fp32", "fp16", "int8"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)

OPSET = 18
"""Quantised per-channel graphs need 17; the service's rewriting steps work at 18."""
PARITY_BATCHES = (1, 3, 7)
PARITY = 1e-5
"""Maximum difference of any number in a unit vector between torch and the exported graph."""
FIGURES_FMR = 1e-3
"""The FMR at which variants are compared, by the FNMR that they add."""
SMALL_SET = 1000
"""Up to this number of crops, coarser rates are measured too; larger sets have enough pairs for the fine rates."""
COARSE_RATES = (1e-1, 3e-2, *operating_points.RATES)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Crops that the model has not seen, and a description of them."""

    crops: Crops
    measured_on: str


@dataclass(frozen=True, slots=True)
class Exported:
    """A graph and the figures of its checks."""

    model: ModelProto
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class About:
    """The part of a manifest that only a person knows."""

    name: str
    version: str = "1"
    title: str = ""
    description: str = ""
    licence: str = "LicenseRef-unspecified"
    non_commercial: bool = True
    """True until somebody who knows the training data's licence says otherwise."""


def export(
    source: Path,
    about: About,
    models: Path,
    *,
    variants: Sequence[Variant] = ("fp32",),
    calibration: Pixels | None,
    evaluation: Evaluation | None,
    second_tower: bool = False,
    say: Callable[[str], None] = lambda _text: None,
) -> list[Path]:
    """Write one package folder for each variant and return them.

    `source` is a checkpoint or a run's folder; `calibration` (N, 112, 112, 3) uint8 sets the ranges for int8.
    Raises Unusable (`export_differs`) if an exported graph differs from the torch model by more than `PARITY`.
    """
    saved = checkpoint.load(checkpoint.resolve(source))
    recipe = saved.recipe
    module = checkpoint.trained_embedder(saved, second_tower=second_tower)
    say(f"{recipe.name} at step {saved.facts['step']}: exporting")
    full = export_fp32(module, recipe.model.dim)
    fp32 = None if evaluation is None else vectors_of(full.model, evaluation.crops)
    folders = []
    for variant in variants:
        say(f"{variant}: converting and measuring")
        model, figures, points = full.model, {} if variant != "fp32" else full.figures, None
        if variant == "fp16":
            model = to_fp16(full.model)
        elif variant == "int8":
            if calibration is None:
                raise ValueError("int8 needs crops for its ranges")
            model = to_int8(full.model, calibration)
        if evaluation is not None and fp32 is not None:
            vectors = fp32 if variant == "fp32" else vectors_of(model, evaluation.crops)
            measured, points = _measured(vectors, fp32, evaluation)
            figures = figures | measured
        folders.append(
            _write_package(
                models, about, variant, model, recipe=recipe, facts=saved.facts, figures=figures, points=points
            )
        )
        say(f"{variant}: {folders[-1]}")
    return folders


# ------------------------------------------------------------------------------------------------------- exporters


def export_fp32(module: nn.Module, dimension: int) -> Exported:
    """Export the graph, checked by ONNX and against torch at N = 1, 3, 7. Raises Unusable (`export_differs`)."""
    crops = parity_crops(max(PARITY_BATCHES))
    model = _exported(module, crops)
    _name_batch(model, dimension)
    tidy(model)  # removes the stack traces that the exporter leaves in the graph
    with torch.no_grad():
        differences = parity(model, crops, [module(torch.from_numpy(crops[:n])).numpy() for n in PARITY_BATCHES])
    if max(differences.values()) > PARITY:
        message = f"The exported graph differs from torch by {max(differences.values()):.2g}."
        raise Unusable(message, code="export_differs")
    cosine = check_prepared(model, rewrite(model, Rewrite(), "cpu"), Rewrite(), crops)
    return Exported(model, {"parity": differences, "rewritten_cosine": cosine})


def parity(model: ModelProto, crops: Pixels, expected: Sequence[Vectors]) -> dict[str, float]:
    """Return the largest absolute difference at each batch size of `PARITY_BATCHES`."""
    session = Session(model.SerializeToString(), "cpu")
    return {
        str(n): float(np.abs(session.run(crops[:n])[0].astype(np.float32) - wanted).max())
        for n, wanted in zip(PARITY_BATCHES, expected, strict=True)
    }


def parity_crops(count: int) -> Pixels:
    """Return (count, 112, 112, 3) uint8: smooth colour gradients with noise, always the same."""
    rng = np.random.default_rng(0)
    ramps = np.linspace(0, 255, CROP_SIDE)[None, :, None, None] * rng.random((count, 1, 1, 3))
    ramps = ramps + np.linspace(0, 255, CROP_SIDE)[None, None, :, None] * rng.random((count, 1, 1, 3))
    return np.clip(ramps / 2 + rng.normal(0, 20, (count, CROP_SIDE, CROP_SIDE, 3)), 0, 255).astype(np.uint8)


def _exported(module: nn.Module, crops: Pixels) -> ModelProto:
    with warnings.catch_warnings():
        # Deprecations inside torch and onnxscript, which callers can't avoid.
        warnings.simplefilter("ignore")
        shapes, example = ({0: torch.export.Dim("N", min=1)},), (torch.from_numpy(crops[:2]),)
        names: dict[str, Any] = {"input_names": ["crops"], "output_names": ["templates"], "opset_version": OPSET}
        program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
    assert program is not None  # noqa: S101  never None with dynamo=True
    return program.model_proto


def _name_batch(model: ModelProto, dimension: int) -> None:
    """Write the contract's shapes into the graph: (N, 112, 112, 3) in, (N, D) out."""
    for value, shape in ((model.graph.input[0], (CROP_SIDE, CROP_SIDE, 3)), (model.graph.output[0], (dimension,))):
        dims = value.type.tensor_type.shape.dim
        dims[0].Clear()
        dims[0].dim_param = "N"
        for dim, size in zip(dims[1:], shape, strict=True):
            dim.Clear()
            dim.dim_value = size


# -------------------------------------------------------------------------------------------------------- variants


def to_fp16(model: ModelProto) -> ModelProto:
    """Convert the graph to half precision, from the first convolution to the last layer with weights. The conversion
    of pixels, the last normalisation, input and output stay in float32."""
    half: ModelProto = ModelProto.FromString(model.SerializeToString())
    graph = half.graph
    outside = {node.name for node in outside_network(half)}
    inside = {name for node in graph.node if node.name not in outside for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}
    floats = _float_values(half)
    casts: dict[tuple[str, int], str] = {}
    nodes: list[onnx.NodeProto] = []

    def cast(name: str, to: int) -> str:
        if (name, to) not in casts:
            casts[name, to] = f"{name}_{'half' if to == TensorProto.FLOAT16 else 'float'}"
            if name in constants:
                values = numpy_helper.to_array(constants[name]).astype(np.float16)
                graph.initializer.append(numpy_helper.from_array(values, casts[name, to]))
            else:
                nodes.append(helper.make_node("Cast", [name], [casts[name, to]], name=f"cast_{casts[name, to]}", to=to))
        return casts[name, to]

    for node in graph.node:
        is_outside = node.name in outside
        for place, name in enumerate(node.input):
            if not is_outside and name not in inside and name in floats:
                node.input[place] = cast(name, TensorProto.FLOAT16)
            elif is_outside and name in inside and name in floats:
                node.input[place] = cast(name, TensorProto.FLOAT)
        nodes.append(node)
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)
    tidy(half)
    return half


def _float_values(model: ModelProto) -> set[str]:
    """Return the names of all float32 values of a graph."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    typed = (*graph.value_info, *graph.input, *graph.output)
    floats = {value.name for value in typed if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    return floats | {tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}


def to_int8(model: ModelProto, crops: Pixels) -> ModelProto:
    """Quantise the rewritten graph statically, with ranges from `crops`."""
    return quantize(rewrite(model, Rewrite(), "cpu", for_quantising=True), crops)


# ----------------------------------------------------------------------------------------------------- measurement


def golden_vectors(model: ModelProto) -> Golden:
    """Return the vectors that the service compares when it opens the package."""
    session = Session(model.SerializeToString(), "cpu")
    return golden.record(lambda crops: session.run(crops)[0].astype(np.float32))


def vectors_of(model: ModelProto, crops: Crops) -> Vectors:
    """Embed a set's crops through ONNX Runtime as (N, D) unit float32."""
    session = Session(model.SerializeToString(), "cpu", 2)
    blocks = (np.arange(start, min(start + 16, len(crops))) for start in range(0, len(crops), 16))
    parts = [session.run(crops.images(rows))[0] for rows in blocks]
    vectors: Vectors = np.concatenate(parts).astype(np.float32)
    return vectors


def _measured(vectors: Vectors, fp32: Vectors, evaluation: Evaluation) -> tuple[dict[str, Any], Calibration | None]:
    """Return the figures and operating points of one variant's vectors; no points if the set is too small."""
    people = evaluation.crops.labels
    rates = COARSE_RATES if len(people) <= SMALL_SET else operating_points.RATES
    pairs = operating_points.compare_all(vectors, people, highest_fmr=rates[0])
    cosines = (vectors * fp32).sum(axis=1)
    figures = {
        "measured_on": evaluation.measured_on,
        "crops": len(people),
        "people": len(evaluation.crops.people),
        f"fnmr_at_fmr_{FIGURES_FMR:g}": round(metrics.fnmr_at(pairs.threshold(FIGURES_FMR), pairs.mated), 6),
        "cosine_to_fp32_mean": round(float(cosines.mean()), 6),
        "cosine_to_fp32_lowest": round(float(cosines.min()), 6),
    }
    measured = operating_points.measure(pairs, people, rates=rates)
    if len(operating_points.rising(measured.points)) < 2:
        return figures, None
    facts: dict[str, Any] = {"name": "held-out", "measured_on": evaluation.measured_on, "pairs": "all pairs"}
    fusion = measure_fusion(vectors, people)
    return figures, operating_points.calibration(measured, **facts, default=True, fusion=fusion)


def _write_package(
    models: Path,
    about: About,
    variant: Variant,
    model: ModelProto,
    *,
    recipe: Recipe,
    facts: dict[str, Any],
    figures: dict[str, Any],
    points: Calibration | None,
) -> Path:
    provenance = Provenance(
        text=f"Trained by `python -m training` with recipe {recipe.name} ({recipe.digest()}), step {facts['step']}, on "
        f"{facts['crops']} crops of {facts['people']} people from {recipe.data.source}; exported as {variant}.",
        figures=figures | {"recipe": recipe.model_dump(mode="json")},
    )
    return write_embedder(
        package_folder(models, about.name, variant),
        model,
        recipe.model.dim,
        calibration=points,
        version=about.version,
        title=about.title or f"{recipe.model.backbone}, {recipe.model.dim} dimensions, {variant}",
        description=about.description,
        prepare=Rewrite() if variant == "fp32" else RunAsIs(),
        licence=Licence(name=about.licence, non_commercial=about.non_commercial),
        provenance=provenance,
        golden=golden_vectors(model),
    )


def package_folder(models: Path, name: str, variant: Variant) -> Path:
    """Return the folder of a variant's package."""
    return models / (name if variant == "fp32" else f"{name}-{variant}")


def write_embedder(
    folder: Path, model: ModelProto, dimension: int, *, calibration: Calibration | None = None, **facts: Any
) -> Path:
    """Write a package's folder, the graph and a manifest with these ``facts``, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FileSource().path
    path.write_bytes(model.SerializeToString())
    manifest = Manifest(
        name=folder.name,
        task="embed",
        source=FileSource(),
        sha256=sha256_of(path),
        input=CONTRACT_INPUT,
        output=contract_output(dimension),
        dimension=dimension,
        canonical_landmarks=tuple((float(x), float(y)) for x, y in CANONICAL_LANDMARKS),
        **facts,
    )
    if calibration is not None:
        manifest = manifest.model_copy(update={"calibrations": (manifest.bind(calibration),)})
    write_manifest(folder, manifest)
    return folder
