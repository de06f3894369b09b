"""Find the nearest rows by a matrix product and TopK, run by ONNX Runtime, which is faster on a GPU than FAISS's
kernels.

FAISS splits the work into blocks of 131,072 rows by 512 queries, even for a single query. On an H200 with 10 million
rows of 512 numbers, FAISS answers 29 queries per second, torch with a float16 product and TopK 384, and the graph below
328. The graph runs on any of ONNX Runtime's providers; the tests run it on the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from app.inference.session import CPU, CUDA, ERRORS_ONLY
from app.types import Vectors

SEGMENT = 16_384
"""Rows per segment: TopK selects the best rows of each segment, then the best of these. A single TopK over a million
rows would leave most of a GPU idle."""
PART_ROWS = 256 * SEGMENT
"""Maximum rows per run: with PROBES probes, the scores take 512 MiB as float16 and 1 GiB as float32. A quarter of this
gave 242 queries per second instead of 328, and with 64 queries at once 6,013 instead of 6,733 (10 million rows of 512
numbers in float16, H200)."""
PART_NUMBERS = 3 * 2**29
"""Maximum numbers per run, so that runs have fewer rows if vectors are longer: ONNX Runtime on CUDA fails at 2^31."""
PROBES = 64
"""Maximum probes per run."""
OPSET = 17


class ProductIndex:
    """Vectors in a provider's memory, with the two methods of FAISS's flat indexes: `add` and `search`.

    All methods raise RuntimeError, as FAISS's do, if the provider fails or its memory is full. Not safe to share
    between threads.
    """

    def __init__(self, dimension: int, *, half: bool, provider: str = CUDA) -> None:
        """Vectors are stored as float16 with `half`, else as float32, whose products are not rounded to
        TensorFloat-32."""
        self.part_rows = min(PART_ROWS, max(1, PART_NUMBERS // (dimension * SEGMENT)) * SEGMENT)
        """Maximum rows per run, and so per part."""
        self.ntotal = 0
        """Number of rows."""
        self._type = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        self._place = "cuda" if provider == CUDA else "cpu"
        self._parts: list[Any] = []  # `part_rows` rows each; the last one may have fewer
        self._store = _session(_store_graph(dimension, self._type), provider)
        self._whole, self._padded = (
            _session(_nearest_graph(dimension, self._type, padded=padded), provider) for padded in (False, True)
        )

    def add(self, vectors: Vectors) -> None:
        """Append rows, (N, D) float32."""
        start = 0
        while start < len(vectors):
            room = -self.ntotal % self.part_rows
            added = np.ascontiguousarray(vectors[start : start + (room or self.part_rows)])
            before = self._parts[-1] if room else self._empty(added)
            part = self._run(self._store, {"new": added}, before, ["rows"], on_cpu=False)[0]
            self._parts[-1 if room else len(self._parts) :] = [part]
            start += len(added)
            self.ntotal += len(added)

    def search(self, probes: Vectors, width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the `width` highest scores of each probe and their rows, both (Q, width), best first. `probes`: (Q, D)
        float32.

        `width` is at most the number of rows.
        """
        answers = [self._few(probes[start : start + PROBES], width) for start in range(0, len(probes), PROBES)]
        scores, rows = zip(*answers, strict=True)
        return np.concatenate(scores), np.concatenate(rows)

    def _few(self, probes: Vectors, width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        found = [self._nearest(place, part, probes, width) for place, part in enumerate(self._parts)]
        scores, rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
        return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)

    def _nearest(self, place: int, part: Any, probes: Vectors, width: int) -> tuple[Any, NDArray[np.int64]]:
        count = part.shape()[0]
        segments = -(-count // SEGMENT)
        length = min(count, SEGMENT)
        spare = segments * length - count
        per_segment = min(width, length)
        inputs = {
            "probes": np.ascontiguousarray(probes, np.float32),
            "segments": np.array([len(probes), segments, length], np.int64),
            "each": np.array([per_segment], np.int64),
            "starts": (np.arange(segments, dtype=np.int64) * length)[None, :, None],
            "found": np.array([len(probes), segments * per_segment], np.int64),
            "width": np.array([min(width, count)], np.int64),
        }
        if spare:
            inputs["spare"] = np.array([0, 0, 0, spare], np.int64)
        session = self._padded if spare else self._whole
        scores, rows = self._run(session, inputs, part, ["scores", "places"], on_cpu=True)
        return scores, rows + place * self.part_rows

    def _empty(self, like: Vectors) -> Any:
        kind = np.float16 if self._type == TensorProto.FLOAT16 else np.float32
        return ort.OrtValue.ortvalue_from_numpy(np.empty((0, like.shape[1]), kind), "cpu", 0)

    def _run(
        self, session: Any, inputs: dict[str, NDArray[Any]], rows: Any, outputs: list[str], *, on_cpu: bool
    ) -> list[Any]:
        try:
            binding = session.io_binding()
            for name, values in inputs.items():
                binding.bind_cpu_input(name, values)
            binding.bind_ortvalue_input("held", rows)
            for name in outputs:
                binding.bind_output(name, "cpu" if on_cpu else self._place)
            session.run_with_iobinding(binding)
            return binding.copy_outputs_to_cpu() if on_cpu else list(binding.get_outputs())
        except Exception as error:  # ONNX Runtime's errors have no common base class
            raise RuntimeError(str(error)) from error


def _session(graph: Any, provider: str) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    cuda = {"use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"}
    providers = [(CUDA, cuda), CPU] if provider == CUDA else [provider]
    return ort.InferenceSession(model.SerializeToString(), options, providers=providers)


def _store_graph(dimension: int, kind: int) -> Any:
    """Return the graph that appends rows: stored rows, (N, D), and new rows, (M, D) float32 -> all rows, (N + M, D)."""
    nodes = [
        helper.make_node("Cast", ["new"], ["cast"], to=kind),
        helper.make_node("Concat", ["held", "cast"], ["rows"], axis=0),
    ]
    held = helper.make_tensor_value_info("held", kind, ["N", dimension])
    new = helper.make_tensor_value_info("new", TensorProto.FLOAT, ["M", dimension])
    rows = helper.make_tensor_value_info("rows", kind, ["all", dimension])
    return helper.make_graph(nodes, "store", [held, new], [rows])


def _nearest_graph(dimension: int, kind: int, *, padded: bool) -> Any:
    """Return the graph that searches: rows, (N, D), and probes, (Q, D) float32 -> scores, (Q, width) float32, and their
    rows, (Q, width) int64.

    With `padded`, the last segment is filled up with scores of minus infinity.
    """
    nodes = [
        helper.make_node("Cast", ["probes"], ["cast"], to=kind),
        helper.make_node("Gemm", ["cast", "held"], ["product"], transB=1),  # (Q, N)
        helper.make_node("Cast", ["product"], ["wide"], to=TensorProto.FLOAT),
        *([helper.make_node("Pad", ["wide", "spare", "least"], ["filled"])] if padded else []),
        helper.make_node("Reshape", ["filled" if padded else "wide", "segments"], ["split"]),  # (Q, S, length)
        helper.make_node("TopK", ["split", "each"], ["best", "inside"]),  # (Q, S, each)
        helper.make_node("Add", ["inside", "starts"], ["numbers"]),
        helper.make_node("Reshape", ["best", "found"], ["best_of_all"]),  # (Q, S * each)
        helper.make_node("Reshape", ["numbers", "found"], ["numbers_of_all"]),
        helper.make_node("TopK", ["best_of_all", "width"], ["scores", "order"]),  # (Q, width)
        helper.make_node("GatherElements", ["numbers_of_all", "order"], ["places"], axis=1),
    ]
    shapes: list[tuple[str, int, list[str | int]]] = [
        ("held", kind, ["N", dimension]),
        ("probes", TensorProto.FLOAT, ["Q", dimension]),
        ("segments", TensorProto.INT64, [3]),
        ("each", TensorProto.INT64, [1]),
        ("starts", TensorProto.INT64, [1, "S", 1]),
        ("found", TensorProto.INT64, [2]),
        ("width", TensorProto.INT64, [1]),
    ]
    if padded:
        shapes.append(("spare", TensorProto.INT64, [4]))
    inputs = [helper.make_tensor_value_info(*shape) for shape in shapes]
    outputs = [
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["Q", "W"]),
        helper.make_tensor_value_info("places", TensorProto.INT64, ["Q", "W"]),
    ]
    least = helper.make_tensor("least", TensorProto.FLOAT, [], [float("-inf")])
    return helper.make_graph(nodes, "nearest", inputs, outputs, [least] if padded else [])
