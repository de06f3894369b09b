"""YuNet's file, rewritten once for ONNX Runtime: any number of photos of any size, pixels in, one row an anchor out.

The file as it came is made for one photo of 640 × 640, as floats, and its block-quantised biases are written in a way
that OpenCV reads and ONNX Runtime refuses. Only its arithmetic is kept; how rows become faces is `app.face.yunet`'s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from app.errors import Unusable
from app.runtime import graph as steps
from app.runtime.package import SourceInput
from app.runtime.prepare import plain_session, source_input

STRIDES = (8, 16, 32)
"""Pixels between neighbouring anchors of the three levels, either way."""
HEADS = ("bbox", "kps", "cls", "obj")
"""What the file answers for each level, as ``bbox_8``: a box, five landmarks, and two factors of the score."""
SIDE = 640
"""Of the file's own input."""
TOLERANCE = 1e-3
"""By how much any number may differ from the file's: boxes and landmarks are in strides, the score lies in 0-1."""
PIXELS = SourceInput(layout="nchw", dtype="float32", colour="bgr")


def rewrite_yunet(source: ModelProto) -> ModelProto:
    """(N, H, W, 3) uint8 RGB with sides of whole 32 pixels -> (N, K, 15) float32.

    Of the K anchors, those of each stride in turn, row by row: the box's centre (from the anchor) and the logarithms of
    its width and height, five landmarks x, y (from the anchor), all in strides, and the score 0-1.

    Raises Unusable package_not_preparable where the graph is no YuNet.
    """
    model = _runnable(source)
    names = {each.name for each in model.graph.output}
    if names != {f"{head}_{stride}" for head in HEADS for stride in STRIDES}:
        raise Unusable(f"A YuNet answers bbox_8 and the like, not {sorted(names)}.", code="package_not_preparable")
    _free_sizes(model)
    steps.fold_constants(model)
    steps.accept_crops(model, PIXELS, SIDE)
    for place, name in enumerate(("N", "H", "W")):
        dim = model.graph.input[0].type.tensor_type.shape.dim[place]
        dim.Clear()
        dim.dim_param = name
    _join_heads(model)
    steps.tidy(model)
    return model


def check_yunet(source: ModelProto, rewritten: ModelProto) -> float:
    """The largest difference in any number that both graphs answer for two photos of noise and blocks of colour.

    Raises Unusable package_not_preparable above `TOLERANCE`.
    """
    photos = _photos()
    found = plain_session(rewritten).run(None, {rewritten.graph.input[0].name: photos})[0]
    original = plain_session(_runnable(source))
    taken, names = original.get_inputs()[0].name, [each.name for each in original.get_outputs()]
    worst = 0.0
    for photo, rows in zip(photos, found, strict=True):
        answer = dict(zip(names, original.run(None, {taken: source_input(photo, PIXELS)}), strict=True))
        expected = np.concatenate([_rows(answer, stride) for stride in STRIDES])
        worst = max(worst, float(np.abs(rows - expected).max()))
    if not worst <= TOLERANCE:
        message = f"The rewritten YuNet differs from its file by {worst:.2g}, at most {TOLERANCE} is allowed."
        raise Unusable(message, code="package_not_preparable", difference=worst)
    return worst


def _runnable(source: ModelProto) -> ModelProto:
    """A copy that ONNX Runtime takes: what has one scale for all its numbers says nothing of blocks."""
    model: ModelProto = ModelProto.FromString(source.SerializeToString())
    steps.keep_data_inputs(model)
    graph = steps.Graph(model)
    for node in graph.of_type("DequantizeLinear"):
        scale = graph.constant(node.input[1])
        if scale is not None and scale.size == 1 and scale.ndim <= 1:
            del node.attribute[:]
    return model


def _free_sizes(model: ModelProto) -> None:
    """Any N: the heads' constant Reshapes fix 1 photo, but leave the number of anchors open."""
    graph = steps.Graph(model)
    outputs = {each.name for each in model.graph.output}
    for node in graph.of_type("Reshape"):
        target = graph.constant(node.input[1])
        reader = graph.only_consumer(node.output[0])
        is_head = node.output[0] in outputs or (reader is not None and reader.op_type == "Sigmoid")
        if target is not None and is_head:
            free = target.copy()
            free[0] = 0  # 0 copies the input's axis
            node.input[1] = graph.add_constant(f"{node.input[1]}_free", free)
    del model.graph.value_info[:]


def _join_heads(model: ModelProto) -> None:
    """One output in place of twelve; the score is the root of its two factors' product, as in OpenCV."""
    nodes = []
    for stride in STRIDES:
        box, landmarks, sure, there = (f"{head}_{stride}" for head in HEADS)
        nodes.append(helper.make_node("Mul", [sure, there], [f"product_{stride}"]))
        nodes.append(helper.make_node("Sqrt", [f"product_{stride}"], [f"score_{stride}"]))
        nodes.append(helper.make_node("Concat", [box, landmarks, f"score_{stride}"], [f"rows_{stride}"], axis=2))
    nodes.append(helper.make_node("Concat", [f"rows_{stride}" for stride in STRIDES], ["rows"], axis=1))
    model.graph.node.extend(nodes)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", "K", 15]))


def _rows(answer: dict[str, NDArray[np.float32]], stride: int) -> NDArray[np.float32]:
    box, landmarks, sure, there = (answer[f"{head}_{stride}"][0] for head in HEADS)
    return np.concatenate([box, landmarks, np.sqrt(sure * there)], axis=1)


def _photos() -> NDArray[np.uint8]:
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (SIDE // 32, SIDE // 32, 3), np.uint8).repeat(32, axis=0).repeat(32, axis=1)
    return np.stack([generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8), blocks])
