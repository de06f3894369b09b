"""Read crops from uncompressed tar files, as WebDataset and most downloads have them, without unpacking."""

from __future__ import annotations

import json
import tarfile
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from app.errors import InvalidInput
from app.photo_folders import is_photo, is_skipped
from training.data.formats import COPIES, ImageBlock, Listing
from training.data.formats.remote import open_shard

LABEL_ENDINGS = frozenset({".cls", ".json"})
LABEL_KEYS = ("person", "label", "identity", "cls")


def list_tars(shards: Sequence[Path | str], copies: int | None) -> Listing:
    """List the images of tar files or their URLs, in the order of shards and members; see `open_shard`.

    A file beside an image with its name and ``.cls`` (a number or name) or ``.json`` (``person`` or ``label``) says who
    is in it; otherwise its folder does.
    """

    def blocks(folder: Path) -> Iterator[ImageBlock]:
        for number, shard in enumerate(shards):
            with (
                shard.open("rb") if isinstance(shard, Path) else open_shard(folder / COPIES, number, shard, copies)
            ) as file:
                yield _read_shard(file, number, str(shard))

    return Listing("bytes", tuple(shards), lambda: shards, blocks)


def _read_shard(file: BinaryIO, number: int, shard: str) -> ImageBlock:
    images: list[tarfile.TarInfo] = []
    labels: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # undocumented; drops members that tarfile keeps
                path = PurePosixPath(info.name)
                if not info.isreg() or any(map(is_skipped, path.parts)):
                    continue
                if is_photo(path.parts):
                    images.append(info)
                elif path.suffix.lower() in LABEL_ENDINGS:
                    labels[_stem(info.name)] = info
        people = [_person(file, shard, image, labels.get(_stem(image.name))) for image in images]
    except (tarfile.TarError, OSError) as error:
        raise InvalidInput(f"{shard} is no uncompressed tar file: {error}", code="dataset_invalid") from error
    offsets, sizes = (
        np.array([getattr(image, part) for image in images], np.int64) for part in ("offset_data", "size")
    )
    return ImageBlock(people, [image.name for image in images], number, offsets, sizes)


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def _person(file: BinaryIO, shard: str, image: tarfile.TarInfo, label: tarfile.TarInfo | None) -> str:
    if label is None:
        person = PurePosixPath(image.name).parent.name
        if not person:
            raise InvalidInput(f"{shard}: nothing says who is in {image.name}.", code="dataset_invalid")
        return unicodedata.normalize("NFC", person)
    file.seek(label.offset_data)
    try:
        text = file.read(label.size).decode("utf-8").strip()
        if not label.name.endswith(".json"):
            return text
        facts = json.loads(text)
        return str(next(facts[key] for key in LABEL_KEYS if key in facts))
    except (ValueError, TypeError, StopIteration) as error:
        raise InvalidInput(f"{shard}: {label.name} names nobody.", code="dataset_invalid") from error
