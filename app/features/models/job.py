"""Add model packages in jobs, which run `likeness models pull` or `likeness models add` in a process of its own.

A package may be a file of unknown origin, so the server doesn't open it before the child process has checked and added
it. The child has limits of memory and time, and is killed first if a container's memory runs out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from app.api.components import Components
from app.concurrency.overload import Why
from app.db.encryption import Sealer, new_key
from app.errors import InvalidInput, Unusable
from app.features.sealed_files import SealedWriter, read_sealed
from app.jobs.records import Job
from app.jobs.runner import Running
from app.jobs.store import new_job_id
from app.machine import limit_memory, memory_limit
from app.package.manifest import DEFAULT_MAX_BYTES
from app.wording import nearest_name

PULL, ADD = "pull_model", "add_model"
LONGEST_S: Final = 2 * 3600.0
"""Maximum seconds of a child process: a download may take an hour, and checking a file 15 minutes."""
LIST_S: Final = 60.0
LOOK_S: Final = 0.2
"""Seconds between checks whether the child has ended or the job was cancelled."""
UNPACKED: Final = ".model-"
"""Names of temporary folders in the data folder begin with this; an upload is unpacked in one."""
SAID_BYTES: Final = 1024**2
"""Maximum bytes of a child's output to read; a list of models takes about 10 kB."""


