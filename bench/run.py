"""One run of the benchmark, as its parts see it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.effort import Effort
from bench.figures import Curve, Figure, Findings
from bench.server import Server, serving
from bench.stages import Stages
from training.evaluation.speed import Speeds, contest

CLIENTS = 16
CACHE = "models"
"""Where a server keeps prepared models in its data folder."""


@dataclass(frozen=True, slots=True)
class Run:
    """Holds what to measure, for how long, and the findings so far; ``say`` reports the current step."""

    stages: Stages
    effort: Effort
    device: str = "cpu"
    beside: Mapping[str, Path] = field(default_factory=dict)
    """Other checkouts, by their labels."""
    say: Callable[[str], None] = lambda _what: None
    findings: Findings = field(default_factory=Findings)

    def add(self, *figures: Figure) -> None:
        self.findings.figures.extend(figures)

    def draw(self, curve: Curve) -> None:
        self.findings.curves.append(curve)

    def note(self, note: str) -> None:
        """Note what was not measured, and why."""
        self.findings.notes.append(note)

    def contest(self, contenders: Mapping[str, Callable[[], int]], turn_s: float | None = None) -> Speeds:
        return contest(contenders, self.effort.rounds, shortest_s=turn_s or self.effort.turn_s, say=self.say)

    @contextmanager
    def server(self, code: Path | None = None) -> Iterator[Server]:
        """Start a server on a new data folder that holds only the prepared models.

        It is that of the checkout ``code`` with its own models, by default this one with those that were asked for.
        """
        models = code / "models" if code else self.stages.models
        with self.data_folder() as folder, serving(folder, code, MODELS_DIR=models) as server:
            yield server

    @contextmanager
    def data_folder(self) -> Iterator[Path]:
        """Create a data folder that holds the prepared models, so that a server doesn't spend time and memory preparing
        them.
        """
        self.say("a server starts")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.stages.cache, Path(folder, CACHE))
            yield Path(folder)
