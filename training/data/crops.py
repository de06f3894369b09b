"""A set's crops for training: pixels from the files or from a decoded copy, and which rows to take."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.package.manifest import CROP_SIDE
from app.types import Pixels
from training.data.dataset import FaceSet
from training.data.index import put_in_place
from training.data.mapped import Strings, StringWriter, open_array

DECODING_THREADS = 2
DECODED_AT_ONCE = 256


class PixelSource(Protocol):
    """The crops of a whole data source, (M, 112, 112, 3) uint8 RGB, indexed like an array's first axis."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int | slice | NDArray[np.int64]) -> Pixels: ...


class StreamedPixels:
    """Decodes a crop each time it is read."""

    def __init__(self, faces: FaceSet) -> None:
        self._faces = faces

    def __len__(self) -> int:
        return len(self._faces)

    def facts(self) -> dict[str, object]:
        return {"images": len(self), "source": self._faces.stamp()}

    @property
    def damaged(self) -> int:
        """Return the number of damaged images that this process has met."""
        return len(getattr(self._faces, "skipped", ()))

    def __getitem__(self, index: int | slice | NDArray[np.int64]) -> Pixels:
        if isinstance(index, int | np.integer):
            return self._faces[int(index)][0]
        rows = range(*index.indices(len(self))) if isinstance(index, slice) else index.tolist()
        crops = np.empty((len(rows), CROP_SIDE, CROP_SIDE, 3), np.uint8)
        for place, row in enumerate(rows):
            crops[place] = self._faces[row][0]
        return crops


class DecodedPixels:
    """Crops that were decoded into a `.npy` file, mapped into memory. They are sent to other processes as a path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._crops: Pixels = np.load(path, mmap_mode="r")

    def __reduce__(self) -> tuple[type[DecodedPixels], tuple[Path]]:
        return DecodedPixels, (self._path,)

    def __len__(self) -> int:
        return len(self._crops)

    def __getitem__(self, index: int | slice | NDArray[np.int64]) -> Pixels:
        return np.asarray(self._crops[index])

    def facts(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self._path.with_suffix(".json").read_text())
        return found


def facts_of(pixels: PixelSource) -> dict[str, object]:
    """Return plain values that change if any crop does, without decoding files."""
    if isinstance(pixels, StreamedPixels | DecodedPixels):
        return pixels.facts()
    return {"images": len(pixels), "source": hashlib.sha256(np.ascontiguousarray(pixels[:]).tobytes()).hexdigest()}


@dataclass(frozen=True, slots=True)
class Crops:
    """A set's crops: `pixels` of a whole data source, `rows` (N,) of those in the set, and `labels` (N,) int64 into
    `people`. Crops that are `kept` in a folder are sent to other processes as its path."""

    pixels: PixelSource
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    people: Sequence[str]
    kept: Path | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> tuple[Callable[..., Crops], tuple[object, ...]]:
        if self.kept is not None:
            return open_crops, (self.pixels, self.kept)
        return Crops, (self.pixels, self.rows, self.labels, self.people)

    @property
    def damaged(self) -> int:
        """Return the number of damaged images that this process has met and replaced by others."""
        return self.pixels.damaged if isinstance(self.pixels, StreamedPixels) else 0

    def images(self, indices: Sequence[int] | NDArray[np.int64]) -> Pixels:
        """Return copies of crops, (n, 112, 112, 3)."""
        return self.pixels[self.rows[np.asarray(indices, np.int64)]]

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Crops:
        """Return the crops at these places; people without any are left out, and labels are renumbered."""
        chosen = np.asarray(indices, np.int64)
        kept, labels = np.unique(self.labels[chosen], return_inverse=True)
        return Crops(self.pixels, self.rows[chosen], labels.astype(np.int64), [self.people[k] for k in kept])

    def keep(self, folder: Path) -> None:
        """Write rows and labels into a new folder, from which `open_crops` maps them."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="choosing-") as draft:
            made = Path(draft) / folder.name
            made.mkdir()
            for name, numbers in (("rows", self.rows), ("labels", self.labels)):
                numbers.tofile(made / f"{name}.i64")
            people = StringWriter(made / "people")
            people.append(self.people)
            people.close()
            put_in_place(made, folder)


def all_crops(faces: FaceSet, pixels: PixelSource) -> Crops:
    """Return all crops of a set; `pixels` reads them."""
    return Crops(pixels, np.arange(len(faces)), np.asarray(faces.labels, np.int64), faces.people)


def open_crops(pixels: PixelSource, folder: Path) -> Crops:
    """Map what `Crops.keep` wrote, in the same time and memory for any number of crops."""
    rows, labels = (open_array(folder / f"{name}.i64") for name in ("rows", "labels"))
    return Crops(pixels, rows, labels, Strings(folder / "people"), folder)


def open_pixels(
    faces: FaceSet, decoded: Path | None, progress: Callable[[int], None] = lambda _count: None
) -> PixelSource:
    """Return a set's crops: decoded at each reading, or, with a folder, decoded once into a file there that is mapped
    into memory.

    An existing file is used only if it was made from the same files, by their names, sizes and times; else a new one is
    made, while other runs may go on reading the old one. ``progress`` gets the number of crops decoded since the last
    call.
    """
    if decoded is None:
        return StreamedPixels(faces)
    facts = StreamedPixels(faces).facts()
    about, array = decoded / "crops.json", decoded / "crops.npy"
    if not (about.is_file() and array.is_file() and json.loads(about.read_text()) == facts):
        decoded.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=decoded) as making:
            part = Path(making) / array.name
            mapped = np.lib.format.open_memmap(part, "w+", np.uint8, (len(faces), CROP_SIDE, CROP_SIDE, 3))
            _decode(mapped, faces, progress)
            mapped.flush()
            about.unlink(missing_ok=True)
            part.replace(array)
        about.write_text(json.dumps(facts, indent=2) + "\n")
    return DecodedPixels(array)


def _decode(pixels: Pixels, faces: FaceSet, progress: Callable[[int], None]) -> None:
    def block(start: int) -> int:
        stop = min(start + DECODED_AT_ONCE, len(faces))
        for index in range(start, stop):
            pixels[index] = faces[index][0]
        return stop - start

    with ThreadPoolExecutor(DECODING_THREADS) as pool:
        for done in pool.map(block, range(0, len(faces), DECODED_AT_ONCE)):
            progress(done)


def split_people(labels: NDArray[np.int64], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices, int64, of the crops to train on and of those held out, from (N,) labels. Held out is a
    `share` of the people, none or at least two, chosen by `seed` among those with two crops or more."""
    people, counts = np.unique(labels, return_counts=True)
    several = people[counts > 1]
    count = 0 if share == 0 else min(len(several), max(2, round(share * len(people))))
    chosen = np.random.default_rng(seed).permutation(several)[:count]
    held = np.isin(labels, chosen)
    return np.flatnonzero(~held), np.flatnonzero(held)


def whole_people(labels: NDArray[np.int64], limit: int, seed: int) -> NDArray[np.int64]:
    """Return the indices, int64, of at most `limit` crops of people with two or more, from (N,) labels. People are
    taken whole, in an order chosen by `seed`."""
    order = np.argsort(labels, kind="stable")
    people, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    chosen: list[NDArray[np.int64]] = []
    total = 0
    for place in np.random.default_rng(seed).permutation(len(people)):
        if counts[place] > 1 and total + counts[place] <= limit:
            chosen.append(order[starts[place] : starts[place] + counts[place]])
            total += int(counts[place])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
