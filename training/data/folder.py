"""Crops as image files: in one folder per person, or listed in a CSV, TSV or Parquet table."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from app.errors import InvalidInput
from training.data.dataset import OnError, StoredFaces

IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
PATH_COLUMNS = ("path", "file", "filename", "image")
PERSON_COLUMNS = ("person", "label", "identity", "subject", "name")
"""The first of these that the table has counts."""
LIST_ENDINGS = frozenset({".csv", ".tsv", ".parquet"})


class FolderFaces(StoredFaces):
    """``root/person/.../image.jpg``: the first folder below ``root`` is the person. Images come in the order of their
    paths; files beside the people's folders, hidden ones, and such that are no images by their ending are left alone.
    """

    def __init__(self, root: Path, on_error: OnError = "raise") -> None:
        if not root.is_dir():
            raise InvalidInput(f"{root} is not a folder.", code="dataset_not_found")
        self.root = root
        self.paths = sorted(
            path.relative_to(root).as_posix()
            for person in root.iterdir()
            if person.is_dir() and not person.name.startswith(".")
            for path in person.rglob("*")
            if path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".")
        )
        super().__init__([path.partition("/")[0] for path in self.paths], on_error)

    def encoded(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()

    def describe(self, index: int) -> str:
        return self.paths[index]

    def files(self) -> Iterable[Path]:
        return (self.root / path for path in self.paths)


class ListFaces(StoredFaces):
    """``path`` and ``person`` (or ``label``) of each row; paths are relative to the table's own folder, or absolute.
    A CSV's first line names the columns. Rows keep their order.
    """

    def __init__(self, table: Path, on_error: OnError = "raise") -> None:
        if not table.is_file():
            raise InvalidInput(f"{table} is not a file.", code="dataset_not_found")
        columns = _read_parquet(table) if table.suffix.lower() == ".parquet" else _read_csv(table)
        self.root = table.parent
        self.paths = columns[_pick(table, columns, PATH_COLUMNS)]
        people = columns[_pick(table, columns, PERSON_COLUMNS)]
        for number, (path, person) in enumerate(zip(self.paths, people, strict=True), start=1):
            if not path or not person:
                raise InvalidInput(f"{table}: row {number} lacks its path or its person.", code="dataset_invalid")
        super().__init__(people, on_error)

    def encoded(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()

    def describe(self, index: int) -> str:
        return self.paths[index]

    def files(self) -> Iterable[Path]:
        return (self.root / path for path in self.paths)


def _pick(table: Path, columns: dict[str, list[str]], wanted: tuple[str, ...]) -> str:
    for name in wanted:
        if name in columns:
            return name
    raise InvalidInput(f"{table} has none of the columns {', '.join(wanted)}.", code="dataset_invalid")


def _read_csv(table: Path) -> dict[str, list[str]]:
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t" if table.suffix.lower() == ".tsv" else ","))
    if not rows:
        raise InvalidInput(f"{table} is empty.", code="dataset_empty")
    header, body = rows[0], [row for row in rows[1:] if row]
    for number, row in enumerate(body, start=1):
        if len(row) != len(header):
            raise InvalidInput(
                f"{table}: row {number} has {len(row)} of {len(header)} columns.", code="dataset_invalid"
            )
    return {name.strip().lower(): [row[place] for row in body] for place, name in enumerate(header)}


def _read_parquet(table: Path) -> dict[str, list[str]]:
    import pyarrow  # noqa: PLC0415 - large, and needed for this format alone
    import pyarrow.parquet  # noqa: PLC0415

    try:
        file = pyarrow.parquet.ParquetFile(table)
        names = [name for name in file.schema_arrow.names if name.lower() in PATH_COLUMNS + PERSON_COLUMNS]
        read = file.read(columns=names)
    except pyarrow.ArrowException as error:
        raise InvalidInput(f"{table} is no readable Parquet file: {error}", code="dataset_invalid") from error
    return {name.lower(): ["" if value is None else str(value) for value in read[name].to_pylist()] for name in names}
