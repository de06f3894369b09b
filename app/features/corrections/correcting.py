"""Record that a photo does not show a subject."""

from __future__ import annotations

from datetime import timedelta

from app.api.components import Components
from app.errors import Conflict
from app.features.corrected import Correction, add_correction
from app.gallery.records import Gallery, StoredFace
from app.recognition.operations import to_store
from app.types import utc_now


class Correcting:
    """Records corrections from photos. Safe to share between threads."""

    def __init__(self, core: Components, days: float) -> None:
        """``days``: the days after which corrections expire, unless `correct` gets ``expires_at``."""
        self._core = core
        self._days = days

    def correct(
        self,
        gallery: Gallery,
        subject: str,
        image: bytes,
        face: int | None = None,
        expires_at: str | None = None,
        *,
        confirm: bool = False,
    ) -> Correction:
        """Record that a face in the photo, by default the most prominent one, is not the subject's.

        Without `confirm`, a face that matches the subject at the strictest operating point is rejected. Raises NoFace,
        Unalignable, what `choose_face` raises, InvalidInput (``invalid_expiry``), NotFound, Conflict
        (``correction_unlikely``).
        """
        operations = self._core.operations
        chosen = operations.choose(image, "image", index=face)
        with operations.use_in(gallery) as opened:
            (embedded,) = operations.embed_chosen([chosen], opened)
        (probe,) = to_store(self._core.embedders, gallery, [(subject, embedded.face, None)])
        if not confirm:
            self._check_doubt(gallery, subject, probe)
        ends = expires_at or utc_now(timedelta(days=self._days))
        return add_correction(self._core.store, gallery, subject, probe, ends)

    def _check_doubt(self, gallery: Gallery, subject: str, probe: StoredFace) -> None:
        """Raise Conflict ``correction_unlikely`` if the probe matches the subject at the strictest operating point."""
        points = self._core.embedders.thresholds(gallery.embedder).points
        if not points or not self._core.store.subject(gallery, subject).face_count:
            return
        searched = self._core.galleries.open_search(gallery, probe.template.package)
        if searched.verify(subject, probe.template).score >= points[-1].threshold:
            message = "The photo matches the person beyond doubt: remembered, it would make that person unknown."
            raise Conflict(message, code="correction_unlikely", subject=subject)
