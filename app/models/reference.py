"""Run an unchanged model file, as the reference for its prepared graph.

Crops are resampled to cutouts of other sizes by two matrices, one per axis. A matrix product gives the same result on
every device, while runtimes implement the modes of ONNX's Resize differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.package.manifest import CROP_SIDE, Cutout, SourceInput
from app.types import Pixels

if TYPE_CHECKING:
    from onnx import ModelProto

EXTERNAL = 1
"""The value of TensorProto.DataLocation for tensors in other files (onnx.proto3)."""
MIN_IR = 8
"""Minimum IR version of a model to run: versions before 4 list the initializers among the inputs; 8 belongs to opset
18."""
CUBIC = -0.75
"""The free parameter of Keys' cubic convolution (IEEE TASSP 1981), as in OpenCV's INTER_CUBIC."""


def plain_session(model: ModelProto, threads: int = 1) -> Any:
    import onnxruntime as ort  # noqa: PLC0415 - only a first start needs it here

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # log only errors: the outputs are compared anyway
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def source_input(crop: Pixels, form: SourceInput) -> NDArray[np.generic]:
    """Return a picture, (H, W, 3) uint8 RGB, as the source's input, (1, ...), in its layout, type and colour order."""
    values: NDArray[np.generic] = (crop if form.colour == "rgb" else crop[:, :, ::-1]).transpose(2, 0, 1)
    if form.cutout is not None:
        rows, columns = resampling(form.cutout)
        values = rows @ values.astype(np.float64) @ columns.T
    values = values if form.layout == "nchw" else values.transpose(1, 2, 0)
    if form.dtype == "uint8":
        return np.ascontiguousarray(values)[None]
    per_channel = (3, 1, 1) if form.layout == "nchw" else (3,)
    mean, std = (np.array(channels, np.float32).reshape(per_channel) for channels in (form.mean, form.std))
    return np.ascontiguousarray((values.astype(np.float32) - mean) / std)[None]


def run_plain(source: ModelProto, form: SourceInput, pictures: Pixels, *, threads: int = 1) -> NDArray[np.float64]:
    """Return the outputs, (N, D) float64, of a file's own graph, run on pictures, (N, H, W, 3) uint8 RGB, one by
    one."""
    runnable = type(source).FromString(source.SerializeToString())
    keep_data_inputs(runnable)
    session = plain_session(runnable, threads)
    name = session.get_inputs()[0].name
    rows = [session.run(None, {name: source_input(picture, form)})[0] for picture in pictures]
    return np.concatenate(rows).astype(np.float64)


def keep_data_inputs(model: ModelProto) -> None:
    """Remove initializers and unused names from the inputs, so that only the inputs that a caller must pass are
    left."""
    constants = {constant.name for constant in model.graph.initializer}
    used = {name for node in model.graph.node for name in node.input}
    inputs = [given for given in model.graph.input if given.name not in constants and given.name in used]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, MIN_IR)


def external_tensor(message: Any) -> str | None:
    """Return the name of a tensor that is stored in another file, among initializers, attributes and functions; None if
    there is none."""
    if message.DESCRIPTOR.name == "TensorProto":
        return str(message.name) if message.external_data or message.data_location == EXTERNAL else None
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                if (name := external_tensor(part)) is not None:
                    return name
    return None


def resampling(cutout: Cutout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two matrices, (side, 112) each: rows @ channel @ columns.T is the cutout of a channel, (112, 112).

    Beyond the crop, its outermost pixels are repeated.
    """
    return _along(cutout, cutout.top), _along(cutout, cutout.left)


def _along(cutout: Cutout, shift: float) -> NDArray[np.float64]:
    places = (np.arange(cutout.side) - shift) / cutout.scale  # in pixels of the crop
    first = np.floor(places).astype(np.int64) - 1
    matrix = np.zeros((cutout.side, CROP_SIDE))
    for tap in range(4):
        pixel = first + tap
        distance = np.abs(places - pixel)  # 0 to 2 pixels
        near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
        far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
        np.add.at(matrix, (np.arange(cutout.side), pixel.clip(0, CROP_SIDE - 1)), weights)
    return matrix
