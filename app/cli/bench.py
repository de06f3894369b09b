"""`likeness bench`: how fast this machine is with it, beside the raw limit and the plain ways."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from app.config import PROJECT, load_settings
from app.errors import InvalidInput

WIDTH = 170
"""Of the table where it is written to no terminal."""
Parts = Annotated[
    list[str] | None, typer.Argument(help="embed, search, serve, latency, start; all of them by default.")
]


def bench(
    parts: Parts = None,
    *,
    photos: Annotated[Path, typer.Option(help="Folder of photos with faces.")] = PROJECT / "docs" / "samples",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = PROJECT / "bench" / "results",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each comparison.")] = 9,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of each load on the server.")] = 5.0,
    faces: Annotated[int, typer.Option(min=1_000, help="Faces in the index that is searched.")] = 1_000_000,
) -> None:
    """Measure speed beside the raw limit and the plain ways of doing the same; writes a table, JSON and a plot."""
    from app.bench import report  # noqa: PLC0415 (the other commands start quicker without)
    from app.bench.parts import PARTS, Effort, turns  # noqa: PLC0415 (the same)
    from app.bench.stages import open_stages  # noqa: PLC0415 (the same)

    chosen = parts or list(PARTS)
    if unknown := [part for part in chosen if part not in PARTS]:
        raise InvalidInput(f"{unknown[0]} is no part: {', '.join(PARTS)}", code="unknown_part")
    settings = load_settings()
    effort, console = Effort(rounds, seconds, faces), Console(width=None if sys.stdout.isatty() else WIDTH)
    figures = []
    cache = settings.data_dir / "models"
    with (
        open_stages(settings.models_dir, cache, photos, embedder=settings.embedder) as stages,
        Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), transient=True) as bar,
    ):
        for part in chosen:
            task = bar.add_task(part, total=turns(part, effort))
            figures += PARTS[part](stages, effort, lambda done, task=task: bar.advance(task, done))  # type: ignore[misc]  # mypy can't infer a lambda's default
            bar.update(task, completed=turns(part, effort))
    report.show(figures, console)
    written = report.write(figures, out, chosen, asdict(effort))
    report.draw(figures, written.with_suffix(".svg"))
    console.print(f"Written to {written}")
