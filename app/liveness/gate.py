"""What a request asks of liveness: nothing, a verdict on each face, or that the faces it uses are live.

Scores become verdicts at an operating point named by its error rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.choices import LivenessMode
from app.concurrency.admission import check_deadline
from app.errors import NotLive, Unusable
from app.face.liveness import Cut, LivenessPackages, Scorer
from app.inference.manifest import LivenessCalibration
from app.pipeline import timed
from app.types import Box, DoubtReason, Face, Liveness, Photo, Verdict


@dataclass(frozen=True, slots=True)
class LivenessPoint:
    """Thresholds of liveness: live from ``live_from`` on, a spoof below ``spoof_below``, uncertain between them."""

    live_from: float
    spoof_below: float
    smallest_face: float
    """Longer side of the smallest face that was measured, in pixels."""


def liveness_point(calibration: LivenessCalibration | None, apcer: float, bpcer: float) -> LivenessPoint | None:
    """Return the point for error rates of at most ``apcer`` and ``bpcer``; None if they were not measured.

    A rate of 1 in N takes N photos, of each kind of attack or of live people.

    A face is live from the lowest threshold on at which no more than ``apcer`` of the attacks passed, and a spoof below
    the highest at which no more than ``bpcer`` of the live were refused. Where that is the higher of the two, it alone
    decides and keeps both rates.
    """
    if calibration is None or apcer * min(calibration.attacks.values()) < 1 or bpcer * calibration.live < 1:
        return None
    strict = [each.threshold for each in calibration.points if each.apcer.value <= apcer]
    lenient = [each.threshold for each in calibration.points if each.bpcer.value <= bpcer]
    if not strict or not lenient:
        return None
    return LivenessPoint(max(strict[0], lenient[-1]), lenient[-1], calibration.smallest_face)


def judge(score: float, box: Box, point: LivenessPoint | None) -> Liveness:
    """Decide whether a face with this liveness score is live. Without a point nothing is decided."""
    if point is None:
        return Liveness(score, Verdict.NOT_MEASURED, DoubtReason.NO_OPERATING_POINTS)
    if score < point.spoof_below:
        return Liveness(score, Verdict.SPOOF, DoubtReason.LOW_SCORE)
    if score < point.live_from:
        return Liveness(score, Verdict.UNCERTAIN, DoubtReason.BETWEEN_THRESHOLDS)
    if max(box.width, box.height) < point.smallest_face:
        return Liveness(score, Verdict.UNCERTAIN, DoubtReason.SMALL_FACE)
    return Liveness(score, Verdict.LIVE, None)


@dataclass(frozen=True, slots=True)
class Gate:
    """Liveness for one request, with the packages and the operating point it is judged by; off without a scorer."""

    scorer: Scorer | None = None
    point: LivenessPoint | None = None
    requires: bool = False

    @property
    def cuts(self) -> tuple[Cut, ...]:
        return self.scorer.cuts if self.scorer else ()

    def judged(self, photos: Sequence[Photo], which: Sequence[Sequence[int]]) -> list[Photo]:
        """Return the photos with a verdict on the faces whose indices ``which`` lists per photo, scored together.

        Raises Overloaded.
        """
        pictures = [photo.faces[place].cuts for photo, places in zip(photos, which, strict=True) for place in places]
        if self.scorer is None or not pictures:
            return list(photos)
        check_deadline()
        spent: dict[str, float] = {}
        with timed(spent, "liveness"):
            scores = iter(self.scorer.score(pictures))
        share = spent["liveness"] / len(photos)
        return [
            replace(
                photo,
                faces=tuple(
                    replace(face, liveness=judge(next(scores), face.detection.box, self.point), cuts=())
                    if place in places
                    else face
                    for place, face in enumerate(photo.faces)
                ),
                stages={**photo.stages, "liveness": share},
            )
            for photo, places in zip(photos, which, strict=True)
        ]

    def refusal(self, face: Face, image: str | None = None) -> NotLive | None:
        """Return the error of a judged face that liveness is required of and that is not live; else None."""
        found = face.liveness
        if not self.requires or found is None or found.verdict is Verdict.LIVE:
            return None
        reasons = [found.verdict.value, *([found.reason.value] if found.reason else [])]
        return NotLive(
            f"the face is not live: {found.verdict.value}, score {found.score:.3f}",
            live=found.verdict.value,
            live_score=found.score,
            reasons=reasons,
            **({} if image is None else {"image": image}),
        )

    def check(self, face: Face, image: str | None = None) -> None:
        """Raise NotLive if liveness is required of this judged face and it is not live."""
        if refusal := self.refusal(face, image):
            raise refusal

    def accepted(self, photo: Photo) -> list[int]:
        """Return the indices of the judged faces that may be used. Raises NotLive if all of them are refused."""
        refused = {place: error for place, face in enumerate(photo.faces) if (error := self.refusal(face))}
        if refused and len(refused) == len(photo.faces):
            raise next(iter(refused.values()))
        return [place for place in range(len(photo.faces)) if place not in refused]


OFF = Gate()


class LivenessGates:
    """Opens the gate of each request. ``apcer`` and ``bpcer`` are the error rates that it decides at."""

    def __init__(self, packages: LivenessPackages, *, apcer: float, bpcer: float) -> None:
        self.packages = packages
        self._apcer, self._bpcer = apcer, bpcer

    def open(self, asked: LivenessMode | None, default: LivenessMode = "off") -> Gate:
        """Return the gate of a request for what it asks, else the default; a default of `require` always holds.

        Raises Unusable ``liveness_unavailable`` (no package can be used), and ``liveness_not_measured`` where liveness
        is required and its packages have no operating point for the server's error rates.
        """
        mode = "require" if default == "require" else asked or default
        if mode == "off":
            return OFF
        found = self.packages.open()
        point = liveness_point(found.calibration, self._apcer, self._bpcer)
        if point is None and mode == "require":
            names = ", ".join(package.id for package in found.scorer.packages)
            message = (
                f"Liveness can't be required: {names} was not measured at an APCER of {self._apcer:g} and a BPCER of "
                f"{self._bpcer:g}. Measure it on your camera: python -m training evaluate liveness"
            )
            raise Unusable(
                message, code="liveness_not_measured", models=[package.id for package in found.scorer.packages]
            )
        return Gate(found.scorer, point, mode == "require")
