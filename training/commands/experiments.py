"""`python -m training experiments`: train a grid of recipes over seeds and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from training.experiments.comparison import LEAST_SEEDS, tables
from training.experiments.grid import Runs, carry_out, load_plan, report_of, write_report
from training.packages import MODELS
from training.terminal import told


def experiments(
    grids: Annotated[list[Path], typer.Argument(help="Grids, TOML files (training/grids has them).")],
    *,
    out: Annotated[Path, typer.Option(help="Where finished runs and reports are.")] = Path("build/experiments"),
    only: Annotated[list[str] | None, typer.Option(help="Entries to train; all if not given. Repeatable.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value for every entry, e.g. train.steps=750; repeatable.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=LEAST_SEEDS, help="How many seeds, 1, 2, …; the grid's own.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Train nothing; write reports of what is finished.")] = False,
    document: Annotated[
        Path | None, typer.Option(help="Markdown whose tables between <!-- GRID --> and <!-- end --> are written anew.")
    ] = None,
) -> None:
    """Train every entry of a grid with every seed, and compare them on unseen people."""
    console = Console()
    with told():
        plans = [
            load_plan(path, overrides or (), seeds) for path in grids
        ]  # all are checked before the first is trained
        runs = Runs(out / "runs", MODELS)
        if not report:
            carry_out(plans, runs, only or (), lambda line: console.print(line, soft_wrap=True, highlight=False))
        for plan in plans:
            found = report_of(plan, runs)
            if any(result.seeds for result in found.entries.values()):
                write_report(plan, found, out, document)
                text = f"{found.title}\n\n{tables(found)}"
            else:
                text = f"{plan.name}: no entry is finished."
            console.print(text, soft_wrap=True, highlight=False, markup=False)
