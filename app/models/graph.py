"""Rewrite ONNX graphs exactly, in steps: functions that change a model in place or return a new one.

Every step leaves nodes that it does not recognise unchanged, so the same steps work for graphs of any origin. Weights
are combined in float64 and stored as float32; results change only by rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from app.models.reference import resampling
from app.package.manifest import SourceInput

Floats: TypeAlias = NDArray[np.float64]

MIN_OPSET = 18
"""The first opset in which ReduceL2 takes its axes as an input, which is the form that `unit_output` writes."""
FUSIONS = ["ConvBNFusion", "ConvMulFusion", "ConvAddFusion", "MatMulBNFusion", "MatMulAddFusion"]
"""ONNX Runtime's names of its optimisers that merge layers."""
MIN_LENGTH = 1e-12
"""Minimum length to divide by, so that the zero vector stays zero and doesn't become NaN."""


class Graph:
    """Searches and edits a model's main graph. It scans linearly, since graphs are small and an index could become
    stale."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.proto = model.graph

    def of_type(self, *types: str) -> list[NodeProto]:
        return [node for node in self.proto.node if node.op_type in types and node.domain in ("", "ai.onnx")]

    def constant(self, name: str) -> NDArray[np.generic] | None:
        tensor = next((constant for constant in self.proto.initializer if constant.name == name), None)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def floats(self, name: str) -> Floats | None:
        """Return a constant as float64; None if there is no floating-point constant of this name."""
        value = self.constant(name)
        return value.astype(np.float64) if value is not None and value.dtype.kind == "f" else None

    def producer(self, name: str) -> NodeProto | None:
        return next((node for node in self.proto.node if name in node.output), None)

    def consumers(self, name: str) -> list[NodeProto]:
        return [node for node in self.proto.node if name in node.input]

    def only_consumer(self, name: str) -> NodeProto | None:
        """Return the only node that reads ``name``; None if several nodes do, none does, or it is an output of the
        graph."""
        readers = self.consumers(name)
        is_output = any(output.name == name for output in self.proto.output)
        return readers[0] if len(readers) == 1 and not is_output else None

    def fresh(self, hint: str) -> str:
        taken = {name for node in self.proto.node for name in (*node.input, *node.output)}
        taken |= {value.name for value in (*self.proto.initializer, *self.proto.input, *self.proto.output)}
        candidates = (hint if count == 0 else f"{hint}_{count}" for count in range(len(taken) + 1))
        return next(name for name in candidates if name not in taken)

    def add_constant(self, hint: str, value: NDArray[np.generic]) -> str:
        name = self.fresh(hint)
        self.proto.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add_floats(self, hint: str, value: Floats) -> str:
        return self.add_constant(hint, value.astype(np.float32))

    def bypass(self, node: NodeProto) -> None:
        """Remove a node whose first output equals its first input."""
        source, target = node.input[0], node.output[0]
        producer = self.producer(source)
        if any(output.name == target for output in self.proto.output):
            if producer is None or any(output.name == source for output in self.proto.output):
                return
            producer.output[list(producer.output).index(source)] = target
            source, target = target, source
        self.proto.node.remove(node)
        for reader in self.consumers(target):
            replace_input(reader, target, source)

    def replace(self, node: NodeProto, replacements: list[NodeProto]) -> None:
        position = list(self.proto.node).index(node)
        self.proto.node.remove(node)
        for offset, replacement in enumerate(replacements):
            self.proto.node.insert(position + offset, replacement)


def replace_input(node: NodeProto, old: str, new: str) -> None:
    for position, name in enumerate(node.input):
        if name == old:
            node.input[position] = new


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute, text as str; the default if the node doesn't have the attribute."""
    value = next((helper.get_attribute_value(given) for given in node.attribute if given.name == name), default)
    return value.decode() if isinstance(value, bytes) else value


def opset(model: ModelProto) -> int:
    """Return the model's version of the standard ONNX operators."""
    return int(next(operators.version for operators in model.opset_import if operators.domain in ("", "ai.onnx")))


def raised_opset(model: ModelProto, least: int = MIN_OPSET) -> ModelProto:
    """Return the model converted to the opset ``least``, or unchanged if its opset is at least this."""
    if opset(model) >= least:
        return model
    converted: ModelProto = onnx.version_converter.convert_version(model, least)
    return converted


