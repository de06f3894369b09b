"""Keep the files of jobs in the data folder: their uploads and results.

They are encrypted with keys that only the jobs' rows hold: after a row is deleted, its files are unreadable.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from app.files import write_new

PLACE = "place"
"""File with the folder's random name."""
DRAFT_S = 3600.0
"""Files written to within these seconds are kept, since their job may be about to be created."""
UPLOAD, RESULT, DRAFT = ".upload", ".result", ".draft"


class JobFiles:
    """The files of one folder. ``place`` is the folder's random name, which the jobs with files here carry."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = secrets.token_hex(16)
        self._make()
        self.place = (folder / PLACE).read_text(encoding="ascii")

    def _make(self) -> Path:
        """Return the folder; make it if it is missing or was deleted."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._folder / PLACE).exists():
            write_new(self._folder / PLACE, self.place.encode())
        return self._folder

    def upload(self, job_id: str) -> Path:
        return self._make() / (job_id + UPLOAD)

    def result(self, job_id: str) -> Path:
        return self._make() / (job_id + RESULT)

    def upload_bytes(self, job_id: str) -> int:
        """Return the size of the job's upload, 0 if it isn't here."""
        try:
            return self.upload(job_id).stat().st_size
        except FileNotFoundError:
            return 0

    def draft(self) -> Path:
        return self._make() / (secrets.token_hex(16) + DRAFT)

    def keep_only(self, in_use: Callable[[], tuple[set[str], set[str]]]) -> None:
        """Delete files older than DRAFT_S that no job needs: uploads of finished jobs, results of deleted jobs, drafts
        of killed processes. `in_use` is `JobStore.with_files`."""
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
