"""Read the list of known models, `catalogue.json`, and download models' files. Downloads are resumed, limited in size,
and checked by their SHA-256.

Facts that nobody published or measured are null in the catalogue. If a file's SHA-256 is not known, the first download
shows it, and the caller has to confirm it. A zip archive may be hostile, so only the wanted member is unpacked, up to
its maximum size.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import Field, JsonValue, TypeAdapter

from app.choices import Preset
from app.errors import Unusable
from app.files import PUBLIC, replacing
from app.models.packages import locate, sha256_of, source_path
from app.models.presets import Stated
from app.package.cards import Name, Sha256, Strict
from app.package.folders import Package
from app.package.manifest import DEFAULT_MAX_BYTES, Licence, LivenessContract, UrlSource

CATALOGUE = Path(__file__).with_name("catalogue.json")
ATTEMPTS = 5
"""Maximum connections per call; what has arrived is kept for the next call."""
TIMEOUT_S = 30.0
"""Seconds of silence after which a connection counts as broken."""
TOTAL_S = 3600.0
"""Maximum seconds of a call: 1 GB at 300 kB/s. What has arrived is kept, and the next call continues from there."""
PIECE_BYTES = 1024 * 1024
ENCRYPTED = 0x1
"""Bit in the flags of an archive's member that says that the member is encrypted (APPNOTE.TXT 4.4.4)."""
METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


class Archive(Strict):
    member: str
    """The exact name of the model's file in the archive."""
    sha256: Sha256
    max_bytes: int = Field(gt=0)


class KnownModel(Strict):
    name: Name
    title: str
    task: Literal["embed", "liveness"] = "embed"
    url: str = Field(pattern=r"^https?://")
    """Address of the ONNX file, or of its archive, at a fixed revision."""
    archive: Archive | None = None
    sha256: Sha256 | None
    """SHA-256 of the ONNX file."""
    max_bytes: int = Field(default=DEFAULT_MAX_BYTES, gt=0)
    licence: Licence
    training_data: str | None
    """What the makers state about the training data and its terms."""
    preset: Preset | Stated
    """The form of its input: a preset, or as stated here."""
    dimension: int | None
    liveness: LivenessContract | None = None
    """The input and output of a liveness model; None for other models."""
    figures: Mapping[str, JsonValue] | None
    """Published figures, with their source."""
    source: str


@cache
def known_models() -> Mapping[str, KnownModel]:
    entries = TypeAdapter(list[KnownModel]).validate_json(CATALOGUE.read_bytes())
    return {entry.name: entry for entry in entries}


def check_licence(name: str, licence: Licence, *, accept_non_commercial: bool) -> None:
    """Raise Unusable ``licence_not_accepted`` if the licence is non-commercial and was not accepted."""
    if licence.non_commercial and not accept_non_commercial:
        message = (
            f"{name} is for non-commercial use only ({licence.name} {licence.url}). "
            "If that is your use, say so: --accept-non-commercial"
        )
        raise Unusable(message, code="licence_not_accepted", package=name, licence=licence.name)


def pull(package: Package, cache_dir: Path, *, accept_non_commercial: bool = False, folder: Path | None = None) -> Path:
    """Return the path of a package's model file, after downloading it unless it exists. A file without a URL is only
    located.

    ``folder`` is that of `download`. Raises Unusable with the codes of `check_licence`, `download` and `locate`.
    """
    source, sha256 = package.manifest.source, package.manifest.sha256
    if not isinstance(source, UrlSource):
        return locate(package, cache_dir)
    check_licence(package.id, package.manifest.licence, accept_non_commercial=accept_non_commercial)
    path = source_path(package, cache_dir)
    if path.is_file() and sha256_of(path) != sha256:
        path.unlink()
    download(package.id, source.url, path, source.max_bytes, sha256, folder=folder)
    return path


def fetch(
    model: KnownModel,
    cache_dir: Path,
    *,
    accept_non_commercial: bool,
    sha256: str | None = None,
    folder: Path | None = None,
) -> Path:
    """Return the model's file in ``cache_dir``, after downloading it unless it exists. ``sha256``: the confirmed hash;
    ``folder`` is that of `download`.

    An interrupted connection is resumed. Raises Unusable: licence_not_accepted, package_download_failed,
    package_too_large, package_archive_invalid, package_hash_mismatch, package_hash_unknown (``details.found`` has the
    file's hash).
    """
    check_licence(model.name, model.licence, accept_non_commercial=accept_non_commercial)
    revision = hashlib.sha256(model.url.encode()).hexdigest()[:16]
    path = cache_dir / f"{model.name}-{revision}.onnx"
    expected = model.sha256 or sha256
    if model.archive is not None and not path.is_file():
        zipped = path.with_suffix(".zip")
        download(model.name, model.url, zipped, model.archive.max_bytes, model.archive.sha256, folder=folder)
        try:
            extract(zipped, model.archive.member, path, model.max_bytes)
        except OSError as error:
            message = f"Could not unpack {model.name} from {zipped}: {error}. It is kept; try again."
            raise Unusable(message, code="package_download_failed", package=model.name, url=model.url) from error
        zipped.unlink()
    download(model.name, model.url, path, model.max_bytes, expected, folder=folder)
    if expected is None:
        digest = sha256_of(path)
        message = (
            f"No SHA-256 was published for {model.name}. {model.url} sent a file with {digest}: compare it with "
            f"another source, and confirm it: --sha256 {digest}"
        )
        raise Unusable(message, code="package_hash_unknown", package=model.name, found=digest)
    return path


