"""Import ONNX embedders as PyTorch modules: any package's network can be trained further, adapted, or be a teacher.

`import_package` returns a module that takes the package contract's crops and can be trained, frozen, compiled and
exported. First the service's rewriting steps bring the graph to one form (constants computed, block-quantised weights
unpacked, any batch size); then every ONNX node becomes a torch layer or a function.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from onnx import ModelProto, TensorProto
from torch import Tensor, fx, nn

from app.errors import NotFound, Unusable
from app.models import graph as rewriting
from app.models.packages import locate
from app.models.reference import keep_data_inputs, resampling
from app.package.folders import Package
from app.package.manifest import Rewrite, RunAsIs, SourceInput
from training.backbones.construction import Construction, unsupported
from training.backbones.operators import BUILDERS
from training.packages import CACHE, MODELS, find_package

WEIGHTED = ("Conv", "Gemm", "MatMul")
"""Operators with learned weights. Constants after the first of them are learned, too, but not those before it (the
pixels' mean and scale)."""


PIXEL_CENTRE = 127.5
"""InsightFace's models take (x - 127.5) / 127.5."""


class ImportedModel(nn.Module):
    """Embeds (B, 112, 112, 3) uint8 RGB crops as (B, D) vectors, which have length 1 only if the graph normalises them.

    `backbone` is the network itself, with the ONNX file's input. With `channels_last`, a network that takes NCHW pixels
    keeps them in torch's memory format of this name.
    """

    mean: Tensor
    std: Tensor
    rows: Tensor
    columns: Tensor
    """If the form has a cutout, `rows` and `columns` are the matrices that resample a crop to it."""

    def __init__(self, backbone: nn.Module, form: SourceInput, *, channels_last: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.form = form
        self.channels_last = channels_last
        per_channel = (3, 1, 1) if form.layout == "nchw" else (3,)
        self.register_buffer("mean", torch.tensor(form.mean).reshape(per_channel), persistent=False)
        self.register_buffer("std", torch.tensor(form.std).reshape(per_channel), persistent=False)
        for name, matrix in zip(("rows", "columns"), resampling(form.cutout) if form.cutout else (), strict=False):
            self.register_buffer(name, torch.tensor(matrix, dtype=torch.float32), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        pixels = (images.flip(-1) if self.form.colour == "bgr" else images).permute(0, 3, 1, 2)
        if self.form.dtype == "float32":
            pixels = pixels.to(self.mean.dtype)
        if self.form.cutout is not None:
            pixels = self.rows @ pixels @ self.columns.T
        if self.form.layout == "nhwc":
            pixels = pixels.permute(0, 2, 3, 1)
        if self.form.changes_values:
            pixels = (pixels - self.mean) / self.std
        if self.channels_last and self.form.layout == "nchw":
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        embedding: Tensor = self.backbone(pixels)
        return embedding


def import_package(package: Package, cache_dir: Path, *, channels_last: bool = False) -> ImportedModel:
    """Return the package's embedder in evaluation mode, imported from its source file.

    Raises Unusable: `operator_unsupported`, which names the operator, and what `locate` raises.
    """
    plan = package.manifest.prepare
    if not isinstance(plan, Rewrite | RunAsIs):
        raise Unusable(f"{package.id} is no embedder.", code="not_an_embedder")
    form = plan.input if isinstance(plan, Rewrite) else SourceInput()
    model = onnx.load(locate(package, cache_dir))
    return ImportedModel(import_graph(model), form, channels_last=channels_last).eval()


def import_file(start: str, *, channels_last: bool = False) -> ImportedModel:
    """Import the network of an ONNX file, of a package's folder, or of a package of this name in `models/`.

    A file must take the package contract's crops, or NCHW floats in [-1, 1] as ArcFace's models do. Raises what
    `find_package` and `import_package` raise, and NotFound (`package_not_found`) for a missing file.
    """
    path = Path(start)
    if path.suffix == ".onnx":
        if not path.is_file():
            raise NotFound(f"There is no {path} to start from.", code="package_not_found")
        model = onnx.load(path)
        return ImportedModel(import_graph(model), _form_of(model), channels_last=channels_last)
    return import_package(find_package(start, MODELS), CACHE, channels_last=channels_last)


def _form_of(model: ModelProto) -> SourceInput:
    kind = model.graph.input[0].type.tensor_type
    if kind.elem_type == TensorProto.UINT8:
        return SourceInput()
    centre = (PIXEL_CENTRE,) * 3
    return SourceInput(layout="nchw", dtype="float32", mean=centre, std=centre)


def import_graph(model: ModelProto) -> fx.GraphModule:
    """Return the graph as a network, from its one input to its one output, for any batch size.

    Raises Unusable with code `operator_unsupported`, naming the first node that cannot be imported, or
    `package_not_preparable` unless there is exactly one input and one output.
    """
    source = ModelProto.FromString(model.SerializeToString())
    keep_data_inputs(source)
    if (len(source.graph.input), len(source.graph.output)) != (1, 1):
        names = [value.name for value in (*source.graph.input, *source.graph.output)]
        raise Unusable(f"The graph must have one input and one output, not {names}.", code="package_not_preparable")
    _refuse_unknown(source)
    source = rewriting.raised_opset(source)
    rewriting.free_batch(source)
    return _network(rewriting.optimised(source, fuse=False))


def _refuse_unknown(model: ModelProto) -> None:
    """Raise Unusable for the first operator that has no builder and does not depend on constants alone."""
    known = {tensor.name for tensor in model.graph.initializer} | {""}
    for node in model.graph.node:
        if all(name in known for name in node.input):
            known.update(node.output)
        elif node.domain not in ("", "ai.onnx") or node.op_type not in BUILDERS:
            raise unsupported(node, "this operator cannot be imported.")


def _network(model: ModelProto) -> fx.GraphModule:
    under, proto = Construction(model), model.graph
    under.define(proto.input[0].name, under.graph.placeholder("x"))
    for node in proto.node:
        result = BUILDERS[node.op_type](under, node)
        if node.op_type == "Split":
            for place, name in enumerate(node.output):
                under.define(name, under.graph.call_method("__getitem__", (result, place)))
        else:
            under.define(node.output[0], result)
        under.learned |= node.op_type in WEIGHTED
    under.graph.output(under.value(proto.output[0].name))
    network = fx.GraphModule(under.root, under.graph)
    network.graph.eliminate_dead_code()
    network.delete_all_unused_submodules()
    network.recompile()
    return network
