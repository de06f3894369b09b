"""Read one ONNX node: its attributes, its constant inputs, its padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import NodeProto, helper
from torch import nn

from app.errors import Unusable

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = Any
"""A node of the torch.fx graph under construction; fx's own type is recursive and of little help."""


class Under(Protocol):
    """A graph under construction, as the builders use it."""

    def constant(self, name: str) -> Array | None:
        """The constant of this name; None for a value that is computed."""

    def value(self, name: str) -> Value:
        """A value to compute with, constants included."""

    def module(self, node: NodeProto, layer: nn.Module, source: Value) -> Value:
        """The output of a layer that is added to the network."""

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Value:
        """The result of a function."""

    def shape(self, name: str) -> list[int | None] | None:
        """The shape that ONNX infers, None for a free axis; None where the rank is unknown."""


Builder: TypeAlias = Callable[[Under, NodeProto], Value]
"""Returns the value of a node's first output; raises Unusable ``operator_unsupported``."""


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The attribute's value, text as str; the default where the node doesn't have it."""
    found = next((each for each in node.attribute if each.name == name), None)
    if found is None:
        return default
    value = helper.get_attribute_value(found)
    return value.decode() if isinstance(value, bytes) else value


def unsupported(node: NodeProto, why: str) -> Unusable:
    """The error for a node that cannot be imported: says which one and why."""
    name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return Unusable(f"Node {node.name!r} ({name}): {why}", code="operator_unsupported", operator=name)


def constant_input(graph: Under, node: NodeProto, place: int) -> Array:
    """The constant that an input has to be."""
    value = graph.constant(node.input[place])
    if value is None:
        raise unsupported(node, f"input {place} must be a constant, {node.input[place]!r} is computed.")
    return value


def optional_constant(graph: Under, node: NodeProto, place: int) -> Array | None:
    """The same for an input that may be left out."""
    return constant_input(graph, node, place) if has_input(node, place) else None


def has_input(node: NodeProto, place: int) -> bool:
    return len(node.input) > place and bool(node.input[place])


def integers(array: Array) -> list[int]:
    return [int(each) for each in np.asarray(array).reshape(-1)]


def padded(
    graph: Under, node: NodeProto, source: Value, kernel: Sequence[int], fill: float
) -> tuple[Value, tuple[int, ...]]:
    """The source and the padding that the layer adds itself; uneven padding is added to the source here."""
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
    pairs = [each for axis in reversed(range(dimensions)) for each in (begin[axis], end[axis])]
    return graph.call(F.pad, source, pairs, value=fill), (0,) * dimensions


def _same_padding(graph: Under, node: NodeProto, kernel: Sequence[int], *, upper: bool) -> list[int]:
    """Padding for auto_pad=SAME_*: outputs = ceil(inputs / stride)."""
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
