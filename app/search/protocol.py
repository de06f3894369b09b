"""Where galleries' vectors are searched: the seam between SQL, which is the truth, and what is derived from it.

`app.search.follower` keeps them in this process, in FAISS; `app.search.milvus.indexes` in Milvus, for several
servers together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from app.errors import Conflict, InvalidInput, NotFound, Overloaded
from app.gallery.records import Gallery, Indexed, IndexKind, Position, Snapshotted
from app.search.index import Difference, Match
from app.types import Vectors


class Searchable(Protocol):
    """What answers for one gallery; safe to share between threads."""

    @property
    def subjects(self) -> int:
        """Subjects that have a face."""
        ...

    @property
    def quick(self) -> bool:
        """Whether a search costs so little that it isn't worth another thread, where searches share passes."""
        ...

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """For each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first."""
        ...

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Each probe, (Q, D) unit float32, against one subject; None where it has no face."""
        ...


class GalleryIndex(Protocol):
    """One gallery's vectors, following its change log; safe to share between threads."""

    def held(self) -> Indexed:
        """How much it holds, as far as is known without asking anybody."""
        ...

    def ready(self) -> Searchable:
        """Knows everything that was acknowledged in this process. Raises NotFound ``gallery_not_found``."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Around a change to SQL; at the end the index holds it."""
        ...

    def ending(self) -> AbstractContextManager[None]:
        """Around the gallery's deletion."""
        ...

    def follow(self, head: Position) -> None:
        """Takes note that the change log ends at `head` now."""
        ...

    def behind(self, head: Position) -> int:
        """How many changes it lacks of a log that ends at `head`; 0 where no index is made yet. Asks nobody."""
        ...

    def touch(self) -> None:
        """Something may have been committed that it doesn't hold yet; costs nothing, `ready` sees to it."""
        ...

    def search_by(self, kind: IndexKind) -> None:
        """From now on, or from one of the next calls on, by this kind."""
        ...

    def drop_stale_copies(self) -> None:
        """Drop copies outside this process's main memory that still hold removed faces."""
        ...

    def rebuild(self) -> None:
        """Makes the index anew from SQL."""
        ...

    def compare(self) -> tuple[Difference, int]:
        """How the index differs from SQL, and how many faces it holds; this process's changes wait meanwhile."""
        ...

    def scrub(self) -> bool:
        """Removes copies on disk that may hold what was erased; False where another server has to, which will."""
        ...

    def save(self) -> None:
        """What is due from time to time. Raises OSError."""
        ...


class Indexes(Protocol):
    """All galleries' indexes."""

    @property
    def available(self) -> bool:
        """Whether answers could be had when that was last looked at."""
        ...

    @property
    def kinds(self) -> Collection[IndexKind]:
        """By which a gallery can be searched here."""
        ...

    def look(self) -> None:
        """Called all the time; what it finds is `available`."""
        ...

    def open(self, gallery: Gallery) -> GalleryIndex:
        """Costs nothing until it is used."""
        ...

    def keep(self, known: Sequence[GalleryIndex]) -> None:
        """What is due from time to time: for those known, and for what galleries that are gone have left behind."""
        ...

    def snapshotted(self) -> Snapshotted | None:
        """What lies on disk; None where no snapshots are written. Raises OSError."""
        ...

    def discard(self, gallery_key: int) -> None:
        """Removes what is left of a gallery that is gone, as far as that can be done now; `keep` does the rest."""
        ...

    def close(self) -> None: ...


@contextmanager
def in_step(touch: Callable[[], None], catch_up: Callable[[], object]) -> Iterator[None]:
    """Around a change to SQL, which `catch_up` then brings to the index; where either fails and SQL may have been
    changed all the same, `touch` takes note of it."""
    try:
        yield
    except (InvalidInput, NotFound, Conflict, Overloaded):
        raise  # said before anything was written
    except BaseException:
        touch()  # a commit whose answer was lost may have happened
        raise
    try:
        catch_up()
    except BaseException:
        touch()
        raise
