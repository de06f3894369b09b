"""Turn scores into decisions: the only place where thresholds decide.

A decision is made at an operating point: a threshold named by its measured false match rate (FMR) of two photos. The
FMR is chosen so that a stranger is taken for a subject (in an identification: for anybody) at the requested rate: FMR =
1 - (1 - rate)^(1/comparisons) (Daugman 2000, "Biometric decision landscapes").

A subject's faces are fused: its score is that of their mean template, reduced to that of one photo at the same FMR
(`by_fused_score`), so that a subject is one comparison. If a package's calibration doesn't say how, and for checks of
single faces (conflicts, reviews), the score is that of the best face, and each face is another chance of a false match.
Since the faces of a subject are similar, they count as fewer independent comparisons (`count_comparisons`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter

import numpy as np

from app.choices import Decision, Doubt, PopulationCode
from app.errors import LowQuality, OperatingPointUnavailable, PackageMismatch
from app.face.quality import QualityLevel
from app.gallery.corrections import Wrong
from app.gallery.records import Candidate
from app.package.cards import BiasCard
from app.package.thresholds import RATE_TOLERANCE, DecidedBy, Thresholds, fmr_for
from app.pipeline import Choice
from app.types import Face, Photo, Quality, Reason, Sizes, Template

UNCERTAIN_FACTOR = 10.0
"""`uncertain` reaches from the deciding operating point down to the one with this many times its FMR."""

LINKED_FMR = 1e-3
"""Two faces of a subject count as one person's from the threshold at this FMR on. At 1e-2 a chain of such pairs joins
two people with ten photos each in one of six cases; at 1e-3 in one of fifty."""

RERANKED = 8
"""Minimum number of subjects to find by their best face and then order by their fused scores. In 12 galleries of 100
people of train112 with 2, 3 and 8 photos each, whenever the right subject was first by its fused score, it was among
the first 7 by its best face."""
BEST = 100.0
"""The highest quality."""
TURNED = frozenset({Reason.EXTREME_POSE, Reason.LOW_SCORE})
"""The reasons for a low quality that a turned head by itself can cause."""
FPIR_STEP = 1e-6
"""The lowest possible FPIR, in an error, is rounded up to a multiple of this."""
NO_CALIBRATION = DecidedBy("package", None)
SCORE_DIGITS = 9
"""Decimals of a rounded score, which avoid 0.7300000000000001."""


@dataclass(frozen=True, slots=True)
class DefaultRates:
    """The rates of an identification without requested ones. Both hold: the stricter of the two thresholds decides."""

    fmr: float
    """How often a stranger may be taken for a given subject."""
    fpir: float
    """How often a stranger may be taken for anybody in the gallery."""


@dataclass(frozen=True, slots=True)
class VerifyPoint:
    """The operating point of a verification; ``fmr`` is the rate over all ``comparisons``."""

    threshold: float
    fmr: float
    calibration: DecidedBy = NO_CALIBRATION
    comparisons: float = 1.0
    """Number of independent comparisons that comparing with a subject's faces counts as; 1 for two photos."""
    uncertain: float = 1.0
    """Scores from this one up to ``threshold`` are `uncertain`. Reviews stored by 0.1.0 have 1, so that no score is."""


@dataclass(frozen=True, slots=True)
class IdentifyPoint:
    """The operating point of an identification; ``fpir`` is ``fmr`` over all ``comparisons``."""

    threshold: float
    uncertain: float
    fmr: float
    fpir: float
    calibration: DecidedBy = NO_CALIBRATION
    limited: bool = False
    """Whether the default FPIR needs an unmeasured rate, so that ``fpir`` differs from it."""
    comparisons: float = 1.0
    """Number of independent comparisons that comparing with the gallery's faces counts as."""


