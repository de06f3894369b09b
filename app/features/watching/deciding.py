"""From the photos of a track to one decision: that of `identify` with `track=true`, at the server's own rates."""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import InvalidInput, NoFace
from app.features.watching.records import Judged
from app.gallery.records import Gallery
from app.recognition.operations import Operations
from app.recognition.photos import template_of

MOST_PHOTOS = 8
"""Of a track: fused probes were measured with so many (`app.models.calibration.fusion`)."""


def judge(operations: Operations, gallery: Gallery, photos: Sequence[bytes]) -> Judged:
    """Decide whom the most prominent faces of the photos show, which are of one person.

    Raises InvalidInput (``too_many_images``), NoFace if no photo has a usable face, and what `Operations.identify`
    raises.
    """
    if len(photos) > MOST_PHOTOS:
        raise InvalidInput(f"A track has {MOST_PHOTOS} photos at most.", code="too_many_images")
    found = operations.identify(gallery, photos, exact=False, track=True, limit=1)
    if not found.faces:
        raise NoFace("No photo shows a face that is good enough to compare.")
    (identified,) = found.faces
    best = identified.candidates[0] if identified.candidates else None
    return Judged(
        gallery=gallery,
        decision=identified.decision,
        subject=best.subject if best is not None and identified.decision != "unknown" else None,
        score=None if best is None else best.score,
        margin=identified.margin,
        threshold=found.point.threshold,
        fpir=found.point.fpir,
        frames=len(found.track or ()),
        template=template_of(identified.face),
        best=identified.face,
    )
