"""Read and write the uploads and results of jobs, each encrypted with a key that only the job's row contains."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.db.encryption import Sealer
from app.errors import InvalidInput, Unusable
from app.files import PRIVATE

PURPOSE = b"job file"
EXPORT = "export"
"""Kind of the jobs whose result contains a whole gallery. Such a job starts over if it is interrupted."""


class SealedWriter:
    """Writes a new encrypted file that only its owner can read, and computes the size and SHA-256 of the content.

    Raises InvalidInput ``payload_too_large`` for more than `limit` bytes, Unusable ``upload_not_kept`` if the disk
    fails or is full.
    """

    def __init__(self, path: Path, secret: bytes, limit: int | None = None) -> None:
        self.path = path
        self.secret = secret
        self.size = 0
        self._limit = limit
        self._digest = hashlib.sha256()
        self._sealing = Sealer([secret]).stream(PURPOSE)
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE), "wb")
        self._file.write(self._sealing.header)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Encrypt and write the data. Raises what the class's docstring lists."""
        self.size += len(data)
        if self._limit is not None and self.size > self._limit:
            message = f"The upload is larger than {self._limit} bytes."
            raise InvalidInput(message, code="payload_too_large", limit=self._limit)
        self._digest.update(data)
        with _kept():
            self._file.writelines(self._sealing.add(data))

    def finish(self, target: Path | None = None) -> None:
        """Write the rest to the disk, and rename the file to `target` if given."""
        with _kept(), self._file:
            self._file.write(self._sealing.end())
            self._file.flush()
            os.fsync(self._file.fileno())
        if target is not None:
            self.path.replace(target)

    def abort(self) -> None:
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"The upload can't be stored: {error.strerror or error}"
        raise Unusable(message, code="upload_not_kept") from None


def read_sealed(path: Path, sealer: Sealer) -> Iterator[bytes]:
    """Yield the content of a sealed file in pieces. Raises Unusable ``sealed_unreadable``, ``upload_missing``."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise Unusable("The job's file is no longer in this data folder.", code="upload_missing") from None
    with file:
        yield from sealer.open_stream(file, PURPOSE)
