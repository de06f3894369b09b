"""Whether quality predicts errors: those left when the worst faces are dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.calibration.intervals import Floats
from app.calibration.pairs import AllPairs
from training.evaluation.metrics import Discard, error_versus_discard

SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Shares of mated pairs dropped, worst quality first."""


@dataclass(frozen=True, slots=True)
class Discarding:
    """FNMR over the share dropped: by quality, and by the scores themselves (the best that any quality could do)."""

    threshold: float
    by_quality: tuple[Discard, ...]
    at_best: tuple[Discard, ...]
    qualities: tuple[float, ...]
    """The pair quality at which each share ends."""


def discarding_of(pairs: AllPairs, quality: Floats, threshold: float) -> Discarding:
    """Measure error versus discard of all mated pairs of a set; ``quality`` (N,) of its faces, of which the lower one
    is a pair's."""
    lower = np.minimum(quality[pairs.mated_first], quality[pairs.mated_second])
    return Discarding(
        threshold=threshold,
        by_quality=tuple(error_versus_discard(pairs.mated, lower, threshold, SHARES)),
        at_best=tuple(error_versus_discard(pairs.mated, pairs.mated, threshold, SHARES)),
        qualities=tuple(float(np.quantile(lower, share)) for share in SHARES),
    )
