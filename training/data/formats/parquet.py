"""Read crops from Parquet files with an image column and a label column, as Hugging Face's data sets have them.

A Parquet file compresses many rows together, so one image can't be read by itself: indexing copies the images' bytes
into one file beside the index, once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.errors import InvalidInput
from training.data.formats import IMAGES, ImageBlock, Listing

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "webp", "bytes")
LABEL_COLUMNS = ("person", "label", "identity", "subject", "name", "cls")
"""The first of these that the file has is used."""
ROWS_AT_ONCE = 256
"""Images held in memory while they are copied."""


@contextmanager
def open_parquet(path: Path) -> Iterator[ParquetFile]:
    """Open a Parquet file for the block. Raises InvalidInput ``dataset_invalid``, also if the block can't read it."""
    import pyarrow  # noqa: PLC0415 - large, and needed for this format alone
    import pyarrow.parquet  # noqa: PLC0415

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"{path} is no readable Parquet file: {error}", code="dataset_invalid") from error


def image_column(file: ParquetFile) -> str | None:
    """Return the column of images' bytes, either plain or in a struct's ``bytes``; None if there is none."""
    from pyarrow import types  # noqa: PLC0415 - as above

    names: list[str] = file.schema_arrow.names
    for name in (name for name in names if name.lower() in IMAGE_COLUMNS):
        kind = file.schema_arrow.field(name).type
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            return name
        if types.is_binary(kind) or types.is_large_binary(kind):
            return name
    return None


def list_parquet(files: Sequence[Path]) -> Listing:
    """List the images of Parquet files, in the order of files and rows."""

    def blocks(folder: Path) -> Iterator[ImageBlock]:
        with (folder / IMAGES).open("wb") as images:
            for path in files:
                row = itertools.count()
                with open_parquet(path) as file:
                    for people, encoded in _rows(path, file):
                        names = [f"{path.name} row {next(row)}" for _ in encoded]
                        sizes = np.array([len(data) for data in encoded], np.int64)
                        offsets = images.tell() + np.cumsum(sizes) - sizes
                        images.write(b"".join(encoded))
                        yield ImageBlock(people, names, 0, offsets, sizes)

    return Listing("bytes", (None,), lambda: files, blocks)


def _rows(path: Path, file: ParquetFile) -> Iterator[tuple[list[str], list[bytes]]]:
    """Yield people and images, a few rows at a time. Raises InvalidInput ``dataset_invalid``."""
    images = image_column(file)
    labels = next(
        (name for wanted in LABEL_COLUMNS for name in file.schema_arrow.names if name.lower() == wanted), None
    )
    if images is None or labels is None:
        message = f"{path} needs a column of images ({', '.join(IMAGE_COLUMNS)}) and one of {', '.join(LABEL_COLUMNS)}."
        raise InvalidInput(message, code="dataset_invalid")
    known = _class_names(file, labels)
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=[images, labels]):
        people = [_person(label, known) for label in batch.column(labels).to_pylist()]
        encoded = [_bytes(value) for value in batch.column(images).to_pylist()]
        if None in encoded or "" in people:
            raise InvalidInput(f"{path}: a row lacks its image's bytes or its person.", code="dataset_invalid")
        yield people, [data for data in encoded if data is not None]


def _class_names(file: ParquetFile, column: str) -> list[str] | None:
    """Return the names that Hugging Face's `ClassLabel` gives to a column's numbers, if the file has them."""
    try:
        facts = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])
        names = facts["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names]


def _person(label: object, known: Sequence[str] | None) -> str:
    if label is None:
        return ""
    if known is not None and isinstance(label, int) and 0 <= label < len(known):
        return known[label]
    return str(label)


def _bytes(value: Any) -> bytes | None:
    data = value.get("bytes") if isinstance(value, dict) else value
    return data if isinstance(data, bytes) and data else None
