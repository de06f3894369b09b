"""The folder of a new model package: made with its file, and gone again if adding fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import Unusable
from app.files import PUBLIC, replacing
from app.inference.manifest import FileSource


def free_folder(models_dir: Path, name: str) -> Path:
    """Return where a package of that name goes. Raises Unusable ``package_exists``."""
    folder = models_dir / name
    if folder.exists():
        raise Unusable(f"{folder} exists already: remove it first.", code="package_exists", folder=str(folder))
    return folder


@contextmanager
def holding(file: Path, folder: Path) -> Iterator[None]:
    """Make the folder with a copy of the model's file; both are removed if the block fails."""
    try:
        folder.mkdir(parents=True)
        with replacing(folder / FileSource().path, PUBLIC) as copy:
            copy.write(file.read_bytes())
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
