"""Run a model file as it is, without rewriting: the reference for its prepared graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.inference.cutout import resampling
from app.inference.manifest import SourceInput
from app.types import Pixels

if TYPE_CHECKING:
    from onnx import ModelProto


def plain_session(model: ModelProto, threads: int = 1) -> Any:
    """Return a plain ONNX Runtime session."""
    import onnxruntime as ort  # noqa: PLC0415 - only a first start needs it here

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors; what matters is compared
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def source_input(crop: Pixels, form: SourceInput) -> NDArray[np.generic]:
    """Convert one (H, W, 3) uint8 RGB picture to (1, ...) in the source's layout, type and colour order."""
    values: NDArray[np.generic] = (crop if form.colour == "rgb" else crop[:, :, ::-1]).transpose(2, 0, 1)
    if form.cutout is not None:
        rows, columns = resampling(form.cutout)
        values = rows @ values.astype(np.float64) @ columns.T
    values = values if form.layout == "nchw" else values.transpose(1, 2, 0)
    if form.dtype == "uint8":
        return np.ascontiguousarray(values)[None]
    per_channel = (3, 1, 1) if form.layout == "nchw" else (3,)
    mean, std = (np.array(each, np.float32).reshape(per_channel) for each in (form.mean, form.std))
    return np.ascontiguousarray((values.astype(np.float32) - mean) / std)[None]


def run_plain(source: ModelProto, form: SourceInput, pictures: Pixels, *, threads: int = 1) -> NDArray[np.float64]:
    """Run a file's own graph on (N, H, W, 3) uint8 RGB pictures one by one; (N, D) float64 as it answers."""
    from app.inference.graph import keep_data_inputs  # noqa: PLC0415 - brings onnx, which only a first start needs

    runnable = type(source).FromString(source.SerializeToString())
    keep_data_inputs(runnable)
    session = plain_session(runnable, threads)
    name = session.get_inputs()[0].name
    rows = [session.run(None, {name: source_input(one, form)})[0] for one in pictures]
    return np.concatenate(rows).astype(np.float64)
