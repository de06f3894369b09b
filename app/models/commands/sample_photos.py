"""Read photos to measure with, from a folder, a tar, or the photos that come with Likeness, and find their faces."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from app import photo_folders
from app.cli import output, photos
from app.config import PROJECT, Settings
from app.errors import InvalidInput
from app.face.formats import Limits
from app.models.opening import open_detector
from app.models.presets import Crops
from app.package.folders import Package, find_packages, select
from app.photo_folders import is_photo, walk
from app.pipeline import Pipeline, main_crop
from app.types import Pixels

SAMPLES = PROJECT / "docs" / "samples"
WIDTHS = 640, 320, 250
"""Widths in pixels of the packaged photos' smaller copies."""
QUALITY = 92
LEAST_PEOPLE, PEOPLE_COMPARED, PHOTOS_A_PERSON = 8, 64, 4
"""Minimum people needed to tell forms of input apart; maximum people of a folder to use; maximum photos of each
person."""


def load(source: Path, count: int) -> list[bytes]:
    """Return up to `count` image files of a folder or tar, spread over its folders. Raises InvalidInput
    ``no_photos``."""
    if source.is_dir():
        files = _of_folder(source, count)
    elif source.is_file() and tarfile.is_tarfile(source):
        files = _of_tar(source, count)
    else:
        raise InvalidInput(f"{source} is neither a folder nor a tar", code="no_photos")
    if source == SAMPLES:
        files = [*files, *(copy for file in files for copy in _copies(file))]
    if not files:
        raise InvalidInput(f"{source} holds no photos", code="no_photos")
    return files[:count]


def _of_folder(source: Path, count: int) -> list[bytes]:
    paths = {str(path.relative_to(source)): path for path in walk(source, photos.skipped)}
    return [paths[name].read_bytes() for name in _spread(list(paths), count)]


def _of_tar(source: Path, count: int) -> list[bytes]:
    with tarfile.open(source) as tar:
        members = {
            member.name: member for member in tar if member.isfile() and is_photo(PurePosixPath(member.name).parts)
        }
        opened = [tar.extractfile(members[name]) for name in _spread(sorted(members), count)]
        return [file.read() for file in opened if file is not None]


def _spread(names: Sequence[str], count: int) -> list[str]:
    firsts = list({PurePosixPath(name).parent: name for name in reversed(names)}.values())[::-1]
    chosen = firsts if len(firsts) >= count else names
    places = np.linspace(0, len(chosen) - 1, min(count, len(chosen))).astype(int)
    return [chosen[place] for place in places.tolist()]


def _copies(photo: bytes) -> Iterator[bytes]:
    """Yield smaller copies of a photo, each also mirrored, as JPEG."""
    pixels = cv2.imdecode(np.frombuffer(photo, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        return
    for width in WIDTHS:
        height = round(pixels.shape[0] * width / pixels.shape[1])
        smaller = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
        for variant in (smaller, smaller[:, ::-1]):
            yield cv2.imencode(".jpg", variant, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def open_pipeline(settings: Settings, detector: Package | None = None) -> Pipeline:
    """Return a pipeline with this detector, by default the one in the settings."""
    detector = detector or select(find_packages(settings.models_dir, settings.data_dir), settings.detector)
    return Pipeline(open_detector(detector, settings.data_dir / "models"), Limits())


def main_face(pipeline: Pipeline, path: Path) -> Pixels | None:
    """Return the aligned crop, (112, 112, 3) uint8 RGB, of a photo's most prominent face. If there is none, print why
    and return None."""
    try:
        return main_crop(pipeline.detect(path.read_bytes()))
    except InvalidInput as error:
        output.warn(f"{path}: left out: {error.message}")
        return None


def crops_of_people(folder: Path, settings: Settings) -> Crops:
    """Return the aligned crops of each photo's most prominent face, for the people in a folder. Raises InvalidInput
    ``too_few_people``."""
    pipeline = open_pipeline(settings)
    people: list[list[Pixels]] = []
    for files in photo_folders.people(folder, photos.skipped).values() if folder.is_dir() else []:
        seen = (main_face(pipeline, path) for path in files)
        crops = list(islice((crop for crop in seen if crop is not None), PHOTOS_A_PERSON))
        people += [crops] if len(crops) > 1 else []
        if len(people) == PEOPLE_COMPARED:
            break
    if len(people) < LEAST_PEOPLE:
        message = f"{folder} has {len(people)} people with two usable photos; at least {LEAST_PEOPLE} are needed."
        raise InvalidInput(message, code="too_few_people", found=len(people), needed=LEAST_PEOPLE)
    who = np.repeat(np.arange(len(people)), [len(crops) for crops in people])
    return Crops(np.stack([crop for crops in people for crop in crops]), who)