def count_comparisons(sizes: Sizes, thresholds: Thresholds, *, fused_scores: bool = False) -> float:
    """Return how many independent comparisons a search among subjects of these ``sizes`` counts as, at least 1.

    A subject of n faces counts as n^independence, which the calibration measured (`app.models.calibration.pairs`).
    With ``fused_scores``, if fusion was measured, it counts as one: only its mean template is compared.
    """
    power = 0.0 if fused_scores and thresholds.fusion is not None else thresholds.independence
    return max(1.0, sum((subjects * float(faces) ** power for faces, subjects in sizes.items()), 0.0))


def by_fused_score(ranking: Iterable[Candidate], thresholds: Thresholds, length: float = 1.0) -> list[Candidate]:
    """Return the candidates by their fused scores, best first.

    The scores of a mean template of several photos are further from 0 than those of one photo. Reduced by a measured
    power of its length (`app.models.calibration.fusion`), they reach a threshold as often as one photo's. Without a
    measured power the candidates are unchanged. ``length`` is that of a fused probe's mean.
    """
    if thresholds.fusion is None:
        return list(ranking)
    power = thresholds.power(length)
    scored = [
        replace(candidate, score=candidate.template_score * float(candidate.length**power)) for candidate in ranking
    ]
    return sorted(scored, key=attrgetter("score"), reverse=True)


def verify_point(
    thresholds: Thresholds,
    asked: float | None,
    default: float,
    faces: int = 1,
    *,
    length: float = 1.0,
    other: float = 1.0,
    fused_scores: bool = False,
) -> VerifyPoint:
    """Return the operating point for comparisons with a subject of this many ``faces``, at the FMR ``asked`` for, or at
    the measured rate nearest to the default.

    ``length`` is that of a fused probe's mean (`app.models.calibration.fusion`), ``other`` that of the fused template
    that it is compared with; ``fused_scores`` is that of `count_comparisons`. Raises OperatingPointUnavailable if the
    FMR asked for was not measured.
    """
    comparisons = count_comparisons({faces: 1}, thresholds, fused_scores=fused_scores)
    lowest, highest = thresholds.measured_range
    if asked is None:
        fmr = min(max(fmr_for(default, comparisons), lowest), highest)
        rate = fpir_of(fmr, comparisons)
    else:
        fmr, rate = fmr_for(asked, comparisons), asked
    threshold = thresholds.threshold(fmr, length, other)
    uncertain = thresholds.threshold(min(fmr * UNCERTAIN_FACTOR, highest), length, other)
    return VerifyPoint(threshold, rate, thresholds.decided_by(fmr), comparisons, uncertain)


def identify_point(
    thresholds: Thresholds,
    fmr: float | None,
    fpir: float | None,
    default: DefaultRates,
    sizes: Sizes,
    *,
    length: float = 1.0,
    fused_scores: bool = False,
) -> IdentifyPoint:
    """Return the operating point of the FMR or FPIR asked for in a gallery of subjects of these ``sizes``.

    ``length`` is that of a fused probe's mean (`app.models.calibration.fusion`); the rates are then those of a whole
    track. ``fused_scores`` is that of `count_comparisons`.

    Without an FMR or FPIR, both defaults apply, since in a small gallery the FPIR alone would be laxer than
    `verify_point`. If they need a rate below the measured ones (in a very large gallery), the nearest measured one is
    used, and the point's ``fpir`` is the resulting rate.

    Raises OperatingPointUnavailable if a rate asked for was not measured.
    """
    limited, comparisons = False, count_comparisons(sizes, thresholds, fused_scores=fused_scores)
    lowest, highest = thresholds.measured_range
    if fmr is None and fpir is not None:
        fmr = fmr_for(fpir, comparisons)
    elif fmr is None:
        with_one = comparisons / max(1, sum(sizes.values()))  # average comparisons per subject
        wanted = min(fmr_for(default.fpir, comparisons), fmr_for(default.fmr, with_one))
        fmr = min(max(wanted, lowest), highest)
        limited = fmr > wanted
    if fpir is not None and fmr < lowest * (1 - RATE_TOLERANCE):
        raise _unsupported(thresholds, fpir, fmr, comparisons)
    threshold = thresholds.threshold(fmr, length)
    uncertain = thresholds.threshold(min(fmr * UNCERTAIN_FACTOR, highest), length)
    expected, by = fpir_of(fmr, comparisons), thresholds.decided_by(fmr)
    return IdentifyPoint(threshold, uncertain, fmr, expected, by, limited=limited, comparisons=comparisons)


