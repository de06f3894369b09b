"""Check whether a result can be written before the work that makes it."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def check_writable(path: Path | None) -> None:
    """Raise OSError unless a file can be written at ``path``. Call it before the work that makes the file."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    place = path if path.exists() else path.parent
    if not place.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
