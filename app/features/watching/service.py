"""The operations on sightings and strangers, for watchers and people, composed of the feature's parts and the
core's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import sqlalchemy as sa

from app.api.components import Components
from app.db.schema import SIGHTINGS
from app.errors import Conflict, InvalidInput, NoFace
from app.features.corrected import add_correction
from app.features.listing import templates_of
from app.features.similarity import most_lenient
from app.features.stored import decode_crop
from app.features.watching.cameras import Cameras
from app.features.watching.rows import Stored, delete_sightings, templates, to_sighting
from app.features.watching.schemas import Resembling, Sighting, SightingParams
from app.features.watching.store import Sightings
from app.features.watching.strangers import Strangers, find_stranger_key
from app.gallery.records import NOWHERE, Gallery, StoredFace, find_subject
from app.gallery.service import SubjectFaces
from app.gallery.service import enroll as enroll_faces
from app.gallery.store import Change
from app.package.thresholds import fuse_templates
from app.recognition.decisions import identify_point
from app.recognition.operations import to_store
from app.types import Face, Quality, utc_now

MOST_PHOTOS = 8
"""Maximum photos of a track: fused probes were measured with up to eight photos (`app.models.calibration.fusion`)."""
ENROLLED = 5
"""Maximum crops to enroll when a person names a stranger, best first."""
LOOKED_THROUGH = 4_000
"""Maximum sightings of unknown people that a search back compares, newest first."""


class Watching:
    """Sightings and strangers of all galleries. Safe to share between threads."""

    def __init__(self, core: Components, **days: float) -> None:
        """Open the feature. ``days``: the settings for how long each kind of data is kept (`feature.DAYS`)."""
        kept = {name.removesuffix("_days"): timedelta(days=number) for name, number in days.items()}
        self._core, self._corrections, sightings = core, kept["correction"], kept["sightings"]
        self.strangers = Strangers(core.store, kept["stranger"], core.operations.thresholds_in)
        self.sightings = Sightings(core.store, sightings, min(kept["unknown"], sightings), self.strangers.group)
        self.cameras = Cameras(core.store.database, sightings)

    def tell(self, gallery: Gallery, sighting_id: str, told: SightingParams, photos: Sequence[bytes]) -> Sighting:
        """Decide whom the photos of a track show, as `identify` with ``track=true`` does, and store the decision.

        Raises InvalidInput ``too_many_images``, NoFace if no photo has a usable face, and what `Operations.identify`
        and `Sightings.tell` raise.
        """
        if len(photos) > MOST_PHOTOS:
            raise InvalidInput(f"A track has {MOST_PHOTOS} photos at most.", code="too_many_images")
        found = self._core.operations.identify(gallery, photos, exact=False, track=True, limit=1)
        if not found.faces:
            raise NoFace("No photo shows a face that is good enough to compare.")
        return self.sightings.tell(gallery, sighting_id, told, found)

    def say_who(self, gallery: Gallery, sighting_id: str, subject: str | None, *, enroll: bool) -> Sighting:
        """Note that the sighting shows the subject; with ``enroll``, add its crop to the subject, which is made if
        missing. With None, note that it does not show whom it was taken for, and record a correction.

        Raises NotFound ``sighting_not_found``, ``subject_not_found``; Conflict ``sighting_without_face``; InvalidInput
        ``face_conflict``.
        """
        stored = self.sightings.find(gallery, sighting_id)
        wrong = stored.sighting.subject
        if subject is not None and enroll:
            return self._enroll(gallery, subject, [stored], [])[0]
        if subject is None and wrong is not None and (stored.template or stored.crop):
            (face,) = self._faces(gallery, wrong, [stored])
            ends = utc_now(self._corrections)
            add_correction(self._core.store, gallery, wrong, face, ends, sighting=sighting_id)
        with self._core.store.change(gallery) as change:
            return self.sightings.settle(change, [sighting_id], subject)[0]

    def resembling(self, gallery: Gallery, stranger_id: str) -> list[Resembling]:
        """Search back: return other sightings of unknown people that may be of this stranger, most similar first.

        Raises NotFound ``stranger_not_found``.
        """
        # Just after the gallery has moved to another package, some templates are still by the old one.
        seen = ((stored.template, stored.length) for stored in self.strangers.seen(gallery, stranger_id))
        current = [(kept, length) for kept, length in seen if kept and kept.package == gallery.embedder]
        if not (means := [kept.vector * length for kept, length in current]):
            return []
        mean, length = fuse_templates(np.stack(means))
        points = self._core.operations.thresholds_in(gallery, gallery.embedder)
        least = identify_point(points, None, None, self._core.operations.defaults, {1: LOOKED_THROUGH}).threshold
        alike = []
        with self.sightings.database.read() as connection:
            key, blobs = find_stranger_key(connection, gallery, stranger_id), self.sightings.store.blobs
            others = SIGHTINGS.c.stranger_key.is_distinct_from(key) & (SIGHTINGS.c.decision != "known")
            kept = templates(connection, blobs, gallery, gallery.embedder, others, most=LOOKED_THROUGH)
            for vector, kept_length, row in kept:
                score = float(mean @ vector) * points.reduction_of_two(length, kept_length)
                if score >= least:
                    alike.append(Resembling(sighting=to_sighting(row), score=score))
        return sorted(alike, key=lambda found: -found.score)

    def name(self, gallery: Gallery, stranger_id: str, subject: str, also: Sequence[str]) -> list[Sighting]:
        """Name a stranger: enroll its best crops as the subject's, and make all its sightings the subject's, and also
        the sightings in ``also``, which a person has chosen from `resembling`.

        Raises NotFound ``stranger_not_found``, ``sighting_not_found``; Conflict ``sighting_without_face``; InvalidInput
        ``face_conflict``.
        """
        return self._enroll(gallery, subject, self.strangers.seen(gallery, stranger_id), also, stranger_id)

    def erase_like(self, change: Change, subject_id: str) -> int:
        """Delete the sightings of a subject that is being erased, and those of unknown people whose score with its
        faces reaches the most lenient operating point; return how many.

        Raises NotFound ``subject_not_found``.
        """
        connection, home = change.connection, change.gallery
        subject = find_subject(connection, home, subject_id, expired=True)
        mine = sa.select(SIGHTINGS.c.key).where(SIGHTINGS.c.subject_key == subject.key)
        doomed = set(connection.execute(mine).scalars())
        unknown = SIGHTINGS.c.subject_key.is_(None)
        for package in home.packages:
            faces = templates_of(connection, change.blobs, package, {subject.key}).get(subject.key)
            least = most_lenient(self._core.embedders, package)
            if faces is None or least is None:
                continue
            of_all = templates(connection, change.blobs, home, package, unknown)
            doomed |= {row.key for vector, _, row in of_all if float((faces @ vector).max()) >= least}
        return delete_sightings(change, doomed)

    def _enroll(
        self, gallery: Gallery, subject: str, seen: Sequence[Stored], also: Sequence[str], stranger: str | None = None
    ) -> list[Sighting]:
        """In one transaction, enroll the first ENROLLED sightings that have a crop or a template, and note that all
        sightings, those in ``also`` too, show the subject. Raises NotFound ``stranger_not_found`` if ``stranger`` is
        gone meanwhile, Conflict ``sighting_without_face``."""
        faces = [stored for stored in seen[:ENROLLED] if stored.crop or stored.template]
        if not faces:
            raise Conflict("The face of the sighting is no longer kept.", code="sighting_without_face")
        wanted = SubjectFaces(subject, self._taken(gallery, self._faces(gallery, subject, faces)))
        ids = dict.fromkeys([*(stored.sighting.id for stored in seen), *also])
        with self._core.galleries.change(gallery) as change:
            if stranger is not None:
                find_stranger_key(change.connection, change.gallery, stranger)
            enroll_faces(change, [wanted])
            return self.sightings.settle(change, ids, subject)

    def _taken(self, gallery: Gallery, faces: Sequence[StoredFace]) -> list[StoredFace]:
        """Return the faces of one person that the gallery takes: where it rejects duplicates, those that are new.

        Raises InvalidInput ``face_conflict`` if it rejects conflicts, and the person matches another subject.
        """
        shown = [(face.subject, face.template) for face in faces]
        objections = self._core.operations.find_objections(gallery, shown, tell=False, track=True)
        for objection in objections:
            if objection.refused and objection.conflict and objection.error:
                raise objection.error
        return [face for face, objection in zip(faces, objections, strict=True) if not objection.refused]

    def _faces(self, gallery: Gallery, subject: str, seen: Sequence[Stored]) -> list[StoredFace]:
        """Return the sightings' faces with templates by all of the gallery's packages."""
        faces = []
        for stored in seen:
            quality = Quality(stored.sighting.quality, ())
            crop = None if stored.crop is None else decode_crop(stored.crop)
            template = stored.template if crop is None else None
            faces.append((subject, Face(NOWHERE, None, 0.0, quality, crop, template), None))
        return to_store(self._core.embedders, gallery, faces)
