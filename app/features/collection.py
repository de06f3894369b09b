"""Choose the gallery for calls that name none: in other services' interfaces, a key belongs to one set of people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from app.access.audit import AuditEntry
from app.access.grants import Grant
from app.api.components import Components
from app.errors import Conflict, GalleryNotFound, NotFound
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.recognition.operations import Operations
from app.search.types import IndexKey, IndexSpec
from app.types import utc_now

DEFAULT = "default"
NOT_STORED = 0
"""The key of a gallery that is not stored: the database counts from 1."""
CREATED, THERE_ALREADY = 201, 409
"""HTTP statuses that are written to the audit log."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The gallery of a call whose path names none.

    It is the one gallery that the key is restricted to, or `default`.
    """

    components: Components
    grant: Grant
    entry: AuditEntry
    name: str

    @property
    def galleries(self) -> Galleries:
        return self.components.galleries

    @property
    def store(self) -> Store:
        return self.components.store

    @property
    def operations(self) -> Operations:
        return self.components.operations

    def open(self) -> Gallery:
        """Return the gallery. If it is a missing `default`, return an empty one that is not stored.

        Raises NotFound ``gallery_not_found`` if the key is restricted to a missing gallery.
        """
        try:
            return self.store.gallery(self.name)
        except NotFound:
            if self.grant.galleries is not None:
                raise
        package = self.components.embedders.default
        spec = IndexSpec(IndexKey(NOT_STORED, package.id, 0), DEFAULT, package.manifest.dimension or 0)
        return Gallery(NOT_STORED, DEFAULT, package.id, (package.id,), (spec,), (spec,), "crop", {}, utc_now())

    def open_or_create(self) -> Gallery:
        """Return the gallery; create a missing `default` if the key may see all galleries. Raises what `open` raises.

        The creation is written to the audit log, even if another request creates the gallery at the same moment.
        """
        gallery = self.open()
        if is_stored(gallery):
            return gallery
        audit, request_id = self.components.audit, self.entry.request_id
        entry = AuditEntry(key=self.grant.key_id, operation="create_gallery", request_id=request_id, gallery=DEFAULT)
        audit.write(entry).result()
        try:
            made, entry.status = self.operations.create_gallery(DEFAULT, None), CREATED
        except Conflict:
            made, entry.status = self.store.gallery(DEFAULT), THERE_ALREADY
        audit.write(entry).result()
        return made


async def _collection(request: Request) -> Collection:
    """Return the key's collection. Raises GalleryNotFound if the key may see several galleries, but not `default`."""
    grant, entry = request.scope["grant"], request.scope["audit"]
    visible = grant.galleries
    if visible is not None and DEFAULT not in visible and len(visible) != 1:
        message = f"The key may see {len(visible)} galleries, and none is {DEFAULT!r}: use a key for one gallery."
        raise GalleryNotFound(message)
    entry.gallery = name = DEFAULT if visible is None or DEFAULT in visible else next(iter(visible))
    return Collection(request.scope["components"], grant, entry, name)


CollectionDep: TypeAlias = Annotated[Collection, Depends(_collection)]


def is_stored(gallery: Gallery) -> bool:
    """Return whether the gallery is in the database; `Collection.open` may return one that is not."""
    return gallery.key != NOT_STORED