def _unsupported(thresholds: Thresholds, fpir: float, fmr: float, comparisons: float) -> OperatingPointUnavailable:
    """Return the error for an FPIR that needs a lower FMR than any measured one; it names the lowest possible FPIR."""
    lowest = thresholds.lowest or fmr
    least = math.ceil(fpir_of(lowest, comparisons) / FPIR_STEP) * FPIR_STEP
    return OperatingPointUnavailable(
        f"fpir={fpir:g} needs a false match rate of {fmr:.1e} in this gallery, whose faces count as {comparisons:,.0f} "
        f"comparisons. {thresholds.package} was measured down to {lowest:g}: ask for fpir={least:g} or more",
        lowest=lowest,
        highest=thresholds.highest,
        lowest_fpir=round(least, 6),
    )


def fpir_of(fmr: float, comparisons: float) -> float:
    """Return 1 - (1 - FMR)^comparisons: the inverse of `fmr_for`."""
    return fmr if comparisons <= 1 else -math.expm1(math.log1p(-fmr) * comparisons)


@dataclass(frozen=True, slots=True)
class AnsweredCandidate:
    """A candidate in an answer. ``exact`` is the score that orders and decides; it never leaves the service."""

    subject: str
    name: str | None
    face_id: str
    score: float | None
    """None: below the floor."""
    template_score: float | None
    exact: float = field(repr=False)


@dataclass(frozen=True, slots=True)
class AnsweredScores:
    """How the scores of a probe and enrolled faces are answered; decisions and order always use the exact ones.

    Keys with the scope `templates` get exact scores, which is the default. All others get rounded ones, since enough
    exact scores reveal the enrolled templates: a score is rounded down to the next step or threshold, so that decisions
    at thresholds don't change. Scores below ``floor``, the most lenient operating point, are not answered.
    """

    floor: float = -math.inf
    step: float = 0.0
    thresholds: tuple[float, ...] = ()
    """The thresholds of the operating points and of the request, rising from the floor. Empty if scores are exact."""

    @classmethod
    def of(cls, thresholds: Thresholds, *asked: float, exact: bool = False) -> AnsweredScores:
        """Return how a package's scores are answered. ``asked`` are the request's own thresholds; with ``exact`` the
        key sees exact scores.

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
        """Return the score to answer; None below the floor."""
        if not self.thresholds:
            return score
        if score < self.floor:
            return None
        below = self.thresholds[bisect_right(self.thresholds, score) - 1]
        rounded = round(math.floor(score / self.step) * self.step, SCORE_DIGITS)
        return max(below, rounded) if rounded <= score else below

    def candidates(self, ranking: Iterable[Candidate], *, all_of_them: bool = False) -> list[AnsweredCandidate]:
        """Return the candidates to answer: those from the floor on, or ``all_of_them``."""
        return [
            AnsweredCandidate(found.subject, found.name, found.face_id, score, template_score, found.score)
            for found in ranking
            for score, template_score in [(self.answered(found.score), self.answered(found.template_score))]
            if all_of_them or score is not None
        ]


@dataclass(frozen=True, slots=True)
class PopulationWarning:
    """Why a stated false match rate does not hold for a declared population; the rate found, with its 95 % interval."""

    code: PopulationCode
    message: str
    population: str
    fmr_found: float | None = None
    fmr_found_low: float | None = None
    fmr_found_high: float | None = None


def population_warnings(
    thresholds: Thresholds, declared: str | None, point: VerifyPoint | IdentifyPoint, in_gallery: Sequence[str] = ()
) -> tuple[PopulationWarning, ...] | None:
    """Return a warning for each population for which the point's FMR was found not to hold, or was not measured.

    The populations are the one that the caller ``declared``, else the gallery's; without either, return None. Since FMR
    falls with rising thresholds, the rate at the point's threshold is at least that found at a higher threshold.
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
    rate = next(reached, None)  # the rate at the lowest threshold that is not below this one
    if rate is None or rate.low <= fmr:
        return None
    message = (
        f"The false match rate {fmr:g} does not hold for {population}: of pairs of different people among them, "
        f"{100 * rate.found:.2g} % ({100 * rate.low:.2g} to {100 * rate.high:.2g}) reach the score "
        f"{rate.threshold:.3f} ({card.measured_on})."
    )
    return PopulationWarning("population_rate_exceeded", message, population, rate.found, rate.low, rate.high)


