"""What a device can compute at most: the multiplications a graph needs, and the matrix products it does per second."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.inference.graph import known_shapes
from app.inference.session import Device, Session

Precision: TypeAlias = Literal["fp32", "fp16"]
SIDE = {"cpu": 512, "cuda": 8192}
"""Of the matrices: large enough that nothing but arithmetic counts."""
CHAINED = 8
"""Products in one run, so that moving the first matrix to a GPU doesn't count either."""
OPSET, IR_VERSION = 17, 9
SCALE = 0.01
"""Keeps products of random matrices within fp16's range."""


def flops(model: ModelProto) -> float:
    """Return the floating-point operations for one image in convolutions and matrix products, two per
    multiplication.
    """
    shapes = known_shapes(model)
    weights = {each.name: list(each.dims) for each in model.graph.initializer}
    total = 0.0
    for node in model.graph.node:
        if node.op_type == "Conv":
            total += 2 * _inner(shapes[node.output[0]]) * math.prod(weights[node.input[1]][1:])
        elif node.op_type == "Gemm":
            total += 2 * math.prod(weights[node.input[1]])
        elif node.op_type == "MatMul":
            deep = weights[node.input[1]][-2] if node.input[1] in weights else shapes[node.input[1]][-2]
            total += 2 * _inner(shapes[node.output[0]]) * (deep or 0)
    return total


def _inner(shape: list[int | None]) -> int:
    """Return how many numbers one image has in this value."""
    return math.prod(each or 0 for each in shape[1:])


def product_of_matrices(device: Device, precision: Precision) -> tuple[Callable[[], int], float]:
    """Return a function that multiplies matrices on the device, and the floating-point operations of one call."""
    side = SIDE["cuda" if device == "cuda" else "cpu"]
    kind = TensorProto.FLOAT if precision == "fp32" else TensorProto.FLOAT16
    dtype = np.float32 if precision == "fp32" else np.float16
    generator = np.random.default_rng(0)
    matrix = (SCALE * generator.standard_normal((side, side))).astype(dtype)
    names = [f"x{number}" for number in range(CHAINED + 1)]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    nodes.append(helper.make_node("ReduceMax", [names[-1]], ["most"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info(names[0], kind, [side, side])],
        [helper.make_tensor_value_info("most", kind, [])],
        [numpy_helper.from_array(matrix, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = Session(model.SerializeToString(), device, 1)

    def run() -> int:
        session.run(matrix)
        return 1

    return run, 2.0 * CHAINED * side**3


def in_half(model: ModelProto) -> ModelProto:
    """Return the graph with fp16 arithmetic; inputs and outputs keep their types."""
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 (slow, and only wanted here)

    half: ModelProto = convert_float_to_float16(type(model).FromString(model.SerializeToString()), keep_io_types=True)
    return half


def worst_cosine(one: NDArray[np.generic], other: NDArray[np.generic]) -> float:
    """Return the lowest cosine between rows of the same number, both (N, D)."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(cosines.min())
