"""The photos that a command works on, and work on many at once, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from app.cli import output
from app.errors import FileMissing

Item = TypeVar("Item")
Result = TypeVar("Result")

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".heic", ".heif", ".avif", ".bmp", ".tif", ".tiff", ".gif"})
"""Files taken from folders. A file named on the command line is sent whatever its suffix."""


def collect(paths: Sequence[Path]) -> tuple[list[Path], int]:
    """Return the files named and the photos below the folders named, sorted by name, and how many paths are missing.

    A missing path is reported on standard error. Raises InvalidInput (``file_not_found``) where no photo is left.
    """
    files: list[Path] = []
    missing = [path for path in paths if not path.exists()]
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        elif path.exists():
            files.append(path)
    if not files:
        wrong = ", ".join(map(str, missing or paths))
        what = "no such file or folder" if missing else "no photos in it"
        raise FileMissing(f"{wrong}: {what}")
    for path in missing:
        output.complain(FileMissing("no such file or folder"), path)
    return files, len(missing)


def people(folder: Path) -> dict[str, list[Path]]:
    """Return the photos of each person: ``folder`` has one folder per person, and folders without photos are left out.

    Raises InvalidInput (``file_not_found``).
    """
    if not folder.is_dir():
        raise FileMissing(f"{folder}: no such folder")
    photos = {person.name: sorted(person.rglob("*")) for person in sorted(folder.iterdir()) if person.is_dir()}
    usable = {
        name: kept for name, files in photos.items() if (kept := [f for f in files if f.suffix.lower() in SUFFIXES])
    }
    if not usable:
        raise FileMissing(f"{folder}: no folders with photos in it")
    return usable


def each(
    work: Callable[[Item], Result], items: Sequence[Item], label: str, *, jobs: int
) -> Iterator[tuple[Item, Result]]:
    """Yield ``(item, work(item))`` in the items' order; ``jobs`` of them run at the same time."""
    with output.progress(label, len(items)) as update, ThreadPoolExecutor(jobs) as pool:
        for item, result in zip(items, pool.map(work, items), strict=True):
            update(advance=1)
            yield item, result
