"""What every command of training says to whoever started it: what went wrong, and how far it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
def counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the error channel, to be told how many more are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.advance(task, more)
