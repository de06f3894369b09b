"""Write model packages, and locate the files that their manifests name."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import Unusable
from app.files import DRAFT, PUBLIC, replacing
from app.package.folders import MANIFEST_NAME, OwnCalibrations, Package
from app.package.golden import record
from app.package.manifest import Calibration, CarrierSource, FileSource, Manifest, Tensor, UrlSource
from app.types import Pixels, Vectors


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write ``folder/manifest.json`` atomically: readers see the old or the new file. Creates the folder; returns the
    path."""
    path = folder / MANIFEST_NAME
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path, PUBLIC) as file:
        file.write(manifest.model_dump_json(indent=2).encode() + b"\n")
    return path


def locate(package: Package, cache_dir: Path) -> Path:
    """Return the package's model file after checking its hash.

    Raises Unusable: package_file_missing, package_hash_mismatch.
    """
    path = source_path(package, cache_dir)
    if not path.is_file():
        message = f"The model file of {package.id} is not at {path}. {_remedy(package)}"
        raise Unusable(message, code="package_file_missing", package=package.id, path=str(path))
    if (digest := sha256_of(path)) != package.manifest.sha256:
        message = f"{path} is not the file that {package.id} names. {_remedy(package)} (SHA-256 {digest})"
        details = {"package": package.id, "expected": package.manifest.sha256, "found": digest}
        raise Unusable(message, code="package_hash_mismatch", **details)
    return path


def source_path(package: Package, cache_dir: Path) -> Path:
    """Return the path of a package's model file, even if it is not downloaded yet. Raises Unusable
    ``package_file_missing`` if the file is in a Python package that is not installed."""
    source = package.manifest.source
    if isinstance(source, FileSource):
        return package.folder / source.path
    if isinstance(source, UrlSource):
        return cache_dir / f"{package.id}-{package.manifest.sha256[:16]}.onnx"
    spec = importlib.util.find_spec(source.module)  # this finds a top-level package without importing it
    if spec is None or not spec.submodule_search_locations:
        message = (
            f"{package.id} lies in the Python package {source.distribution}, which is not here. {_remedy(package)}"
        )
        raise Unusable(message, code="package_file_missing", package=package.id)
    return Path(next(iter(spec.submodule_search_locations))) / source.path


def _remedy(package: Package) -> str:
    source = package.manifest.source
    if isinstance(source, UrlSource):
        return f"Fetch it with: likeness models pull {package.id}"
    if isinstance(source, CarrierSource):
        return f"Install it with: pip install --force-reinstall -c constraints.txt {source.distribution}"
    return "Put the right file there, or correct the manifest."


def write_own(path: Path, calibrations: OwnCalibrations) -> None:
    """Write a package's own calibrations atomically. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, PUBLIC) as file:
        file.write(calibrations.model_dump_json(indent=2).encode() + b"\n")


def added(calibrations: OwnCalibrations, new: Calibration, *, deciding: bool) -> OwnCalibrations:
    """Return the calibrations with ``new`` added, in place of one with the same name. With ``deciding``, ``new`` is the
    one that decides."""
    kept = [calibration for calibration in calibrations.calibrations if calibration.name != new.name]
    chosen = new.name if deciding else calibrations.deciding
    return OwnCalibrations(deciding=chosen, calibrations=(*kept, new.model_copy(update={"default": False})))


def without(calibrations: OwnCalibrations, name: str) -> OwnCalibrations:
    """Return the calibrations without the one with this name. If it decided, the manifest's default decides again."""
    kept = tuple(calibration for calibration in calibrations.calibrations if calibration.name != name)
    return OwnCalibrations(deciding=None if calibrations.deciding == name else calibrations.deciding, calibrations=kept)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty draft of a folder, which is renamed to ``path`` when the block ends without an error.

    After an error, or if the process is killed, ``path`` doesn't exist. The draft's name begins with a dot, and the
    next call in the same parent folder removes it. Only one call at a time makes a folder there; others wait. Raises
    OSError, FileExistsError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)
        for stale in path.parent.glob(f".*{DRAFT}"):
            shutil.rmtree(stale, ignore_errors=True)
        draft = path.with_name(f".{path.name}{DRAFT}")
        draft.mkdir()
        try:
            yield draft
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            draft.rename(path)
            os.fsync(parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        os.close(parent)


def contract_output(dimension: int) -> Tensor:
    """Return the description of every embedder's output: (N, D) float32, each row of length 1."""
    return Tensor(shape=("N", dimension), dtype="float32", meaning="unit vectors")


def with_golden(manifest: Manifest, run: Callable[[Pixels], Vectors]) -> Manifest:
    """Return the manifest with golden vectors: its own, or new ones that ``run`` computes. The operating points hold
    only for templates that agree with the golden vectors."""
    return manifest if manifest.golden else manifest.model_copy(update={"golden": record(run)})


def sha256_of(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