def download(
    name: str,
    url: str,
    path: Path,
    max_bytes: int,
    sha256: str | None,
    *,
    total_s: float | None = None,
    folder: Path | None = None,
) -> None:
    """Download the file of the model ``name`` to ``path`` unless it exists, and check its hash if ``sha256`` is given.

    With a ``folder``, the file is copied from there, under the last part of the URL's path, without the network. This
    takes at most ``total_s`` seconds, by default `TOTAL_S`. Raises Unusable: package_file_missing,
    package_download_failed (keeps what has arrived), package_too_large and package_hash_mismatch (keep nothing).
    """
    if folder is None:
        _download(_Wanted(name, url, max_bytes, sha256), path, total_s)
    elif not path.is_file():
        _copy(_Wanted(name, url, max_bytes, sha256), folder / file_name(url), path)
    if sha256 is not None and (digest := sha256_of(path)) != sha256:
        path.unlink()
        message = (
            f"{folder / file_name(url) if folder else url} is not the file of {name}: SHA-256 {digest}, not {sha256}."
        )
        raise Unusable(message, code="package_hash_mismatch", package=name, expected=sha256, found=digest)


def file_name(url: str) -> str:
    """Return the name of the file at an address: the last part of the URL's path."""
    return PurePosixPath(unquote(urlsplit(url).path)).name


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The file of a model: its address, its maximum bytes, and its hash if known."""

    name: str
    url: str
    max_bytes: int
    sha256: str | None

    @property
    def hash_words(self) -> str:
        return f" (SHA-256 {self.sha256})" if self.sha256 else ""


def _copy(wanted: _Wanted, source: Path, path: Path) -> None:
    if not source.is_file():
        message = f"{source} is missing: put the file from {wanted.url} there{wanted.hash_words}."
        raise Unusable(message, code="package_file_missing", package=wanted.name, url=wanted.url)
    if source.stat().st_size > wanted.max_bytes:
        message = f"{source} is larger than the {wanted.max_bytes} bytes that {wanted.name} may have."
        raise Unusable(message, code="package_too_large", package=wanted.name, max_bytes=wanted.max_bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as content, replacing(path, PUBLIC) as file:
        shutil.copyfileobj(content, file, PIECE_BYTES)


def _download(wanted: _Wanted, path: Path, total_s: float | None) -> None:
    name, url = wanted.name, wanted.url
    part = path.with_suffix(".part")
    until = time.monotonic() + (total_s or TOTAL_S)
    problem: Exception | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # so that two downloads don't write to the same partial file
            for _ in range(0 if path.is_file() else ATTEMPTS):
                try:
                    _receive(name, url, part, wanted.max_bytes, until)
                    part.replace(path)
                    break
                except httpx.TransportError as error:
                    problem = error
        finally:
            os.close(folder)
    except (httpx.HTTPError, OSError) as error:
        problem = error
    if not path.is_file():
        message = (
            f"Could not fetch {name} from {url}: {problem}. What arrived is kept; try again. Without a network, put "
            f"{file_name(url)}{wanted.hash_words} into a folder: likeness models pull NAME "
            "--from FOLDER"
        )
        raise Unusable(message, code="package_download_failed", package=name, url=url) from problem


def _receive(name: str, url: str, part: Path, max_bytes: int, until: float) -> None:
    """Append what is missing to ``part``; start again if the server sends the whole file. Raises TimeoutError at the
    time ``until``."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as response:
        if have and response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the partial file is the whole file; its hash decides
        response.raise_for_status()
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        received = have if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_bytes():
                received += len(chunk)
                if time.monotonic() > until:
                    raise TimeoutError(f"it is too slow ({received} bytes so far)")
                if received > max_bytes:
                    part.unlink()
                    message = f"{url} sends more than the {max_bytes} bytes that {name} may have."
                    raise Unusable(message, code="package_too_large", package=name, max_bytes=max_bytes)
                file.write(chunk)


def extract(archive: Path, member: str, target: Path, max_bytes: int) -> None:
    """Write a member of a zip archive to ``target``, which appears complete or not at all. Paths in the archive are
    ignored.

    Raises Unusable ``package_archive_invalid``, ``package_too_large``; OSError if it can't be written.
    """
    try:
        with (
            zipfile.ZipFile(archive) as opened,
            opened.open(_find(archive, opened, member, max_bytes)) as content,
            replacing(target, PUBLIC) as file,
        ):
            shutil.copyfileobj(content, file, PIECE_BYTES)  # never more than `file_size`
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError, ValueError) as error:
        raise _invalid(archive, f"it is damaged ({error})") from error


def _find(path: Path, archive: zipfile.ZipFile, member: str, max_bytes: int) -> zipfile.ZipInfo:
    matching = [info for info in archive.infolist() if info.filename == member]
    if len(matching) != 1:
        raise _invalid(path, f"it has {len(matching)} files {member}, not one")
    (info,) = matching
    if info.flag_bits & ENCRYPTED or info.compress_type not in METHODS or info.is_dir():
        raise _invalid(path, f"{member} is encrypted, compressed in an unknown way, or a folder")
    if info.file_size > max_bytes:
        message = f"{member} in {path} is larger than the {max_bytes} bytes that it may have."
        raise Unusable(message, code="package_too_large", max_bytes=max_bytes)
    return info


def _invalid(archive: Path, problem: str) -> Unusable:
    return Unusable(f"{archive} can't be used: {problem}.", code="package_archive_invalid", problem=problem)
