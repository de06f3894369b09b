"""The time until a server is ready, with prepared models and no faces, and the time commands take."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from app.server.local import environment
from bench.figures import Figure, Goal
from bench.run import Run
from bench.server import Server, serving
from training.evaluation.speed import Spread

PART = "start"
WANTED_S = 1.5
HELP_CPU_S = 0.5
"""Processor time that `likeness --help` may take."""
COMMAND_S = 1.0
"""Time that a command to a running server may take."""


def measure(run: Run) -> None:
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        run.say("the first start, which prepares the models")
        with serving(Path(folder), MODELS_DIR=run.stages.models) as server:
            first = server.seconds_to_ready
            _measure_commands(run, server)
        for number in range(run.effort.starts):
            run.say(f"start {number + 1} of {run.effort.starts}")
            with serving(Path(folder), MODELS_DIR=run.stages.models) as server:
                seconds.append(server.seconds_to_ready)
    _add(run, "process start to ready, empty", seconds, WANTED_S, first_start_s=first)


def _measure_commands(run: Run, server: Server) -> None:
    run.say("commands")
    wall, processor = np.array([_command("--help", server) for _ in range(run.effort.starts)]).T
    _add(run, "`likeness --help`, processor time", processor, HELP_CPU_S, wall_s=float(np.median(wall)))
    wall, processor = np.array([_command("galleries list", server) for _ in range(run.effort.starts)]).T
    _add(run, "`likeness galleries list`, server running", wall, COMMAND_S, processor_s=float(np.median(processor)))


def _command(words: str, server: Server) -> tuple[float, float]:
    """Run `likeness` with these words, and return wall and processor time in seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environ = environment(DATA_DIR=server.data_dir)
    command = [sys.executable, "-m", "app", *words.split()]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - a command of our own
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _add(run: Run, work: str, seconds: object, wanted: float, **details: float) -> None:
    found = np.asarray(seconds, np.float64)
    ratio, goal = Spread.of(found / wanted), Goal(1, at_most=True)
    told = {**details, "runs": len(found)}
    run.add(Figure(PART, work, float(np.median(found)), "s", f"{wanted} s", ratio, goal, told))