def too_poor(quality: Quality, level: QualityLevel) -> LowQuality | None:
    """Return why a face is too poor to be enrolled at this level; None if it isn't."""
    if quality.score >= level.minimum:
        return None
    reasons = [reason.value for reason in quality.reasons]
    message = f"quality {quality.score:.0f}, {level.minimum:.0f} is the least that `{level.value}` takes"
    return LowQuality(message, reasons=reasons, score=quality.score, minimum=level.minimum)


def is_turned(quality: Quality) -> bool:
    """Return whether only a turned head makes a face poor."""
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
    """The face to which this one's best candidate was assigned; None if it is this one, or scores below the floor."""


def assign(rankings: Sequence[Sequence[Candidate]], floor: float) -> list[Assigned]:
    """Assign each subject to at most one face of a photo, since nobody is in a photo twice.

    Greedily take the pair of face and subject with the best score, then the best of the rest, down to ``floor``. Lower
    scores assign nobody.
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
    """Return the decision for a subject's ``score``, and why if a face that reaches the threshold is only `uncertain`.

    A ``score`` of None means that there is no candidate. A face with a ``quality`` below the ``level`` is never
    `known`, since two faces that hardly show anything can be similar without being the same person's.
    """
    if score is None or score < min(point.uncertain, point.threshold):
        return "unknown", None
    if score < point.threshold:
        return "uncertain", None
    return ("known", None) if quality >= level.minimum else ("uncertain", "low_quality")


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A subject that is not the answer, since the probe resembles the wrong probe of a correction more than the
    subject's faces.

    Scores are exact before `answered`; after it they are None if below the floor.
    """

    subject: str
    score: float | None
    correction: str
    correction_score: float | None

    def answered(self, answer: Callable[[float], float | None]) -> RuledOut:
        both = (self.score, self.correction_score)
        score, correction_score = (None if exact is None else answer(exact) for exact in both)
        return RuledOut(self.subject, score, self.correction, correction_score)


