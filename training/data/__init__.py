"""Training data: sets of crops, and readers of the formats they come in."""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput
from training.data.dataset import FaceSet, OnError
from training.data.drawn import ProceduralFaces
from training.data.formats import Listing
from training.data.formats.folder import LIST_ENDINGS, list_folder, list_table
from training.data.formats.parquet import image_column, list_parquet, open_parquet
from training.data.formats.records import list_records
from training.data.formats.remote import is_url, list_urls
from training.data.formats.shards import list_tars
from training.data.index import open_indexed

__all__ = ["FaceSet", "open_dataset", "read_drop_list", "rows_left"]

KINDS = ("folder", "list", "rec", "tar", "parquet", "procedural")
DOUBTED = ("broken", "misplaced", "outliers")
"""Lists of images in a report of `data check` or `data outliers`."""


def open_dataset(
    spec: str | Path,
    on_error: OnError = "raise",
    *,
    indexes: Path | None = None,
    copies: int | None = None,
    progress: Callable[[int], None] = lambda _count: None,
) -> FaceSet:
    """Open a set of crops by its path. Its kind is recognised, or given as a prefix (``tar:shards/*.tar``).

    ==============  =================================================================================
    folder          a folder with a folder for each person
    list            ``.csv``, ``.tsv`` or ``.parquet`` with the columns path and person (or label)
    rec             InsightFace's ``.rec`` (or the folder of a ``train.rec``)
    tar             one ``.tar``, a folder of them, a pattern with ``*``, or URLs (``s3://bucket/{000..127}.tar``)
    parquet         the same for Parquet files with the columns image (bytes) and label (or person)
    procedural      drawn faces: ``procedural:people=500,images=20,seed=1,first=0``
    ==============  =================================================================================

    ``on_error`` says what to do about damaged images; ``indexes``, ``copies`` and ``progress`` are those of
    `training.data.index.open_indexed`. Raises InvalidInput with code ``dataset_not_found``, ``dataset_unknown``,
    ``dataset_empty``, ``dataset_invalid`` or ``dataset_unreachable``.
    """
    kind, _, rest = str(spec).partition(":")
    if kind not in KINDS:
        kind, rest = "tar" if is_url(str(spec)) else _recognise(Path(spec)), str(spec)
    if kind == "procedural":
        return _procedural(rest)
    listers: dict[str, Callable[[], Listing]] = {
        "folder": lambda: list_folder(Path(rest)),
        "list": lambda: list_table(Path(rest)),
        "rec": lambda: list_records(_rec_file(Path(rest))),
        "tar": lambda: list_tars(list_urls(rest) if is_url(rest) else _files(rest, ".tar"), copies),
        "parquet": lambda: list_parquet(_files(rest, ".parquet")),
    }
    return open_indexed(listers[kind](), indexes, on_error, progress, copies)


def _recognise(path: Path) -> str:
    ending = path.suffix.lower()
    if ending == ".parquet" and ("*" in path.name or _has_images(path)):
        return "parquet"
    if ending in LIST_ENDINGS:
        return "list"
    if ending == ".rec" or (path / "train.rec").is_file():
        return "rec"
    if ending == ".tar" or "*" in path.name:
        return "tar"
    if not path.exists():
        raise InvalidInput(f"There is no {path}.", code="dataset_not_found")
    if path.is_dir():
        return next((kind for kind in ("tar", "parquet") if any(path.glob(f"*.{kind}"))), "folder")
    raise InvalidInput(f"{path} is of no kind that is known: {', '.join(KINDS)}.", code="dataset_unknown")


def _has_images(path: Path) -> bool:
    if not path.is_file():
        return False
    with open_parquet(path) as file:
        return image_column(file) is not None


def _rec_file(path: Path) -> Path:
    return path / "train.rec" if path.is_dir() else path


def _files(spec: str, ending: str) -> list[Path]:
    path = Path(spec)
    if path.is_dir():
        files = sorted(path.glob(f"*{ending}"))
    else:
        files = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(spec))]  # noqa: PTH207 - absolute patterns
    if not files:
        raise InvalidInput(f"There is no {ending[1:]} file at {spec}.", code="dataset_not_found")
    return files


def _procedural(spec: str) -> FaceSet:
    numbers = {"people": 500, "images": 20, "seed": 0, "first": 0}
    for setting in filter(None, spec.split(",")):
        name, _, value = setting.partition("=")
        if name not in numbers or not value.isdecimal():
            raise InvalidInput(f"Drawn faces know no {setting!r}: {', '.join(numbers)}.", code="dataset_invalid")
        numbers[name] = int(value)
    people, images, seed, first = numbers.values()
    try:
        return ProceduralFaces(people, images, seed, first=first)
    except ValueError as error:
        raise InvalidInput(f"{spec}: {error}.", code="dataset_invalid") from error


def rows_left(faces: FaceSet, drop: Path | None) -> NDArray[np.int64]:
    """Return the (n,) indices of the images that are not on the list ``drop``, by default all; see
    `read_drop_list`."""
    if drop is None:
        return np.arange(len(faces))
    people, images = read_drop_list(drop)
    left = np.array([name not in people for name in faces.people], bool)[faces.labels]
    if images:
        left &= np.array([faces.describe(index) not in images for index in range(len(faces))], bool)
    return np.flatnonzero(left)


def read_drop_list(path: Path) -> tuple[set[str], set[str]]:
    """Read which people and images to leave out: the people that ``data overlap`` found, JSON or CSV; the images that
    ``data check`` or ``data outliers`` reports as broken, misplaced or outliers; or a text file with one person's name
    per line.

    Raises InvalidInput (``dataset_invalid``) for other JSON.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() == ".json":
        loaded = json.loads(text)
        if not isinstance(loaded, dict):
            return {str(name) for name in loaded}, set()
        if loaded.keys().isdisjoint({"drop", *DOUBTED}):
            raise InvalidInput(f"{path} is no list of people or images to leave out.", code="dataset_invalid")
        doubted = (doubt["image"] for kind in DOUBTED for doubt in loaded.get(kind, ()))
        return {str(name) for name in loaded.get("drop", ())}, set(doubted)
    lines = [line for line in text.splitlines() if line.strip()]
    if path.suffix.lower() == ".csv":
        return {row["drop"] for row in csv.DictReader(lines)}, set()
    return {line.strip() for line in lines}, set()
