"""From process start to ready, with everything prepared and nobody enrolled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from app.tuning.contest import Spread
from bench.figures import Figure, Goal
from bench.run import Run
from bench.server import serving

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
    run.add(
        Figure(
            PART,
            "process start to ready, empty",
            float(np.median(seconds)),
            "s",
            f"{WANTED_S} s",
            Spread.of(np.array(seconds) / WANTED_S),
            Goal(1, at_most=True),
            {"first_start_s": first, "starts": len(seconds)},
        )
    )
