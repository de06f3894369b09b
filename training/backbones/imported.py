"""ONNX embedders as PyTorch modules: any package's network to start from, to adapt, or to learn from on one device.

`import_package` gives a module that takes the package contract's crops and can be trained, frozen, compiled and
exported. The graph is brought to one form first by the service's own rewriting steps (constants computed,
block-quantised weights unpacked, any batch size); then every ONNX node becomes a torch layer or a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from torch import Tensor, fx, nn

from app.errors import NotFound, Unusable
from app.inference import graph as rewriting
from app.inference.manifest import Rewrite, RunAsIs, SourceInput
from app.inference.package import Package, locate
from training.backbones.operators.node import Array, unsupported
from training.backbones.operators.table import BUILDERS
from training.packages import CACHE, MODELS, find_package

WEIGHTED = ("Conv", "Gemm", "MatMul")
"""Operators with learned weights: constants that come after the first of them are learned too, those before it (the
pixels' mean and scale) are not."""


PIXEL_CENTRE = 127.5
"""(x - 127.5) / 127.5, the input of InsightFace's models."""


class ImportedModel(nn.Module):
    """(B, 112, 112, 3) uint8 RGB crops -> (B, D) as the graph gives it, of length 1 only if the graph makes it so.

    `backbone` is the network itself, which takes what the ONNX file takes. With `channels_last` a network of NCHW
    pixels runs in that memory format.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, form: SourceInput, *, channels_last: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.form = form
        self.channels_last = channels_last
        per_channel = (3, 1, 1) if form.layout == "nchw" else (3,)
        self.register_buffer("mean", torch.tensor(form.mean).reshape(per_channel), persistent=False)
        self.register_buffer("std", torch.tensor(form.std).reshape(per_channel), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.flip(-1) if self.form.colour == "bgr" else images
        if self.form.layout == "nchw":
            pixels = pixels.permute(0, 3, 1, 2)
        if self.form.dtype == "float32":
            pixels = pixels.to(self.mean.dtype)
        if self.form.changes_values:
            pixels = (pixels - self.mean) / self.std
        if self.channels_last and self.form.layout == "nchw":
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        embedding: Tensor = self.backbone(pixels)
        return embedding


def import_package(package: Package, cache_dir: Path, *, channels_last: bool = False) -> ImportedModel:
    """The package's embedder in evaluation mode, from its source file.

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

    A file must take the package contract's crops, or NCHW floats -1…1 as ArcFace's models do. Raises what
    `find_package` and `import_package` do, and NotFound (`package_not_found`) for a file that isn't there.
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
    """The graph's network: what the graph takes -> its one output, for any batch size.

    Raises Unusable with code `operator_unsupported`, naming the first node that cannot be imported, or
    `package_not_preparable` where there is not one input and one output.
    """
    source = ModelProto.FromString(model.SerializeToString())
    rewriting.keep_data_inputs(source)
    if (len(source.graph.input), len(source.graph.output)) != (1, 1):
        names = [each.name for each in (*source.graph.input, *source.graph.output)]
        raise Unusable(f"The graph must have one input and one output, not {names}.", code="package_not_preparable")
    _refuse_unknown(source)
    source = rewriting.raised_opset(source)
    rewriting.free_batch(source)
    return _Construction(rewriting.optimised(source, fuse=False)).network()


def _refuse_unknown(model: ModelProto) -> None:
    """Names the first operator that has no builder and does not depend on constants alone."""
    known = {each.name for each in model.graph.initializer} | {""}
    for node in model.graph.node:
        if all(name in known for name in node.input):
            known.update(node.output)
        elif node.domain not in ("", "ai.onnx") or node.op_type not in BUILDERS:
            raise unsupported(node, "this operator cannot be imported.")


class _Construction:
    """A torch.fx graph under construction; see `operators.Under` for what its methods promise."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        self._shapes = _shapes(model)
        self._root = nn.Module()
        self._graph = fx.Graph()
        self._values: dict[str, Any] = {}
        self._learned = False

    def network(self) -> fx.GraphModule:
        proto = self._model.graph
        self._values[proto.input[0].name] = self._graph.placeholder("x")
        for node in proto.node:
            result = BUILDERS[node.op_type](self, node)
            if node.op_type == "Split":
                for place, name in enumerate(node.output):
                    self._values[name] = self._graph.call_method("__getitem__", (result, place))
            else:
                self._values[node.output[0]] = result
            self._learned |= node.op_type in WEIGHTED
        self._graph.output(self.value(proto.output[0].name))
        network = fx.GraphModule(self._root, self._graph)
        network.graph.eliminate_dead_code()
        network.delete_all_unused_submodules()
        network.recompile()
        return network

    def constant(self, name: str) -> Array | None:
        return self._constants.get(name)

    def value(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = self._attribute(name)
        return self._values[name]

    def _attribute(self, name: str) -> Any:
        array = self._constants[name]
        tensor = torch.from_numpy(np.array(array))
        own = self._own(name)
        if self._learned and tensor.is_floating_point() and tensor.numel() > 1:
            self._root.register_parameter(own, nn.Parameter(tensor))
        else:
            self._root.register_buffer(own, tensor)
        return self._graph.get_attr(own)

    def module(self, node: NodeProto, layer: nn.Module, source: Any) -> Any:
        own = self._own(node.name or node.output[0])
        self._root.add_module(own, layer)
        return self._graph.call_module(own, (source,))

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return self._graph.call_function(function, arguments, options)

    def shape(self, name: str) -> list[int | None] | None:
        return self._shapes.get(name)

    def _own(self, name: str) -> str:
        """An attribute's name like the ONNX name that nothing has yet."""
        base = re.sub(r"\W+", "_", name).strip("_") or "constant"
        base = f"_{base}" if base[0].isdigit() else base
        count, own = 0, base
        while hasattr(self._root, own):
            count += 1
            own = f"{base}_{count}"
        return own


def _shapes(model: ModelProto) -> dict[str, list[int | None]]:
    """Name -> shape with None for a free axis, computed shapes followed where ONNX can."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        each.name: [dim.dim_value if dim.HasField("dim_value") else None for dim in each.type.tensor_type.shape.dim]
        for each in (*inferred.value_info, *inferred.input, *inferred.output)
        if each.type.tensor_type.HasField("shape")
    }
