"""Read photos from a folder, a tar file or a verification pack; make templates by the service's own pipeline."""

from __future__ import annotations

import dataclasses
import json
import mmap
import tarfile
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.errors import LikenessError
from app.photo_folders import is_photo, walk
from app.types import Vector, Vectors
from training.evaluation.pairs import PACK_ENDING, PackPhotos, Photos, person_of

Embed: TypeAlias = Callable[[str], tuple[Vector, float]]
"""A photo's name -> its unit vector and quality."""


def open_photos(path: Path) -> Photos:
    """Open a folder, an uncompressed tar file or a verification pack. Raises ValueError if it holds no photos, or two
    with the same name."""
    if path.is_dir():
        photos = Photos((_key(file), file.read_bytes) for file in walk(path))
    elif path.is_file() and path.suffix == PACK_ENDING:
        photos = PackPhotos(path)
    elif path.is_file():
        photos = _in_tar(path)
    else:
        raise ValueError(f"{path} is neither a folder, nor a tar file, nor a verification pack")
    if not photos.names:
        raise ValueError(f"{path} holds no photos in folders")
    return photos


def _in_tar(path: Path) -> Photos:
    """Return a tar file's photos, which any number of threads may read in any order."""
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def reader(start: int, size: int) -> Callable[[], bytes]:
        return lambda: content[start : start + size]

    with tarfile.open(path, "r:") as archive:
        files = ((PurePosixPath(member.name), member.offset_data, member.size) for member in archive if member.isfile())
        return Photos((_key(name), reader(start, size)) for name, start, size in files if is_photo(name.parts))


def _key(path: PurePath) -> str:
    return unicodedata.normalize("NFC", f"{path.parent.name}/{path.stem}")


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of photos, one row per photo in the order of ``names``. A photo without a face has a zero vector
    and quality 0."""

    package: str
    names: tuple[str, ...]
    vectors: Vectors
    """(N, D) float32, each row of length 1, or 0 if ``found`` is False."""
    found: NDArray[np.bool_]
    quality: NDArray[np.float32]
    """(N,) 0-100."""
    failures: Mapping[str, str]
    """Error codes (``no_face``, ``invalid_image``…) by the names of photos without a template."""
    seconds: float
    """Duration of making the templates, for figures of speed."""
    made_by: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Everything that determined the templates, as plain values: a kept file is used only if all of it is the same."""

    def rows(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the row numbers of these photos."""
        row = {name: i for i, name in enumerate(self.names)}
        return np.array([row[name] for name in names], np.int64)

    def only(self, names: Sequence[str]) -> Templates:
        """Return the templates of some photos, in their order. Raises ValueError if one is missing."""
        missing = sorted(set(names) - set(self.names))
        if missing:
            raise ValueError(
                f"there are no templates of {len(missing)} photos, {missing[0]} among them: make them anew"
            )
        rows = self.rows(names)
        failures = {name: self.failures[name] for name in names if name in self.failures}
        return dataclasses.replace(
            self,
            names=tuple(names),
            vectors=self.vectors[rows],
            found=self.found[rows],
            quality=self.quality[rows],
            failures=failures,
        )

    @staticmethod
    def join(parts: Sequence[Templates]) -> Templates:
        """Join the templates of several lists of photos, which were made in the same way."""
        return dataclasses.replace(
            parts[0],
            names=tuple(name for part in parts for name in part.names),
            vectors=np.concatenate([part.vectors for part in parts]),
            found=np.concatenate([part.found for part in parts]),
            quality=np.concatenate([part.quality for part in parts]),
            failures={name: code for part in parts for name, code in part.failures.items()},
            seconds=sum(part.seconds for part in parts),
        )

    def rows_by_person(self) -> dict[str, list[int]]:
        """Return the rows of each person's photos in which a face was found."""
        rows: dict[str, list[int]] = {}
        for row in np.flatnonzero(self.found).tolist():
            rows.setdefault(person_of(self.names[row]), []).append(row)
        return rows

    def with_face(self) -> Templates:
        """Return the templates of the photos in which a face was found."""
        return self.only([name for name, found in zip(self.names, self.found, strict=True) if found])

    def save(self, path: Path) -> None:
        """Write the templates as .npz, for `load`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "package": self.package,
            "failures": dict(self.failures),
            "seconds": self.seconds,
            "made_by": dict(self.made_by),
        }
        np.savez(
            path,
            about=np.array(json.dumps(about)),
            names=np.array(self.names),
            vectors=self.vectors,
            found=self.found,
            quality=self.quality,
        )

    @staticmethod
    def load(path: Path) -> Templates:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            return Templates(
                package=about["package"],
                names=tuple(str(name) for name in file["names"]),
                vectors=file["vectors"],
                found=file["found"],
                quality=file["quality"],
                failures=about["failures"],
                seconds=about["seconds"],
                made_by=about.get("made_by", {}),
            )


def make_templates(
    package: str,
    dimension: int,
    names: Sequence[str],
    embed: Embed,
    *,
    threads: int,
    progress: Callable[[int], None] = lambda _photos: None,
) -> Templates:
    """Run ``embed`` (photo's name → unit vector, quality) on ``names`` in ``threads`` threads.

    A LikenessError affects only its photo; any other error ends the run.
    """
    vectors = np.zeros((len(names), dimension), np.float32)
    quality = np.zeros(len(names), np.float32)
    failures: dict[str, str] = {}

    def make(i: int) -> None:
        try:
            vectors[i], quality[i] = embed(names[i])
        except LikenessError as error:
            failures[names[i]] = error.code
        progress(1)

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(make, i) for i in range(len(names))]:
            future.result()
    found = np.array([name not in failures for name in names], bool)
    seconds = time.perf_counter() - start
    return Templates(package, tuple(names), vectors, found, quality, dict(sorted(failures.items())), seconds)
