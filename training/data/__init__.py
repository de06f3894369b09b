"""Training data: sets of crops, and readers of the formats they come in."""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import Callable
from pathlib import Path

from app.errors import InvalidInput
from training.data.dataset import FaceSet, OnError, Subset, without_people
from training.data.drawn.dataset import ProceduralFaces
from training.data.folder import LIST_ENDINGS, FolderFaces, ListFaces
from training.data.records import RecordFaces
from training.data.shards import TarFaces

__all__ = ["FaceSet", "Subset", "open_dataset", "read_drop_list", "without_people"]

KINDS = ("folder", "list", "rec", "tar", "procedural")


def open_dataset(spec: str | Path, on_error: OnError = "raise") -> FaceSet:
    """Open a set of crops by its path. Its kind is recognised, or given in front of the path (``tar:shards/*.tar``).

    ==============  =================================================================================
    folder          a folder with a folder for each person
    list            ``.csv``, ``.tsv`` or ``.parquet`` with the columns path and person (or label)
    rec             InsightFace's ``.rec`` (or the folder of a ``train.rec``)
    tar             one ``.tar``, a folder of them, or a pattern with ``*``
    procedural      drawn faces: ``procedural:people=500,images=20,seed=1,first=0``
    ==============  =================================================================================

    ``on_error`` says what damaged images do (`training.data.dataset.StoredFaces`). Raises InvalidInput with code
    ``dataset_not_found``, ``dataset_unknown``, ``dataset_empty`` or ``dataset_invalid``.
    """
    kind, _, rest = str(spec).partition(":")
    if kind not in KINDS:
        kind, rest = _recognise(Path(spec)), str(spec)
    openers: dict[str, Callable[[], FaceSet]] = {
        "folder": lambda: FolderFaces(Path(rest), on_error),
        "list": lambda: ListFaces(Path(rest), on_error),
        "rec": lambda: RecordFaces(_rec_file(Path(rest)), on_error),
        "tar": lambda: TarFaces(_shards(rest), on_error),
        "procedural": lambda: _procedural(rest),
    }
    return openers[kind]()


def _recognise(path: Path) -> str:
    ending = path.suffix.lower()
    if ending in LIST_ENDINGS:
        return "list"
    if ending == ".rec" or (path / "train.rec").is_file():
        return "rec"
    if ending == ".tar" or "*" in path.name:
        return "tar"
    if not path.exists():
        raise InvalidInput(f"There is no {path}.", code="dataset_not_found")
    if path.is_dir():
        return "tar" if any(path.glob("*.tar")) else "folder"
    raise InvalidInput(f"{path} is of no kind that is known: {', '.join(KINDS)}.", code="dataset_unknown")


def _rec_file(path: Path) -> Path:
    return path / "train.rec" if path.is_dir() else path


def _shards(spec: str) -> list[Path]:
    path = Path(spec)
    if path.is_dir():
        found = sorted(path.glob("*.tar"))
    else:
        found = [path] if path.is_file() else [Path(name) for name in sorted(glob.glob(spec))]  # noqa: PTH207 - absolute patterns
    if not found:
        raise InvalidInput(f"There is no tar file at {spec}.", code="dataset_not_found")
    return found


def _procedural(spec: str) -> FaceSet:
    numbers = {"people": 500, "images": 20, "seed": 0, "first": 0, "together": 1}
    for setting in filter(None, spec.split(",")):
        name, _, value = setting.partition("=")
        if name not in numbers or not value.isdecimal():
            raise InvalidInput(f"Drawn faces know no {setting!r}: {', '.join(numbers)}.", code="dataset_invalid")
        numbers[name] = int(value)
    people, images, seed, first, together = numbers.values()
    try:
        return ProceduralFaces(people, images, seed, first=first, together=together)
    except ValueError as error:
        raise InvalidInput(f"{spec}: {error}.", code="dataset_invalid") from error


def read_drop_list(path: Path) -> list[str]:
    """Read the people to leave out: the JSON or CSV that ``data overlap`` writes, or a text file with one name per
    line.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() == ".json":
        loaded = json.loads(text)
        names = loaded["drop"] if isinstance(loaded, dict) else loaded
        return [str(name) for name in names]
    lines = [line for line in text.splitlines() if line.strip()]
    if path.suffix.lower() == ".csv":
        return [row["drop"] for row in csv.DictReader(lines)]
    return [line.strip() for line in lines]
