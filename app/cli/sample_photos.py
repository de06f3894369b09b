"""Photos to measure with: a folder's, a tar's, or those that come with Likeness, in several sizes."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from app.config import PROJECT
from app.errors import InvalidInput

SAMPLES = PROJECT / "docs" / "samples"
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp"})
WIDTHS = 640, 320, 250
"""Of the packaged photos' smaller copies."""
QUALITY = 92


def load(source: Path, count: int) -> list[bytes]:
    """Read up to `count` image files of a folder or tar, spread over its folders. Raises InvalidInput ``no_photos``."""
    if source.is_dir():
        photos = _of_folder(source, count)
    elif source.is_file() and tarfile.is_tarfile(source):
        photos = _of_tar(source, count)
    else:
        raise InvalidInput(f"{source} is neither a folder nor a tar", code="no_photos")
    if source == SAMPLES:
        photos = [*photos, *(copy for photo in photos for copy in _copies(photo))]
    if not photos:
        raise InvalidInput(f"{source} holds no photos", code="no_photos")
    return photos[:count]


def _of_folder(source: Path, count: int) -> list[bytes]:
    paths = {str(path.relative_to(source)): path for path in sorted(source.rglob("*")) if _is_photo(path.name)}
    return [paths[name].read_bytes() for name in _spread(list(paths), count)]


def _of_tar(source: Path, count: int) -> list[bytes]:
    with tarfile.open(source) as tar:
        members = {member.name: member for member in tar if member.isfile() and _is_photo(member.name)}
        opened = [tar.extractfile(members[name]) for name in _spread(sorted(members), count)]
        return [file.read() for file in opened if file is not None]


def _is_photo(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in ENDINGS and not re.match(r"\.", PurePosixPath(name).name)


def _spread(names: Sequence[str], count: int) -> list[str]:
    firsts = list({PurePosixPath(name).parent: name for name in reversed(names)}.values())[::-1]
    chosen = firsts if len(firsts) >= count else names
    places = np.linspace(0, len(chosen) - 1, min(count, len(chosen))).astype(int)
    return [chosen[place] for place in places.tolist()]


def _copies(photo: bytes) -> Iterator[bytes]:
    """Return the photo smaller, and mirrored, as JPEG."""
    pixels = cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        return
    for width in WIDTHS:
        height = round(pixels.shape[0] * width / pixels.shape[1])
        smaller = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
        for each in (smaller, smaller[:, ::-1]):
            yield cv2.imencode(".jpg", each, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
