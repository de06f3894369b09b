"""Which form of input a file was trained with: the one with which it tells people apart best.

Each candidate is run on the same crops. Its separation is the sensitivity index d' of its scores: the difference of
the mean mated and non-mated score over the root of their mean variance (Daugman 2000, "Biometric decision landscapes").
Candidates are compared by a bootstrap over people, since pairs of one person are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import Unusable
from app.inference.manifest import SourceInput
from app.types import Vectors

LEAST_SEPARATION = 1.2
"""Below this a file tells nobody apart. On drawn faces, networks with random weights had 0.2 to 0.7. SFace had 2.7
with its own input, 2.4 with the other colour order and 0.3 to 0.4 with another range; the small packaged net 2.4, and
2.0 with the other colour order."""
ROUNDS = 400
SAME_TEMPLATES = 0.995
"""Mean cosine from which on two candidates make the same templates: either will do, so they are no tie."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One form of input, what it is called, and the file's answers to it."""

    name: str
    form: SourceInput
    vectors: Vectors
    """(N, D) unit vectors of the crops."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The separation of one candidate, and how far it is behind the best (95 % interval; 0 for the best itself)."""

    candidate: Candidate
    separation: float
    mated: float
    """Mean score."""
    nonmated: float
    behind_low: float
    behind_high: float

    @property
    def is_clearly_worse(self) -> bool:
        return self.behind_low > 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """All candidates, best first, and how many pairs they were measured on."""

    rows: tuple[Measured, ...]
    people: int
    mated: int
    nonmated: int
    source: str
    """Who the people are."""

    @property
    def basis(self) -> str:
        return f"measured on {self.mated} mated and {self.nonmated} non-mated pairs of {self.people} {self.source}"


def compare(candidates: Sequence[Candidate], people: NDArray[np.int64], source: str) -> Comparison:
    """Measure candidates on the same crops; ``people`` (N,) numbers from 0 say who each crop shows,
    ``source`` who they are in words."""
    count = int(people.max()) + 1
    one, other = np.triu_indices(len(people), 1)
    same = people[one] == people[other]
    scores = [(each.vectors @ each.vectors.T)[one, other].astype(np.float64) for each in candidates]
    generator = np.random.default_rng(0)
    draws = [np.bincount(generator.integers(0, count, count), minlength=count) for _ in range(ROUNDS)]
    # a pair of two people counts as often as both were drawn, a pair of one person as often as that one was
    weights = [np.where(same, draw[people[one]], draw[people[one]] * draw[people[other]]) for draw in draws]
    rounds = np.array([[_sensitivity(score, same, weight)[0] for weight in weights] for score in scores])
    whole = [_sensitivity(score, same, np.ones(len(score), np.int64)) for score in scores]
    order = sorted(range(len(candidates)), key=lambda place: -whole[place][0])
    behind = np.percentile(rounds[order[0]] - rounds, [2.5, 97.5], axis=1)
    rows = tuple(Measured(candidates[at], *whole[at], float(behind[0, at]), float(behind[1, at])) for at in order)
    return Comparison(rows, count, int(same.sum()), int((~same).sum()), source)


def _sensitivity(
    scores: NDArray[np.float64], same: NDArray[np.bool_], weights: NDArray[np.int64]
) -> tuple[float, float, float]:
    """Return d' and the mean mated and non-mated score, each pair counted ``weights`` times."""
    means, variances = [], []
    for kind in (same, ~same):
        mean = float(np.average(scores[kind], weights=weights[kind]))
        means.append(mean)
        variances.append(float(np.average((scores[kind] - mean) ** 2, weights=weights[kind])))
    spread = max(float(np.sqrt(sum(variances) / 2)), 1e-9)
    return (means[0] - means[1]) / spread, means[0], means[1]


def choose(comparison: Comparison, stated: Sequence[str]) -> Measured:
    """Return the candidate to use: the best, or of those named ``stated`` the best that is not clearly worse.

    Raises Unusable: model_separates_nothing, model_input_ambiguous (several are as good and make other templates),
    model_input_contradicted (what was stated is clearly worse than another).
    """
    best = comparison.rows[0]
    details = {
        "pairs": {"mated": comparison.mated, "nonmated": comparison.nonmated},
        "separation": {row.candidate.name: round(row.separation, 3) for row in comparison.rows},
    }
    if best.separation < LEAST_SEPARATION:
        message = (
            f"The file tells nobody apart: its best separation is d' {best.separation:.2f} ({best.candidate.name}), "
            f"{LEAST_SEPARATION} is needed; {comparison.basis}. "
            "Is it a trained face embedder for aligned 112×112 crops?"
        )
        raise Unusable(message, code="model_separates_nothing", **details)
    allowed = [row for row in comparison.rows if row.candidate.name in stated]
    if all(row.is_clearly_worse for row in allowed):
        message = (
            f"{allowed[0].candidate.name} contradicts the measurement: d' {allowed[0].separation:.2f}, "
            f"{best.candidate.name} has {best.separation:.2f}; {comparison.basis}."
        )
        raise Unusable(message, code="model_input_contradicted", **details)
    chosen = allowed[0]
    tied = [row for row in allowed[1:] if not row.is_clearly_worse and not _alike(row.candidate, chosen.candidate)]
    if tied:
        figures = ", ".join(f"{row.candidate.name} {row.separation:.2f}" for row in (chosen, *tied))
        message = (
            f"The measurement can't tell these inputs apart: d' {figures}; {comparison.basis}. "
            "State what you know (--colour, --normalisation), or give photos of your own, a folder for each person "
            "(--photos)."
        )
        raise Unusable(message, code="model_input_ambiguous", **details)
    return chosen


def _alike(one: Candidate, other: Candidate) -> bool:
    return float((one.vectors * other.vectors).sum(axis=1).mean()) >= SAME_TEMPLATES