def optimised(model: ModelProto, *, fuse: bool = True) -> ModelProto:
    """Return the model as ONNX Runtime's offline optimiser writes it, at the level that doesn't depend on hardware.

    Constants, also dequantised weights, are folded; Identity and Dropout are removed. With ``fuse``, batch norms and
    scales become part of the Conv before them.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # log only errors
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # otherwise DequantizeLinear is not folded
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[] if fuse else FUSIONS,
        )
        written: ModelProto = onnx.load(options.optimized_model_filepath)
    standard = [operators for operators in written.opset_import if operators.domain in ("", "ai.onnx")]
    del written.opset_import[:]
    written.opset_import.extend(standard)
    return written


def computing(nodes: Iterable[NodeProto], names: Iterable[str]) -> list[NodeProto]:
    """Return the nodes that the values of these ``names`` are computed from, in their order in ``nodes``."""
    needed, nodes_needed = set(names), []
    for node in reversed(list(nodes)):  # each node comes after the nodes that it reads from
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes_needed.append(node)
    return nodes_needed[::-1]


def free_batch(model: ModelProto) -> None:
    """Make the first axis of input and output variable, also in Reshapes whose constant shape fixes it to 1."""
    graph = Graph(model)
    shapes = known_shapes(model)
    for node in graph.of_type("Reshape"):
        target = graph.constant(node.input[1])
        before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
        keeps_batch = before and after and before[0] == after[0] == 1 and not attribute(node, "allowzero", 0)
        if target is not None and keeps_batch and target[0] == 1:
            free = target.copy()
            free[0] = 0  # 0 copies the input's axis
            node.input[1] = graph.add_constant(f"{node.input[1]}_free", free)
    for value in (*graph.proto.input, *graph.proto.output):
        value.type.tensor_type.shape.dim[0].Clear()
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del graph.proto.value_info[:]


def known_shapes(model: ModelProto) -> dict[str, list[int | None]]:
    """Return shapes by name, as ONNX infers them, with None for a variable axis. Names of unknown rank are left out."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    return {
        value.name: [dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }


def accept_crops(model: ModelProto, form: SourceInput, side: int) -> None:
    """Change the input to (N, side, side, 3) uint8 RGB; new nodes convert it to the graph's old input."""
    graph = Graph(model)
    crops = graph.fresh("crops")
    nodes = _adaption(graph, form, crops)
    old = graph.proto.input[0].name
    for reader in graph.consumers(old):
        replace_input(reader, old, nodes[-1].output[0] if nodes else crops)
    for position, node in enumerate(nodes):
        graph.proto.node.insert(position, node)
    graph.proto.input[0].CopyFrom(helper.make_tensor_value_info(crops, TensorProto.UINT8, ["N", side, side, 3]))


def _adaption(graph: Graph, form: SourceInput, crops: str) -> list[NodeProto]:
    """Return the nodes that convert crops as the contract describes them to the graph's own input."""
    channels_first = form.layout == "nchw" or form.cutout is not None
    per_channel = (3, 1, 1) if form.layout == "nchw" else (3,)
    nodes: list[NodeProto] = []

    def then(kind: str, *constants: str, name: str | None = None, **attributes: int | list[int]) -> None:
        inputs = [nodes[-1].output[0] if nodes else crops, *constants]
        nodes.append(
            helper.make_node(kind, inputs, [name or f"{crops}_{kind.lower()}"], None, None, None, None, **attributes)
        )

    if channels_first:
        then("Transpose", perm=[0, 3, 1, 2])
    if form.colour == "bgr":
        reverse = graph.add_constant("reversed_channels", np.array([2, 1, 0], np.int64))
        then("Gather", reverse, axis=1 if channels_first else 3)
    if form.dtype == "float32":
        then("Cast", to=int(TensorProto.FLOAT))
    # Resamples (N, 3, 112, 112) floats to the cutout. Don't rename: the names are part of measured files' SHA-256.
    if form.cutout is not None:
        rows, columns = resampling(form.cutout)
        source = nodes[-1].output[0]
        wide, whole = graph.fresh(f"{source}_wide"), graph.fresh(f"{source}_cutout")
        then("MatMul", graph.add_floats("cutout_columns", columns.T), name=wide)
        nodes.append(helper.make_node("MatMul", [graph.add_floats("cutout_rows", rows), wide], [whole]))
    if channels_first and form.layout == "nhwc":
        then("Transpose", name=f"{crops}_back", perm=[0, 2, 3, 1])
    if any(form.mean):
        then("Sub", graph.add_floats("crops_mean", np.array(form.mean).reshape(per_channel)))
    if form.std != (1.0, 1.0, 1.0):
        then("Mul", graph.add_floats("crops_scale", 1 / np.array(form.std).reshape(per_channel)))
    return nodes