class ModelAdder:
    """Lists the models that can be pulled, and creates and runs the jobs that add packages. Safe to share between
    threads."""

    def __init__(self, core: Components, data_dir: Path, models_dir: Path) -> None:
        self._core = core
        self._data_dir = data_dir
        self._environment = {"LIKENESS_DATA_DIR": str(data_dir), "LIKENESS_MODELS_DIR": str(models_dir)}
        self._arriving = threading.Lock()
        self._lock = threading.Lock()
        self._known: list[dict[str, Any]] | None = None
        for stale in data_dir.glob(f"{UNPACKED}*"):  # left by a killed server
            if time.time() - stale.stat().st_mtime > LONGEST_S:
                shutil.rmtree(stale, ignore_errors=True)

    def known(self) -> Sequence[Mapping[str, Any]]:
        """Return the models that can be pulled, as `likeness models pull --json` prints them.

        Raises Unusable if the command fails.
        """
        with self._lock:
            if self._known is None:  # read only once, since the list is part of this version
                self._known = self._run(["pull"], LIST_S)
            return self._known

    def begin_pull(self, params: Mapping[str, Any], who: str) -> Job:
        """Create the job that pulls a model. Raises InvalidInput ``package_unknown`` for an unknown name."""
        name, installed = params["name"], self._core.embedders.packages().values()
        # an installed package may be pulled too, since its file may be missing
        if not any(package.manifest.name == name for package in installed):
            known = sorted(model["name"] for model in self.known())
            if name not in known:
                nearest = nearest_name(name, known)
                meant = f" Did you mean {nearest}?" if nearest else ""
                message = f"There is no model {name!r} to pull.{meant} There are: {', '.join(known)}."
                raise InvalidInput(message, code="package_unknown", package=name, known=known)
        return self._core.jobs.create(PULL, None, params, who=who, place=self._core.files.place)

    def receive(self, who: str) -> SealedWriter:
        """Begin to receive an upload: return the encrypted file to write it to. Call `end_upload` afterwards.

        Raises Overloaded while another upload arrives, or while one of the same API key waits for its job; Unusable
        ``upload_not_kept``.
        """
        if self._core.jobs.unfinished(ADD, who) or not self._arriving.acquire(blocking=False):
            raise Why.UPLOADS.error()
        try:
            most = min(self._core.limits.upload_bytes, DEFAULT_MAX_BYTES)
            return SealedWriter(self._core.files.draft(), new_key(), most)
        except OSError as error:
            self.end_upload()
            raise Unusable(f"The upload can't be stored: {error.strerror}", code="upload_not_kept") from None

    def end_upload(self) -> None:
        """Note that the upload has arrived or failed."""
        self._arriving.release()

    def begin_add(self, params: Mapping[str, Any], upload: SealedWriter, who: str) -> Job:
        """Create the job that adds the uploaded file. Raises InvalidInput ``empty_upload``."""
        if not upload.size:
            raise InvalidInput("The upload is empty.", code="empty_upload")
        job_id = new_job_id()
        target = self._core.files.upload(job_id)
        upload.finish(target)
        place = self._core.files.place
        try:
            return self._core.jobs.create(ADD, None, params, who=who, place=place, secret=upload.secret, job_id=job_id)
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def pull(self, job: Running) -> None:
        """Run a job of kind PULL. Raises Unusable with the codes of `likeness models pull`."""
        words = ["pull", job.params["name"]]
        if job.params["accept_non_commercial"]:
            words.append("--accept-non-commercial")
        if job.params["sha256"]:
            words += ["--sha256", job.params["sha256"]]
        self._do(job, words)

    def add(self, job: Running) -> None:
        """Run a job of kind ADD. Raises Unusable with the codes of `likeness models add`."""
        with tempfile.TemporaryDirectory(prefix=UNPACKED, dir=self._data_dir) as folder:
            file = Path(folder) / "upload"
            with file.open("wb") as written:
                sealed = read_sealed(self._core.files.upload(job.job.id), Sealer([job.secret]))
                written.writelines(sealed)
            words = ["add", str(file)]
            given = ((name, job.params[name]) for name in ("name", "licence", "preset"))
            words += [f"--{name}={value}" for name, value in given if value]
            if job.params["non_commercial"]:
                words.append("--non-commercial")
            try:
                self._do(job, words, folder)
            except Unusable as error:  # the message must not contain the server's path of the file
                message = re.sub(re.escape(folder) + r"/(?:tmp\w+/)?", "", error.message)
                raise Unusable(message, code=error.code) from None

    def _do(self, job: Running, words: Sequence[str], temporary: str | None = None) -> None:
        job.progress(0, 1)
        self._run(words, LONGEST_S, lambda: job.cancelled, temporary)
        if not job.cancelled:
            job.counts["added"] = 1
            job.progress(1)
            job.checkpoint({})

    def _run(
        self,
        words: Sequence[str],
        seconds: float,
        ends: Callable[[], bool] = lambda: False,
        temporary: str | None = None,
    ) -> list[dict[str, Any]]:
        """Run `likeness models` with these arguments; return the lines of JSON that it prints, none if ``ends`` stops
        it.

        The command unpacks into the folder ``temporary``, where files stay if it is killed. Raises Unusable with the
        command's code, ``model_too_slow`` after ``seconds``, ``model_check_failed`` if the process died.
        """
        command = [sys.executable, "-m", "app", "models", *words, "--json"]
        path = os.pathsep.join(filter(None, sys.path))
        environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | self._environment
        environment |= {"TMPDIR": temporary} if temporary else {}
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
            child = subprocess.Popen(  # noqa: S603 - runs this interpreter; no argument can be taken for an option
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
                env=environment,
                start_new_session=True,
            )
            try:
                limit_memory(memory_limit(), child.pid)
                code = _wait(child, time.monotonic() + seconds, ends)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # also the child's own children
                child.wait()
            if code == 0:
                return _lines(said)
            if ends():
                return []
            raise _failure(code, _lines(complained), seconds)


def _wait(child: subprocess.Popen[bytes], until: float, ends: Callable[[], bool]) -> int | None:
    """Wait for the child until the time ``until`` or until ``ends`` returns True; return its exit code, None if it
    still runs."""
    while time.monotonic() < until and not ends():
        with suppress(subprocess.TimeoutExpired):
            return child.wait(LOOK_S)
    return child.poll()


def _lines(file: IO[bytes]) -> list[dict[str, Any]]:
    """Return the file's lines that are JSON objects; others are skipped."""
    file.seek(0)
    found = []
    for line in file.read(SAID_BYTES).splitlines():
        with suppress(ValueError):
            if isinstance(value := json.loads(line), dict):
                found.append(value)
    return found


def _failure(code: int | None, complaints: Sequence[Mapping[str, Any]], seconds: float) -> Unusable:
    if code is None:
        message = f"The model was not added within {seconds:g} s, so its process was ended."
        return Unusable(message, code="model_too_slow", seconds=seconds)
    for complaint in reversed(complaints):
        if isinstance(error := complaint.get("error"), dict) and {"code", "message"} <= error.keys():
            return Unusable(str(error["message"]), code=str(error["code"]))
    message = f"The process that added the model ended with code {code}; it may need more memory."
    return Unusable(message, code="model_check_failed")
