"""A run of the benchmark, for its parts, and how much work it does for measuring."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Figure, Findings
from bench.server import Server, serving
from bench.stages import Stages
from training.evaluation.speed import Speeds, contest

CLIENTS = 16
CACHE = "models"
"""Where a server keeps prepared models in its data folder."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work is done for measuring.

    ``rounds`` of each comparison, and the seconds of a turn in it, ``turn_s``; ``seconds`` of each load on a server;
    number of ``photos`` that are sent, enough that few are enrolled twice; people in the ``gallery`` that is searched
    by photos; ``faces`` in the largest index; ``growth``, the sizes of gallery at which costs are compared; number of
    ``starts`` of a server; ``widths``, in pixels, of the photos in which faces are found; ``batches``, the numbers of
    faces that a device gets at once; number of ``clients`` that send at once while processor time is measured."""

    rounds: int
    turn_s: float
    seconds: float
    photos: int
    gallery: int
    faces: int
    growth: tuple[int, ...]
    starts: int
    widths: tuple[int, ...]
    batches: tuple[int, ...]
    clients: int = 1


WHOLE = Effort(
    rounds=7,
    turn_s=0.3,
    seconds=4.0,
    photos=2_500,
    gallery=10_000,
    faces=1_000_000,
    growth=(1_000, 10_000, 100_000, 1_000_000),
    starts=7,
    widths=(250, 640, 1280, 4000),
    batches=(1, 4, 16, 64, 256),
)
QUICK = Effort(
    rounds=3,
    turn_s=0.1,
    seconds=1.5,
    photos=60,
    gallery=10_000,
    faces=200_000,
    growth=(1_000, 10_000, 50_000),
    starts=3,
    widths=(250, 640, 1280),
    batches=(1, 4, 16),
)


@dataclass(frozen=True, slots=True)
class Run:
    """Holds what to measure, for how long, and the findings so far; ``say`` reports the current step."""

    stages: Stages
    effort: Effort
    device: str = "cpu"
    beside: Mapping[str, Path] = field(default_factory=dict)
    """Other checkouts, by their labels."""
    packages: Sequence[str] = ()
    """Other model packages, to be measured beside the default."""
    say: Callable[[str], None] = lambda _what: None
    findings: Findings = field(default_factory=Findings)

    def add(self, *figures: Figure) -> None:
        self.findings.figures.extend(figures)

    def note(self, note: str) -> None:
        """Note what was not measured, and why."""
        self.findings.notes.append(note)

    def contest(self, contenders: Mapping[str, Callable[[], int]], turn_s: float | None = None) -> Speeds:
        return contest(contenders, self.effort.rounds, shortest_s=turn_s or self.effort.turn_s, say=self.say)

    @contextmanager
    def server(self, code: Path | None = None, **settings: object) -> Iterator[Server]:
        """Start a server on a new data folder that holds only the prepared models.

        It is the server of the checkout ``code`` with its own models, by default this checkout with the wanted ones.
        """
        models = code / "models" if code else self.stages.models
        with self.data_folder() as folder, serving(folder, code, MODELS_DIR=models, **settings) as server:
            yield server

    @contextmanager
    def data_folder(self) -> Iterator[Path]:
        """Create a data folder with the prepared models, so that a server doesn't spend time preparing them."""
        self.say("a server starts")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(self.stages.cache, Path(folder, CACHE))
            yield Path(folder)
