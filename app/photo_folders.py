"""Find the photos in folders, in the same way for commands, imports and training.

Only files count, even if a folder is named like a photo. Hidden files and folders are left out, and so are folders that
systems put beside photos: thumbnails, trash, resource forks.
"""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import TypeAlias

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".heic", ".heif", ".avif", ".bmp", ".tif", ".tiff", ".gif"})
SYSTEM = frozenset(
    {"@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "__macosx", "lost+found"}
)
"""Folders of Synology and QNAP, Windows, macOS and ext4, in lower case."""

Skip: TypeAlias = Callable[[Path, str], None]
"""Called with each folder that is left out, and why."""


def log_skipped(folder: Path, why: str) -> None:
    logging.getLogger(__name__).warning("%s: left out, %s", folder, why)


def is_skipped(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or made by a system."""
    return name.startswith(".") or name.lower() in SYSTEM


def is_photo(parts: Iterable[str]) -> bool:
    """Return whether a path, given as its parts, is that of a photo: its extension is, and nothing in it is skipped."""
    parts = tuple(parts)
    return PurePath(*parts).suffix.lower() in SUFFIXES and not any(map(is_skipped, parts))


def walk(folder: Path, skip: Skip = log_skipped) -> list[Path]:
    """Return the photos below a folder, sorted. Links to folders are followed, and each folder is entered once."""
    found: list[Path] = []
    seen = {_identity(folder)}

    def failed(error: OSError) -> None:
        skip(Path(error.filename), str(error.strerror))

    def is_new(path: Path) -> bool:
        identity = _identity(path)
        is_seen = identity in seen
        seen.add(identity)
        return not is_seen

    for here, folders, files in os.walk(folder, onerror=failed, followlinks=True):
        paths = [Path(here, name) for name in sorted(folders)]
        folders[:] = [path.name for path in paths if _is_entered(path, skip) and is_new(path)]
        found += [path for name in files if is_photo([name]) and (path := Path(here, name)).is_file()]
    return sorted(found)


def folders_of_people(folder: Path, skip: Skip = log_skipped) -> list[Path]:
    """Return the folders in a folder with one folder per person, in the order of their photos' paths."""
    inside = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: f"{path.name}/")
    return [path for path in inside if _is_entered(path, skip)]


def people(folder: Path, skip: Skip = log_skipped) -> dict[str, list[Path]]:
    """Return each person's photos; people without photos are left out.

    A person's name is that of the folder, composed (NFC): macOS and Linux write the same letters differently.
    """
    found: dict[str, list[Path]] = {}
    for person in folders_of_people(folder, skip):
        if photos := walk(person, skip):
            found.setdefault(unicodedata.normalize("NFC", person.name), []).extend(photos)
    return found


def _identity(folder: Path) -> tuple[int, int]:
    """Return a value that a folder shares with the links to it; for a missing folder, one that no folder has."""
    try:
        found = folder.stat()
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _is_entered(folder: Path, skip: Skip) -> bool:
    if is_skipped(folder.name):
        skip(folder, "a hidden folder or one of the system")
        return False
    return True
