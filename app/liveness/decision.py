"""From liveness scores to verdicts, at an operating point named by its error rates."""

from __future__ import annotations

from dataclasses import dataclass

from app.inference.manifest import LivenessCalibration
from app.types import Box, DoubtReason, Liveness, Verdict


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
