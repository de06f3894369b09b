"""ONNX operators (opset 18 or later) as PyTorch, a small builder for each; `training.backbones.imported` builds
networks from them. Operators with weights become torch's own modules, so that an imported network trains, freezes and
exports like any other."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import NodeProto, TensorProto, helper
from torch import Tensor, nn

from app.models.graph import attribute
from training.backbones.construction import (
    Array,
    Builder,
    Construction,
    Value,
    constant_input,
    integers,
    optional_constant,
    padded,
    unsupported,
)

# ---------------------------------------------------------------------------------------------- layers with weights


def convolution(graph: Construction, node: NodeProto) -> Value:
    """Build Conv of one or two dimensions with constant weights."""
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
        padding=padding,  # type: ignore[arg-type]  # one or two numbers, as `kind` needs
        dilation=tuple(attribute(node, "dilations", [1] * dimensions)),
        groups=groups,
        bias=bias is not None,
    )
    _fill(layer, weight=weight, bias=bias)
    return graph.module(node, layer, source)


def _fill(layer: nn.Module, **values: Array | None) -> None:
    """Copy arrays into the layer's parameters and buffers with these names."""
    with torch.no_grad():
        for name, value in values.items():
            if value is not None:
                target: Tensor = getattr(layer, name)
                target.copy_(_tensor(value).reshape(target.shape))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def batch_normalisation(graph: Construction, node: NodeProto) -> Value:
    """Build BatchNormalization over axis 1 of (B, C), (B, C, L) or (B, C, H, W)."""
    scale, shift, mean, variance = (constant_input(graph, node, place) for place in range(1, 5))
    epsilon, keep = float(attribute(node, "epsilon", 1e-5)), float(attribute(node, "momentum", 0.9))
    shape = graph.shape(node.input[0])
    kind = nn.BatchNorm2d if shape is None or len(shape) == 4 else nn.BatchNorm1d
    layer = kind(len(scale), eps=epsilon, momentum=1 - keep)
    _fill(layer, weight=scale, bias=shift, running_mean=mean, running_var=variance)
    return graph.module(node, layer, graph.value(node.input[0]))


def prelu(graph: Construction, node: NodeProto) -> Value:
    """Build PRelu with one slope, or one per channel (axis 1); other shapes are composed of simpler operations."""
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
    """Build alpha·A·B + beta·C: a linear layer if B is constant."""
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
    """Build MatMul: a linear layer if the right side is a constant matrix."""
    weight = graph.constant(node.input[1])
    if weight is None or weight.ndim != 2:
        return graph.call(torch.matmul, graph.value(node.input[0]), graph.value(node.input[1]))
    layer = nn.Linear(weight.shape[0], weight.shape[1], bias=False)
    _fill(layer, weight=weight.T)
    return graph.module(node, layer, graph.value(node.input[0]))


def layer_normalisation(graph: Construction, node: NodeProto) -> Value:
    """Build LayerNormalization over the axes from `axis` on."""
    scale, shift = constant_input(graph, node, 1), optional_constant(graph, node, 2)
    layer = nn.LayerNorm(scale.shape, eps=float(attribute(node, "epsilon", 1e-5)), bias=shift is not None)
    _fill(layer, weight=scale, bias=shift)
    return graph.module(node, layer, graph.value(node.input[0]))


# ------------------------------------------------------------------------------------------- shapes, axes and types


def flatten(x: Tensor, *, axis: int) -> Tensor:
    """Join the axes before `axis` into one, and the rest into another."""
    return torch.flatten(x, 1) if axis == 1 else x.reshape(math.prod(x.shape[:axis]), -1)


