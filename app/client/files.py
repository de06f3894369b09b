"""Files that are sent and received a piece at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

Tar: TypeAlias = bytes | os.PathLike[str] | Callable[[], Iterator[bytes]]
"""A tar's bytes, where the file lies, or what makes it, piece by piece, each time it is called."""
PIECE = 1024 * 1024


def tar_of(source: Tar) -> Callable[[], Iterator[bytes]]:
    """A tar's bytes, its file, or what makes it, as what makes it."""
    if isinstance(source, bytes):
        return lambda: iter([source])
    if callable(source):
        return source

    def pieces() -> Iterator[bytes]:
        with Path(source).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    return pieces
