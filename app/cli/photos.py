"""Collect the photos that a command works on, and work on several at a time, with a progress bar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from app import photo_folders
from app.cli import output
from app.errors import FileMissing

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Matches a URL that was made a path, which keeps only one of its slashes."""
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def skipped(folder: Path, why: str) -> None:
    """Print that a folder is left out."""
    output.warn(f"{folder}: left out, {why}")


def collect(paths: Sequence[Path]) -> tuple[list[Path], int]:
    """Return the named files and the photos below the named folders, sorted by name, and how many paths are missing.

    A named file is sent even if its extension isn't a photo's.
    A missing path is reported on standard error. Raises InvalidInput (``file_not_found``) if no photo is left.
    """
    files: list[Path] = []
    missing = [path for path in paths if not path.exists()]
    for path in paths:
        if path.is_dir():
            files += photo_folders.walk(path, skipped)
        elif path.exists():
            files.append(path)
    if not files:
        wrong = ", ".join(map(str, missing or paths))
        raise FileMissing(f"{wrong}: {missing_file(missing[0]) if missing else 'no photos in it'}")
    for path in missing:
        output.complain(FileMissing(missing_file(path)), path)
    return files, len(missing)


def missing_file(path: Path) -> str:
    """Return the message about a missing path."""
    if _ADDRESS.match(str(path)):
        return "an address, and nothing is fetched: download the photo, and name its file"
    return "no such file or folder"


def people(folder: Path) -> dict[str, list[Path]]:
    """Return the photos of each person: ``folder`` has one folder per person, and folders without photos are left out.

    Raises InvalidInput (``file_not_found``).
    """
    if not folder.is_dir():
        raise FileMissing(f"{folder}: no such folder")
    found = photo_folders.people(folder, skipped)
    if not found:
        raise FileMissing(f"{folder}: no folders with photos in it")
    return found


def in_parallel(
    work: Callable[[ItemT], ResultT], items: Sequence[ItemT], label: str, *, jobs: int
) -> Iterator[tuple[ItemT, ResultT]]:
    """Yield ``(item, work(item))`` in the items' order; ``jobs`` calls run at the same time."""
    with output.progress(label, len(items)) as update, ThreadPoolExecutor(jobs) as pool:
        for item, result in zip(items, pool.map(work, items), strict=True):
            update(advance=1)
            yield item, result
