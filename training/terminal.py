"""Terminal output that all training commands share: errors and progress bars."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from app.errors import LikenessError

LINE_S = 30.0
"""Between lines of progress where there is no terminal."""


@contextmanager
def told(*also: type[Exception]) -> Iterator[None]:
    """Turn our own errors, those of files, and those listed in `also`, into one line and exit status 2. Under torchrun
    only the first rank prints it."""
    ours: tuple[type[Exception], ...] = (LikenessError, OSError, *also)
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

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            say(progress.tasks[0])

        say = _Lines(progress)
        yield update


@contextmanager
def counted(what: str, total: int | None, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; the callback takes how many more are done, from any thread."""
    with _progress(what, total, console) as (progress, task):

        def advance(more: int) -> None:
            progress.advance(task, more)
            say(progress.tasks[0])

        say = _Lines(progress)
        yield advance


class _Lines:
    """Prints a line every `LINE_S` seconds where no bar can be shown, as in a log file."""

    def __init__(self, progress: Progress) -> None:
        self._console = progress.console
        self._next = math.inf if progress.console.is_terminal else time.monotonic() + LINE_S

    def __call__(self, task: Task) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_S
            total = "" if task.total is None else f" of {task.total:.0f}"
            self._console.print(f"{task.description}: {task.completed:.0f}{total}", soft_wrap=True)


@contextmanager
def _progress(what: str, total: int | None, console: Console | None = None) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar on a terminal only, by default on standard error."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task(what, total=total)
