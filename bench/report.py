"""Show the figures as a table, and write them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.figures import Figure, Findings


def show(findings: Findings, console: Console) -> None:
    table = Table("part", "work", "ours", "against", "ratio", "middle half", "goal")
    for figure in findings.figures:
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
    for note in findings.notes:
        console.print(f"Not measured: {note}", highlight=False)


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"{figure.goal} {'[green]reached[/green]' if figure.reached else '[red]missed[/red]'}"


def path_for(folder: Path) -> Path:
    """Return the results file of a run that begins now."""
    return folder / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}.json"


def write(path: Path, findings: Findings, asked: Mapping[str, object]) -> None:
    """Write the findings so far; ``asked`` holds how the run was started."""
    document = {
        "machine": machine.describe(),
        "asked": asked,
        "figures": [asdict(figure) | {"reached": figure.reached} for figure in findings.figures],
        "not_measured": findings.notes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
