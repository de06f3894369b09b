"""One process a data folder: a second one would answer from an index that does not follow the first one's changes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import Unusable

LOCK_FILE = "server.lock"


@contextmanager
def claim(data_dir: Path, url: str = "") -> Iterator[None]:
    """Holds the data folder; ``url`` tells others on this machine where the holder answers.

    The lock is the kernel's and goes with the process, however it ends. Raises Unusable (``data_dir_in_use``).
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = (data_dir / LOCK_FILE).read_text() or "another command"
            message = f"{data_dir} is in use by {holder}: stop it, or give this one another LIKENESS_DATA_DIR"
            raise Unusable(message, code="data_dir_in_use") from None
        os.ftruncate(handle, 0)
        os.write(handle, url.encode())
        yield
    finally:
        os.close(handle)


def running_at(data_dir: Path) -> str | None:
    """The URL of the server that holds the data folder; None where none does, or where it is a passing command."""
    try:
        handle = os.open(data_dir / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return (data_dir / LOCK_FILE).read_text() or None
    else:
        return None
    finally:
        os.close(handle)
