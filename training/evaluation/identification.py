"""1:N on existing templates: people enrolled with one photo each are searched for by another one.

A photo without a face is never found: as a probe it is a miss, as a stranger it finds nobody. Nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.calibration.intervals import Floats, Interval, Ints, allowed_errors
from training.evaluation import bootstrap, metrics
from training.evaluation.bootstrap import Resampling
from training.evaluation.metrics import Curve
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates
from training.evaluation.protocols import NO_MATCH, Rate

FPIRS = (1e-1, 1e-2, 1e-3)
CMC_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Draw:
    """The photos enrolled and the probes: ``mates[i]`` shows the person of ``enrolled[columns[i]]``, or, without
    ``columns``, of ``enrolled[i]``."""

    seed: int
    enrolled: tuple[str, ...]
    mates: tuple[str, ...]
    strangers: tuple[str, ...]
    columns: tuple[int, ...] | None = None


def draw_people(photos: Sequence[str], people: int, seed: int, strangers: int | None = None) -> Draw:
    """Draw ``people`` at random among those with two photos or more: one photo enrolled, another one as probe. One
    photo each of everyone else (or of ``strangers`` of them) is a probe too. Raises ValueError if there are too few
    people."""
    rng = np.random.default_rng(seed)
    of: dict[str, list[str]] = {}
    for photo in sorted(photos):
        of.setdefault(person_of(photo), []).append(photo)
    several = [name for name, theirs in of.items() if len(theirs) > 1]
    if people > len(several):
        raise ValueError(f"{people} people with two photos are needed, {len(several)} are there")
    chosen = [several[i] for i in rng.permutation(len(several))[:people]]
    twos = [rng.permutation(len(of[name]))[:2] for name in chosen]
    others = [name for name in of if name not in set(chosen)]
    asked = [others[i] for i in rng.permutation(len(others))[:strangers]]
    return Draw(
        seed=seed,
        enrolled=tuple(of[name][two[0]] for name, two in zip(chosen, twos, strict=True)),
        mates=tuple(of[name][two[1]] for name, two in zip(chosen, twos, strict=True)),
        strangers=tuple(of[name][rng.integers(len(of[name]))] for name in asked),
    )


@dataclass(frozen=True, slots=True)
class Served:
    """The figures at the service's own threshold for an FPIR: the manifest's operating points, corrected for the
    gallery."""

    asked: float
    threshold: float
    fpir: float
    fpir_interval: Interval
    fnir: float
    fnir_interval: Interval


@dataclass(frozen=True, slots=True)
class Identification:
    """1:N figures of one draw, with intervals by bootstrap over the people who search; who is enrolled stays."""

    seed: int
    subjects: int
    mated_searches: int
    stranger_searches: int
    rank1: Interval
    cmc: tuple[float, ...]
    cmc_intervals: tuple[Interval, ...]
    match_rates: tuple[Rate, ...]
    """1 − FNIR at FPIRs, thresholds from these very strangers."""
    served: tuple[Served, ...]
    """At the service's thresholds, which know nothing of these strangers."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A figure over all draws, and the interval of its mean: the same people are drawn in every draw's round."""

    mean: float
    deviation: float
    """Over the draws (``ddof`` 1; NaN for one draw)."""
    least: float
    most: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Identifications:
    """All draws' figures, their summary, and each draw's FNIR over FPIR (as ``fnmr`` and ``fmr`` of a curve; none
    without strangers)."""

    draws: tuple[Identification, ...]
    summary: Mapping[str, Summary]
    cmc: tuple[Interval, ...]
    """Mean over the draws at rank 1, 2, …"""
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A figure, a share of ``searches``, and its values in the rounds of the bootstrap."""

    value: float
    samples: Floats
    searches: int

    @property
    def interval(self) -> Interval:
        return bootstrap.share_interval(self.value, self.samples, self.searches)

    @property
    def missing(self) -> _Sampled:
        """Return the complement of the share: 1 − value."""
        return _Sampled(1 - self.value, 1 - self.samples, self.searches)


def measure(
    templates: Templates,
    draws: Sequence[Draw],
    *,
    fpirs: Sequence[float] = FPIRS,
    service_threshold: Callable[[float], float | None] = lambda _fpir: None,
    rounds: int = bootstrap.ROUNDS,
    seed: int = 0,
) -> Identifications:
    """Search for each draw's mates and strangers among its enrolled. ``service_threshold`` returns the service's
    threshold for an FPIR, or None if it has none; ``rounds`` and ``seed`` are the bootstrap's."""
    drawn = bootstrap.resampling(templates.names, rounds=rounds, seed=seed)
    searched = [_Searched(templates, draw, drawn) for draw in draws]
    asked = [(fpir, threshold) for fpir in fpirs if (threshold := service_threshold(fpir)) is not None]
    figures = [_figures(each, fpirs, asked) for each in searched]
    ranks = [each.cmc(min(CMC_DEPTH, len(each.draw.enrolled))) for each in searched]
    return Identifications(
        draws=tuple(
            _identification(each, cmc, own, fpirs, asked)
            for each, cmc, own in zip(searched, ranks, figures, strict=True)
        ),
        summary={name: _summary([own[name] for own in figures]) for name in figures[0]},
        cmc=tuple(_mean(of_draws) for of_draws in zip(*ranks, strict=True)),
        curves=tuple(each.curve() for each in searched if len(each.strangers)),
    )


