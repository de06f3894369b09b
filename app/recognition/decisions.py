"""From scores to decisions: the only place where thresholds decide.

A decision is made at an operating point: a threshold named by the false match rate (FMR) of two photos that was
measured at it. The FMR is chosen so that a person is taken for a subject, or in an identification for anyone at all,
with the requested rate: FMR = 1 - (1 - rate)^(1/comparisons) (Daugman 2000, "Biometric decision landscapes").

A subject's faces are fused: its score is that of their mean template, as far from 0 as that of one photo at the same
FMR (`fused`), so that a subject is one comparison. Where a package's calibration doesn't say how, and for what looks at
single faces (conflicts, reviews), the score is that of the best face, and each face is another chance of a false match.
The faces of a subject are alike: they count as fewer independent comparisons than there are (`count_comparisons`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from app.choices import Decision, Doubt, PopulationCode
from app.errors import LowQuality, OperatingPointUnavailable, PackageMismatch
from app.face.quality import QualityLevel
from app.gallery.records import Candidate
from app.inference.cards import BiasCard, GroupRate
from app.inference.thresholds import RATE_TOLERANCE, DecidedBy, Thresholds, fmr_for
from app.types import Face, Quality, Reason, Sizes, Template

UNCERTAIN_FACTOR = 10.0
"""`uncertain` reaches from the operating point that decides down to the one of ten times its FMR."""

LINKED_FMR = 1e-3
"""Two faces of a subject that score what this share of strangers do are taken for one person. At 1e-2 a chain of such
pairs joins two people of ten photos each in every sixth case; at 1e-3 in one of fifty."""

RERANKED = 8
"""Subjects that are found by their best face, at least, and then ordered by their fused scores. In 12 galleries of 100
people of train112 with 2, 3 and 8 photos each, the right subject was first by the fused score in no search in which it
was not among the first 7 by its best face."""
BEST = 100.0
"""The highest quality."""
TURNED = frozenset({Reason.EXTREME_POSE, Reason.LOW_SCORE})
"""What a turned head costs: its pose, and some of the detector's score."""
FPIR_STEP = 1e-6
"""To which the lowest FPIR is rounded up."""
UNNAMED = DecidedBy("package", None)
SCORE_DIGITS = 9
"""Decimals of a rounded score, so that none is 0.7300000000000001."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The rates of an identification that is asked for none. It keeps to both: the threshold is the stricter one's."""

    fmr: float
    """How often a stranger may be taken for one given subject."""
    fpir: float
    """How often a stranger may be taken for anybody in the gallery."""


@dataclass(frozen=True, slots=True)
class VerifyPoint:
    """The operating point that verification decides at; ``fmr`` is the rate over all ``comparisons``."""

    threshold: float
    fmr: float
    calibration: DecidedBy = UNNAMED
    comparisons: float = 1.0
    """So many independent ones the comparisons with a subject's faces count as; 1: two photos."""
    uncertain: float = 1.0
    """A score between this and ``threshold`` is `uncertain`; 1: none is (reviews that 0.1.0 stored)."""


@dataclass(frozen=True, slots=True)
class IdentifyPoint:
    """The operating point that identification decides at; ``fpir`` is ``fmr`` over all ``comparisons``."""

    threshold: float
    uncertain: float
    fmr: float
    fpir: float
    calibration: DecidedBy = UNNAMED
    limited: bool = False
    """Whether the default FPIR needs a rate that was not measured, so that ``fpir`` is another."""
    comparisons: float = 1.0
    """So many independent ones the comparisons with the gallery's faces count as."""


def count_comparisons(sizes: Sizes, independence: float) -> float:
    """Return how many independent comparisons a search among subjects of these ``sizes`` counts as, 1 at least.

    A subject of n faces counts as n^independence, which the calibration measured (`app.models.calibration.pairs`).
    """
    return max(1.0, sum((subjects * float(faces) ** independence for faces, subjects in sizes.items()), 0.0))


def mean_comparisons(sizes: Sizes, independence: float) -> float:
    """Return how many independent comparisons those with one of these subjects count as, on average; 1 at least."""
    return count_comparisons(sizes, independence) / max(1, sum(sizes.values()))


def fused(ranking: Iterable[Candidate], thresholds: Thresholds) -> list[Candidate]:
    """Return the candidates by their fused scores, the best first.

    A mean template of several photos scores further from 0 with everybody than one photo does; times its length to a
    power that was measured (`app.models.calibration.fusion`), it reaches a threshold as often as one photo does. The
    scores stay as they are where nobody measured.
    """
    power = thresholds.fusion
    if power is None:
        return list(ranking)
    scored = (replace(candidate, score=candidate.template_score * candidate.length**power) for candidate in ranking)
    return sorted(scored, key=lambda candidate: -candidate.score)


