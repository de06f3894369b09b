"""Collections: our galleries."""

from __future__ import annotations

from app.compat.rekognition import asked
from app.compat.rekognition.call import Call
from app.compat.rekognition.shapes import Shape, arn, seconds

OK = 200
PAGE = 1000
"""Ids in a list's page where the client does not say."""


def create(call: Call, wanted: asked.CreateCollection) -> Shape:
    """Rekognition keeps no pictures of faces, so such a gallery keeps no crops."""
    call.entry.gallery = wanted.CollectionId
    metadata = {"tags": wanted.Tags} if wanted.Tags else None
    made = call.service.operations.create_gallery(wanted.CollectionId, None, "none", metadata)
    return {"StatusCode": OK, "CollectionArn": arn(made.id, call.region), "FaceModelVersion": made.embedder}


def describe(call: Call, wanted: asked.OfCollection) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    return {
        "FaceCount": call.service.galleries.store.counts(gallery).faces,
        "UserCount": call.service.galleries.faces.count_people(gallery),
        "FaceModelVersion": gallery.embedder,
        "CollectionARN": arn(gallery.id, call.region),
        "CreationTimestamp": seconds(gallery.created_at),
    }


def list_all(call: Call, wanted: asked.ListCollections) -> Shape:
    """Those that the key may see."""
    page = call.service.galleries.store.galleries(wanted.NextToken, wanted.MaxResults or PAGE, call.grant.galleries)
    listed: Shape = {
        "CollectionIds": [gallery.id for gallery in page.items],
        "FaceModelVersions": [gallery.embedder for gallery in page.items],
    }
    return listed | ({} if page.next_cursor is None else {"NextToken": page.next_cursor})


def delete(call: Call, wanted: asked.OfCollection) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    call.service.galleries.delete_gallery(gallery.id)
    return {"StatusCode": OK}
