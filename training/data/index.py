"""The index of a stored set: who is in each image and where the image lies, in files that are mapped into memory.

Indexing reads a set's lists or headers once; its memory grows only with the number of people. Opening an index takes
the same time and memory for any set's size.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.errors import InvalidImage, InvalidInput, LikenessError
from app.types import Pixels
from training.data.dataset import FaceSet, OnError, decode_crop
from training.data.formats import COPIES, IMAGES, Kind, Listing, remote
from training.data.formats.records import read_image
from training.data.mapped import FORMAT, Strings, StringWriter, append_numbers, open_array

LABELS_AT_ONCE = 1 << 20
COLUMNS = ("labels", "file", "offset", "size")
FACTS = "index.json"
FETCHED_AT_ONCE = 2
MOST_DAMAGED = 0.01
"""A run ends if a larger share of its images is damaged: the copy of the set is then probably broken."""


class IndexedFaces(FaceSet):
    """The images of an index, resized to 112 x 112 if needed. It is sent to other processes as a path.

    For a damaged image, ``on_error="raise"`` raises an error that names it (InvalidImage or another), and ``"skip"``
    returns the next readable image of the same person and adds the damaged one to ``skipped``. More than
    `MOST_DAMAGED` damaged images raise in any case (``data_damaged``). At most ``copies`` shards from object storage
    are kept beside the index, with None all.
    """

    def __init__(self, folder: Path, on_error: OnError = "raise", copies: int | None = None) -> None:
        self.folder = folder
        self.on_error = on_error
        self.copies = copies
        self.skipped: set[int] = set()
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        self._kind: Kind = facts["kind"]
        self._urls = {number: name for number, name in enumerate(facts["files"]) if name and remote.is_url(name)}
        self._files = [folder / IMAGES if name is None else Path(name) for name in facts["files"]]
        self._fetching = ThreadPoolExecutor(FETCHED_AT_ONCE)
        self._names = Strings(folder / "names")
        self._places = {name: open_array(folder / f"{name}.i64") for name in COLUMNS[1:]}
        self.labels = open_array(folder / "labels.i64")
        self.people = Strings(folder / "people")

    def __reduce__(self) -> tuple[type[IndexedFaces], tuple[Path, OnError, int | None]]:
        return IndexedFaces, (self.folder, self.on_error, self.copies)

    def shards_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each image's file, (n,)."""
        return np.asarray(self._places["file"][rows], np.int64)

    def fetch(self, shard: int) -> None:
        """Begin to fetch a shard that will be read soon, if it is in object storage. Its reader raises errors."""
        if shard in self._urls:
            self._fetching.submit(lambda: self._open(shard).close())

    def _open(self, number: int) -> BinaryIO:
        if number in self._urls:
            return remote.open_shard(self.folder / COPIES, number, self._urls[number], self.copies)
        return self._files[number].open("rb")

    def encoded(self, index: int) -> bytes:
        """Return image ``index`` as stored: JPEG, PNG or another format that the service reads."""
        # The file is opened for each read, which is safe in threads and after a fork.
        number, offset, size = (int(self._places[name][index]) for name in COLUMNS[1:])
        if self._kind == "path":
            return (self._files[0] / self._names[index]).read_bytes()
        with self._open(number) as file:
            if self._kind == "record":
                return read_image(file, offset)
            file.seek(offset)
            return file.read(size)

    def describe(self, index: int) -> str:
        file = self._files[int(self._places["file"][index])]
        return (
            self._names[index] if self._kind == "path" or file.name == IMAGES else f"{file.name} {self._names[index]}"
        )

    def key(self) -> str:
        return self.folder.name

    def stamp(self) -> str:
        """Return a text that changes if any image does. If each image is a file of its own, every file is checked."""
        digest = hashlib.sha256(self.folder.name.encode())
        if self._kind == "path":
            for name in self._names:
                digest.update(f"{_stamp(self._files[0] / name)}\n".encode())
        return digest.hexdigest()

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        place = range(len(self))[index]  # raises IndexError beyond the end
        label = int(self.labels[place])
        try:
            return self._crop(place), label
        except LikenessError:
            if self.on_error == "raise":
                raise
        self.skipped.add(place)
        if len(self.skipped) > max(1, MOST_DAMAGED * len(self)):
            message = f"{len(self.skipped)} of {len(self)} images are damaged, {self.describe(place)} among them."
            raise InvalidImage(f"{message} `python -m training data check` lists them.", code="data_damaged")
        return self._another(place, label), label

    def _crop(self, index: int) -> Pixels:
        try:
            return decode_crop(self.encoded(index))
        except (LikenessError, OSError) as error:
            kind = type(error) if isinstance(error, LikenessError) else InvalidImage
            raise kind(f"{self.describe(index)}: {error}", image=self.describe(index)) from error

    def _another(self, index: int, label: int) -> Pixels:
        places = np.flatnonzero(self.labels == label)
        start = int(np.searchsorted(places, index))
        for place in np.roll(places, -start)[1:].tolist():
            try:
                return self._crop(place)
            except LikenessError:
                self.skipped.add(place)
        raise InvalidImage(f"No image of {self.people[label]} can be read.", person=self.people[label])


