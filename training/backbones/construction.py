"""Build a torch.fx graph from ONNX nodes, and read a node's attributes, constant inputs and padding."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper
from torch import fx, nn

from app.errors import Unusable
from app.models.graph import attribute, known_shapes

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = Any
"""A node of the torch.fx graph under construction; fx's own type is recursive and of little help."""


class Construction:
    """A torch.fx graph under construction, and the network of its layers."""

    def __init__(self, model: ModelProto) -> None:
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        # With `data_prop`, ONNX also infers the shapes of computed values.
        self._shapes = known_shapes(onnx.shape_inference.infer_shapes(model, data_prop=True))
        self._values: dict[str, Value] = {}
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.learned = False
        """Whether a layer with weights was added already: float constants after it are learned, too."""

    def define(self, name: str, value: Value) -> None:
        """Set the ONNX value of this name."""
        self._values[name] = value

    def constant(self, name: str) -> Array | None:
        """Return the constant of this name; None for a value that is computed."""
        return self._constants.get(name)

    def value(self, name: str) -> Value:
        """Return a value to compute with, constants included."""
        if name not in self._values:
            self._values[name] = self._registered(name)
        return self._values[name]

    def _registered(self, name: str) -> Value:
        array = self._constants[name]
        tensor = torch.from_numpy(np.array(array))
        target = self._own(name)
        if self.learned and tensor.is_floating_point() and tensor.numel() > 1:
            self.root.register_parameter(target, nn.Parameter(tensor))
        else:
            self.root.register_buffer(target, tensor)
        return self.graph.get_attr(target)

    def module(self, node: NodeProto, layer: nn.Module, source: Any) -> Value:
        """Add a layer to the network and return its output."""
        target = self._own(node.name or node.output[0])
        self.root.add_module(target, layer)
        return self.graph.call_module(target, (source,))

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Value:
        """Return the result of a function."""
        return self.graph.call_function(function, arguments, options)

    def shape(self, name: str) -> list[int | None] | None:
        """Return the shape that ONNX infers, with None for a free axis; None if the rank is unknown."""
        return self._shapes.get(name)

    def _own(self, name: str) -> str:
        """Return a unique attribute name made from the ONNX name."""
        base = re.sub(r"\W+", "_", name).strip("_") or "constant"
        base = f"_{base}" if base[0].isdigit() else base
        count, free = 0, base
        while hasattr(self.root, free):
            count += 1
            free = f"{base}_{count}"
        return free


Builder: TypeAlias = Callable[[Construction, NodeProto], Value]
"""Returns the value of a node's first output; raises Unusable ``operator_unsupported``."""


def unsupported(node: NodeProto, why: str) -> Unusable:
    """Return the error for a node that cannot be imported; it names the node and the reason."""
    name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return Unusable(f"Node {node.name!r} ({name}): {why}", code="operator_unsupported", operator=name)


def constant_input(graph: Construction, node: NodeProto, place: int) -> Array:
    """Return an input, which must be a constant. Raises Unusable ``operator_unsupported``."""
    value = graph.constant(node.input[place])
    if value is None:
        raise unsupported(node, f"input {place} must be a constant, {node.input[place]!r} is computed.")
    return value


def optional_constant(graph: Construction, node: NodeProto, place: int) -> Array | None:
    """Return the constant of an optional input; None if it is left out."""
    return constant_input(graph, node, place) if has_input(node, place) else None


def has_input(node: NodeProto, place: int) -> bool:
    return len(node.input) > place and bool(node.input[place])


def integers(array: Array) -> list[int]:
    return [int(number) for number in np.asarray(array).reshape(-1)]


def padded(
    graph: Construction, node: NodeProto, source: Value, kernel: Sequence[int], fill: float
) -> tuple[Value, tuple[int, ...]]:
    """Return the source and the padding that the layer must add. Uneven padding is added to the source right here."""
    dimensions = len(kernel)
    pads = list(attribute(node, "pads", [0] * (2 * dimensions)))
    automatic = attribute(node, "auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_padding(graph, node, kernel, upper=automatic == "SAME_UPPER")
    elif automatic == "VALID":
        pads = [0] * (2 * dimensions)
    begin, end = pads[:dimensions], pads[dimensions:]
    if begin == end:
        return source, tuple(begin)
    pairs = [width for axis in reversed(range(dimensions)) for width in (begin[axis], end[axis])]
    return graph.call(F.pad, source, pairs, value=fill), (0,) * dimensions


def _same_padding(graph: Construction, node: NodeProto, kernel: Sequence[int], *, upper: bool) -> list[int]:
    """Return the padding for auto_pad=SAME_*: outputs = ceil(inputs / stride)."""
    shape = graph.shape(node.input[0])
    if shape is None or None in shape[2:]:
        raise unsupported(node, "auto_pad needs the input's size, which the graph does not fix.")
    strides = attribute(node, "strides", [1] * len(kernel))
    dilations = attribute(node, "dilations", [1] * len(kernel))
    begin, end = [], []
    for size, side, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True):
        total = max(0, (-(-int(size or 0) // stride) - 1) * stride + (side - 1) * dilation + 1 - int(size or 0))
        less, more = total // 2, total - total // 2
        begin.append(less if upper else more)
        end.append(more if upper else less)
    return begin + end
