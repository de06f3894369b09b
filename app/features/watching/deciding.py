"""From the photos of a track to one decision.

The templates of the usable photos are fused by their mean, and the track is decided once, as one probe. A fused probe
is nearer to everybody than a single photo: with five photos, 3.5 times as many strangers pass the threshold of a single
one, and a track is looked at up to LOOKS times. So the rate of one decision is a part of the server's, and a visit's
rate stays below it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.errors import InvalidInput, NoFace
from app.face.quality import QualityLevel
from app.features.watching.records import Judged
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.pipeline import choose_face
from app.recognition.corrections import Corrections
from app.recognition.decisions import AnsweredScores, Defaults, decide, identify_point
from app.recognition.operations import Operations
from app.recognition.photos import template_of
from app.types import Face, Template

MOST_PHOTOS = 8
FUSED = 8.0
"""The server's FPIR is divided by this for each decision about a track (see above). Chosen on 299 people of train112:
of visits decided by one photo and then by five, 0.99 % were taken for one of 100 people where 1 % was asked; divided by
4, 1.5 %."""
RANKED = 3


class Judge:
    """Decides whom the photos of a track show. Safe to share between threads."""

    def __init__(self, operations: Operations, galleries: Galleries, corrections: Corrections) -> None:
        self._operations, self._galleries, self._corrections = operations, galleries, corrections

    def judge(self, gallery: Gallery, photos: Sequence[bytes]) -> Judged:
        """Decide about the most prominent face of each photo, which are of one person.

        Raises NotFound, InvalidInput (``too_many_images``), NoFace if no photo has a usable face, NotLive if the
        gallery requires liveness, and what decoding raises.
        """
        if len(photos) > MOST_PHOTOS:
            raise InvalidInput(f"A track has {MOST_PHOTOS} photos at most.", code="too_many_images")
        seen = (self._operations.embed_for(gallery, photo) for photo in photos)
        faces = [photo.faces[choose_face(photo).index] for photo in seen if photo.faces]
        usable = [face for face in faces if face.quality.score >= QualityLevel.LOW.minimum]
        if not usable:
            raise NoFace("No photo shows a face that is good enough to compare.", faces=len(faces))
        probe = fuse(usable)
        thresholds = self._operations.thresholds_in(gallery, probe.package)
        rates = self._operations.defaults
        strict = Defaults(rates.fmr, rates.fpir / FUSED)
        point = identify_point(thresholds, None, None, strict, self._galleries.sizes(gallery))
        ranking = self._galleries.search(gallery, [probe], RANKED)
        ((kept, _),) = self._corrections.sift(gallery, [probe], ranking, point.uncertain)
        decision, _ = decide(kept[0].score if kept else None, point)
        scores = AnsweredScores.of(thresholds, point.threshold, point.uncertain)
        answered = [scores.answered(candidate.score) for candidate in kept[:2]]
        first, second = ([*answered, None, None])[:2]
        return Judged(
            gallery=gallery,
            decision=decision,
            subject=kept[0].subject if decision != "unknown" else None,
            score=first,
            margin=None if first is None or second is None else first - second,
            threshold=point.threshold,
            fpir=min(1.0, point.fpir * FUSED),
            frames=len(usable),
            template=probe,
            best=max(usable, key=lambda face: face.quality.score),
        )


def fuse(faces: Sequence[Face]) -> Template:
    """Return the mean direction of the faces' templates, which are of one package."""
    templates = [template_of(face) for face in faces]
    mean = np.mean([template.vector for template in templates], axis=0)
    return Template(np.asarray(mean / np.linalg.norm(mean), np.float32), templates[0].package)
