"""Measure the embedder's faces per second: as requests use it, the prepared graph alone, and the file as shipped."""

from __future__ import annotations

from bench.contenders import embedding
from bench.figures import Goal, compared
from bench.run import Run

PART = "embed"


def measure(run: Run) -> None:
    stages = run.stages
    alone = {f"ONNX Runtime alone, batches of {n}": embedding.runtime_alone(stages, n) for n in embedding.BATCHES}
    shipped = "the file as shipped, a caller a core"
    ways = {"ours": embedding.embedder_batched(stages), shipped: embedding.shipped_callers(stages)}
    speeds = run.contest(ways | alone)
    best, work = speeds.best(alone), f"embed, {stages.package.id}"
    run.add(
        compared(PART, f"{work}, the graph", speeds, best, shipped, unit="faces/s", goal=Goal(4)),
        compared(PART, work, speeds, "ours", best, unit="faces/s"),
        compared(PART, work, speeds, "ours", shipped, unit="faces/s"),
    )
