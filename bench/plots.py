"""Plots of a run, if matplotlib is installed: every ratio with its goal, and each set of curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Curve, Figure, Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

WITHOUT = "plots: matplotlib is not installed (pip install 'likeness-server[train]')"
REACHED, MISSED, GOAL, SPREAD = "#4477aa", "#cc6677", "#ddaa33", "#222222"


def draw(findings: Findings, path: Path) -> list[Path]:
    """Draw SVG files next to ``path`` and return them. Without matplotlib, add a note and draw nothing."""
    try:
        from matplotlib.figure import Figure as Picture  # noqa: PLC0415 (not everybody has it)
    except ImportError:
        findings.notes.append(WITHOUT)
        return []
    drawn = []
    shown = [figure for figure in findings.figures if figure.ratio is not None and figure.ratio.median > 0]
    if shown:
        drawn.append(
            _ratios(
                Picture(figsize=(11, 0.45 * len(shown) + 1.2), layout="constrained"), shown, path.with_suffix(".svg")
            )
        )
    for plot in dict.fromkeys(curve.plot for curve in findings.curves):
        some = [curve for curve in findings.curves if curve.plot == plot]
        drawn.append(
            _curves(Picture(figsize=(7, 4.5), layout="constrained"), some, path.with_name(f"{path.stem}-{plot}.svg"))
        )
    return drawn


def _ratios(picture: Picture, shown: Sequence[Figure], path: Path) -> Path:
    axes: Axes = picture.subplots()
    for row, figure in enumerate(reversed(shown)):
        ratio = figure.ratio
        assert ratio is not None  # noqa: S101 (chosen so above)
        axes.barh(row, ratio.median, color=MISSED if figure.reached is False else REACHED)
        axes.plot([ratio.low, ratio.high], [row, row], color=SPREAD, linewidth=2)
        if figure.goal is not None:
            axes.plot([figure.goal.ratio] * 2, [row - 0.4, row + 0.4], color=GOAL, linewidth=3)
    names = [f"{figure.work}\nagainst {figure.against}" for figure in reversed(shown)]
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color="#999999", linewidth=1, linestyle=":")
    axes.set_xlabel("ours over theirs (bar: median, line: middle half of the rounds, yellow: goal)")
    picture.savefig(path)
    return path


def _curves(picture: Picture, curves: Sequence[Curve], path: Path) -> Path:
    axes: Axes = picture.subplots()
    for curve in curves:
        axes.plot(curve.x, curve.y, marker="o", label=curve.name)
    if max(curves[0].x) >= 100 * min(curves[0].x):
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curves[0].x_label)
    axes.set_ylabel(curves[0].y_label)
    axes.legend()
    picture.savefig(path)
    return path
