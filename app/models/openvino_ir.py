"""Read OpenVINO's intermediate representation (IR) as ONNX: the graph in XML, its weights in one flat file beside it.

Only the operations that published face embedders use are supported; others are rejected. OpenVINO's "Available
Operation Sets", opset1, defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from app.errors import Unusable

OPSET, IR_VERSION = 21, 10
"""Versions to write: those of SFace's file, so that a model that was read can be fused with SFace. They are fixed, so
that the same IR always gives the same bytes."""
DTYPES: Mapping[str, type[np.floating]] = {"f16": np.float16, "f32": np.float32}
Weights: TypeAlias = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its type and attributes, the names of its inputs, and its own name, which is also the name of its
    output."""

    kind: str
    data: Mapping[str, str]
    inputs: tuple[str, ...]
    name: str
    shape: tuple[int, ...]
    """Shape of its only output."""

    def numbers(self, key: str) -> list[int]:
        return [int(number) for number in self.data[key].split(",")]

    def expect(self, **wanted: str) -> None:
        """Raise ValueError if an attribute has another value than the ``wanted`` one, the only one that is
        supported."""
        for key, value in wanted.items():
            if self.data.get(key, value) != value:
                raise ValueError(f"layer {self.name}: {self.kind} with {key}={self.data[key]}")


def read_ir(xml: bytes, weights: bytes, name: str) -> ModelProto:
    """Return the ONNX model of an IR (version 10 or 11): one input, one output, weights in float32.

    An output of (N, D, 1, 1) becomes (N, D). Raises Unusable ``model_unsuitable``.
    """
    try:
        return _model(_layers(ET.fromstring(xml)), weights, name)  # noqa: S314 - see the import
    except (ET.ParseError, KeyError, ValueError, TypeError, IndexError) as error:
        message = f"{name} can't be read as OpenVINO IR: {error}."
        raise Unusable(message, code="model_unsuitable", path=name, problem=str(error)) from error


def _layers(net: ET.Element) -> list[Layer]:
    """Return the layers in the order of the file, in which they can run."""
    sources = {
        (edge.attrib["to-layer"], edge.attrib["to-port"]): edge.attrib["from-layer"]
        for edge in net.iterfind("edges/edge")
    }
    layers = []
    for element in net.iterfind("layers/layer"):
        number, data, outputs = element.attrib["id"], element.find("data"), element.findall("output/port")
        inputs = [sources[number, port.attrib["id"]] for port in element.iterfind("input/port")]
        shape = tuple(int(dim.text or "") for port in outputs[:1] for dim in port.iterfind("dim"))
        if len(outputs) > 1:
            raise ValueError(f"layer {number} has {len(outputs)} outputs")
        names = tuple(f"layer_{source}" for source in inputs)
        layers.append(
            Layer(element.attrib["type"], {} if data is None else data.attrib, names, f"layer_{number}", shape)
        )
    return layers


def _model(layers: Sequence[Layer], weights: bytes, name: str) -> ModelProto:
    constants: dict[str, Weights] = {}
    nodes: list[NodeProto] = []
    for layer in layers:
        if layer.kind == "Const":
            constants[layer.name] = _constant(layer, weights)
        elif layer.kind == "Convert" and layer.inputs[0] in constants:
            layer.expect(destination_type="f32")
            constants[layer.name] = constants.pop(layer.inputs[0]).astype(np.float32)
        elif layer.kind in OPERATIONS:
            nodes.append(OPERATIONS[layer.kind](layer, constants))
        elif layer.kind not in {"Parameter", "Result"}:
            known = ", ".join(sorted(OPERATIONS))
            raise ValueError(f"it has the operation {layer.kind}, which is not among {known}")
    (given,) = (layer for layer in layers if layer.kind == "Parameter")
    (result,) = (layer for layer in layers if layer.kind == "Result")
    (last,) = (layer for layer in layers if layer.name == result.inputs[0])
    nodes.append(helper.make_node("Flatten", [last.name], ["vectors"], axis=1))
    size, used = int(np.prod(last.shape[1:])), {source for node in nodes for source in node.input}
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(given.name, TensorProto.FLOAT, list(given.shape))],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [last.shape[0], size])],
        [numpy_helper.from_array(value.astype(np.float32), key) for key, value in constants.items() if key in used],
    )
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])


def _constant(layer: Layer, weights: bytes) -> Weights:
    dtype, start, size = DTYPES[layer.data["element_type"]], int(layer.data["offset"]), int(layer.data["size"])
    if len(weights) < start + size:
        raise ValueError(f"{layer.name} lies behind the end of the weights")
    return np.frombuffer(weights, dtype, size // dtype().itemsize, start).reshape(layer.shape)


def _same(onnx_type: str) -> Callable[[Layer, dict[str, Weights]], NodeProto]:
    """Return a function that translates an operation that means the same in both formats."""

    def make(layer: Layer, _constants: dict[str, Weights]) -> NodeProto:
        layer.expect(auto_broadcast="numpy")
        return helper.make_node(onnx_type, layer.inputs, [layer.name])

    return make


def _convolution(layer: Layer, constants: dict[str, Weights]) -> NodeProto:
    layer.expect(auto_pad="explicit")
    weight, groups = constants[layer.inputs[1]], 1
    if layer.kind == "GroupConvolution":  # (G, M/G, C/G, *kernel) -> (M, C/G, *kernel)
        groups = len(weight)
        weight = weight.reshape(-1, *weight.shape[2:])
    return helper.make_node(
        "Conv",
        [layer.inputs[0], _added(constants, layer, weight)],
        [layer.name],
        kernel_shape=weight.shape[2:],
        strides=layer.numbers("strides"),
        dilations=layer.numbers("dilations"),
        pads=layer.numbers("pads_begin") + layer.numbers("pads_end"),
        group=groups,
    )


def _prelu(layer: Layer, constants: dict[str, Weights]) -> NodeProto:
    """Return a PRelu. A slope with one axis applies to channels in IR, but to the last axis in ONNX."""
    slope = constants[layer.inputs[1]]
    if slope.ndim == 1:
        slope = slope.reshape(-1, *[1] * (len(layer.shape) - 2))
    return helper.make_node("PRelu", [layer.inputs[0], _added(constants, layer, slope)], [layer.name])


def _added(constants: dict[str, Weights], layer: Layer, value: Weights) -> str:
    """Add a layer's changed copy of a constant, since other layers may use the original. Return the copy's name."""
    constants[f"{layer.name}_constant"] = value
    return f"{layer.name}_constant"


def _average_pool(layer: Layer, _constants: dict[str, Weights]) -> NodeProto:
    layer.expect(auto_pad="explicit", rounding_type="floor")
    return helper.make_node(
        "AveragePool",
        layer.inputs,
        [layer.name],
        kernel_shape=layer.numbers("kernel"),
        strides=layer.numbers("strides"),
        pads=layer.numbers("pads_begin") + layer.numbers("pads_end"),
        count_include_pad=int(layer.data["exclude-pad"] == "false"),
    )


OPERATIONS: Mapping[str, Callable[[Layer, dict[str, Weights]], NodeProto]] = {
    "Add": _same("Add"),
    "Multiply": _same("Mul"),
    "Sigmoid": _same("Sigmoid"),
    "Convolution": _convolution,
    "GroupConvolution": _convolution,
    "PReLU": _prelu,
    "AvgPool": _average_pool,
}