def affine_of(graph: Graph, node: NodeProto) -> tuple[Floats, Floats] | None:
    """Return scale and shift, each (C,) or (1,), if the node computes scale*x + shift per channel; None otherwise."""
    if node.op_type == "BatchNormalization":
        values = [graph.floats(name) for name in node.input[1:5]]
        if any(value is None for value in values) or attribute(node, "training_mode", 0):
            return None
        gamma, beta, mean, variance = (value for value in values if value is not None)
        scale = gamma / np.sqrt(variance + float(str(attribute(node, "epsilon", 1e-5))))
        return scale, beta - mean * scale
    second = per_channel(graph.floats(node.input[1])) if len(node.input) == 2 else None
    if second is None:
        return None
    zero, unscaled = np.zeros(1), np.ones(1)
    forms = {"Mul": (second, zero), "Add": (unscaled, second), "Sub": (unscaled, -second)}
    if node.op_type == "Div" and (second != 0).all():
        return 1 / second, zero
    return forms.get(node.op_type)


def per_channel(value: Floats | None) -> Floats | None:
    """Return a constant that is broadcast per channel over (N, C, H, W) as (C,), a single number as (1,); None for any
    other value."""
    if value is None or value.size == 1:
        return None if value is None else value.reshape(1)
    channels_first = value.ndim in (3, 4) and value.shape[-2:] == (1, 1) and value.shape[-3] == value.size
    return value.reshape(-1) if channels_first else None


def scale_outputs(graph: Graph, node: NodeProto, scale: Floats, shift: Floats) -> bool:
    """Change a Conv's or Gemm's weights so that it outputs scale*y + shift per channel. Return whether this was
    possible."""
    weight = graph.floats(node.input[1]) if node.op_type in ("Conv", "Gemm") else None
    if weight is None or not _is_plain(node):
        return False
    out_axis = 1 if node.op_type == "Gemm" and not attribute(node, "transB", 0) else 0
    bias = _bias(graph, node, weight.shape[out_axis])
    if bias is None:
        return False
    along_outputs = [-1 if axis == out_axis else 1 for axis in range(weight.ndim)]
    _set_weights(graph, node, weight * scale.reshape(along_outputs), bias * scale + shift)
    return True


def scale_inputs(graph: Graph, node: NodeProto, scale: Floats, shift: Floats) -> bool:
    """Change a Conv's or Gemm's weights so that it outputs for x what it did for scale*x + shift. Return whether this
    was possible.

    A padded Conv can't take a shift, since its padding would have to change from zero to the shift's value.
    """
    weight = graph.floats(node.input[1]) if node.op_type in ("Conv", "Gemm") else None
    if weight is None:
        return False
    return (_scale_conv_inputs if node.op_type == "Conv" else _scale_gemm_inputs)(graph, node, weight, scale, shift)


