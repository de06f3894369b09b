"""Ways to run an embedder's graph: as requests use it, alone at its best, and from the file as shipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from app.machine import cores
from app.models.packages import locate
from app.models.reference import keep_data_inputs, source_input
from app.package.manifest import Rewrite, SourceInput
from app.types import Pixels
from bench.callers import side_by_side
from bench.run import Run
from bench.stages import Stages

BATCHES = 1, 2, 4, 8


def many(crops: Pixels, count: int) -> Pixels:
    """Return `count` crops by repeating the given ones."""
    return np.ascontiguousarray(crops[np.arange(count) % len(crops)])


def embedder_batched(stages: Stages) -> Callable[[], int]:
    """Run our embedder with twice as many callers as cores, one face per call, joined by the batcher."""

    def embed(caller: int) -> int:
        stages.embedder.embed([stages.crops[caller % len(stages.crops)]])
        return 1

    return side_by_side(embed, 2 * cores())


def runtime_alone(stages: Stages, batch: int) -> Callable[[], int]:
    """Run the prepared graph in plain ONNX Runtime, one caller per core."""
    crops = many(stages.crops, batch)

    def run(_caller: int) -> int:
        stages.session.run(crops)
        return batch

    return side_by_side(run, cores())


def best_batch(run: Run) -> int:
    """Return the batch size at which the graph alone embeds the most faces per second."""
    speeds = run.contest({str(size): runtime_alone(run.stages, size) for size in BATCHES})
    return int(speeds.best(speeds.rounds))


def as_shipped(stages: Stages, *, defaults: bool) -> Callable[[Pixels], NDArray[np.float32]]:
    """Return a function from a (112, 112, 3) crop to its vector by the package's own file, whose batch size is fixed at
    1.

    It uses ONNX Runtime's `defaults`, or else one thread that doesn't spin, for concurrent callers. The file is
    changed only in one way: weights are removed from its list of inputs, because ONNX Runtime would ask for them.
    """
    model = onnx.load(str(locate(stages.package, stages.cache)))
    keep_data_inputs(model)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not defaults:
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session: Any = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    plan = stages.package.manifest.prepare
    form = plan.input if isinstance(plan, Rewrite) else SourceInput()

    def run(crop: Pixels) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = session.run(None, {name: source_input(crop, form)})[0]
        return vectors

    return run


def shipped_callers(stages: Stages) -> Callable[[], int]:
    """Run the file as shipped, one face per call, one caller per core."""
    run = as_shipped(stages, defaults=False)

    def call(caller: int) -> int:
        run(stages.crops[caller % len(stages.crops)])
        return 1

    return side_by_side(call, cores())
