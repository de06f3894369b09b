"""Rewrite YuNet's file for ONNX Runtime: it takes any number of photos of any size, as pixels, and returns a row per
anchor.

The original file takes one photo of 640 × 640 pixels, as floats, and its block-quantised biases are written in a form
that OpenCV reads but ONNX Runtime rejects. Its arithmetic stays the same; `app.face.yunet` turns rows into faces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from app.errors import Unusable
from app.face.yunet import STRIDES
from app.models import graph as steps
from app.models.reference import keep_data_inputs, plain_session, source_input
from app.package.manifest import SourceInput

HEADS = ("bbox", "kps", "cls", "obj")
"""Names of the file's outputs for each stride, as in ``bbox_8``: a box, five landmarks, and the two factors of the
score."""
PLACES, FACTORS = 14, 2
"""How many numbers an anchor has in the first two heads together, and in the other two."""
SIDE = 640
"""Side of the file's own input, in pixels."""
TOLERANCE = 1e-3
"""Maximum difference of any number from the file's. Boxes and landmarks are in strides, scores from 0 to 1."""
PIXELS = SourceInput(layout="nchw", dtype="float32", colour="bgr")


def rewrite_yunet(source: ModelProto) -> ModelProto:
    """Return a new model: (N, H, W, 3) uint8 RGB, with sides that are multiples of 32 -> (N, K, 15) float32.

    The K anchors are those of each stride in turn, row by row. Each has the box's centre, relative to the anchor, the
    logarithms of its width and height, and five landmarks x, y, relative to the anchor, all in strides; and the score,
    0-1.

    Raises Unusable package_not_preparable if the graph is not a YuNet.
    """
    model = _runnable(source)
    names = {output.name for output in model.graph.output}
    if names != {f"{head}_{stride}" for head in HEADS for stride in STRIDES}:
        raise Unusable(f"A YuNet answers bbox_8 and the like, not {sorted(names)}.", code="package_not_preparable")
    model = steps.optimised(model)
    graph = steps.Graph(model)
    for node in graph.consumers(model.graph.input[0].name):  # the first layer takes RGB instead of BGR
        node.input[1] = graph.add_floats(f"{node.input[1]}_rgb", _constant(graph, node, 1)[:, ::-1])
    _join_heads(model)
    steps.accept_crops(model, SourceInput(layout=PIXELS.layout, dtype=PIXELS.dtype), SIDE)
    for place, name in enumerate(("N", "H", "W")):
        dim = model.graph.input[0].type.tensor_type.shape.dim[place]
        dim.Clear()
        dim.dim_param = name
    steps.tidy(model)
    return model


def check_yunet(source: ModelProto, rewritten: ModelProto) -> float:
    """Return the largest difference between the two graphs' numbers for two photos, one of noise and one of blocks of
    colour.

    Raises Unusable package_not_preparable above `TOLERANCE`.
    """
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (SIDE // 32, SIDE // 32, 3), np.uint8).repeat(32, axis=0).repeat(32, axis=1)
    photos = np.stack([generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8), blocks])
    answers = plain_session(rewritten).run(None, {rewritten.graph.input[0].name: photos})[0]
    original = plain_session(_runnable(source))
    taken, names = original.get_inputs()[0].name, [output.name for output in original.get_outputs()]
    worst = 0.0
    for photo, rows in zip(photos, answers, strict=True):
        answer = dict(zip(names, original.run(None, {taken: source_input(photo, PIXELS)}), strict=True))
        levels = []
        for stride in STRIDES:
            box, landmarks, sure, there = (answer[f"{head}_{stride}"][0] for head in HEADS)
            levels.append(np.concatenate([box, landmarks, np.sqrt(sure * there)], axis=1))
        worst = max(worst, float(np.abs(rows - np.concatenate(levels)).max()))
    if not worst <= TOLERANCE:
        message = f"The rewritten YuNet differs from its file by {worst:.2g}, at most {TOLERANCE} is allowed."
        raise Unusable(message, code="package_not_preparable", difference=worst)
    return worst


