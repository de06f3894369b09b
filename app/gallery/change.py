"""A change to one gallery: a transaction that holds the gallery, and the change log's entries for what it did.

`app.gallery.service.Galleries.change` opens one, and so does `Store.change` for what no index has to follow. The locks
come in one order everywhere: the index's, the transaction, the gallery's row. Who holds the row is alone with the
gallery's subjects and faces, so nobody who changes them waits in a circle or takes another's change for its own.

What changes a gallery are functions over a `Change`, in `editing`, `enrolling`, `bulk`, `moving` and `deleting`;
several of them may share one. Raising inside undoes it all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from app.db.engine import Inserting
from app.db.sealed_columns import Blobs
from app.gallery import change_log
from app.gallery.records import Gallery
from app.timestamps import utc_now


@dataclass(eq=False, slots=True)
class Change:
    """An open transaction, alone with the gallery."""

    gallery: Gallery
    """As it is in this transaction."""
    connection: Connection
    insert: Inserting
    """INSERT with ON CONFLICT, in the database's dialect."""
    blobs: Blobs
    max_metadata_bytes: int
    now: str = field(default_factory=utc_now)
    overwrites: bool = False
    """Whether something is deleted or replaced, of which SQLite's files must not keep a copy."""
    _entries: list[change_log.Entry] = field(default_factory=list)

    def log(self, kind: str, faces: Iterable[tuple[int, int | None]]) -> None:
        """Note what happened to these faces, given by their subjects' keys and their own (None: the subject's all)."""
        self.overwrites |= kind != change_log.ADD
        self._entries += [(kind, subject, face) for subject, face in faces]

    def write_log(self) -> None:
        """Write the entries; the transaction's last statement."""
        if self._entries:
            change_log.record(self.connection, self.gallery.key, self._entries)
