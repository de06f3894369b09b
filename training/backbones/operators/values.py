"""Activations, pooling and reductions as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from onnx import NodeProto
from torch import Tensor

from training.backbones.operators.node import (
    Builder,
    Construction,
    Value,
    attribute,
    integers,
    optional_constant,
    padded,
    unsupported,
)


def of_inputs(function: Callable[..., Any]) -> Builder:
    """A function of all inputs, no attributes."""
    return lambda graph, node: graph.call(function, *(graph.value(name) for name in node.input if name))


def with_attributes(function: Callable[..., Any], **defaults: Any) -> Builder:
    """A function of the first input, with the node's attributes of these names."""

    def build(graph: Construction, node: NodeProto) -> Value:
        options = {name: attribute(node, name, default) for name, default in defaults.items()}
        return graph.call(function, graph.value(node.input[0]), **options)

    return build


def leaky_relu(x: Tensor, *, alpha: float) -> Tensor:
    """x where positive, alpha·x elsewhere."""
    return F.leaky_relu(x, alpha)


def hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    """alpha·x + beta, cut to 0…1."""
    return (alpha * x + beta).clamp(0, 1)


def softmax(x: Tensor, *, axis: int) -> Tensor:
    """exp(x) over its sum along an axis."""
    return torch.softmax(x, axis)


def clip(graph: Construction, node: NodeProto) -> Value:
    """Clip between constants, each of which may be missing."""
    low, high = (optional_constant(graph, node, place) for place in (1, 2))
    bounds = {"min": None if low is None else low.item(), "max": None if high is None else high.item()}
    return graph.call(torch.clamp, graph.value(node.input[0]), **bounds)


def pool(graph: Construction, node: NodeProto) -> Value:
    """MaxPool and AveragePool over two dimensions."""
    kernel = list(attribute(node, "kernel_shape"))
    if len(kernel) != 2 or any(each != 1 for each in attribute(node, "dilations", [1, 1])):
        raise unsupported(node, "only two dimensions without dilation are supported.")
    strides = list(attribute(node, "strides", [1] * len(kernel)))
    rounding = bool(attribute(node, "ceil_mode", 0))
    highest = node.op_type == "MaxPool"
    source, padding = padded(graph, node, graph.value(node.input[0]), kernel, -torch.inf if highest else 0.0)
    if highest:
        return graph.call(F.max_pool2d, source, kernel, strides, list(padding), ceil_mode=rounding)
    counted = bool(attribute(node, "count_include_pad", 0))
    pads = list(attribute(node, "pads", [0] * 4))
    if not counted and pads[:2] != pads[2:]:
        raise unsupported(node, "an average that leaves out uneven padding is not supported.")
    return graph.call(
        F.avg_pool2d, source, kernel, strides, list(padding), ceil_mode=rounding, count_include_pad=counted
    )


def global_average(x: Tensor) -> Tensor:
    """Mean over all axes but the first two, which stay."""
    return x.mean(dim=tuple(range(2, x.ndim)), keepdim=True)


def global_maximum(x: Tensor) -> Tensor:
    """Maximum over all axes but the first two, which stay."""
    return x.amax(dim=tuple(range(2, x.ndim)), keepdim=True)


REDUCTIONS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "ReduceMean": torch.mean,
        "ReduceSum": torch.sum,
        "ReduceMax": torch.amax,
        "ReduceMin": torch.amin,
        "ReduceL2": lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim).sqrt(),
        "ReduceSumSquare": lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim),
    }
)


def reduction(graph: Construction, node: NodeProto) -> Value:
    """A reduction with its axes as the second input; without axes over all of them."""
    axes = optional_constant(graph, node, 1)
    source = graph.value(node.input[0])
    if axes is None and attribute(node, "noop_with_empty_axes", 0):
        return source
    given = None if axes is None else integers(axes)
    return graph.call(reduced, source, node.op_type, axes=given, keep=bool(attribute(node, "keepdims", 1)))


def reduced(x: Tensor, kind: str, *, axes: Sequence[int] | None, keep: bool) -> Tensor:
    """Reduce along these axes, or along all."""
    return REDUCTIONS[kind](x, list(range(x.ndim)) if axes is None else list(axes), keepdim=keep)


def lp_normalisation(x: Tensor, *, axis: int, p: int) -> Tensor:
    """x over its own length along an axis."""
    return F.normalize(x, p=float(p), dim=axis)


def folded(function: Callable[[Tensor, Tensor], Tensor]) -> Builder:
    """Min, Max and Sum of any number of inputs."""

    def build(graph: Construction, node: NodeProto) -> Value:
        result = graph.value(node.input[0])
        for name in node.input[1:]:
            result = graph.call(function, result, graph.value(name))
        return result

    return build