def rule_out(
    probe: Template, ranking: Sequence[Candidate], wrong: Mapping[str, Wrong], floor: float
) -> tuple[list[Candidate], tuple[RuledOut, ...]]:
    """Split a ranking into the candidates that stay, and the subjects that are ruled out.

    A subject is ruled out if the probe resembles one of its wrong probes more than its faces. Candidates below
    ``floor`` stay.
    """
    kept: list[Candidate] = []
    out: list[RuledOut] = []
    for candidate in ranking:
        known = wrong.get(candidate.subject)
        if known is not None and candidate.score >= floor:
            scores = known.vectors @ probe.vector  # (N,)
            best = int(np.argmax(scores))
            if scores[best] > candidate.score:
                out.append(RuledOut(candidate.subject, candidate.score, known.ids[best], float(scores[best])))
                continue
        kept.append(candidate)
    return kept, tuple(out)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The face of a photo that an operation uses, and why.

    ``length`` and ``track`` are those of `Probes`; a track has its best photo, with the fused template.
    """

    photo: Photo
    choice: Choice
    length: float = 1.0
    track: tuple[int, ...] | None = None
    poor: LowQuality | None = None
    """The error that rejects a turned head, which is only enrolled if it matches a good photo."""

    @property
    def face(self) -> Face:
        return self.photo.faces[self.choice.index]


@dataclass(frozen=True, slots=True)
class Probes:
    """The probes of a search: the faces at these ``places`` of one photo, or one face from a track of photos.

    ``length`` is that of the mean of the track's templates, 1 for a single photo. ``track`` has the indexes of the
    fused images, None for a single photo. The photo of a track is its best one, with the fused template and without
    other faces.
    """

    photo: Photo
    places: Sequence[int]
    templates: Sequence[Template]
    length: float = 1.0
    track: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A 1:1 comparison. In all these results ``model`` is the id of the package whose templates were compared,
    ``warnings`` is None if no population was declared, and ``reason`` is that of `decide`.
    """

    decision: Decision
    reason: Doubt | None
    score: float
    point: VerifyPoint
    first: Chosen
    second: Chosen
    model: str
    warnings: Sequence[PopulationWarning] | None = None

    @property
    def match(self) -> bool:
        return self.decision == "known"


@dataclass(frozen=True, slots=True)
class SubjectVerified:
    decision: Decision
    reason: Doubt | None
    candidate: AnsweredCandidate
    point: VerifyPoint
    chosen: Chosen
    nearest_other: AnsweredCandidate | None
    stages: Mapping[str, float]
    model: str
    warnings: Sequence[PopulationWarning] | None = None
    ruled_out: RuledOut | None = None

    @property
    def match(self) -> bool:
        return self.decision == "known"


@dataclass(frozen=True, slots=True)
class Identified:
    """One face of a probe; ``nearest_other`` is the best candidate that is not the answer."""

    face: Face
    decision: Decision
    reason: Doubt | None
    candidates: tuple[AnsweredCandidate, ...]
    margin: float | None
    nearest_other: AnsweredCandidate | None
    ruled_out: tuple[RuledOut, ...] = ()
    displaced_by: int | None = None


@dataclass(frozen=True, slots=True)
class Identification:
    photo: Photo
    faces: tuple[Identified, ...]
    point: IdentifyPoint
    subjects: int
    stages: Mapping[str, float]
    model: str
    warnings: Sequence[PopulationWarning] | None = None
    track: tuple[int, ...] | None = None
    """The indexes of the images that were fused; None for a single photo."""
    length: float = 1.0
    """Length of a track's mean template before scaling; 1 for a single photo."""


def template_of(face: Face) -> Template:
    if face.template is None:
        raise ValueError("the face was not embedded")
    return face.template


def identified(
    face: Face,
    assigned: Assigned,
    ruled_out: Iterable[RuledOut],
    *,
    places: Sequence[int],
    point: IdentifyPoint,
    scores: AnsweredScores,
    limit: int,
    level: QualityLevel,
) -> Identified:
    """Return the result for one face of the photo, with at most ``limit`` candidates.

    ``places`` are the indices, in the photo, of the faces that took part in `assign`.
    """
    ranking = assigned.candidates
    displaced_by = None if assigned.displaced_by is None else places[assigned.displaced_by]
    decision, reason = decide(ranking[0].score if ranking else None, point, face.quality.score, level)
    answered = scores.candidates(ranking)
    first, second = ([candidate.score for candidate in answered] + [None, None])[:2]
    margin = None if first is None or second is None else first - second
    others = answered if decision == "unknown" else answered[1:]
    out = tuple(subject.answered(scores.answered) for subject in ruled_out)
    nearest_other = others[0] if others else None
    return Identified(face, decision, reason, tuple(answered[:limit]), margin, nearest_other, out, displaced_by)