def fused_sizes(sizes: Sizes, thresholds: Thresholds) -> Sizes:
    """Return the sizes of subjects by what a search by fused scores compares: one template of each."""
    return sizes if thresholds.fusion is None else {1: sum(sizes.values())}


def verify_point(
    thresholds: Thresholds, asked: float | None, default: float, faces: int = 1, *, length: float = 1.0
) -> VerifyPoint:
    """Return the operating point of the FMR asked for against a subject of so many faces, or of the measured rate
    nearest to the default. ``length``: of a fused probe's mean (`app.models.calibration.fusion`).

    Raises OperatingPointUnavailable if the rate asked for was not measured.
    """
    comparisons = count_comparisons({faces: 1}, thresholds.independence)
    wanted = fmr_for(default if asked is None else asked, comparisons)
    fmr = _measured(thresholds, wanted) if asked is None else wanted
    rate = fpir_of(fmr, comparisons) if asked is None else asked
    threshold, uncertain = _both(thresholds, fmr, length)
    return VerifyPoint(threshold, rate, thresholds.decided_by(fmr), comparisons, uncertain)


def identify_point(
    thresholds: Thresholds,
    fmr: float | None,
    fpir: float | None,
    default: Defaults,
    sizes: Sizes,
    *,
    length: float = 1.0,
) -> IdentifyPoint:
    """Return the operating point of the FMR or FPIR asked for in a gallery of subjects of these ``sizes``.

    ``length``: of a fused probe's mean (`app.models.calibration.fusion`); the rates are then those of a whole track.

    Without either, both defaults apply: in a small gallery the FPIR alone would decide laxer than `verify_point`. If
    that needs a rate that was not measured (a very large gallery), the nearest measured one is used, and the point's
    ``fpir`` says what to expect from it.
    Raises OperatingPointUnavailable if a rate asked for was not measured.
    """
    limited, comparisons = False, count_comparisons(sizes, thresholds.independence)
    if fmr is None:
        fmr = wanted = fmr_for(default.fpir if fpir is None else fpir, comparisons)
        if fpir is None:
            wanted = min(wanted, fmr_for(default.fmr, mean_comparisons(sizes, thresholds.independence)))
            fmr = _measured(thresholds, wanted)
        limited = fmr > wanted
    if fpir is not None and thresholds.lowest is not None and fmr < thresholds.lowest * (1 - RATE_TOLERANCE):
        raise _unsupported(thresholds, fpir, fmr, comparisons)
    threshold, uncertain = _both(thresholds, fmr, length)
    expected, by = fpir_of(fmr, comparisons), thresholds.decided_by(fmr)
    return IdentifyPoint(threshold, uncertain, fmr, expected, by, limited=limited, comparisons=comparisons)


def _unsupported(thresholds: Thresholds, fpir: float, fmr: float, comparisons: float) -> OperatingPointUnavailable:
    """Return the error of an FPIR that needs a lower FMR than was measured: it says which FPIR there is."""
    lowest = thresholds.lowest or fmr
    least = math.ceil(fpir_of(lowest, comparisons) / FPIR_STEP) * FPIR_STEP
    return OperatingPointUnavailable(
        f"fpir={fpir:g} needs a false match rate of {fmr:.1e} in this gallery, whose faces count as {comparisons:,.0f} "
        f"comparisons. {thresholds.package} was measured down to {lowest:g}: ask for fpir={least:g} or more",
        lowest=lowest,
        highest=thresholds.highest,
        lowest_fpir=round(least, 6),
    )


def _both(thresholds: Thresholds, fmr: float, length: float) -> tuple[float, float]:
    """Return the thresholds from which on a probe is `known` at ``fmr``, and `uncertain`."""
    lenient = _measured(thresholds, fmr * UNCERTAIN_FACTOR)
    known, uncertain = (thresholds.of_fused(rate, length) for rate in (fmr, lenient))
    return known, uncertain


def fpir_of(fmr: float, comparisons: float) -> float:
    """Return 1 - (1 - FMR)^comparisons: the inverse of `fmr_for`."""
    return fmr if comparisons <= 1 else -math.expm1(math.log1p(-fmr) * comparisons)


def comparisons_for(fpir: float, fmr: float) -> int:
    """Return how many comparisons a search may count as for ``fpir`` if ``fmr`` is the lowest rate measured."""
    return math.floor(math.log1p(-fpir) / math.log1p(-fmr) * (1 + 1e-12))


