"""Terminal output that all training commands share: errors and progress bars."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from app.errors import LikenessError


@contextmanager
def told(*also: type[Exception]) -> Iterator[None]:
    """Turn our own errors, and those listed in `also`, into one line and exit status 2. Under torchrun only the
    first rank prints it.
    """
    ours: tuple[type[Exception], ...] = (LikenessError, *also)
    try:
        yield
    except ours as error:
        if int(os.environ.get("RANK", "0")) == 0:
            code = f" ({error.code})" if isinstance(error, LikenessError) else ""
            Console(stderr=True).print(f"error: {error}{code}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from error


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar; the callback takes how many are done, and the total."""
    with _progress(what, None) as (progress, task):
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def counted(what: str, total: int | None, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; the callback takes how many more are done, from any thread."""
    with _progress(what, total, console) as (progress, task):
        yield lambda more: progress.advance(task, more)


@contextmanager
def _progress(what: str, total: int | None, console: Console | None = None) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar on a terminal only, by default on standard error."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task(what, total=total)
