"""Crops in uncompressed tar files, as WebDataset and most downloads have them, read at random without unpacking."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.errors import InvalidInput
from training.data.dataset import OnError, StoredFaces
from training.data.folder import IMAGE_ENDINGS

LABEL_ENDINGS = frozenset({".cls", ".json"})
LABEL_KEYS = ("person", "label", "identity", "cls")


@dataclass(frozen=True, slots=True)
class _Member:
    shard: int
    name: str
    offset: int
    size: int


class TarFaces(StoredFaces):
    """Images of one or several tar files, in the order of shards and members. A ``.cls`` (a number or name) or
    ``.json`` (``person`` or ``label``) of an image's name beside it says who is in it; without one, its folder does.
    """

    def __init__(self, shards: Sequence[Path], on_error: OnError = "raise") -> None:
        self.shards = list(shards)
        self.members: list[_Member] = []
        people: list[str] = []
        for number, shard in enumerate(self.shards):
            for member, person in _read_shard(number, shard):
                self.members.append(member)
                people.append(person)
        super().__init__(people, on_error)

    def encoded(self, index: int) -> bytes:
        member = self.members[index]
        return _content(self.shards[member.shard], member)

    def describe(self, index: int) -> str:
        member = self.members[index]
        return f"{self.shards[member.shard].name}:{member.name}"

    def files(self) -> Iterable[Path]:
        return self.shards


def _content(shard: Path, member: _Member) -> bytes:
    with shard.open("rb") as file:  # opened for each read: safe in threads and after a fork
        file.seek(member.offset)
        return file.read(member.size)


def _read_shard(number: int, shard: Path) -> Iterable[tuple[_Member, str]]:
    images: list[_Member] = []
    labels: dict[str, _Member] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for info in archive:
                path = PurePosixPath(info.name)
                member = _Member(number, info.name, info.offset_data, info.size)
                if not info.isreg() or path.name.startswith("."):
                    continue
                if path.suffix.lower() in IMAGE_ENDINGS:
                    images.append(member)
                elif path.suffix.lower() in LABEL_ENDINGS:
                    labels[_stem(info.name)] = member
    except (tarfile.TarError, OSError) as error:
        raise InvalidInput(f"{shard} is no uncompressed tar file: {error}", code="dataset_invalid") from error
    return [(image, _person(shard, image, labels.get(_stem(image.name)))) for image in images]


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _person(shard: Path, image: _Member, label: _Member | None) -> str:
    if label is None:
        person = PurePosixPath(image.name).parent.name
        if not person:
            raise InvalidInput(f"{shard}: nothing says who is in {image.name}.", code="dataset_invalid")
        return person
    try:
        text = _content(shard, label).decode("utf-8").strip()
        if not label.name.endswith(".json"):
            return text
        facts = json.loads(text)
        return str(next(facts[key] for key in LABEL_KEYS if key in facts))
    except (ValueError, TypeError, StopIteration) as error:
        raise InvalidInput(f"{shard}: {label.name} names nobody.", code="dataset_invalid") from error