@dataclass(frozen=True, slots=True)
class AnsweredCandidate:
    """A candidate as it is answered. ``exact`` orders and decides, and never leaves the service."""

    subject: str
    name: str | None
    face_id: str
    score: float | None
    """None: below the floor."""
    template_score: float | None
    exact: float = field(repr=False)


@dataclass(frozen=True, slots=True)
class AnsweredScores:
    """How the scores of a probe and enrolled faces are answered; decisions and order always go by the exact ones.

    Keys with the scope `templates` get them as they are, which is the default. All others get them as fine as decisions
    need, since exact scores show the enrolled templates: a score counts as the nearest value below it among the steps
    and the thresholds, so that every decision at a threshold stays what it was. Below ``floor``, the most lenient
    operating point, nothing is answered.
    """

    floor: float = -math.inf
    step: float = 0.0
    thresholds: tuple[float, ...] = ()
    """Those of the operating points and of the request, rising, from the floor on; none where scores are exact."""

    @classmethod
    def of(cls, thresholds: Thresholds, *asked: float, exact: bool = False) -> AnsweredScores:
        """Return how scores of a package are answered; ``asked`` are the request's own thresholds, ``exact`` says that
        the key sees exact ones.

        The step is the largest power of ten within the narrowest gap between operating points. Raises
        OperatingPointUnavailable for a package without measured operating points, unless ``exact``.
        """
        if exact:
            return cls()
        if thresholds.calibration is None:
            message = (
                f"{thresholds.package} has no measured operating points, so no score of enrolled faces is answered"
            )
            raise OperatingPointUnavailable(message)
        points = tuple(point.threshold for point in thresholds.calibration.points)
        narrowest = min((later - earlier for earlier, later in pairwise(points)), default=1.0)
        step = 10.0 ** math.floor(math.log10(narrowest))
        above = {threshold for threshold in asked if threshold > points[0]}
        return cls(points[0], step, tuple(sorted({*points, *above})))

    def answered(self, score: float) -> float | None:
        """Return the score that is answered; None below the floor."""
        if not self.thresholds:
            return score
        if score < self.floor:
            return None
        below = self._threshold_reached(score)
        rounded = round(math.floor(score / self.step) * self.step, SCORE_DIGITS)
        return max(below, rounded) if rounded <= score else below

    def candidate(self, candidate: Candidate) -> AnsweredCandidate:
        return AnsweredCandidate(
            candidate.subject,
            candidate.name,
            candidate.face_id,
            self.answered(candidate.score),
            self.answered(candidate.template_score),
            candidate.score,
        )

    def candidates(self, ranking: Iterable[Candidate]) -> list[AnsweredCandidate]:
        return [candidate for candidate in map(self.candidate, ranking) if candidate.score is not None]

    def of_photo(self, rankings: Sequence[Sequence[Candidate]]) -> list[list[AnsweredCandidate]]:
        """Answer the rankings of the faces of one photo: every face is named, and each subject has one score.

        It is that of the face that is most like the subject. To its other faces the threshold is answered that they
        reach, so that a photo of one person many times shows no more of the template. Rankings stay in order.
        """
        answered = [self.candidates(ranking) for ranking in rankings]
        if not self.thresholds:
            return answered
        best: dict[str, tuple[float, int]] = {}
        for face, ranking in enumerate(answered):
            for one in ranking:
                best[one.subject] = max(best.get(one.subject, (-math.inf, 0)), (one.exact, -face))
        for face, ranking in enumerate(answered):
            least = math.inf
            for place, one in enumerate(ranking):
                is_best = best[one.subject] == (one.exact, -face)
                reached = one.score if is_best and one.score is not None else self._threshold_reached(one.exact)
                least = min(least, reached)
                ranking[place] = replace(one, score=least, template_score=None)
        return answered

    def _threshold_reached(self, score: float) -> float:
        return self.thresholds[bisect_right(self.thresholds, score) - 1]


@dataclass(frozen=True, slots=True)
class PopulationWarning:
    """Why a stated false match rate does not hold for a declared population; ``rate`` is the measurement."""

    code: PopulationCode
    message: str
    population: str
    rate: GroupRate | None = None


def population_warnings(
    thresholds: Thresholds, declared: str | None, point: VerifyPoint | IdentifyPoint, in_gallery: Sequence[str] = ()
) -> tuple[PopulationWarning, ...] | None:
    """Return a warning for each population for which the point's FMR was seen not to hold, or was not measured.

    A probe shows whom the caller ``declared``, else those of the gallery; None without either. FMR falls with the
    threshold. So the rate at the point's threshold is at least the one that was found at a higher one.
    """
    populations = (declared,) if declared else in_gallery
    if not populations:
        return None
    card = thresholds.bias_card
    warnings = (_population_warning(thresholds.package, card, name, point.threshold, point.fmr) for name in populations)
    return tuple(warning for warning in warnings if warning is not None)


