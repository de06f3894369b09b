"""Read crops from image files: in one folder per person, or listed in a CSV, TSV or Parquet table."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.errors import InvalidInput
from app.files import delimiter_of
from app.photo_folders import folders_of_people, people
from training.data.formats import ImageBlock, Listing
from training.data.formats.parquet import open_parquet

PATH_COLUMNS = ("path", "file", "filename", "image")
PERSON_COLUMNS = ("person", "label", "identity", "subject", "name")
"""The first of these that the table has is used."""
ROWS_AT_ONCE = 1 << 14
LIST_ENDINGS = frozenset({".csv", ".tsv", ".parquet"})


def list_folder(root: Path) -> Listing:
    """List ``root/person/.../image.jpg``: the first folder below ``root`` is the person.

    Images are those that `app.photo_folders.people` finds, in the order of their paths; files beside the people's
    folders are ignored. Added or deleted images are noticed by the time of the person's folder.
    Raises InvalidInput ``dataset_not_found``; ``blocks`` raises ``dataset_empty``.
    """
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a folder.", code="dataset_not_found")

    def blocks(_folder: Path) -> Iterator[ImageBlock]:
        found = people(root)
        if not found:
            folders = len(folders_of_people(root, lambda _folder, _why: None))
            message = f"{root} holds no photos in folders of people ({root}/PERSON/PHOTO); folders found: {folders}."
            raise InvalidInput(message, code="dataset_empty")
        for person, paths in found.items():
            yield ImageBlock.of_paths([person] * len(paths), [path.relative_to(root).as_posix() for path in paths])

    return Listing("path", (root,), lambda: (root, *folders_of_people(root, lambda _folder, _why: None)), blocks)


def list_table(table: Path) -> Listing:
    """List ``path`` and ``person`` (or ``label``) of each row; paths are relative to the table's own folder, or
    absolute.

    A CSV's first line names the columns. Rows keep their order. Raises InvalidInput ``dataset_not_found``.
    """
    if not table.is_file():
        raise InvalidInput(f"{table} is not a file.", code="dataset_not_found")
    read = _read_parquet if table.suffix.lower() == ".parquet" else _read_csv

    def blocks(_folder: Path) -> Iterator[ImageBlock]:
        read_before = 0
        for rows in read(table):
            for number, (path, person) in enumerate(rows, start=read_before + 1):
                if not path or not person:
                    message = f"{table}: row {number} lacks its path or its person."
                    raise InvalidInput(message, code="dataset_invalid")
            read_before += len(rows)
            yield ImageBlock.of_paths([person for _, person in rows], [path for path, _ in rows])

    return Listing("path", (table.parent,), lambda: (table,), blocks)


def _columns(table: Path, names: Sequence[str]) -> tuple[int, int]:
    """Return the positions of the columns of paths and of people. Raises InvalidInput ``dataset_invalid``."""
    plain = [name.strip().lower() for name in names]
    return pick(table, plain, PATH_COLUMNS), pick(table, plain, PERSON_COLUMNS)


def pick(table: Path, names: Sequence[str], wanted: Sequence[str]) -> int:
    """Return the position of the first wanted column that the table has. Raises InvalidInput ``dataset_invalid``."""
    for name in wanted:
        if name in names:
            return names.index(name)
    raise InvalidInput(f"{table} has none of the columns {', '.join(wanted)}.", code="dataset_invalid")


def _read_csv(table: Path) -> Iterator[list[tuple[str, str]]]:
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=delimiter_of(file))
        header = next(rows, None)
        if header is None:
            raise InvalidInput(f"{table} is empty.", code="dataset_empty")
        path, person = _columns(table, header)
        numbered = enumerate((row for row in rows if row), start=1)
        while block := list(itertools.islice(numbered, ROWS_AT_ONCE)):
            for number, row in block:
                if len(row) != len(header):
                    message = f"{table}: row {number} has {len(row)} of {len(header)} columns."
                    raise InvalidInput(message, code="dataset_invalid")
            yield [(row[path], row[person]) for _, row in block]


def _read_parquet(table: Path) -> Iterator[list[tuple[str, str]]]:
    with open_parquet(table) as file:
        names = file.schema_arrow.names
        path, person = _columns(table, names)
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=[names[path], names[person]]):
            paths, people = (batch.column(names[place]).to_pylist() for place in (path, person))
            yield [(_text(path), _text(person)) for path, person in zip(paths, people, strict=True)]


def _text(value: object) -> str:
    return "" if value is None else str(value)
