"""Decide from liveness scores whether faces are live, at an operating point named by its error rates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from app.api.feature import Feature
from app.choices import LivenessMode
from app.concurrency.overload import Why
from app.errors import LivenessUnavailable, Unusable
from app.features.liveness.scorer import LivenessSession, Scorer
from app.inference.attempts import RETRY_S, Attempts
from app.inference.embedders import CurrentManifests
from app.inference.session import Session
from app.package.folders import Package, select
from app.package.manifest import LivenessCalibration, liveness_digest
from app.recognition.gate import Gate, Gates
from app.types import Box, DoubtReason, Face, Liveness, Verdict

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LivenessThresholds:
    """Thresholds for liveness scores: from ``live_from`` on a face is live, below ``spoof_below`` it is a spoof,
    between them it is uncertain."""

    live_from: float
    spoof_below: float
    smallest_face: float
    """Longer side, in pixels, of the smallest face that the thresholds were measured on."""


def liveness_point(calibration: LivenessCalibration | None, apcer: float, bpcer: float) -> LivenessThresholds | None:
    """Return the thresholds for error rates of at most ``apcer`` and ``bpcer``; None if these were not measured.

    To measure an APCER of 1 in N, N photos of each kind of attack are needed; for a BPCER, N photos of live people.

    ``live_from`` is the lowest threshold that at most ``apcer`` of the attacks reached, ``spoof_below`` the highest
    that at most ``bpcer`` of the live faces failed to reach. If ``spoof_below`` is the higher one, it is used for both,
    and both rates hold.
    """
    if calibration is None or apcer * min(calibration.attacks.values()) < 1 or bpcer * calibration.live < 1:
        return None
    strict = [point.threshold for point in calibration.points if point.apcer.value <= apcer]
    lenient = [point.threshold for point in calibration.points if point.bpcer.value <= bpcer]
    if not strict or not lenient:
        return None
    return LivenessThresholds(max(strict[0], lenient[-1]), lenient[-1], calibration.smallest_face)


def judge(score: float, box: Box, point: LivenessThresholds | None) -> Liveness:
    """Return the verdict on a face with this liveness score; without a point it is ``not_measured``."""
    if point is None:
        return Liveness(score, Verdict.NOT_MEASURED, DoubtReason.NO_OPERATING_POINTS)
    if score < point.spoof_below:
        return Liveness(score, Verdict.SPOOF, DoubtReason.LOW_SCORE)
    if score < point.live_from:
        return Liveness(score, Verdict.UNCERTAIN, DoubtReason.BETWEEN_THRESHOLDS)
    if max(box.width, box.height) < point.smallest_face:
        return Liveness(score, Verdict.UNCERTAIN, DoubtReason.SMALL_FACE)
    return Liveness(score, Verdict.LIVE, None)


def choose_packages(installed: Mapping[str, Package], names: Sequence[str]) -> list[Package]:
    """Return the named liveness packages; without names, the only installed one.

    Raises Unusable ``liveness_unavailable``, and ``package_unknown``, ``package_ambiguous`` for a name.
    """
    usable = {key: package for key, package in installed.items() if package.manifest.task == "liveness"}
    if names:
        return list({package.id: package for package in (select(usable, name) for name in names)}.values())
    if not usable:
        message = "No liveness package is installed: add one with likeness models add FILE --task liveness"
        raise LivenessUnavailable(message, reason="none_installed")
    if len(usable) > 1:
        message = f"Name the liveness packages to average in LIKENESS_LIVENESS; {', '.join(usable)} are installed"
        raise LivenessUnavailable(message, reason="not_named")
    return list(usable.values())


def find_calibration(packages: Sequence[Package]) -> LivenessCalibration | None:
    """Return the calibration that was measured with exactly these packages, from whichever manifest contains it; None
    if there is none."""
    digest = liveness_digest(package.manifest for package in packages)
    kept = (calibration for package in packages for calibration in package.manifest.liveness_calibrations)
    return next((calibration for calibration in kept if calibration.measured_with == digest), None)


class LivenessGates(Gates):
    """The gates of a service with liveness packages, opened when they are first needed. Safe to share between threads.

    Operating points that are written to a manifest while the server runs are used at once.
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, Package]],
        open_one: Callable[[Package], Session],
        names: Sequence[str],
        apcer: float,
        bpcer: float,
    ) -> None:
        """``find`` returns the installed packages by id; ``open_one`` opens a package. ``names``: the packages whose
        scores are averaged, by default the only installed one. ``apcer``, ``bpcer``: the error rates to decide at. If a
        name can't be used, a warning is logged: the package may still be added while the server runs."""
        super().__init__()
        self._find, self._open_one, self._names = find, open_one, names
        self._apcer, self._bpcer = apcer, bpcer
        self._lock = Lock()
        self._scorer: Scorer | None = None
        self._attempts = Attempts()
        self._manifests = CurrentManifests()
        self._closed = False
        try:
            if names:
                choose_packages(find(), names)
        except Unusable as error:
            _log.warning("Liveness is not available: %s", error.message)

    def judging(self, mode: LivenessMode) -> Gate:
        scorer = self._opened()
        now = [self._manifests.read(package) for package in scorer.packages]
        point = liveness_point(find_calibration(now), self._apcer, self._bpcer)
        if point is None and mode == "require":
            names = [package.id for package in scorer.packages]
            message = (
                f"Liveness can't be required: {', '.join(names)} was not measured at an APCER of {self._apcer:g} and a "
                f"BPCER of {self._bpcer:g}. Measure it on your camera: python -m training evaluate liveness"
            )
            raise Unusable(message, code="liveness_not_measured", models=names)

        def judged(faces: Sequence[Face]) -> list[Liveness]:
            scores = scorer.score([face.cuts for face in faces])
            return [judge(score, face.box, point) for score, face in zip(scores, faces, strict=True)]

        return Gate(judged, scorer.cuts, mode == "require")

    def _opened(self) -> Scorer:
        """Return the scorer; the first call opens the packages.

        Raises Unusable ``liveness_unavailable`` (``details.reason``: none installed, several and none named, damaged …)
        and Overloaded ``shutting_down``.
        """
        with self._lock:
            if self._closed:
                raise Why.STOPPING.error()
            if self._scorer is not None:
                return self._scorer
            self._attempts.check(RETRY_S)
            try:
                chosen = choose_packages(self._find(), self._names)
                self._scorer = Scorer([LivenessSession(package, self._open_one(package)) for package in chosen])
            except Unusable as error:
                reason = error.details["reason"] if isinstance(error, LivenessUnavailable) else error.code
                failure = LivenessUnavailable(error.message, reason=reason)
                self._attempts.failed(failure)
                raise failure from error
            self.devices, self.batchers = self._scorer.devices, self._scorer.batchers
            return self._scorer

    def close(self) -> None:
        with self._lock:
            self._closed = True
        super().close()


FEATURE = Feature(open_gates=LivenessGates)