def reshape(graph: Construction, node: NodeProto) -> Value:
    """Build Reshape; a computed target is replaced by the shape that ONNX infers, if at most one axis is free."""
    source, target = graph.value(node.input[0]), graph.constant(node.input[1])
    if target is not None:
        return graph.call(reshaped, source, integers(target), zero=bool(attribute(node, "allowzero", 0)))
    inferred = graph.shape(node.output[0])
    if inferred is not None and sum(size is None for size in inferred) <= 1:
        return graph.call(reshaped, source, [-1 if size is None else size for size in inferred], zero=True)
    return graph.call(reshaped, source, graph.value(node.input[1]), zero=False)


def reshaped(x: Tensor, shape: Sequence[int] | Tensor, *, zero: bool) -> Tensor:
    """Reshape to constants or a computed shape: −1 is inferred, 0 copies the input's axis unless `zero` is set."""
    sizes = shape.tolist() if isinstance(shape, Tensor) else shape
    return x.reshape([x.shape[axis] if size == 0 and not zero else size for axis, size in enumerate(sizes)])


def shape_of(x: Tensor, *, start: int, end: int | None) -> Tensor:
    """Return the shape as int64 on the CPU."""
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


def transposed(x: Tensor, *, perm: Sequence[int] | None) -> Tensor:
    """Return x with its axes in the order `perm`, by default reversed."""
    return x.permute(*(reversed(range(x.ndim)) if perm is None else perm))


def squeeze(graph: Construction, node: NodeProto) -> Value:
    """Build Squeeze of the given axes, by default all of size 1."""
    axes = optional_constant(graph, node, 1)
    source = graph.value(node.input[0])
    return graph.call(torch.squeeze, source) if axes is None else graph.call(torch.squeeze, source, integers(axes))


