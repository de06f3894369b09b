"""A small embedder that can be quantised, and crops for it."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.types import Pixels
from tests.support import packages


def network(slope: float = 0.2) -> ModelProto:
    """Crops -> 8 numbers, by a convolution, a PReLU whose slopes lie up to ``slope`` from 1, and a last layer."""
    random = np.random.default_rng(0)
    constants = {
        "kernel": random.normal(size=(6, 3, 16, 16)) / 30,
        "slopes": 1 - slope * np.linspace(0.01, 1, 6).reshape(6, 1, 1),
        "weights": random.normal(size=(6 * 49, packages.DIMENSION)),
        "bias": random.normal(size=packages.DIMENSION),
        "grey": np.array(127.5),
        "half": np.array(128.0),
    }
    nodes = [
        helper.make_node("Cast", ["in"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["float", "grey"], ["centred"]),
        helper.make_node("Div", ["centred", "half"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "kernel"], ["seen"], kernel_shape=[16, 16], strides=[16, 16]),
        helper.make_node("PRelu", ["seen", "slopes"], ["bent"]),
        helper.make_node("Flatten", ["bent"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["raw"]),
        helper.make_node("LpNormalization", ["raw"], ["out"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("in", TensorProto.UINT8, ["N", 112, 112, 3])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", packages.DIMENSION])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def crops(count: int) -> Pixels:
    coarse = np.random.default_rng(1).integers(0, 256, (count, 14, 14, 3), np.uint8)
    return coarse.repeat(8, axis=1).repeat(8, axis=2)
