"""Draws a run: loss, accuracy, lengths and rate over its steps, beside its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.run.log import METRICS

SIZE_INCHES = (9.0, 6.0)
PANELS = (
    ("loss", ("loss",)),
    ("share", ("accuracy", "evaluation accuracy", "evaluation fnmr", "evaluation eer")),
    ("length (L2)", ("gradient", "length")),
    ("learning rate", ("lr",)),
)
"""Each panel's axis and the figures of `metrics.jsonl` that it shows."""
FEW = 20
"""Points that are marked each."""
LOGARITHMIC = "length (L2)"


def draw_run(out: Path) -> Path | None:
    """Draw `metrics.jsonl` of a run's folder as `run.svg` there; return None where there is nothing to draw, or no
    matplotlib."""
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
    """Return the steps and values of a figure; those of evaluations are called `evaluation NAME`."""
    kind, key = ("evaluation", name.removeprefix("evaluation ")) if " " in name else ("train", name)
    found = [(line["step"], line[key]) for line in lines if line["kind"] == kind and key in line]
    return [step for step, _ in found], [value for _, value in found]
