"""The project's models, prepared once for all the processes of a test run: each new data folder would prepare its own.

What a first start itself does is the subject of tests/inference/test_prepare.py and tests/server/test_start.py,
which give nothing away.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

from app.inference.package import load_package
from app.inference.prepare import prepared

MODELS = Path(__file__).resolve().parents[2] / "models"
PACKAGES = ("yunet", "sface")
"""Those that a server opens unless it is told otherwise."""
VARIABLE = "TEST_READY_MODELS"
"""Names the folder to the workers of pytest-xdist, and to whatever they start."""


def begin() -> None:
    """Before the workers start."""
    os.environ[VARIABLE] = tempfile.mkdtemp(prefix="likeness-ready-")


def end() -> None:
    """Once the workers have ended."""
    shutil.rmtree(os.environ.pop(VARIABLE))


@functools.cache
def ready(name: str) -> Path:
    """The file to run for one of the project's packages on the CPU, to be read only."""
    folder = Path(os.environ[VARIABLE])
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return prepared(load_package(MODELS / name), folder, "cpu")


def give_models(data_dir: Path) -> None:
    """Puts what a server would prepare first into its data folder, which is made as the server would; under pytest."""
    if VARIABLE not in os.environ:
        return
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fill_cache(data_dir / "models")


def fill_cache(folder: Path) -> None:
    """Puts the prepared models into a folder, where commands and functions are told of one."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in map(ready, PACKAGES):
        if not (folder / file.name).exists():
            _link(file, folder / file.name)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another disk
        shutil.copyfile(source, target)
