"""Sort the faces in photos without names into a folder for each person. Somebody then names the folders and imports
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from likeness_client import answers

from app.errors import InvalidInput
from app.face.formats import Limits
from app.face.image import decode
from app.features.grouping import USABLE, people_of
from app.features.surroundings import around, to_jpeg
from app.files import replacing


@dataclass(frozen=True, slots=True)
class Grouped:
    """The written files by person, the largest group first, and the photos without a usable face."""

    groups: list[list[Path]]
    without: list[Path]


class Roll:
    """Collects faces of photos, as the operation `embed` answers them, and writes them into a new folder."""

    def __init__(self, folder: Path) -> None:
        """Make the folder. Raises InvalidInput (``invalid_source``) if it isn't empty."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInput(f"{folder}: name a new or an empty folder for the groups.", code="invalid_source")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._pictures: list[tuple[Path, bytes]] = []
        self._vectors: list[list[float]] = []
        self._without = list[Path]()

    def add(self, photo: Path, faces: Sequence[answers.EmbeddedFace]) -> None:
        """Add the usable faces of a photo. Raises what `decode` raises."""
        usable = [face for face in faces if face.embedding is not None and face.quality.score >= USABLE]
        if not usable:
            self._without.append(photo)
            return
        pixels = decode(photo.read_bytes(), Limits()).pixels
        for number, face in enumerate(usable):
            name = Path(f"{photo.stem}-{number}.jpg" if len(usable) > 1 else f"{photo.stem}.jpg")
            self._pictures.append((name, to_jpeg(around(pixels, face.box))))
            self._vectors.append(list(face.embedding or ()))

    def write(self, points: Sequence[answers.OperatingPoint]) -> Grouped:
        """Write a folder of pictures for each person; a file name that is already used gets a number."""
        if not self._vectors:
            return Grouped([], self._without)
        people = people_of(np.asarray(self._vectors, np.float32), points)
        groups = []
        for number, rows in enumerate(people, 1):
            folder = self._folder / f"person {number:0{len(str(len(people)))}}"
            folder.mkdir()
            groups.append(_write(folder, (self._pictures[row] for row in rows)))
        return Grouped(groups, self._without)


def _write(folder: Path, pictures: Iterable[tuple[Path, bytes]]) -> list[Path]:
    written: list[Path] = []
    for name, data in pictures:
        path, count = folder / name, 1
        while path in written:
            count += 1
            path = folder / f"{name.stem} {count}.jpg"
        with replacing(path) as file:
            file.write(data)
        written.append(path)
    return written
