"""Find out the form of an ONNX file's input and output, by reading and running the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from app.errors import Unusable
from app.models.reference import external_tensor, keep_data_inputs, plain_session
from app.package.manifest import CROP_SIDE, LEAST_CUT_SIDE, MOST_CUT_SIDE, Dtype, Layout
from app.types import Vectors

DTYPES: dict[int, Dtype] = {TensorProto.UINT8: "uint8", TensorProto.FLOAT: "float32"}
CHANNELS = 3
LEAST_DIMENSION = 8
"""Minimum length of a template. Shorter outputs are scores or classes; face templates have 64 to 1,024 numbers."""
MOST_CLASSES = 16
"""Maximum number of a liveness model's classes, which are `live` and kinds of attack."""
OWN_UNIT_TOLERANCE = 1e-5
"""Maximum distance from 1 of outputs' lengths (or sums) for a file to count as normalising them itself."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The form of a model's only input and only output."""

    layout: Layout
    dtype: Dtype
    shape: str
    """The input's shape as the file declares it, as text."""
    side: int | None
    """Side of the square input, in pixels; None if the file leaves it open."""
    dimension: int
    """Length of the output vector, or number of classes."""
    normalised: bool
    """Whether the file itself normalises the output, to a unit vector or to probabilities."""


def read_graph(path: Path) -> tuple[ModelProto, GraphFacts]:
    """Return an embedder's graph and its facts.

    Raises Unusable ``model_unsuitable`` for a file that is not ONNX, weights in other files, an input that is not a
    square with 3 channels (of 112 pixels if uint8), or an output that is not a vector.
    """
    model, dtype, sizes = _read(path)
    shape, side = _shape(sizes)
    layout = _layout(sizes, side or CROP_SIDE)
    if layout is None or (side and not LEAST_CUT_SIDE <= side <= MOST_CUT_SIDE):
        raise _unsuitable(path, f"its input {shape} is no square of pixels with 3 channels")
    if dtype == "uint8" and side not in {None, CROP_SIDE}:
        raise _unsuitable(path, f"its input {shape} takes pixels as they are, but no {CROP_SIDE}×{CROP_SIDE} crops")
    vectors = _outputs(path, model, layout, dtype, side or CROP_SIDE)
    if vectors.shape[1] < LEAST_DIMENSION:
        raise _unsuitable(path, f"its output has {vectors.shape[1]} numbers, too few for a face's vector")
    is_unit = np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=OWN_UNIT_TOLERANCE)
    return model, GraphFacts(layout, dtype, shape, side, vectors.shape[1], bool(is_unit))


def read_classifier(path: Path) -> tuple[GraphFacts, int]:
    """Return the facts of a liveness model's graph, and the side of its input in pixels.

    Raises Unusable ``model_unsuitable`` for a file that is not ONNX, weights in other files, an input that is not a
    square of a fixed size with 3 channels, or an output that is not scores of classes.
    """
    model, dtype, sizes = _read(path)
    shape, side = _shape(sizes)
    layout = _layout(sizes, side or 0)
    if layout is None or side is None or None in sizes[1:] or not LEAST_CUT_SIDE <= side <= MOST_CUT_SIDE:
        raise _unsuitable(
            path, f"its input {shape} is no square of {LEAST_CUT_SIDE} to {MOST_CUT_SIDE} pixels with 3 channels"
        )
    rows = _outputs(path, model, layout, dtype, side)
    if not 2 <= rows.shape[1] <= MOST_CLASSES:
        raise _unsuitable(path, f"its output has {rows.shape[1]} numbers, not 2 to {MOST_CLASSES} classes")
    is_probabilities = (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=OWN_UNIT_TOLERANCE)
    return GraphFacts(layout, dtype, shape, side, rows.shape[1], bool(is_probabilities)), side


def read_file(path: Path, check: Callable[[ModelProto], object] = lambda _model: None) -> ModelProto:
    """Return the graph in a file. Raises Unusable ``model_unsuitable`` if it can't be read, ``check`` raises, or its
    weights are in other files."""
    try:
        model: ModelProto = ModelProto.FromString(path.read_bytes())
        check(model)
    except Exception as error:  # protobuf, the checker and the file system each raise errors of their own
        raise _unsuitable(path, f"it is no readable ONNX file ({str(error).splitlines()[0]})") from error
    if (outside := external_tensor(model)) is not None:
        raise _unsuitable(path, f"its weights ({outside} …) lie in another file: export one file")
    return model


def _read(path: Path) -> tuple[ModelProto, Dtype, list[int | None]]:
    """Return the graph, and the type and the sizes of its only input. Raises Unusable ``model_unsuitable``."""
    model = read_file(path, onnx.checker.check_model)
    keep_data_inputs(model)
    inputs, outputs = len(model.graph.input), len(model.graph.output)
    if (inputs, outputs) != (1, 1):
        raise _unsuitable(path, f"it has {inputs} inputs and {outputs} outputs, not one")
    tensor = model.graph.input[0].type.tensor_type
    if (dtype := DTYPES.get(tensor.elem_type)) is None:
        raise _unsuitable(path, f"its input is {TensorProto.DataType.Name(tensor.elem_type).lower()}, not uint8, float")
    return model, dtype, [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]


def _shape(sizes: list[int | None]) -> tuple[str, int | None]:
    """Return an input's shape as text, and the side of its pictures; None if the shape leaves it open."""
    side = max((size for size in sizes[1:] if size and size != CHANNELS), default=None)
    return "×".join(str(size or "N") for size in sizes), side


def _layout(sizes: list[int | None], side: int) -> Layout | None:
    """Return the order of an input's axes: ``nchw`` if the shape fits both orders, None if it fits neither."""
    if len(sizes) != 4 or sizes[0] not in {None, 1}:
        return None
    wanted: dict[Layout, list[int]] = {"nchw": [3, side, side], "nhwc": [side, side, 3]}
    for layout, expected in wanted.items():
        if all(size in {None, needed} for size, needed in zip(sizes[1:], expected, strict=True)):
            return layout
    return None


def _outputs(path: Path, model: ModelProto, layout: Layout, dtype: Dtype, side: int) -> Vectors:
    """Return the outputs, (2, D), for two inputs, a black picture and noise. Raises Unusable ``model_unsuitable``."""
    noise = np.random.default_rng(0).integers(0, 256, (1, side, side, 3)).astype(dtype)
    if layout == "nchw":
        noise = np.ascontiguousarray(noise.transpose(0, 3, 1, 2))
    try:
        session = plain_session(model)
        name = session.get_inputs()[0].name
        rows = [session.run(None, {name: picture})[0] for picture in (np.zeros_like(noise), noise)]
    except Exception as error:  # ONNX Runtime's errors have no common base class
        raise _unsuitable(path, f"ONNX Runtime cannot run it ({str(error).splitlines()[0]})") from error
    shape = rows[0].shape
    if len(shape) != 2 or shape[0] != 1 or rows[0].dtype != np.float32:
        raise _unsuitable(path, f"its output is {shape} {rows[0].dtype}, not a vector of float32 for each picture")
    if not np.isfinite(rows).all():
        raise _unsuitable(path, "it answers numbers that are not finite")
    vectors: Vectors = np.concatenate(rows)
    return vectors


def _unsuitable(path: Path, problem: str) -> Unusable:
    return Unusable(f"{path} can't be added: {problem}.", code="model_unsuitable", path=str(path), problem=problem)