def _runnable(source: ModelProto) -> ModelProto:
    """Return a copy that ONNX Runtime can load: the attributes that describe blocks are removed from constants with a
    single scale."""
    model: ModelProto = ModelProto.FromString(source.SerializeToString())
    keep_data_inputs(model)
    graph = steps.Graph(model)
    for node in graph.of_type("DequantizeLinear"):
        scale = graph.constant(node.input[1])
        if scale is not None and scale.size == 1 and scale.ndim <= 1:
            del node.attribute[:]
    return model


def _join_heads(model: ModelProto) -> None:
    """Join the twelve outputs into one. The score is the square root of the product of its two factors, as in OpenCV.

    The four heads of a stride are layers of 4, 10, 1 and 1 channels over the same features. Joined to 16 channels, they
    fill one block of ONNX Runtime's layout; separately, each would be padded to a block.
    """
    graph = steps.Graph(model)
    nodes = [node for stride in STRIDES for node in _head(graph, stride)]
    sizes, last = np.array([PLACES, FACTORS], np.int64), np.array([2], np.int64)
    nodes += [
        helper.make_node("Concat", [f"anchors_{stride}" for stride in STRIDES], ["anchors"], axis=1),
        helper.make_node("Split", ["anchors", graph.add_constant("sizes", sizes)], ["places", "factors"], axis=2),
        helper.make_node("Sigmoid", ["factors"], ["likelihoods"]),
        helper.make_node("ReduceProd", ["likelihoods", graph.add_constant("last_axis", last)], ["product"], keepdims=1),
        helper.make_node("Sqrt", ["product"], ["score"]),
        helper.make_node("Concat", ["places", "score"], ["rows"], axis=2),
    ]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:], model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", "K", PLACES + 1]))
    read = steps.computing(model.graph.node, ["rows"])
    del model.graph.node[:]
    model.graph.node.extend(read)


def _head(graph: steps.Graph, stride: int) -> list[NodeProto]:
    """Return the nodes that join a stride's four heads: a 1x1 Conv of the features, a 3x3 depthwise Conv, then one row
    per anchor."""
    deep = [_conv_before(graph, f"{head}_{stride}") for head in HEADS]
    point = [_conv_before(graph, conv.input[0]) for conv in deep]
    if len({conv.input[0] for conv in point}) != 1:
        raise Unusable("A YuNet's heads share their features, these don't.", code="package_not_preparable")

    def joined(name: str, convs: list[NodeProto], groups: int) -> NodeProto:
        node = NodeProto()
        node.CopyFrom(convs[0])
        node.name, node.output[0] = name, name
        for place in (1, 2):
            values = np.concatenate([_constant(graph, conv, place) for conv in convs])
            node.input[place] = graph.add_floats(f"{name}_{place}", values)
        kept = [attribute for attribute in node.attribute if attribute.name != "group"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("group", groups)])
        return node

    first, second = joined(f"point_{stride}", point, 1), joined(f"deep_{stride}", deep, PLACES + FACTORS)
    second.input[0] = first.output[0]
    rows = graph.add_constant(f"rows_{stride}", np.array([0, -1, PLACES + FACTORS], np.int64))
    return [
        first,
        second,
        helper.make_node("Transpose", [second.output[0]], [f"last_{stride}"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", [f"last_{stride}", rows], [f"anchors_{stride}"]),
    ]


def _conv_before(graph: steps.Graph, name: str) -> NodeProto:
    """Return the Conv that computes ``name``, apart from reordered axes and a Sigmoid. Raises Unusable
    ``package_not_preparable``."""
    node = graph.producer(name)
    while node is not None and node.op_type in ("Sigmoid", "Reshape", "Transpose"):
        node = graph.producer(node.input[0])
    if node is None or node.op_type != "Conv" or len(node.input) != 3:
        raise Unusable(f"A YuNet's {name} is made by two layers with biases.", code="package_not_preparable")
    return node


def _constant(graph: steps.Graph, node: NodeProto, place: int) -> NDArray[np.float64]:
    value = graph.floats(node.input[place])
    if value is None:
        raise Unusable(f"{node.input[place]} of this YuNet is not constant.", code="package_not_preparable")
    return value
