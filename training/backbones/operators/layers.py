"""Operators with weights as torch's own modules, so that an imported network trains, freezes and exports like any
other."""

from __future__ import annotations

import numpy as np
import torch
from onnx import NodeProto
from torch import Tensor, nn

from training.backbones.operators.node import (
    Array,
    Construction,
    Value,
    attribute,
    constant_input,
    optional_constant,
    padded,
    unsupported,
)


def convolution(graph: Construction, node: NodeProto) -> Value:
    """Conv of one or two dimensions with constant weights."""
    weight, bias = constant_input(graph, node, 1), optional_constant(graph, node, 2)
    dimensions = weight.ndim - 2
    if dimensions not in (1, 2):
        raise unsupported(node, f"convolutions of {dimensions} dimensions are not supported.")
    groups = int(attribute(node, "group", 1))
    source = graph.value(node.input[0])
    source, padding = padded(graph, node, source, weight.shape[2:], 0.0)
    kind = nn.Conv2d if dimensions == 2 else nn.Conv1d
    layer = kind(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        stride=tuple(attribute(node, "strides", [1] * dimensions)),
        padding=padding,  # type: ignore[arg-type]  # one or two, as the kind has it
        dilation=tuple(attribute(node, "dilations", [1] * dimensions)),
        groups=groups,
        bias=bias is not None,
    )
    _fill(layer, weight=weight, bias=bias)
    return graph.module(node, layer, source)


def _fill(layer: nn.Module, **values: Array | None) -> None:
    """Copies arrays into a layer's parameters and buffers of these names."""
    with torch.no_grad():
        for name, value in values.items():
            if value is not None:
                target: Tensor = getattr(layer, name)
                target.copy_(_tensor(value).reshape(target.shape))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def batch_normalisation(graph: Construction, node: NodeProto) -> Value:
    """BatchNormalization over axis 1 of (B, C), (B, C, L) or (B, C, H, W)."""
    scale, shift, mean, variance = (constant_input(graph, node, place) for place in range(1, 5))
    epsilon, keep = float(attribute(node, "epsilon", 1e-5)), float(attribute(node, "momentum", 0.9))
    shape = graph.shape(node.input[0])
    kind = nn.BatchNorm2d if shape is None or len(shape) == 4 else nn.BatchNorm1d
    layer = kind(len(scale), eps=epsilon, momentum=1 - keep)
    _fill(layer, weight=scale, bias=shift, running_mean=mean, running_var=variance)
    return graph.module(node, layer, graph.value(node.input[0]))


def prelu(graph: Construction, node: NodeProto) -> Value:
    """PRelu with one slope for all or one for each channel (axis 1); other shapes are computed by their parts."""
    slope = graph.constant(node.input[1])
    if slope is None:
        return graph.call(_prelu, graph.value(node.input[0]), graph.value(node.input[1]))
    shape = graph.shape(node.input[0])
    per_channel = slope.ndim > 1 and slope.shape[-(len(shape) - 1 if shape else slope.ndim)] == slope.size
    if slope.size > 1 and not per_channel:
        return graph.call(_prelu, graph.value(node.input[0]), graph.value(node.input[1]))
    layer = nn.PReLU(slope.size)
    _fill(layer, weight=slope)
    return graph.module(node, layer, graph.value(node.input[0]))


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return x.clamp(min=0) + slope * x.clamp(max=0)


def gemm(graph: Construction, node: NodeProto) -> Value:
    """alpha·A·B + beta·C: a linear layer where B is constant."""
    if attribute(node, "transA", 0):
        raise unsupported(node, "transA is not supported.")
    alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
    weight = constant_input(graph, node, 1)
    weight = weight if attribute(node, "transB", 0) else weight.T
    bias = optional_constant(graph, node, 2)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    full = None if bias is None else np.broadcast_to(beta * bias.reshape(-1), (weight.shape[0],))
    _fill(layer, weight=alpha * weight, bias=full)
    return graph.module(node, layer, graph.value(node.input[0]))


def matrix_product(graph: Construction, node: NodeProto) -> Value:
    """MatMul: a linear layer where the right side is a constant matrix."""
    weight = graph.constant(node.input[1])
    if weight is None or weight.ndim != 2:
        return graph.call(torch.matmul, graph.value(node.input[0]), graph.value(node.input[1]))
    layer = nn.Linear(weight.shape[0], weight.shape[1], bias=False)
    _fill(layer, weight=weight.T)
    return graph.module(node, layer, graph.value(node.input[0]))


def layer_normalisation(graph: Construction, node: NodeProto) -> Value:
    """LayerNormalization over the axes from `axis` on."""
    scale, shift = constant_input(graph, node, 1), optional_constant(graph, node, 2)
    layer = nn.LayerNorm(scale.shape, eps=float(attribute(node, "epsilon", 1e-5)), bias=shift is not None)
    _fill(layer, weight=scale, bias=shift)
    return graph.module(node, layer, graph.value(node.input[0]))
