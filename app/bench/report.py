"""The figures as a table for people, as JSON to keep, and as a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.bench import machine
from app.bench.contest import Figure


def show(figures: Sequence[Figure], console: Console) -> None:
    table = Table("part", "work", "ours", "against", "ratio", "middle half", "goal")
    for figure in figures:
        ratio = figure.ratio
        table.add_row(
            figure.part,
            figure.work,
            f"{figure.ours:,.4g} {figure.unit}",
            figure.against,
            f"{ratio.median:.2f}" if ratio else "",
            f"{ratio.low:.2f}-{ratio.high:.2f}" if ratio else "",
            _goal(figure),
        )
    console.print(table)


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"≥ {figure.goal:g} {'reached' if figure.reached else '[red]missed[/red]'}"


def write(figures: Sequence[Figure], folder: Path, parts: Sequence[str], effort: object) -> Path:
    """A file named by the time; answers its path."""
    now = datetime.now(UTC)
    document = {
        "at": now.isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "parts": list(parts),
        "effort": effort,
        "figures": [asdict(figure) | {"reached": figure.reached} for figure in figures],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now:%Y-%m-%dT%H-%M-%S}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def draw(figures: Sequence[Figure], path: Path) -> bool:
    """Every ratio as a bar with its spread, the goals as marks; False where matplotlib isn't installed."""
    try:
        from matplotlib.figure import Figure as Picture  # noqa: PLC0415 - not every server has it
    except ImportError:
        return False
    shown = [figure for figure in figures if figure.ratio is not None]
    picture = Picture(figsize=(9, 0.45 * len(shown) + 1.2), layout="constrained")
    axes = picture.subplots()
    for row, figure in enumerate(reversed(shown)):
        ratio = figure.ratio
        assert ratio is not None  # noqa: S101 (chosen so above)
        axes.barh(row, ratio.median, color="#4477aa" if figure.reached is not False else "#cc6677")
        axes.plot([ratio.low, ratio.high], [row, row], color="#222222", linewidth=2)
        if figure.goal is not None:
            axes.plot([figure.goal, figure.goal], [row - 0.4, row + 0.4], color="#ddaa33", linewidth=3)
    names = [f"{figure.work}\nagainst {figure.against}" for figure in reversed(shown)]
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.axvline(1, color="#999999", linewidth=1, linestyle=":")
    axes.set_xlabel("times as fast (bar: median, line: middle half of the rounds, yellow: goal)")
    picture.savefig(path)
    return True
