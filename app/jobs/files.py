"""The files of jobs in the data folder: what was uploaded for them, and what they have left to be fetched.

They are sealed with keys that are in the jobs' rows alone: a row that goes takes the content with it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from app.files import write_new

PLACE = "place"
DRAFT_S = 3600.0
"""What was written to more lately is left alone: its job may be about to be made."""
UPLOAD, RESULT, DRAFT = ".upload", ".result", ".draft"


class JobFiles:
    """One folder; ``place`` is its own name, by which jobs say that their files are here."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        path = folder / PLACE
        if not path.exists():
            write_new(path, secrets.token_hex(16).encode())
        self.place = path.read_text(encoding="ascii")

    def upload(self, job_id: str) -> Path:
        """Where the upload of a job is."""
        return self._folder / (job_id + UPLOAD)

    def result(self, job_id: str) -> Path:
        """Where the result of a job is."""
        return self._folder / (job_id + RESULT)

    def draft(self) -> Path:
        """A name for what is being written."""
        return self._folder / (secrets.token_hex(16) + DRAFT)

    def keep_only(self, in_use: Callable[[], tuple[set[str], set[str]]]) -> None:
        """Removes what nobody has written to for DRAFT_S and no job needs: uploads of jobs that have finished, results
        of jobs that are gone, drafts that a killed process left. `in_use`: see `JobStore.with_files`."""
        old = [path for path in self._folder.iterdir() if path.name != PLACE and _age_s(path) > DRAFT_S]
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
