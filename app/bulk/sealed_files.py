"""The files of jobs, encrypted from the first byte on with a key of their own."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from app.db.encryption import Sealer
from app.errors import InvalidInput, Unusable

PURPOSE = b"job file"
WAITING = 4
"""Pieces that may be queued for the disk."""


class SealedWriter:
    """Encrypts what is written to a new file, in a thread, and counts its size and SHA-256.

    Raises InvalidInput ``payload_too_large`` beyond `limit` bytes, Unusable ``upload_not_kept`` if the disk fails.
    """

    def __init__(self, path: Path, secret: bytes, limit: int | None = None) -> None:
        self.path = path
        self.secret = secret
        self._limit = limit
        self._queue: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self._error: OSError | None = None
        self._aborted = False
        self._digest = hashlib.sha256()
        self.size = 0
        self._file = _create(path)
        self._thread = threading.Thread(target=self._work, args=[Sealer([secret])], name="spool", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Write more content; wait if the disk is behind."""
        self.size += len(data)
        if self._limit is not None and self.size > self._limit:
            message = f"The upload is larger than {self._limit} bytes."
            raise InvalidInput(message, code="payload_too_large", limit=self._limit)
        if data:
            self._digest.update(data)
            self._queue.put(data)
        self._check()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def finish(self, target: Path | None = None) -> None:
        """Write the rest to the disk, and rename the file to `target` if given."""
        self._queue.put(None)
        self._thread.join()
        self._check()
        if target is not None:
            self.path.replace(target)

    def abort(self) -> None:
        """Stop writing and delete the file."""
        self._aborted = True
        self._queue.put(None)
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def _check(self) -> None:
        if self._error is not None:
            message = f"The upload can't be stored: {self._error.strerror or self._error}"
            raise Unusable(message, code="upload_not_kept")

    def _work(self, sealer: Sealer) -> None:
        with self._file as file:
            try:
                for piece in sealer.seal_stream(iter(self._queue.get, None), PURPOSE):
                    file.write(piece)
                if not self._aborted:
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                self._error = error
                with suppress(queue.Empty):
                    while self._queue.get() is not None:  # a writer must not block for ever
                        pass


def read_sealed(path: Path, sealer: Sealer) -> Iterator[bytes]:
    """Yield the content of a sealed file in pieces. Raises Unusable ``sealed_unreadable``, ``upload_missing``."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise Unusable("The job's file is no longer in this data folder.", code="upload_missing") from None
    with file:
        yield from sealer.open_stream(file, PURPOSE)


class PieceReader:
    """Reads an iterator of pieces as a file, forward only."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        parts: list[memoryview] = []
        while size:
            if not self._left:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._left = memoryview(piece)
                continue
            part, self._left = self._left[:size], self._left[size:]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _create(path: Path) -> BinaryIO:
    """Create a file that only its owner can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