def open_indexed(
    listing: Listing,
    kept: Path | None,
    on_error: OnError,
    progress: Callable[[int], None] = lambda _count: None,
    copies: int | None = None,
) -> IndexedFaces:
    """Open the set, after indexing it if ``kept`` has no index of its present state.

    ``kept`` is a folder of indexes; with None, the index is deleted when the set object is. ``progress`` gets the
    number of images found since the last call, ``copies`` is that of `IndexedFaces`. Raises InvalidInput
    (``dataset_empty``, ``dataset_invalid``).
    """
    if kept is None:
        alone = Path(tempfile.mkdtemp(prefix="likeness-index-"))
        try:
            faces = open_indexed(listing, alone, on_error, progress, copies)
        except BaseException:
            shutil.rmtree(alone)
            raise
        weakref.finalize(faces, _remove, alone, os.getpid())
        return faces
    folder = kept / index_key(listing)
    if not (folder / FACTS).is_file():
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept, prefix="indexing-") as draft:
            made = Path(draft) / "index"
            made.mkdir()
            _write(listing, made, progress)
            put_in_place(made, folder)
    return IndexedFaces(folder, on_error, copies)


def put_in_place(made: Path, folder: Path) -> None:
    """Move a complete folder to its name, unless another process was faster."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def index_key(listing: Listing) -> str:
    """Return 16 hex digits that change if a name, size or time of one of the set's files changes."""
    digest = hashlib.sha256(f"{FORMAT} {listing.kind}".encode())
    for path in listing.watched():
        facts = f"{path} {remote.stamp(path)}" if isinstance(path, str) else f"{path.resolve()} {_stamp(path)}"
        digest.update(f"{facts}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _stamp(path: Path) -> str:
    """Return the file's size and time, or `missing`; the error is reported when the file is read."""
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{0 if path.is_dir() else status.st_size} {status.st_mtime_ns}"


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has a copy of the set, and must not delete the index
        shutil.rmtree(folder, ignore_errors=True)


def _write(listing: Listing, folder: Path, progress: Callable[[int], None]) -> None:
    """Write the index of a set; its facts are written last."""
    numbers: dict[str, int] = {}
    count = 0
    with ExitStack() as stack:
        names = stack.enter_context(closing(StringWriter(folder / "names")))
        columns = [stack.enter_context((folder / f"{name}.i64").open("wb")) for name in COLUMNS]
        for block in listing.blocks(folder):
            labels = [numbers.setdefault(person, len(numbers)) for person in block.people]
            places: tuple[ArrayLike, ...] = (labels, np.full(len(labels), block.file), block.offsets, block.sizes)
            for column, values in zip(columns, places, strict=True):
                append_numbers(column, values)
            names.append(block.names)
            count += len(block.people)
            progress(len(block.people))
    if not count:
        raise InvalidInput("The set holds no images.", code="dataset_empty")
    _sort_people(folder, numbers)
    files = [str(path.resolve()) if isinstance(path, Path) else path for path in listing.files]
    (folder / FACTS).write_text(json.dumps({"kind": listing.kind, "images": count, "files": files}) + "\n")


def _sort_people(folder: Path, numbers: dict[str, int]) -> None:
    """Number people in the order of code points, or of numbers if all names are digits, so that the labels depend only
    on the set of people."""
    natural = all(name.isdecimal() for name in numbers)
    ordered = sorted(numbers, key=lambda name: (len(name) if natural else 0, name))
    place = np.empty(len(ordered), np.int64)
    place[[numbers[name] for name in ordered]] = np.arange(len(ordered))
    labels = open_array(folder / "labels.i64", "r+")
    for start in range(0, len(labels), LABELS_AT_ONCE):
        part = slice(start, start + LABELS_AT_ONCE)
        labels[part] = place[labels[part]]
    people = StringWriter(folder / "people")
    people.append(ordered)
    people.close()
