"""Operators that change shapes, axes and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from onnx import NodeProto, TensorProto
from torch import Tensor

from training.backbones.operators.node import (
    Construction,
    Value,
    attribute,
    constant_input,
    integers,
    optional_constant,
    unsupported,
)

DTYPES: Mapping[int, torch.dtype] = MappingProxyType(
    {
        TensorProto.FLOAT: torch.float32,
        TensorProto.FLOAT16: torch.float16,
        TensorProto.BFLOAT16: torch.bfloat16,
        TensorProto.DOUBLE: torch.float64,
        TensorProto.INT64: torch.int64,
        TensorProto.INT32: torch.int32,
        TensorProto.UINT8: torch.uint8,
        TensorProto.INT8: torch.int8,
        TensorProto.BOOL: torch.bool,
    }
)


def flatten(x: Tensor, *, axis: int) -> Tensor:
    """Two axes: those before `axis` as one, the others as one."""
    if axis == 1:
        return torch.flatten(x, 1)
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return x.reshape(rows, -1)


def reshape(graph: Construction, node: NodeProto) -> Value:
    """Reshape; a computed target is replaced by the shape that ONNX infers, where at most one axis is free."""
    source, target = graph.value(node.input[0]), graph.constant(node.input[1])
    if target is not None:
        return graph.call(reshaped, source, integers(target), zero=bool(attribute(node, "allowzero", 0)))
    inferred = graph.shape(node.output[0])
    if inferred is not None and sum(size is None for size in inferred) <= 1:
        return graph.call(reshaped, source, [-1 if size is None else size for size in inferred], zero=True)
    return graph.call(reshaped_to, source, graph.value(node.input[1]))


def reshaped(x: Tensor, shape: Sequence[int], *, zero: bool) -> Tensor:
    """Reshape to constants: −1 is what is left, 0 copies the input's axis unless `zero`."""
    return x.reshape([x.shape[axis] if size == 0 and not zero else size for axis, size in enumerate(shape)])


def reshaped_to(x: Tensor, shape: Tensor) -> Tensor:
    """The same where the shape was computed."""
    return reshaped(x, [int(size) for size in shape.tolist()], zero=False)


def shape_of(x: Tensor, *, start: int, end: int | None) -> Tensor:
    """The shape as int64 on the CPU."""
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


def transpose(graph: Construction, node: NodeProto) -> Value:
    """Transpose; without `perm` all axes in reverse."""
    order = attribute(node, "perm")
    return graph.call(transposed, graph.value(node.input[0]), None if order is None else list(order))


def transposed(x: Tensor, order: Sequence[int] | None) -> Tensor:
    """The axes in another order."""
    return x.permute(*(reversed(range(x.ndim)) if order is None else order))


def squeeze(graph: Construction, node: NodeProto) -> Value:
    """Squeeze of the axes given, else of all of size 1."""
    axes = optional_constant(graph, node, 1)
    source = graph.value(node.input[0])
    return graph.call(torch.squeeze, source) if axes is None else graph.call(torch.squeeze, source, integers(axes))


def unsqueeze(graph: Construction, node: NodeProto) -> Value:
    """Unsqueeze at axes of the result."""
    return graph.call(unsqueezed, graph.value(node.input[0]), integers(constant_input(graph, node, 1)))


def unsqueezed(x: Tensor, axes: Sequence[int]) -> Tensor:
    """New axes of size 1, counted in the result."""
    rank = x.ndim + len(axes)
    for axis in sorted(each % rank for each in axes):
        x = x.unsqueeze(axis)
    return x


def concatenation(graph: Construction, node: NodeProto) -> Value:
    """Concat along an axis."""
    return graph.call(torch.cat, [graph.value(name) for name in node.input], dim=int(attribute(node, "axis")))


def split(graph: Construction, node: NodeProto) -> Value:
    """Split into constant sizes, or evenly into as many parts as there are outputs; the value is a sequence."""
    axis, sizes = int(attribute(node, "axis", 0)), optional_constant(graph, node, 1)
    source = graph.value(node.input[0])
    if sizes is not None:
        return graph.call(torch.split, source, integers(sizes), dim=axis)
    return graph.call(torch.chunk, source, len(node.output), dim=axis)


