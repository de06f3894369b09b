"""Which files a command works on, and doing it to many at once with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.errors import FileMissing

Item = TypeVar("Item")
Result = TypeVar("Result")

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
"""What is picked from folders; a file named on the command line is sent whatever it is called."""


def collect(paths: Iterable[Path]) -> list[Path]:
    """The files named, and every photo below the folders named, in order of their names."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise FileMissing(f"{path}: no such file or folder")
    if not found:
        raise FileMissing("no photos there")
    return found


def people(folder: Path) -> dict[str, list[Path]]:
    """A folder with one folder a person: name of the folder -> its photos; people without photos are left out."""
    if not folder.is_dir():
        raise FileMissing(f"{folder}: no such folder")
    photos = {person.name: sorted(person.rglob("*")) for person in sorted(folder.iterdir()) if person.is_dir()}
    found = {
        name: kept for name, files in photos.items() if (kept := [f for f in files if f.suffix.lower() in SUFFIXES])
    }
    if not found:
        raise FileMissing(f"{folder}: no folders with photos in it")
    return found


@contextmanager
def progress(total: int, label: str) -> Iterator[Callable[[], None]]:
    """A bar on the error output, where that is a terminal and there is more than one thing to do."""
    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=total < 2 or not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def each(
    work: Callable[[Item], Result], items: Sequence[Item], label: str, *, jobs: int
) -> Iterator[tuple[Item, Result]]:
    """``work`` over ``items``, ``jobs`` at a time, yielded in the items' order."""
    with progress(len(items), label) as done, ThreadPoolExecutor(jobs) as pool:
        for item, result in zip(items, pool.map(work, items), strict=True):
            done()
            yield item, result
