"""The catalogue of known models, `catalogue.json`, and the download of their files.

What nobody published or measured is null in it. Files are checked by SHA-256; where none is known, the first download
shows it, and the caller has to confirm it. A model may be a member of a zip archive, which is
checked before it is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, TypeAdapter

from app.adding.download import check_licence, download, extract
from app.adding.presets import Preset
from app.errors import Unusable
from app.files import sha256_of
from app.inference.cards import Name, Sha256, Strict
from app.inference.manifest import DEFAULT_MAX_BYTES, Licence, LivenessContract

CATALOGUE = Path(__file__).with_name("catalogue.json")


class Archive(Strict):
    """The zip archive that a model comes in."""

    member: str
    """The model's exact name in it."""
    sha256: Sha256
    max_bytes: int = Field(gt=0)


class KnownModel(Strict):
    """One entry of the catalogue."""

    name: Name
    title: str
    task: Literal["embed", "liveness"] = "embed"
    url: str = Field(pattern=r"^https?://")
    """Of the ONNX file, or of its archive, at a fixed revision."""
    archive: Archive | None = None
    sha256: Sha256 | None
    """Of the ONNX file."""
    max_bytes: int = Field(default=DEFAULT_MAX_BYTES, gt=0)
    licence: Licence
    training_data: str | None
    """What its makers say of the data and its terms."""
    preset: Preset
    """How its input is made."""
    dimension: int | None
    liveness: LivenessContract | None = None
    """Liveness only."""
    figures: Mapping[str, JsonValue] | None
    """Published figures, with their source."""
    source: str


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Return the catalogue, by name."""
    entries = TypeAdapter(list[KnownModel]).validate_json(CATALOGUE.read_bytes())
    return {each.name: each for each in entries}


def fetch(model: KnownModel, folder: Path, *, accept_non_commercial: bool, sha256: str | None = None) -> Path:
    """Return the model's file in ``folder``, downloaded unless it is there. ``sha256``: the hash that was confirmed.

    A connection that is cut is resumed. Raises Unusable: licence_not_accepted, package_download_failed,
    package_too_large, package_archive_invalid, package_hash_mismatch, package_hash_unknown (``details.found`` has the
    file's hash).
    """
    check_licence(model.name, model.licence, accept_non_commercial=accept_non_commercial)
    revision = hashlib.sha256(model.url.encode()).hexdigest()[:16]
    path = folder / f"{model.name}-{revision}.onnx"
    expected = model.sha256 or sha256
    if model.archive is not None and not path.is_file():
        zipped = path.with_suffix(".zip")
        download(model.name, model.url, zipped, model.archive.max_bytes, model.archive.sha256)
        try:
            extract(zipped, model.archive.member, path, model.max_bytes)
        except OSError as error:
            message = f"Could not unpack {model.name} from {zipped}: {error}. It is kept; try again."
            raise Unusable(message, code="package_download_failed", package=model.name, url=model.url) from error
        zipped.unlink()
    download(model.name, model.url, path, model.max_bytes, expected)
    if expected is None:
        digest = sha256_of(path)
        message = (
            f"No SHA-256 was published for {model.name}. {model.url} sent a file with {digest}: compare it with "
            f"another source, and confirm it: --sha256 {digest}"
        )
        raise Unusable(message, code="package_hash_unknown", package=model.name, found=digest)
    return path
