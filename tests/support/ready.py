"""Prepare models and an empty database, as a first start does, once for all the processes of a test run.

The first start itself is tested by tests/models/test_prepare.py, tests/db/test_migrations.py and
tests/server/test_start.py, which use nothing of this.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from app.config import Settings
from app.db.engine import Database
from app.inference import session
from app.models.prepare import prepared
from app.package.folders import OWN_FOLDER, load_package
from app.server import models

MODELS = Path(__file__).resolve().parents[2] / "models"
PACKAGES = ("yunet", "sface")
"""The packages that a server opens by default."""
REMEMBERED_BYTES = 64 * 2**20
"""The most bytes of answers that are kept for each model."""
VARIABLE = "TEST_READY_MODELS"
"""The environment variable with the folder, for the workers of pytest-xdist and the processes they start."""
of_models = attrgetter(
    *("models_dir", "detector", "embedder", "device", "detect_device", "min_face"),
    *("detect_threads", "embed_threads", "gpu_memory_mib", "gpu_math"),
)
"""The settings that `open_models` reads."""


def begin() -> None:
    """Create the folder; called before the workers start."""
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix="likeness-ready-")


def end() -> None:
    """Delete the folder; called when the workers have ended."""
    shutil.rmtree(os.environ.pop(VARIABLE))


@functools.cache
def ready(name: str) -> Path:
    """Return the prepared file of one of the project's packages for the CPU. Do not change it."""
    with _locked(name) as folder:
        return prepared(load_package(MODELS / name), folder, "cpu")


@functools.cache
def first_database() -> Path:
    """Return an SQLite database as its first opening leaves it. Copy it, do not open it."""
    with _locked("database") as folder:
        path = folder / "likeness.db"
        Database(f"sqlite:///{path}").close()
        return path


@contextmanager
def _locked(name: str) -> Iterator[Path]:
    folder = Path(os.environ[VARIABLE])
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def give_models(data_dir: Path) -> None:
    """Create the data folder as a server would, with the prepared models. Does nothing outside pytest."""
    if VARIABLE not in os.environ:
        return
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fill_cache(data_dir / "models")


def give_database(data_dir: Path) -> None:
    """Put an empty database into a data folder that has none. Does nothing outside pytest."""
    if VARIABLE in os.environ and not (path := data_dir / "likeness.db").exists():
        shutil.copy(first_database(), path)


def open_models(settings: Settings) -> models.Models:
    """Open models as the server's `open_models` does, but share the project's between all services of this process.

    Opening them is most of a start.
    """
    default = _opened()
    if of_models(settings) != of_models(default.settings) or (settings.data_dir / OWN_FOLDER).exists():
        return models.open_models(settings)
    return replace(default, settings=settings)


@functools.cache
def _opened() -> models.Models:
    folder = Path(os.environ[VARIABLE]) / "data"
    give_models(folder)
    with remembering():
        return models.open_models(Settings(data_dir=folder))


def remembering() -> AbstractContextManager[object]:
    """Let models that are opened in the block remember their answers."""
    return patch.object(session, "_open", lambda *given, **options: Remembering(_open_session(*given, **options)))


_open_session = session._open


class Remembering:
    """A session of ONNX Runtime that remembers its answers: tests send the same few photos again and again."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self._known: OrderedDict[tuple[Any, ...], list[NDArray[np.generic]]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def run(self, names: None, feed: dict[str, NDArray[np.generic]], options: Any = None) -> list[NDArray[np.generic]]:
        digests = [sha256(np.ascontiguousarray(items).data).digest() for items in feed.values()]
        key = (*digests, *((items.shape, items.dtype.str) for items in feed.values()))
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = self._opened.run(names, feed, options)
            with self._lock:
                if key not in self._known:
                    self._bytes += sum(output.nbytes for output in known)
                    self._known[key] = known
                while self._bytes > REMEMBERED_BYTES:
                    _, oldest = self._known.popitem(last=False)
                    self._bytes -= sum(output.nbytes for output in oldest)
        return [output.copy() for output in known]


def fill_cache(folder: Path) -> None:
    """Put the prepared models into a folder, for commands and functions that take one."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in map(ready, PACKAGES):
        if not (folder / file.name).exists():
            _link(file, folder / file.name)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another disk
        shutil.copyfile(source, target)