class _Searched:
    """One draw's searches, and how often each is drawn in each round."""

    def __init__(self, templates: Templates, draw: Draw, drawn: Resampling) -> None:
        self.draw = draw
        self.ranking, self.strangers = searches(templates, draw)
        self.mates_drawn, self.strangers_drawn = drawn.of(draw.mates), drawn.of(draw.strangers)

    def missed(self, threshold: float) -> _Sampled:
        """Return the FNIR at a threshold that was not found here."""
        return self._of_mates((self.ranking.rank > 1) | (self.ranking.mate_score < threshold))

    def alarmed(self, threshold: float) -> _Sampled:
        """Return the FPIR at that threshold."""
        found = self.strangers >= threshold
        share = float(np.mean(found)) if len(found) else math.nan
        return _Sampled(share, bootstrap.share_samples(found, self.strangers_drawn), len(found))

    def cmc(self, depth: int) -> list[_Sampled]:
        return [self._of_mates(self.ranking.rank <= rank) for rank in range(1, depth + 1)]

    def found(self, fpirs: Sequence[float]) -> list[_Sampled]:
        """Return 1 − FNIR at each FPIR, the threshold from these strangers."""
        samples = bootstrap.found_samples(self.ranking, self.strangers, fpirs, self.mates_drawn, self.strangers_drawn).T
        values = [1 - metrics.fnir_at_fpir(self.ranking, self.strangers, fpir) for fpir in fpirs]
        return [_Sampled(value, own, len(self.ranking.rank)) for value, own in zip(values, samples, strict=True)]

    def measurable(self, fpirs: Sequence[float]) -> list[float]:
        return [fpir for fpir in fpirs if allowed_errors(fpir, len(self.strangers)) > 0]

    def curve(self) -> Curve:
        """Return FNIR over FPIR at every threshold from the lowest score on."""
        curve = metrics.error_curve(self.ranking.first_score, self.strangers)
        finite = curve.threshold > -math.inf
        return Curve(curve.threshold[finite], curve.fmr[finite], curve.fnmr[finite])

    def _of_mates(self, happened: NDArray[np.bool_]) -> _Sampled:
        samples = bootstrap.share_samples(happened, self.mates_drawn)
        return _Sampled(float(np.mean(happened)), samples, len(happened))


def _figures(searched: _Searched, fpirs: Sequence[float], asked: Sequence[tuple[float, float]]) -> dict[str, _Sampled]:
    """Return the figures by the names that the summary prints."""
    figures = {"rank-1": searched.cmc(1)[0]}
    possible = searched.measurable(fpirs)
    figures |= {
        f"FNIR at FPIR {fpir:g}": found.missing for fpir, found in zip(possible, searched.found(possible), strict=True)
    }
    for fpir, threshold in asked:
        figures[f"fpir={fpir:g} asked: FPIR"] = searched.alarmed(threshold)
        figures[f"fpir={fpir:g} asked: FNIR"] = searched.missed(threshold)
    return figures


def _identification(
    searched: _Searched,
    cmc: Sequence[_Sampled],
    figures: Mapping[str, _Sampled],
    fpirs: Sequence[float],
    asked: Sequence[tuple[float, float]],
) -> Identification:
    return Identification(
        seed=searched.draw.seed,
        subjects=len(searched.draw.enrolled),
        mated_searches=len(searched.ranking.rank),
        stranger_searches=len(searched.strangers),
        rank1=figures["rank-1"].interval,
        cmc=tuple(each.value for each in cmc),
        cmc_intervals=tuple(each.interval for each in cmc),
        match_rates=tuple(
            Rate(
                fpir,
                metrics.threshold_at_fmr(searched.strangers, fpir),
                figures[f"FNIR at FPIR {fpir:g}"].missing.interval,
            )
            for fpir in searched.measurable(fpirs)
        ),
        served=tuple(
            Served(
                asked=fpir,
                threshold=threshold,
                fpir=(alarmed := figures[f"fpir={fpir:g} asked: FPIR"]).value,
                fpir_interval=alarmed.interval,
                fnir=(missed := figures[f"fpir={fpir:g} asked: FNIR"]).value,
                fnir_interval=missed.interval,
            )
            for fpir, threshold in asked
        ),
    )


def _summary(of_draws: Sequence[_Sampled]) -> Summary:
    values = [each.value for each in of_draws]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Summary(float(np.mean(values)), deviation, min(values), max(values), _mean(of_draws))


def _mean(of_draws: Sequence[_Sampled]) -> Interval:
    value = float(np.mean([each.value for each in of_draws]))
    samples = np.mean([each.samples for each in of_draws], axis=0)
    return bootstrap.share_interval(value, samples, min(each.searches for each in of_draws))


def searches(templates: Templates, draw: Draw) -> tuple[metrics.Ranking, Floats]:
    """Return the mates' ranking, and each stranger's highest score."""
    enrolled, mates = templates.rows(draw.enrolled), templates.rows(draw.mates)
    strangers = templates.rows(draw.strangers)
    columns = np.arange(len(mates)) if draw.columns is None else np.array(draw.columns, np.int64)
    ranking = metrics.rank_subjects(_scores(templates, mates, enrolled), columns)
    return ranking, _scores(templates, strangers, enrolled).max(axis=1, initial=NO_MATCH)


def _scores(templates: Templates, probes: Ints, enrolled: Ints) -> NDArray[np.float64]:
    scores = (templates.vectors[probes] @ templates.vectors[enrolled].T).astype(np.float64)
    found = templates.found[probes][:, None] & templates.found[enrolled][None, :]
    return np.where(found, scores, NO_MATCH)
