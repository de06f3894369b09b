"""One file out of a zip archive, which may be hostile: the member asked for, of no more bytes than it may have."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from pathlib import Path

from app.errors import Unusable
from app.files import PUBLIC, replacing

PIECE_BYTES = 1024 * 1024
ENCRYPTED = 0x1
"""Bit of a member's flags (APPNOTE.TXT 4.4.4)."""
METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


def extract(archive: Path, member: str, target: Path, max_bytes: int) -> None:
    """Write the member to ``target``, which appears whole or not at all; no path in the archive is used.

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
    found = [info for info in archive.infolist() if info.filename == member]
    if len(found) != 1:
        raise _invalid(path, f"it has {len(found)} files {member}, not one")
    (info,) = found
    if info.flag_bits & ENCRYPTED or info.compress_type not in METHODS or info.is_dir():
        raise _invalid(path, f"{member} is encrypted, compressed in an unknown way, or a folder")
    if info.file_size > max_bytes:
        message = f"{member} in {path} is larger than the {max_bytes} bytes that it may have."
        raise Unusable(message, code="package_too_large", max_bytes=max_bytes)
    return info


def _invalid(archive: Path, problem: str) -> Unusable:
    return Unusable(f"{archive} can't be used: {problem}.", code="package_archive_invalid", problem=problem)
