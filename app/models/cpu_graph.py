"""Rewrite a graph so that it runs faster on ONNX Runtime's CPU provider, with the same results except for rounding.

ONNX Runtime's optimiser does neither of the two steps: it runs PReLU only in the plain layout, and a whole batch
through one layer after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from app.models.graph import (
    Floats,
    Graph,
    computing,
    known_shapes,
    per_channel,
    replace_input,
    scale_inputs,
    scale_outputs,
    weights_after,
)

LARGE_GEMM = 1_000_000
"""Number of weights (4 MB, more than a core's cache) from which on a Gemm's speed is limited by reading them, so that
batches help."""
CHEAP_PRODUCTS = 32
"""Maximum products per output value of a Conv that `split_prelu` runs twice. Measured on SFace's layers (AVX-512)."""
MIN_SLOPE_GAP = 1e-3
"""Minimum distance of a PReLU's slopes from 1, since `split_prelu` divides by (1 - slope)."""


def split_prelu(model: ModelProto, *, keep_scale: bool = False) -> None:
    """Replace PReLU by nodes that ONNX Runtime runs in its blocked layout: a*x + (1-a)*relu(x), with the per-channel
    factors as 1x1 depthwise Convs.

    If a neighbouring layer can take the factor (1-a) into its weights, a/(1-a)*x + relu(x) is enough. This gives each
    channel a scale of its own, so it isn't done with ``keep_scale``. A single slope for all channels becomes a
    LeakyRelu, which fuses into the Conv before it.
    """
    graph = Graph(model)
    ranks = {name: len(shape) for name, shape in known_shapes(model).items()}
    for node in graph.of_type("PRelu"):
        slope = per_channel(graph.floats(node.input[1]))
        if slope is None:
            continue
        if slope.size == 1:
            leaky = helper.make_node("LeakyRelu", [node.input[0]], [node.output[0]], alpha=float(slope[0]))
            graph.replace(node, [leaky])
        elif ranks.get(node.input[0]) == 4:
            graph.replace(node, list(_split(graph, node, slope, keep_scale=keep_scale)))


def _split(graph: Graph, node: NodeProto, slope: Floats, *, keep_scale: bool) -> Iterator[NodeProto]:
    source, target = node.input[0], node.output[0]
    positive, linear = graph.fresh(f"{target}_positive"), graph.fresh(f"{target}_linear")
    yield helper.make_node("Relu", [source], [positive])
    if not keep_scale and _neighbour_takes(graph, node, 1 - slope):
        slope = slope / (1 - slope)
    else:
        unscaled, positive = positive, graph.fresh(f"{target}_steeper")
        yield _scaled(graph, unscaled, positive, 1 - slope)
    before = graph.producer(source)
    if before is not None and _is_cheap(graph, before):
        again = NodeProto()
        again.CopyFrom(before)
        again.name, again.output[0] = linear, linear
        scale_outputs(graph, again, slope, np.zeros(1))
        yield again
    else:
        yield _scaled(graph, source, linear, slope)
    yield helper.make_node("Add", [linear, positive], [target])


def _is_cheap(graph: Graph, node: NodeProto) -> bool:
    """Return whether running a Conv twice is cheaper than reading its result twice (a Relu fuses into one of the
    two)."""
    weight = graph.floats(node.input[1]) if node.op_type == "Conv" else None
    return weight is not None and weight[0].size <= CHEAP_PRODUCTS and graph.only_consumer(node.output[0]) is not None


def _neighbour_takes(graph: Graph, node: NodeProto, factor: Floats) -> bool:
    """Multiply the weights of the layer after the PReLU, or else of the layer before it, by ``factor``. Return whether
    this was possible."""
    if (np.abs(factor) < MIN_SLOPE_GAP).any():
        return False
    nothing = np.zeros(1)
    after = weights_after(graph, node.output[0])
    if after is not None and scale_inputs(graph, after, factor, nothing):
        return True
    before = graph.producer(node.input[0])
    # only positive factors can move through a PReLU: prelu(f*x) = f*prelu(x)
    movable = before is not None and graph.only_consumer(node.input[0]) is not None and bool((factor > 0).all())
    return before is not None and movable and scale_outputs(graph, before, factor, nothing)


def _scaled(graph: Graph, source: str, target: str, factor: Floats) -> NodeProto:
    weight = graph.add_floats(f"{target}_factor", factor.reshape(-1, 1, 1, 1))
    return helper.make_node("Conv", [source, weight], [target], kernel_shape=[1, 1], group=factor.size)


def run_trunk_per_image(model: ModelProto, large: int = LARGE_GEMM) -> None:
    """Run everything before a large final Gemm image by image (a Scan), and the Gemm once for the whole batch.

    One image's activations fit in a CPU's cache, a batch's do not. But the Gemm should read its weights only once for
    all images. Graphs without a Gemm of at least ``large`` weights are not changed.
    """
    graph = Graph(model)
    weights = ((node, graph.constant(node.input[1])) for node in graph.of_type("Gemm"))
    gemms = [node for node, weight in weights if weight is not None and weight.size >= large]
    if not gemms:
        return
    feature, crops = gemms[-1].input[0], graph.proto.input[0].name
    trunk = computing(graph.proto.node, [feature])
    made = {name for node in trunk for name in node.output}
    rest = [node for node in graph.proto.node if made.isdisjoint(node.output)]
    if {name for node in rest for name in node.input if name in made or name == crops} != {feature}:
        return
    scan = _scan(graph, trunk, crops, feature)
    del graph.proto.node[:]
    graph.proto.node.extend([scan, *rest])


def _scan(graph: Graph, nodes: list[NodeProto], crops: str, feature: str) -> NodeProto:
    """Return a Scan node that runs ``nodes``, which compute a (1, K) ``feature``, for each image of ``crops``."""
    given = graph.proto.input[0].type.tensor_type
    image, row, axis = graph.fresh("image"), graph.fresh("image_feature"), graph.fresh("image_axis")
    batch, batch_feature = graph.fresh("image_batch"), graph.fresh("image_batch_feature")
    body = [helper.make_node("Unsqueeze", [image, axis], [batch])]
    for node in nodes:
        body.append(NodeProto())
        body[-1].CopyFrom(node)
        replace_input(body[-1], crops, batch)
        body[-1].output[:] = [batch_feature if name == feature else name for name in node.output]
    body.append(helper.make_node("Squeeze", [batch_feature, axis], [row]))
    used = {name for node in body for name in node.input}
    constants = [constant for constant in graph.proto.initializer if constant.name in used]
    constants.append(numpy_helper.from_array(np.array([0], np.int64), axis))
    sides = [dim.dim_value for dim in given.shape.dim[1:]]
    inputs = [helper.make_tensor_value_info(image, given.elem_type, sides)]
    outputs = [helper.make_tensor_value_info(row, TensorProto.FLOAT, [None])]
    return helper.make_node(
        "Scan",
        [crops],
        [feature],
        num_scan_inputs=1,
        body=helper.make_graph(body, "per_image", inputs, outputs, constants),
    )
