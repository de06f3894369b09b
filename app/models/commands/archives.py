"""Read a model package from one file, the tar of its folder. The file may be of unknown origin."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from app.errors import InvalidInput, Unusable
from app.features import tar_stream
from app.package.folders import MANIFEST_NAME, load_package
from app.package.manifest import DEFAULT_MAX_BYTES, FileSource, Manifest

GZIP, USTAR = tar_stream.GZIP_MAGIC, b"ustar"
USTAR_PLACE: Final = 257
"""Offset of `ustar` in a tar's first header (POSIX.1-1988)."""
MANIFEST_BYTES: Final = 4 * 1024**2
"""Maximum bytes of a manifest; a manifest with all its cards has about 60 kB."""
PIECE_BYTES: Final = 1024**2


def is_archive(file: Path) -> bool:
    """Return whether the file begins like a tar or tar.gz; False if it is not a regular file. Raises OSError."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        head = opened.read(tar_stream.BLOCK)
    return head.startswith(GZIP) or head[USTAR_PLACE:].startswith(USTAR)


def read_package(file: Path) -> tuple[Manifest, bytes]:
    """Return a package's manifest, changed so that its model file is beside it, and the content of the model file.

    Only the manifest is written to disk, to a temporary folder. Raises InvalidInput (``invalid_archive``,
    ``payload_too_large``), Unusable (``package_manifest_invalid``, ``package_wrong_task``, ``package_too_large``).
    """
    entry = _find(file, MANIFEST_NAME)
    if entry.size > MANIFEST_BYTES:
        raise _too_large(MANIFEST_NAME, MANIFEST_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MANIFEST_NAME).write_bytes(entry.read())
        manifest = load_package(Path(folder)).manifest
    if manifest.task != "embed":
        message = f"{manifest.id} is a package for `{manifest.task}`: only embedders are added as archives."
        raise Unusable(message, code="package_wrong_task", package=manifest.id)
    if not isinstance(manifest.source, FileSource):
        message = f"{manifest.id} names a file elsewhere: an archive holds the package's own file."
        raise Unusable(message, code="package_file_missing", package=manifest.id)
    model = _find(file, entry.name.removesuffix(MANIFEST_NAME) + manifest.source.path)
    if model.size > DEFAULT_MAX_BYTES:
        raise _too_large(model.name, DEFAULT_MAX_BYTES)
    return manifest.model_copy(update={"source": FileSource()}), model.read()


def _find(file: Path, name: str) -> tar_stream.TarEntry:
    """Return the first entry with this name; MANIFEST_NAME may also be in a top-level folder. Raises InvalidInput
    ``invalid_archive``."""
    most = DEFAULT_MAX_BYTES + 2 * MANIFEST_BYTES
    for entry in tar_stream.entries(partial(_pieces, file), most):
        if entry.problem is not None:
            message = f"The archive holds something else than files below its own folder ({entry.problem})."
            raise InvalidInput(message, code="invalid_archive")
        plain = entry.name.removeprefix("./")
        if plain == name or (name == MANIFEST_NAME and plain.split("/")[1:] == [name]):
            entry.name = plain
            return entry
    raise InvalidInput(f"The archive has no {name}.", code="invalid_archive")


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(PIECE_BYTES):
            yield piece


def _too_large(name: str, most: int) -> Unusable:
    return Unusable(f"{name} is larger than {most} bytes.", code="package_too_large", max_bytes=most)