def slicing(graph: Construction, node: NodeProto) -> Value:
    """Slice with constant bounds."""
    starts, ends = (integers(constant_input(graph, node, place)) for place in (1, 2))
    axes, steps = (optional_constant(graph, node, place) for place in (3, 4))
    given = list(range(len(starts))) if axes is None else integers(axes)
    strides = [1] * len(starts) if steps is None else integers(steps)
    return graph.call(sliced, graph.value(node.input[0]), list(zip(given, starts, ends, strides, strict=True)))


def sliced(x: Tensor, cuts: Sequence[tuple[int, int, int, int]]) -> Tensor:
    """Each cut is (axis, start, end, step) as Python slices have them; a negative step reverses."""
    for axis, start, end, step in cuts:
        if step > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
        else:
            places = list(range(x.shape[axis])[start : None if end < -x.shape[axis] else end : step])
            x = x.index_select(axis, torch.tensor(places, device=x.device))
    return x


def gather(graph: Construction, node: NodeProto) -> Value:
    """Gather along an axis."""
    axis, places = int(attribute(node, "axis", 0)), graph.constant(node.input[1])
    source = graph.value(node.input[0])
    if places is not None and places.ndim == 0:
        return graph.call(torch.select, source, axis, int(places))
    if places is not None and places.ndim == 1:
        return graph.call(gathered, source, integers(places), axis=axis)
    return graph.call(taken, source, graph.value(node.input[1]), axis=axis)


def gathered(x: Tensor, places: Sequence[int], *, axis: int) -> Tensor:
    """The slices at constant places."""
    size = x.shape[axis]
    return x.index_select(axis, torch.tensor([place % size for place in places], device=x.device))


def taken(x: Tensor, places: Tensor, *, axis: int) -> Tensor:
    """The slices at computed places, whose shape takes the axis's place."""
    axis %= x.ndim
    found = x.index_select(axis, places.reshape(-1).to(x.device) % x.shape[axis])
    return found.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def cast(graph: Construction, node: NodeProto) -> Value:
    """Cast to one of the plain types."""
    kind = int(attribute(node, "to"))
    if kind not in DTYPES:
        raise unsupported(node, f"a cast to {TensorProto.DataType.Name(kind)} is not supported.")
    return graph.call(Tensor.to, graph.value(node.input[0]), DTYPES[kind])


def expand(graph: Construction, node: NodeProto) -> Value:
    """Expand to a constant shape, where 1 keeps the input's axis."""
    return graph.call(expanded, graph.value(node.input[0]), integers(constant_input(graph, node, 1)))


def expanded(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcast in both directions."""
    rank = max(x.ndim, len(shape))
    own, wanted = (1,) * (rank - x.ndim) + tuple(x.shape), (1,) * (rank - len(shape)) + tuple(shape)
    return x.broadcast_to([size if other == 1 else other for size, other in zip(own, wanted, strict=True)])


def padding(graph: Construction, node: NodeProto) -> Value:
    """Pad with a constant, or by reflecting or repeating the edge, on the axes of a constant list."""
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}.get(attribute(node, "mode", "constant"))
    pads, fill, axes = (
        integers(constant_input(graph, node, 1)),
        optional_constant(graph, node, 2),
        optional_constant(graph, node, 3),
    )
    if mode is None or axes is not None:
        raise unsupported(node, "this mode or a list of axes is not supported.")
    rank = len(pads) // 2
    pairs = [each for axis in reversed(range(rank)) for each in (pads[axis], pads[rank + axis])]
    while len(pairs) > 2 and pairs[-2:] == [0, 0]:
        del pairs[-2:]
    options = {"value": 0.0 if fill is None else float(fill.item())} if mode == "constant" else {}
    return graph.call(F.pad, graph.value(node.input[0]), pairs, mode=mode, **options)


def identity(graph: Construction, node: NodeProto) -> Value:
    """Identity, and Dropout in inference."""
    return graph.value(node.input[0])
