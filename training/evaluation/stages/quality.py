"""Whether quality predicts errors: those left when the worst faces are dropped, and the scores of degraded copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.calibration.intervals import Floats
from app.calibration.pairs import AllPairs
from app.errors import LikenessError
from app.types import Pixels, Vector
from training.evaluation import metrics
from training.evaluation.metrics import Discard
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates
from training.evaluation.stages.degraded_copies import Degradation, png

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


def discarding(mated: Floats, pair_quality: Floats, threshold: float) -> Discarding:
    """Measure error versus discard; ``pair_quality`` is the lower one of a pair's two qualities."""
    return Discarding(
        threshold=threshold,
        by_quality=tuple(metrics.error_versus_discard(mated, pair_quality, threshold, SHARES)),
        at_best=tuple(metrics.error_versus_discard(mated, mated, threshold, SHARES)),
        qualities=tuple(float(np.quantile(pair_quality, share)) for share in SHARES),
    )


def discarding_of(pairs: AllPairs, quality: Floats, threshold: float) -> Discarding:
    """Measure error versus discard of all mated pairs of a set; ``quality`` (N,) of its faces."""
    lower = np.minimum(quality[pairs.mated_first], quality[pairs.mated_second])
    return discarding(pairs.mated.astype(np.float64), lower.astype(np.float64), threshold)


@dataclass(frozen=True, slots=True)
class Copies:
    """The effect of one degradation on a sample of photos."""

    name: str
    photos: int
    without_face: int
    quality: float
    """Median over the copies with a face."""
    comparisons: int
    fnmr: float
    """Of the copies with the untouched other photos of the same people; copies without a face aren't compared."""


@dataclass(frozen=True, slots=True)
class CopyPairs:
    """The comparisons behind `Copies`, for one error-versus-discard over all of them."""

    scores: Floats
    quality: Floats
    """The lower quality of copy and original."""


def degraded_copies(
    originals: Templates,
    sample: Sequence[str],
    degradation: Degradation,
    read: Callable[[str], Pixels],
    embed: Callable[[bytes], tuple[Vector, float]],
    *,
    threshold: float,
    seed: int = 0,
) -> tuple[Copies, CopyPairs]:
    """Degrade each photo of ``sample``, embed the copy and compare it with its person's other photos."""
    rows_of = originals.rows_by_person()
    scores: list[float] = []
    lower: list[float] = []
    qualities: list[float] = []
    for i, name in enumerate(sample):
        worse = degradation.apply(read(name), np.random.default_rng((seed, i)))
        try:
            vector, quality = embed(png(worse))
        except LikenessError:
            continue
        qualities.append(quality)
        mates = [row for row in rows_of[person_of(name)] if originals.names[row] != name]
        scores += (originals.vectors[mates] @ vector).tolist()
        lower += np.minimum(originals.quality[mates], quality).tolist()
    all_scores = np.array(scores, np.float64)
    copies = Copies(
        name=degradation.name,
        photos=len(sample),
        without_face=len(sample) - len(qualities),
        quality=float(np.median(qualities)) if qualities else 0.0,
        comparisons=len(scores),
        fnmr=metrics.fnmr_at(threshold, all_scores) if scores else float("nan"),
    )
    return copies, CopyPairs(all_scores, np.array(lower, np.float64))


def sample_with_mates(originals: Templates, count: int, seed: int = 0) -> list[str]:
    """Return ``count`` random photos of people who have another one with a face."""
    rows_of = originals.rows_by_person()
    names = [originals.names[row] for rows in rows_of.values() if len(rows) > 1 for row in rows]
    order = np.random.default_rng(seed).permutation(len(names))[:count]
    return [names[i] for i in sorted(order.tolist())]