def unsqueezed(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Add axes of size 1; `axes` are their positions in the result."""
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def concatenation(graph: Construction, node: NodeProto) -> Value:
    """Build Concat along an axis."""
    return graph.call(torch.cat, [graph.value(name) for name in node.input], dim=int(attribute(node, "axis")))


def split(graph: Construction, node: NodeProto) -> Value:
    """Build Split into constant sizes, or evenly into one part for each output; the value is a sequence."""
    axis, sizes = int(attribute(node, "axis", 0)), optional_constant(graph, node, 1)
    source = graph.value(node.input[0])
    if sizes is not None:
        return graph.call(torch.split, source, integers(sizes), dim=axis)
    return graph.call(torch.chunk, source, len(node.output), dim=axis)


def slicing(graph: Construction, node: NodeProto) -> Value:
    """Build Slice with constant bounds."""
    starts, ends = (integers(constant_input(graph, node, place)) for place in (1, 2))
    axes, steps = (optional_constant(graph, node, place) for place in (3, 4))
    given = list(range(len(starts))) if axes is None else integers(axes)
    strides = [1] * len(starts) if steps is None else integers(steps)
    return graph.call(sliced, graph.value(node.input[0]), list(zip(given, starts, ends, strides, strict=True)))


def sliced(x: Tensor, cuts: Sequence[tuple[int, int, int, int]]) -> Tensor:
    """Apply each cut (axis, start, end, step) as Python's slices do; a negative step reverses."""
    for axis, start, end, step in cuts:
        if step > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
        else:
            places = list(range(x.shape[axis])[start : None if end < -x.shape[axis] else end : step])
            x = x.index_select(axis, torch.tensor(places, device=x.device))
    return x


def gather(graph: Construction, node: NodeProto) -> Value:
    """Build Gather along an axis."""
    axis, places = int(attribute(node, "axis", 0)), graph.constant(node.input[1])
    source = graph.value(node.input[0])
    if places is not None and places.ndim == 0:
        return graph.call(torch.select, source, axis, int(places))
    return graph.call(taken, source, graph.value(node.input[1]), axis=axis)


def taken(x: Tensor, places: Tensor, *, axis: int) -> Tensor:
    """Return the slices at `places`; their shape replaces the axis."""
    axis %= x.ndim
    slices = x.index_select(axis, places.reshape(-1).to(x.device) % x.shape[axis])
    return slices.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def cast(graph: Construction, node: NodeProto) -> Value:
    """Build Cast, if the target type exists in both NumPy and torch."""
    kind = int(attribute(node, "to"))
    try:
        dtype = torch.from_numpy(np.empty(0, helper.tensor_dtype_to_np_dtype(kind))).dtype
    except TypeError:
        raise unsupported(node, f"a cast to {TensorProto.DataType.Name(kind)} is not supported.") from None
    return graph.call(Tensor.to, graph.value(node.input[0]), dtype)


def expanded(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcast in both directions: an axis that is 1 in the shape keeps the input's size."""
    rank = max(x.ndim, len(shape))
    shape_here, wanted = (1,) * (rank - x.ndim) + tuple(x.shape), (1,) * (rank - len(shape)) + tuple(shape)
    return x.broadcast_to([size if other == 1 else other for size, other in zip(shape_here, wanted, strict=True)])


def padding(graph: Construction, node: NodeProto) -> Value:
    """Build Pad with a constant, or by reflecting or repeating the edge, on constant axes."""
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}.get(attribute(node, "mode", "constant"))
    pads = integers(constant_input(graph, node, 1))
    fill, axes = (optional_constant(graph, node, place) for place in (2, 3))
    if mode is None or axes is not None:
        raise unsupported(node, "this mode or a list of axes is not supported.")
    rank = len(pads) // 2
    pairs = [width for axis in reversed(range(rank)) for width in (pads[axis], pads[rank + axis])]
    while len(pairs) > 2 and pairs[-2:] == [0, 0]:
        del pairs[-2:]
    options = {"value": 0.0 if fill is None else float(fill.item())} if mode == "constant" else {}
    return graph.call(F.pad, graph.value(node.input[0]), pairs, mode=mode, **options)


def identity(graph: Construction, node: NodeProto) -> Value:
    """Build Identity, or Dropout in inference."""
    return graph.value(node.input[0])


# ------------------------------------------------------------------------------------ activations, pooling, reductions


def of_inputs(function: Callable[..., Any]) -> Builder:
    """Return a builder that calls the function with all inputs; the node has no attributes."""
    return lambda graph, node: graph.call(function, *(graph.value(name) for name in node.input if name))


def with_integers(function: Callable[[Tensor, list[int]], Tensor]) -> Builder:
    """Return a builder that calls the function with the first input and the integers of the second, a constant."""
    return lambda graph, node: graph.call(
        function, graph.value(node.input[0]), integers(constant_input(graph, node, 1))
    )


def with_attributes(function: Callable[..., Any], /, **defaults: Any) -> Builder:
    """Return a builder that calls the function with the first input and the node's attributes, under torch's names."""
    onnx_names = {"dim": "axis", "negative_slope": "alpha"}

    def build(graph: Construction, node: NodeProto) -> Value:
        options = {name: attribute(node, onnx_names.get(name, name), default) for name, default in defaults.items()}
        return graph.call(function, graph.value(node.input[0]), **options)

    return build


def hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    """Return alpha·x + beta, clipped to 0…1."""
    return (alpha * x + beta).clamp(0, 1)


def clip(graph: Construction, node: NodeProto) -> Value:
    """Build Clip between constants, both optional."""
    low, high = (optional_constant(graph, node, place) for place in (1, 2))
    bounds = {"min": None if low is None else low.item(), "max": None if high is None else high.item()}
    return graph.call(torch.clamp, graph.value(node.input[0]), **bounds)


def pool(graph: Construction, node: NodeProto) -> Value:
    """Build MaxPool or AveragePool over two dimensions."""
    kernel = list(attribute(node, "kernel_shape"))
    if len(kernel) != 2 or any(dilation != 1 for dilation in attribute(node, "dilations", [1, 1])):
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
    """Return the mean over all axes but the first two; the axes stay, with size 1."""
    return x.mean(dim=tuple(range(2, x.ndim)), keepdim=True)


def global_maximum(x: Tensor) -> Tensor:
    """Return the maximum over all axes but the first two; the axes stay, with size 1."""
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
    """Build a reduction over the axes in the second input, by default all."""
    axes = optional_constant(graph, node, 1)
    source = graph.value(node.input[0])
    if axes is None and attribute(node, "noop_with_empty_axes", 0):
        return source
    given = None if axes is None else integers(axes)
    return graph.call(reduced, source, node.op_type, axes=given, keep=bool(attribute(node, "keepdims", 1)))


def reduced(x: Tensor, kind: str, *, axes: Sequence[int] | None, keep: bool) -> Tensor:
    """Reduce along these axes, by default all."""
    return REDUCTIONS[kind](x, list(range(x.ndim)) if axes is None else list(axes), keepdim=keep)


def folded(function: Callable[[Tensor, Tensor], Tensor]) -> Builder:
    """Return a builder for Min, Max or Sum, which folds any number of inputs with the function."""

    def build(graph: Construction, node: NodeProto) -> Value:
        result = graph.value(node.input[0])
        for name in node.input[1:]:
            result = graph.call(function, result, graph.value(name))
        return result

    return build


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "Conv": convolution,
        "BatchNormalization": batch_normalisation,
        "PRelu": prelu,
        "Gemm": gemm,
        "MatMul": matrix_product,
        "LayerNormalization": layer_normalisation,
        "Relu": of_inputs(torch.relu),
        "LeakyRelu": with_attributes(F.leaky_relu, negative_slope=0.01),
        "Elu": with_attributes(F.elu, alpha=1.0),
        "Sigmoid": of_inputs(torch.sigmoid),
        "HardSigmoid": with_attributes(hard_sigmoid, alpha=0.2, beta=0.5),
        "HardSwish": of_inputs(F.hardswish),
        "Tanh": of_inputs(torch.tanh),
        "Softplus": of_inputs(F.softplus),
        "Mish": of_inputs(F.mish),
        "Gelu": with_attributes(F.gelu, approximate="none"),
        "Erf": of_inputs(torch.erf),
        "Softmax": with_attributes(torch.softmax, dim=-1),
        "Clip": clip,
        "MaxPool": pool,
        "AveragePool": pool,
        "GlobalAveragePool": of_inputs(global_average),
        "GlobalMaxPool": of_inputs(global_maximum),
        **dict.fromkeys(REDUCTIONS, reduction),
        "LpNormalization": with_attributes(F.normalize, dim=-1, p=2),
        "Add": of_inputs(operator.add),
        "Sub": of_inputs(operator.sub),
        "Mul": of_inputs(operator.mul),
        "Div": of_inputs(operator.truediv),
        "Pow": of_inputs(torch.pow),
        "Sqrt": of_inputs(torch.sqrt),
        "Reciprocal": of_inputs(torch.reciprocal),
        "Exp": of_inputs(torch.exp),
        "Log": of_inputs(torch.log),
        "Abs": of_inputs(torch.abs),
        "Neg": of_inputs(torch.neg),
        "Min": folded(torch.minimum),
        "Max": folded(torch.maximum),
        "Sum": folded(operator.add),
        "Flatten": with_attributes(flatten, axis=1),
        "Reshape": reshape,
        "Shape": with_attributes(shape_of, start=0, end=None),
        "Transpose": with_attributes(transposed, perm=None),
        "Squeeze": squeeze,
        "Unsqueeze": with_integers(unsqueezed),
        "Concat": concatenation,
        "Split": split,
        "Slice": slicing,
        "Gather": gather,
        "Cast": cast,
        "Expand": with_integers(expanded),
        "Pad": padding,
        "Identity": identity,
        "Dropout": identity,
    }
)
"""Every operator that can be imported. Nodes with only constant inputs, such as DequantizeLinear of weights, need no
builder: they are computed before."""
