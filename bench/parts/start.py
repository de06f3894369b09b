"""Measure the time until a server is ready, with prepared models and no faces."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from bench.figures import Figure, Goal
from bench.run import Run
from bench.server import serving
from training.evaluation.speed import Spread

PART = "start"
WANTED_S = 1.5


def measure(run: Run) -> None:
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        run.say("the first start, which prepares the models")
        with serving(Path(folder), MODELS_DIR=run.stages.models) as server:
            first = server.seconds_to_ready
        for number in range(run.effort.starts):
            run.say(f"start {number + 1} of {run.effort.starts}")
            with serving(Path(folder), MODELS_DIR=run.stages.models) as server:
                seconds.append(server.seconds_to_ready)
    ratio, goal = Spread.of(np.asarray(seconds) / WANTED_S), Goal(1, at_most=True)
    details = {"first_start_s": first, "runs": len(seconds)}
    work, against = "process start to ready, empty", f"{WANTED_S} s"
    run.add(Figure(PART, work, float(np.median(seconds)), "s", against, ratio, goal, details))
