"""Files that are sent and received in pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

Tar: TypeAlias = bytes | os.PathLike[str] | Callable[[], Iterator[bytes]]
"""The bytes of a tar, its path, or a callable that yields it in pieces each time it is called."""
PIECE = 1024 * 1024


def tar_of(source: Tar) -> Callable[[], Iterator[bytes]]:
    """Return a callable that yields the tar in pieces, whatever form it came in."""
    if isinstance(source, bytes):
        return lambda: iter([source])
    if callable(source):
        return source

    def pieces() -> Iterator[bytes]:
        with Path(source).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    return pieces
