"""Write an enrollment's rows with only SQLite, the lowest possible cost of storing a face."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from app.gallery.records import encode_crop
from app.machine import cores
from app.pipeline import main_crop
from bench.callers import Reel, for_a_while
from bench.stages import Stages

Row = dict[str, object]


class Rows:
    """Writes the rows of one enrolled face again and again into a copy of the server's database.

    ``write`` puts those of several faces into one transaction as the service does: write-ahead log, synchronous=FULL,
    foreign keys held. Any number of threads may call it; one writes at a time.
    """

    def __init__(self, database: Path, copy: Path) -> None:
        with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        source.close()
        target.close()
        self._connection = sqlite3.connect(copy, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.row_factory = sqlite3.Row
        self._face = self._last("faces", "key")
        self._subject = self._last("subjects", "key")
        self._origin = self._last("face_origins", "face_key")
        self._change = self._last("changes", "number")
        self._key = count(10**9)  # far above the existing keys
        self._lock = threading.Lock()

    def close(self) -> None:
        self._connection.close()

    def write(self, faces: Sequence[tuple[bytes, bytes]]) -> None:
        """Write the template and crop of each face in one transaction."""
        with self._lock:
            keys = [next(self._key) for _ in faces]
            self._connection.execute("BEGIN IMMEDIATE")
            self._insert("subjects", [self._subject | {"key": key, "id": f"raw-{key}"} for key in keys])
            self._insert(
                "faces",
                [
                    self._face | {"key": key, "subject_key": key, "face_id": f"{key:032x}", "template": template}
                    for key, (template, _) in zip(keys, faces, strict=True)
                ],
            )
            self._insert("crops", [{"face_key": key, "jpeg": crop} for key, (_, crop) in zip(keys, faces, strict=True)])
            self._insert("face_origins", [self._origin | {"face_key": key, "image_id": f"{key:032x}"} for key in keys])
            self._insert(
                "changes", [self._change | {"number": key, "subject_key": key, "face_key": key} for key in keys]
            )
            gallery = (keys[-1], self._change["stamp"], self._face["gallery_key"])
            self._connection.execute("UPDATE galleries SET last_change = ?, last_stamp = ? WHERE key = ?", gallery)
            self._connection.execute("COMMIT")

    def _last(self, table: str, order: str) -> Row:
        found = self._connection.execute(f"SELECT * FROM {table} ORDER BY {order} DESC LIMIT 1").fetchone()  # noqa: S608 (names from this file)
        return dict(found)

    def _insert(self, table: str, rows: Sequence[Row]) -> None:
        columns = list(rows[0])
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 (names from this file)
        self._connection.executemany(statement, [[row[column] for column in columns] for row in rows])


def raw_enrolling(stages: Stages, rows: Rows, batch: int, group: int, seconds: float) -> Callable[[], int]:
    """Run the stages of `recognising.raw_limit` for the main face only, encode its crop as JPEG, and commit once per
    `group` photos.
    """
    reel, session = Reel(stages.photos), stages.session

    def turn() -> int:
        photos = [stages.pipeline.detect(photo) for photo in reel.several(group)]
        crops = [main_crop(photo) for photo in photos]
        parts = [session.run(np.stack(crops[start : start + batch])) for start in range(0, len(crops), batch)]
        vectors = np.concatenate(parts)
        rows.write([(vector.tobytes(), encode_crop(crop)) for vector, crop in zip(vectors, crops, strict=True)])
        return len(photos)

    return for_a_while(turn, cores(), seconds)
