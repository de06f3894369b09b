"""Files that are sent and received a piece at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias

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


@contextmanager
def draft_of(path: os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file for its owner alone, which is at ``path`` when it is whole."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
