"""The files of jobs in the data folder: their uploads and results.

They are encrypted with keys that only the jobs' rows hold: when a row is deleted, nobody can read its files.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.db.encryption import Sealer
from app.errors import InvalidInput, Unusable
from app.files import PRIVATE, write_new

PURPOSE = b"job file"
PLACE = "place"
DRAFT_S = 3600.0
"""Files written to more recently, in seconds, are kept: their job may be about to be created."""
UPLOAD, RESULT, DRAFT = ".upload", ".result", ".draft"


class JobFiles:
    """The files of one folder; ``place`` is the folder's random name, which jobs carry whose files are here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = secrets.token_hex(16)
        self._make()
        self.place = (folder / PLACE).read_text(encoding="ascii")

    def _make(self) -> Path:
        """Return the folder, which is made if it is missing, also if somebody deleted it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._folder / PLACE).exists():
            write_new(self._folder / PLACE, self.place.encode())
        return self._folder

    def upload(self, job_id: str) -> Path:
        return self._make() / (job_id + UPLOAD)

    def result(self, job_id: str) -> Path:
        return self._make() / (job_id + RESULT)

    def upload_bytes(self, job_id: str) -> int:
        """Return the size of the job's upload; 0 if it is not here."""
        try:
            return self.upload(job_id).stat().st_size
        except FileNotFoundError:
            return 0

    def draft(self) -> Path:
        return self._make() / (secrets.token_hex(16) + DRAFT)

    def keep_only(self, in_use: Callable[[], tuple[set[str], set[str]]]) -> None:
        """Delete the files older than DRAFT_S that no job needs: uploads of finished jobs, results of deleted jobs,
        drafts of killed processes. `in_use` is `JobStore.with_files`."""
        old = [path for path in self._make().iterdir() if path.name != PLACE and _age_s(path) > DRAFT_S]
        if not old:
            return
        unfinished, with_result = in_use()
        for path in old:
            needed = path.suffix != DRAFT and path.stem in unfinished
            if not needed and not (path.suffix == RESULT and path.stem in with_result):
                path.unlink(missing_ok=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


class SealedWriter:
    """Encrypts what is written to a new file that only its owner can read, and counts its size and SHA-256.

    Raises InvalidInput ``payload_too_large`` beyond `limit` bytes, Unusable ``upload_not_kept`` if the disk fails.
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
