"""Which gallery a CompreFace call is about: CompreFace's keys name one collection each, in the path there is none."""

from __future__ import annotations

from starlette.requests import Request

from app.access.grants import Grant
from app.access.records import AuditEntry
from app.api.service import Service, entry_of, grant_of
from app.errors import Conflict, NotFound
from app.gallery.records import Gallery

DEFAULT = "default"
CREATED, THERE_ALREADY = 201, 409


async def home_of(request: Request, service: Service) -> Gallery:
    """The one gallery that the key is bound to, or `default`, which is made where an unrestricted key first asks.

    Raises NotFound (``gallery_not_found``).
    """
    grant, entry = grant_of(request), entry_of(request)
    name = _name(grant)
    entry.gallery = name

    def find() -> Gallery:
        try:
            return service.galleries.gallery(name)
        except NotFound:
            if grant.galleries is not None:
                raise
            return _make(service, grant, entry)

    return await service.run(find)


def _name(grant: Grant) -> str:
    if grant.galleries is None or DEFAULT in grant.galleries:
        return DEFAULT
    if len(grant.galleries) == 1:
        return next(iter(grant.galleries))
    message = f"the key may see {len(grant.galleries)} galleries and none is {DEFAULT!r}: use one that is bound to one"
    raise NotFound(message, code="gallery_not_found")


def _make(service: Service, grant: Grant, asked: AuditEntry) -> Gallery:
    """Somebody else may do so at the same moment."""
    entry = service.audit.entry(grant.key_id, "create_gallery", asked.request_id)
    entry.gallery = DEFAULT
    service.audit.write(entry).result()
    try:
        made, entry.status = service.operations.create_gallery(DEFAULT, None), CREATED
    except Conflict:
        made, entry.status = service.galleries.gallery(DEFAULT), THERE_ALREADY
    service.audit.write(entry).result()
    return made
