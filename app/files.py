"""Write files that appear whole or not at all, and read facts about files."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

DRAFT = ".draft"
PRIVATE, PUBLIC = 0o600, 0o644
"""Permissions: only for the owner, and readable by everyone."""
LAST_BACKUP = "last_backup"
"""An empty file in the data folder whose time is that of the last backup; every backup touches it."""


@contextmanager
def replacing(
    path: Path, mode: int = PRIVATE, *, draft: Path | None = None, durable: bool = True
) -> Iterator[BufferedRandom]:
    """Open a file for writing and reading that replaces `path` if the block ends without an error.

    Until then, and after an error or a crash, readers see the old file. The content is written to `draft`, in the
    same folder, by default with a random name that starts with a dot; an existing draft is overwritten. With
    `durable` the content and its name are on the disk when the block has ended. Raises OSError.
    """
    draft = draft or _random_draft(path)
    try:
        with _open_draft(draft, mode, durable=durable) as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def write_new(path: Path, content: bytes, mode: int = PRIVATE) -> bool:
    """Create a file with this content, on the disk, unless it exists; return whether it was created. Raises OSError.

    If several processes call it at the same time, one creates the file, and the others see its whole content.
    """
    draft = _random_draft(path)
    try:
        with _open_draft(draft, mode, durable=True) as file:
            file.write(content)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


@contextmanager
def _open_draft(draft: Path, mode: int, *, durable: bool) -> Iterator[BufferedRandom]:
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(handle, "w+b") as file:
            os.fchmod(handle, mode)  # whatever the umask is
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
    except OSError as error:
        error.filename = error.filename or str(draft.parent)  # the error of a full disk names no file
        raise


def _random_draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def sync_folder(folder: Path) -> None:
    """Write the folder's names to the disk, since a power loss may otherwise lose a new name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sqlite_url(path: Path) -> str:
    """Return the database URL of a SQLite file; `%`, `?` and `#`, which mean something else in a URL, are escaped."""
    return "sqlite:///" + re.sub("[%?#]", lambda found: quote(found[0]), str(path))


def delimiter_of(table: TextIO) -> str:
    """Return the delimiter of a CSV, by its first line: Excel writes semicolons in half of Europe."""
    first = table.readline()
    table.seek(0)
    return max(",;\t", key=first.count)


def read_regular(path: Path) -> bytes:
    """Return a regular file's content. Raises OSError, also for a pipe, which would block the reader for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        return file.read()
