"""Terminal output that all training commands share: errors and progress bars."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from app.errors import LikenessError

LINE_S = 30.0
"""Seconds between lines of progress if there is no terminal."""


class Advance(Protocol):
    """Counts finished items; the second number is the total."""

    def __call__(self, more: int, total: int | None = None, /) -> None: ...


@contextmanager
def told(*also: type[Exception]) -> Iterator[None]:
    """Turn our own errors, those of files, and those in `also` into one line and exit status 2. Under torchrun only the
    first rank prints it."""
    ours: tuple[type[Exception], ...] = (LikenessError, OSError, *also)
    try:
        yield
    except ours as error:
        if int(os.environ.get("RANK", "0")) == 0:
            code = f" ({error.code})" if isinstance(error, LikenessError) else ""
            Console(stderr=True).print(f"error: {error}{code}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from error


@contextmanager
def counted(what: str, total: int | None = None, console: Console | None = None) -> Iterator[Advance]:
    """Show a progress bar, by default on standard error; without a terminal, as in a log file, print a line every
    `LINE_S` seconds.

    The callback takes the number of items done since its last call, from any thread, and the total once it is known.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        due = math.inf if console.is_terminal else time.monotonic() + LINE_S

        def advance(more: int, total: int | None = None) -> None:
            nonlocal due
            progress.update(task, advance=more, total=total)
            if time.monotonic() >= due:
                due = time.monotonic() + LINE_S
                now = progress.tasks[0]
                of = "" if now.total is None else f" of {now.total:.0f}"
                console.print(f"{what}: {now.completed:.0f}{of}", soft_wrap=True)

        yield advance