def _population_warning(
    package: str, card: BiasCard | None, population: str, threshold: float, fmr: float
) -> PopulationWarning | None:
    group = card.find(population) if card else None
    if card is None or group is None:
        known = f"; there are figures of {', '.join(measured.name for measured in card.groups)}" if card else ""
        message = f"No false match rate of {package} was measured for the population {population!r}{known}."
        return PopulationWarning("population_not_measured", message, population)
    reached = (rate for rate in group.rates if rate.threshold >= threshold - RATE_TOLERANCE)
    rate = next(reached, None)  # found at the lowest threshold that is not below this one
    if rate is None or rate.low <= fmr:
        return None
    message = (
        f"The false match rate {fmr:g} does not hold for {population}: of pairs of different people among them, "
        f"{100 * rate.found:.2g} % ({100 * rate.low:.2g} to {100 * rate.high:.2g}) reach the score "
        f"{rate.threshold:.3f} ({card.measured_on})."
    )
    return PopulationWarning("population_rate_exceeded", message, population, rate)


def _measured(thresholds: Thresholds, fmr: float) -> float:
    """Return the measured rate nearest to ``fmr``."""
    if thresholds.lowest is None or thresholds.highest is None:
        return fmr  # `Thresholds.threshold` says that nothing was measured
    return min(max(fmr, thresholds.lowest), thresholds.highest)


def too_poor(face: Face, level: QualityLevel) -> LowQuality | None:
    """Return why the face is too poor to be enrolled at this level; None if it isn't."""
    quality = face.quality
    if quality.score >= level.minimum:
        return None
    reasons = [reason.value for reason in quality.reasons]
    message = f"quality {quality.score:.0f}, {level.minimum:.0f} is the least that `{level.value}` takes"
    return LowQuality(message, reasons=reasons, score=quality.score, minimum=level.minimum)


def is_turned(quality: Quality) -> bool:
    """Return whether nothing but a turned head makes a face poor."""
    return Reason.EXTREME_POSE in quality.reasons and TURNED.issuperset(quality.reasons)


def cosine(a: Template, b: Template) -> float:
    """Return the cosine of two unit vectors, -1 to 1. Raises Conflict ``package_mismatch`` across packages."""
    if a.package != b.package:
        raise PackageMismatch(f"templates of {a.package} and {b.package} don't compare")
    dot = np.dot(a.vector.astype(np.float64), b.vector.astype(np.float64))
    return float(np.clip(dot, -1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Assigned:
    """A face's ranking without the subjects assigned to other faces of its photo."""

    candidates: Sequence[Candidate] = ()
    displaced_by: int | None = None
    """The face that this one's best candidate was assigned to; None if it reaches no floor or is this one's."""


def assign(rankings: Sequence[Sequence[Candidate]], floor: float) -> list[Assigned]:
    """Assign each subject to one face of a photo at most: nobody is in a photo twice, unless it is no plain photo.

    Greedy: the best-scoring pair of face and subject first, then the best of the rest, down to ``floor``. Scores below
    it decide nothing and assign nobody.
    """
    pairs = [
        (-candidate.score, face, candidate.subject)
        for face, ranking in enumerate(rankings)
        for candidate in ranking
        if candidate.score >= floor
    ]
    given: dict[str, int] = {}
    served: set[int] = set()
    for _, face, subject in sorted(pairs):
        if face not in served and subject not in given:
            given[subject] = face
            served.add(face)
    assigned = []
    for face, ranking in enumerate(rankings):
        holder = given.get(ranking[0].subject, face) if ranking and ranking[0].score >= floor else face
        left = [candidate for candidate in ranking if given.get(candidate.subject, face) == face]
        assigned.append(Assigned(left, None if holder == face else holder))
    return assigned


def decide(
    score: float | None,
    point: VerifyPoint | IdentifyPoint,
    quality: float = BEST,
    level: QualityLevel = QualityLevel.NONE,
) -> tuple[Decision, Doubt | None]:
    """Decide from a subject's ``score``, and return why if a face that reaches the threshold is only `uncertain`.

    ``score`` None: there is no candidate. A face of a ``quality`` below the ``level`` is never `known`: what two faces
    that hardly show anything have in common is no sign of one person, at whatever rate.
    """
    if score is None or score < min(point.uncertain, point.threshold):
        return "unknown", None
    if score < point.threshold:
        return "uncertain", None
    return ("known", None) if quality >= level.minimum else ("uncertain", "low_quality")
