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

import httpx
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from app.adding.zip_member import extract
from app.errors import Unusable
from app.inference.manifest import DEFAULT_MAX_BYTES, Licence, LivenessContract, Name, Sha256
from app.inference.package import sha256_of

CATALOGUE = Path(__file__).with_name("catalogue.json")
ATTEMPTS = 5
"""Connections until a download that makes no end is given up; what arrived is kept for the next call."""
TIMEOUT_S = 30.0


class Archive(BaseModel):
    """The zip archive that a model comes in."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    member: str
    """The model's exact name in it."""
    sha256: Sha256
    max_bytes: int = Field(gt=0)


class KnownModel(BaseModel):
    """One entry of the catalogue."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

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
    colour: Literal["rgb", "bgr"] | None
    normalisation: Literal["0-255", "127.5", "128", "0-1", "imagenet"] | None
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
    if model.licence.non_commercial and not accept_non_commercial:
        message = (
            f"{model.name} is licensed for non-commercial use only ({model.licence.name} {model.licence.url}). "
            "If that is your use, say so: --accept-non-commercial"
        )
        raise Unusable(message, code="licence_not_accepted", package=model.name, licence=model.licence.name)
    revision = hashlib.sha256(model.url.encode()).hexdigest()[:16]
    path = folder / f"{model.name}-{revision}.onnx"
    if not path.is_file():
        if model.archive is None:
            _download(model, path, model.max_bytes)
        else:
            _fetch_member(model, model.archive, path)
    expected = model.sha256 or sha256
    if expected is None:
        found = sha256_of(path)
        message = (
            f"No SHA-256 was published for {model.name}. {model.url} sent a file with {found}: compare it with another "
            f"source, and confirm it: --sha256 {found}"
        )
        raise Unusable(message, code="package_hash_unknown", package=model.name, found=found)
    _check(model, path, expected)
    return path


def _fetch_member(model: KnownModel, archive: Archive, path: Path) -> None:
    """Download the archive unless it is there, check it, write its member to ``path``, and remove it."""
    zipped = path.with_suffix(".zip")
    if not zipped.is_file():
        _download(model, zipped, archive.max_bytes)
    _check(model, zipped, archive.sha256)
    try:
        extract(zipped, archive.member, path, model.max_bytes)
    except OSError as error:
        raise _failed(model, error) from error
    zipped.unlink()


def _check(model: KnownModel, path: Path, expected: str) -> None:
    """Remove a file with another hash, so that the next call downloads it again."""
    found = sha256_of(path)
    if found != expected:
        path.unlink()
        message = f"{model.url} did not send the file of {model.name}: SHA-256 {found}, not {expected}."
        raise Unusable(message, code="package_hash_mismatch", package=model.name, expected=expected, found=found)


def _download(model: KnownModel, path: Path, max_bytes: int) -> None:
    part = path.with_suffix(".part")
    problem: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            _receive(model, part, max_bytes)
        except httpx.TransportError as error:
            problem = error
        except (httpx.HTTPError, OSError) as error:
            raise _failed(model, error) from error
        else:
            part.replace(path)
            return
    raise _failed(model, problem) from problem


def _receive(model: KnownModel, part: Path, max_bytes: int) -> None:
    """Append what is missing; start anew where the server sends the whole file."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with httpx.stream("GET", model.url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as response:
        if have and response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the part is the whole file; its hash decides
        response.raise_for_status()
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        received = have if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_bytes():
                received += len(chunk)
                if received > max_bytes:
                    message = f"{model.url} sends more than the {max_bytes} bytes that {model.name} may have."
                    raise Unusable(message, code="package_too_large", package=model.name, max_bytes=max_bytes)
                file.write(chunk)


def _failed(model: KnownModel, error: Exception | None) -> Unusable:
    message = f"Could not fetch {model.name} from {model.url}: {error}. What arrived is kept; try again."
    return Unusable(message, code="package_download_failed", package=model.name, url=model.url)
