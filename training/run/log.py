"""Log a run: a progress bar or plain lines, `metrics.jsonl` and its plot, and trackers."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.errors import InvalidInput
from training.recipe import named

METRICS = "metrics.jsonl"


class Reporter:
    """Logs on the first rank only (`out` is None on the others). `images` are counted over all ranks."""

    def __init__(
        self,
        out: Path | None,
        steps: int,
        first: int,
        console: Console | None = None,
        trackers: Sequence[str] = ("tensorboard",),
    ) -> None:
        self._out = out
        self._console = console or Console(stderr=True)
        self._steps = steps
        self._images = 0
        self._first = first
        self._trackers = [tracker for name in trackers if out and (tracker := open_tracker(name, out))]
        self._progress: Progress | None = None
        if out and self._console.is_terminal:
            columns = (MofNCompleteColumn(), BarColumn(bar_width=10), TimeRemainingColumn())
            self._progress = Progress(*columns, TextColumn("{task.fields[figures]}"), console=self._console)
            self._task = self._progress.add_task("training", total=steps, completed=first, figures="")
        self._began = time.monotonic()  # after the trackers, which take seconds to load
        self._mark = (self._began, 0)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._progress:
            self._progress.stop()
        for _, close in self._trackers:
            close()

    def stepped(self, step: int, images: int) -> None:
        """Count a finished step and its `images` crops over all ranks."""
        self._images += images
        if self._progress:
            self._progress.update(self._task, completed=step)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the training figures of a step, with the images per second since the last call."""
        if self._out is None:
            return
        now = time.monotonic()
        speed = (self._images - self._mark[1]) / max(now - self._mark[0], 1e-9)
        self._mark = (now, self._images)
        self._write("train", step, {**figures, "images_per_s": speed})
        shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        if self._progress:  # only what fits in 80 columns
            few = "  ".join(f"{name} {figures[name]:.3g}" for name in ("loss", "accuracy") if name in figures)
            self._progress.update(self._task, figures=f"{few}  {speed:.0f} img/s")
        else:
            left = (now - self._began) / max(step - self._first, 1) * (self._steps - step)
            self._console.print(
                f"step {step}/{self._steps}  {shown}  {speed:.0f} img/s  {_clock(left)} left", soft_wrap=True
            )

    def evaluated(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures of an evaluation. Its time is left out of the images per second."""
        if self._out is None:
            return
        self._write("evaluation", step, figures)
        self._console.print(
            f"step {step}  evaluation  " + "  ".join(f"{k} {v:.4g}" for k, v in figures.items()), soft_wrap=True
        )
        self._mark = (time.monotonic(), self._images)

    def warn(self, step: int, message: str) -> None:
        """Log a problem that a person should look at."""
        if self._out is None:
            return
        self._append({"kind": "warning", "step": step, "message": message})
        self._console.print(f"[bold yellow]step {step}  warning:[/] {message}", soft_wrap=True)

    def _write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        self._append({"kind": kind, "step": step, **figures})
        for track, _ in self._trackers:
            track({f"{kind}/{name}": value for name, value in figures.items()}, step)

    def _append(self, line: Mapping[str, object]) -> None:
        assert self._out is not None  # noqa: S101  the callers have checked it
        with (self._out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


Tracker: TypeAlias = tuple[Callable[[Mapping[str, float], int], object], Callable[[], object]]
"""Two functions: one takes figures and their step, the other closes the tracker."""


def open_tracker(name: str, out: Path) -> Tracker | None:
    """Open a tracker by its name in a recipe; None for tensorboard if that is not installed. Raises InvalidInput
    (`invalid_recipe`)."""
    open_named: Callable[[Path], Tracker] = TRACKERS[name] if name in TRACKERS else named("tracker", name)
    try:
        return open_named(out)
    except ImportError as error:
        if name == "tensorboard":
            return None
        raise InvalidInput(f"train.trackers: {name} is not installed: {error}", code="invalid_recipe") from error


def tensorboard(out: Path) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional

    writer = SummaryWriter(str(out / "tensorboard"))

    def track(figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return track, writer.close


def mlflow(out: Path) -> Tracker:
    run = importlib.import_module("mlflow")
    run.start_run(run_name=out.name)
    return lambda figures, step: run.log_metrics(dict(figures), step), run.end_run


def wandb(out: Path) -> Tracker:
    run = importlib.import_module("wandb").init(name=out.name, dir=str(out))
    return lambda figures, step: run.log(dict(figures), step=step), run.finish


TRACKERS: Mapping[str, Callable[[Path], Tracker]] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


SIZE_INCHES = (9.0, 6.0)
PANELS = (
    ("loss", ("loss",)),
    ("share", ("accuracy", "evaluation accuracy", "evaluation fnmr", "evaluation eer")),
    ("length (L2)", ("gradient", "length")),
    ("learning rate", ("lr",)),
)
"""The axis of each panel, and the figures of `metrics.jsonl` that the panel shows."""
FEW = 20
"""Maximum points of a curve to mark individually."""
LOGARITHMIC = "length (L2)"


def draw_run(out: Path) -> Path | None:
    """Draw `metrics.jsonl` of a run's folder as `run.svg` there; return None if there is nothing to draw or matplotlib
    is missing."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  only drawing needs matplotlib
    except ImportError:
        return None
    if not (out / METRICS).is_file():
        return None
    lines = [json.loads(line) for line in (out / METRICS).read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    for axes, (label, names) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for name in names:
            steps, values = _series(lines, name)
            if steps:
                axes.plot(steps, values, label=name, marker="." if len(steps) < FEW else "")
        axes.set(xlabel="step", ylabel=label, yscale="log" if label == LOGARITHMIC else "linear")
        axes.grid(visible=True, alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.savefig(out / "run.svg", metadata={"Date": None})
    return out / "run.svg"


def _series(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of a figure. Names of evaluations' figures begin with `evaluation `."""
    kind, key = ("evaluation", name.removeprefix("evaluation ")) if " " in name else ("train", name)
    points = [(line["step"], line[key]) for line in lines if line["kind"] == kind and key in line]
    return [step for step, _ in points], [value for _, value in points]
