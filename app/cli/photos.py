"""The photos that a command works on, with the faces on them, and work on many at once, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from app.cli import output
from app.errors import FileMissing, InvalidInput

if TYPE_CHECKING:
    from app.adding.presets import Crops
    from app.config import Settings
    from app.inference.package import Package
    from app.pipeline import Pipeline
    from app.types import Face, Pixels

Item = TypeVar("Item")
Result = TypeVar("Result")

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".heic", ".heif", ".avif", ".bmp", ".tif", ".tiff", ".gif"})
"""Files taken from folders. A file named on the command line is sent whatever its suffix."""


def collect(paths: Sequence[Path]) -> tuple[list[Path], int]:
    """Return the files named and the photos below the folders named, sorted by name, and how many paths are missing.

    A missing path is reported on standard error. Raises InvalidInput (``file_not_found``) where no photo is left.
    """
    files: list[Path] = []
    missing = [path for path in paths if not path.exists()]
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        elif path.exists():
            files.append(path)
    if not files:
        wrong = ", ".join(map(str, missing or paths))
        what = "no such file or folder" if missing else "no photos in it"
        raise FileMissing(f"{wrong}: {what}")
    for path in missing:
        output.complain(FileMissing("no such file or folder"), path)
    return files, len(missing)


def people(folder: Path) -> dict[str, list[Path]]:
    """Return the photos of each person: ``folder`` has one folder per person, and folders without photos are left out.

    Raises InvalidInput (``file_not_found``).
    """
    if not folder.is_dir():
        raise FileMissing(f"{folder}: no such folder")
    photos = {person.name: sorted(person.rglob("*")) for person in sorted(folder.iterdir()) if person.is_dir()}
    usable = {
        name: kept for name, files in photos.items() if (kept := [f for f in files if f.suffix.lower() in SUFFIXES])
    }
    if not usable:
        raise FileMissing(f"{folder}: no folders with photos in it")
    return usable


def each(
    work: Callable[[Item], Result], items: Sequence[Item], label: str, *, jobs: int
) -> Iterator[tuple[Item, Result]]:
    """Yield ``(item, work(item))`` in the items' order; ``jobs`` of them run at the same time."""
    with output.progress(label, len(items)) as update, ThreadPoolExecutor(jobs) as pool:
        for item, result in zip(items, pool.map(work, items), strict=True):
            update(advance=1)
            yield item, result


LEAST_PEOPLE, PEOPLE_COMPARED, PHOTOS_A_PERSON = 8, 64, 4
"""People whose photos tell forms of input apart, and how many of a folder's are looked at."""


def open_pipeline(settings: Settings, detector: Package | None = None) -> Pipeline:
    """Return a pipeline with the detector, by default that of the settings."""
    from app.face.detect import open_detector  # noqa: PLC0415 - slow to import
    from app.face.formats import Limits  # noqa: PLC0415 - slow to import
    from app.inference.package import find_packages, select  # noqa: PLC0415 - slow to import
    from app.pipeline import Pipeline  # noqa: PLC0415 - slow to import

    detector = detector or select(find_packages(settings.models_dir, settings.data_dir), settings.detector)
    return Pipeline(open_detector(detector, settings.data_dir / "models"), Limits())


def main_face(pipeline: Pipeline, path: Path) -> Face | None:
    """Return the face that a photo is about; None, with a remark, where there is none."""
    from app.pipeline import choose_face  # noqa: PLC0415 - slow to import

    try:
        photo = pipeline.detect(path.read_bytes())
        return photo.faces[choose_face(photo).index]
    except InvalidInput as error:
        output.warn(f"{path}: left out: {error.message}")
        return None


def crops_of_people(folder: Path, settings: Settings) -> Crops:
    """Return aligned crops of the people in a folder: the face that each photo is about."""
    import numpy as np  # noqa: PLC0415 - slow to import

    from app.adding.presets import Crops  # noqa: PLC0415 - slow to import

    pipeline = open_pipeline(settings)
    people: list[list[Pixels]] = []
    for person in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []:
        faces = (main_face(pipeline, path) for path in sorted(person.iterdir()) if path.is_file())
        crops = [face.crop for face in islice((face for face in faces if face), PHOTOS_A_PERSON)]
        people += [crops] if len(crops) > 1 else []
        if len(people) == PEOPLE_COMPARED:
            break
    if len(people) < LEAST_PEOPLE:
        message = f"{folder} has {len(people)} people with two usable photos; at least {LEAST_PEOPLE} are needed."
        raise InvalidInput(message, code="too_few_people", found=len(people), needed=LEAST_PEOPLE)
    who = np.repeat(np.arange(len(people)), [len(crops) for crops in people])
    return Crops(np.stack([crop for crops in people for crop in crops]), who)
