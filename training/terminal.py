"""What every command of training says to whoever started it: what went wrong, and how far it is."""

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
    """Our own errors, and those of `also`, end the command with a line and status 2. Of torchrun's ranks the first one
    says it."""
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
    """On the error channel; to be told how many are done, and of how many."""
    with _progress(what, None) as (progress, task):
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """As `bar`; to be told how many more are done, from any thread."""
    with _progress(what, total) as (progress, task):
        yield lambda more: progress.advance(task, more)


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        yield progress, progress.add_task(what, total=total)