def _scale_conv_inputs(graph: Graph, node: NodeProto, weight: Floats, scale: Floats, shift: Floats) -> bool:
    bias = _bias(graph, node, len(weight))  # weight: (M, C/groups, *kernel)
    pads, auto = attribute(node, "pads", []), attribute(node, "auto_pad", "NOTSET")
    is_padded = auto not in ("NOTSET", "VALID") or (isinstance(pads, list) and any(pads))
    if bias is None or (shift.any() and is_padded):
        return False
    groups = int(str(attribute(node, "group", 1)))
    per_output = (len(weight) // groups, weight.shape[1])

    def seen_by_outputs(values: Floats) -> Floats:  # (C,) or (1,) -> (M, C/groups): a factor for each weight
        channels = np.broadcast_to(values, groups * per_output[1]).reshape(groups, per_output[1])
        return channels.repeat(per_output[0], axis=0)

    kernel_sums = weight.reshape(*weight.shape[:2], -1).sum(axis=2)
    scaled = weight * seen_by_outputs(scale).reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
    _set_weights(graph, node, scaled, bias + (kernel_sums * seen_by_outputs(shift)).sum(axis=1))
    return True


def _scale_gemm_inputs(graph: Graph, node: NodeProto, weight: Floats, scale: Floats, shift: Floats) -> bool:
    transposed = bool(attribute(node, "transB", 0))
    rows = weight if transposed else weight.T  # (D, K)
    bias = _bias(graph, node, len(rows))
    if bias is None or not _is_plain(node) or rows.shape[1] % scale.size or rows.shape[1] % shift.size:
        return False
    # a flattened (C, H, W) keeps each channel's values together
    scale, shift = (np.repeat(values, rows.shape[1] // values.size) for values in (scale, shift))
    scaled = rows * scale
    _set_weights(graph, node, scaled if transposed else scaled.T, bias + rows @ shift)
    return True


def _is_plain(node: NodeProto) -> bool:
    plain = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
    return node.op_type == "Conv" or (plain and not attribute(node, "transA", 0))


def _bias(graph: Graph, node: NodeProto, size: int) -> Floats | None:
    """Return a node's bias, (size,): zeros if it has none; None if the bias is not a constant."""
    if len(node.input) < 3 or not node.input[2]:
        return np.zeros(size)
    value = graph.floats(node.input[2])
    return None if value is None else np.broadcast_to(value.reshape(-1), size)


def _set_weights(graph: Graph, node: NodeProto, weight: Floats, bias: Floats) -> None:
    """Give a node new constants as weights. The old ones stay, since other nodes may use them."""
    target = node.output[0]
    node.input[1:] = [graph.add_floats(f"{target}_weight", weight), graph.add_floats(f"{target}_bias", bias)]


def fuse_affine_into_next(model: ModelProto) -> None:
    """Fuse each per-channel scale and shift into the weights of the Conv or Gemm after it, also through a Flatten."""
    graph = Graph(model)
    shapes = known_shapes(model)
    for node in reversed(graph.of_type("BatchNormalization", "Mul", "Add", "Sub", "Div")):
        before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
        keeps_shape = before is not None and len(before) == 4 and before[1] is not None and before == after
        affine = affine_of(graph, node) if keeps_shape else None
        reader = weights_after(graph, node.output[0])
        if affine is not None and reader is not None and scale_inputs(graph, reader, *affine):
            graph.bypass(node)


def weights_after(graph: Graph, name: str) -> NodeProto | None:
    """Return the Conv or Gemm that is the only reader of ``name``, directly or through a Flatten."""
    reader = graph.only_consumer(name)
    if reader is not None and reader.op_type == "Flatten" and attribute(reader, "axis", 1) == 1:
        name = reader.output[0]
        reader = graph.only_consumer(name)
    return reader if reader is not None and reader.op_type in ("Conv", "Gemm") and reader.input[0] == name else None


def unit_output(model: ModelProto) -> None:
    """Divide each row of the model's only output by its length; the zero vector stays zero."""
    graph = Graph(model)
    output = graph.proto.output[0]
    raw = output.name
    length, safe, vectors = graph.fresh("length"), graph.fresh("safe_length"), graph.fresh("vectors")
    axis = graph.add_constant("length_axis", np.array([1], np.int64))
    least = graph.add_floats("least_length", np.array(MIN_LENGTH))
    graph.proto.node.append(helper.make_node("ReduceL2", [raw, axis], [length], keepdims=1))
    graph.proto.node.append(helper.make_node("Max", [length, least], [safe]))
    graph.proto.node.append(helper.make_node("Div", [raw, safe], [vectors]))
    output.name = vectors


def softmax_output(model: ModelProto) -> None:
    """Turn the logits, (N, C), that the model puts out into probabilities."""
    graph = Graph(model)
    output = graph.proto.output[0]
    raw, probabilities = output.name, graph.fresh("probabilities")
    graph.proto.node.append(helper.make_node("Softmax", [raw], [probabilities], axis=1))
    output.name = probabilities


def tidy(model: ModelProto) -> None:
    """Remove unused constants, and the exporter's metadata and doc strings of nodes; then run ONNX's full check."""
    used = {name for node in model.graph.node for name in node.input}
    used |= {output.name for output in model.graph.output}
    kept = [constant for constant in model.graph.initializer if constant.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    del model.graph.value_info[:]
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    onnx.checker.check_model(model, full_check=True)


def in_half(model: ModelProto) -> ModelProto:
    """Return a new model that computes in float16 but has the same types of inputs and outputs."""
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - slow, and rarely wanted

    half: ModelProto = convert_float_to_float16(ModelProto.FromString(model.SerializeToString()), keep_io_types=True)
    return half
