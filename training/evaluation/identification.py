"""Measure 1:N on existing templates: people are enrolled with one photo each and searched for with another.

A photo without a face is never found: as a mate's probe it is a miss, as a stranger's it finds nobody. No photo is left
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.models.calibration.intervals import Floats, Interval, Ints, allowed_errors
from training.evaluation import bootstrap, metrics
from training.evaluation.bootstrap import Resampling
from training.evaluation.metrics import Curve
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates
from training.evaluation.protocols import NO_MATCH, MatchRate

FPIRS = (1e-1, 1e-2, 1e-3)
CMC_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Draw:
    """The enrolled photos and the probes: ``mates[i]`` shows the person of ``enrolled[columns[i]]``."""

    seed: int
    enrolled: tuple[str, ...]
    mates: tuple[str, ...]
    strangers: tuple[str, ...]
    columns: tuple[int, ...]


def draw_people(photos: Sequence[str], people: int, seed: int, strangers: int | None = None) -> Draw:
    """Draw ``people`` at random among those with two photos or more: one photo is enrolled, another is a probe. One
    photo of each of the others (or of ``strangers`` of them) is a probe, too. Raises ValueError if there are too few
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
        columns=tuple(range(people)),
    )


@dataclass(frozen=True, slots=True)
class Served:
    """The figures at the service's threshold for an FPIR, which follows from operating points and gallery size."""

    asked: float
    threshold: float
    fpir: float
    fpir_interval: Interval
    fnir: float
    fnir_interval: Interval


@dataclass(frozen=True, slots=True)
class Identification:
    """1:N figures of one draw, with intervals by bootstrap over the probes' people, not the enrolled ones."""

    seed: int
    subjects: int
    mated_searches: int
    stranger_searches: int
    rank1: Interval
    cmc: tuple[float, ...]
    cmc_intervals: tuple[Interval, ...]
    match_rates: tuple[MatchRate, ...]
    """1 − FNIR at FPIRs, at thresholds found from these strangers."""
    served: tuple[Served, ...]
    """The same at the service's thresholds, which were not measured on these strangers."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A figure over all draws, with the interval of its mean; a bootstrap round has the same people in every draw."""

    mean: float
    deviation: float
    """Standard deviation over the draws (``ddof`` 1; NaN for one draw)."""
    least: float
    most: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Identifications:
    """All draws' figures, their summary, and each draw's FNIR over FPIR (in ``fnmr`` and ``fmr`` of a curve; no curves
    without strangers)."""

    draws: tuple[Identification, ...]
    summary: Mapping[str, Summary]
    cmc: tuple[Interval, ...]
    """Mean over the draws at rank 1, 2, …"""
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A figure that is a share of ``searches``, and its values in the rounds of the bootstrap."""

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
    """Search for each draw's mates and strangers among its enrolled people. ``service_threshold`` returns the service's
    threshold for an FPIR, or None if it has none; ``rounds`` and ``seed`` are the bootstrap's."""
    drawn = bootstrap.resampling(templates.names, rounds=rounds, seed=seed)
    asked = {fpir: threshold for fpir in fpirs if (threshold := service_threshold(fpir)) is not None}
    searched = [_Searched(templates, draw, drawn, fpirs, asked) for draw in draws]
    figures = [of_draw.figures for of_draw in searched]
    return Identifications(
        draws=tuple(of_draw.identification for of_draw in searched),
        summary={name: _summary([of_draw[name] for of_draw in figures]) for name in figures[0]},
        cmc=tuple(_mean(of_draws) for of_draws in zip(*(of_draw.ranks for of_draw in searched), strict=True)),
        curves=tuple(of_draw.curve for of_draw in searched if len(of_draw.strangers)),
    )


class _Searched:
    """The figures of one draw's searches, each with its values in the rounds of the bootstrap.

    ``missed``: the FNIR by FPIR, at thresholds found from these strangers; ``asked``: threshold, FPIR and FNIR by the
    FPIR that the service was asked for.
    """

    def __init__(
        self,
        templates: Templates,
        draw: Draw,
        drawn: Resampling,
        fpirs: Sequence[float],
        asked: Mapping[float, float],
    ) -> None:
        self.draw = draw
        self.ranking, self.strangers = searches(templates, draw)
        self.mates_drawn, self.strangers_drawn = drawn.of(draw.mates), drawn.of(draw.strangers)
        depth = min(CMC_DEPTH, len(draw.enrolled))
        self.ranks = [self._of_mates(self.ranking.rank <= rank) for rank in range(1, depth + 1)]
        possible = [fpir for fpir in fpirs if allowed_errors(fpir, len(self.strangers)) > 0]
        matched = bootstrap.found_samples(
            self.ranking, self.strangers, possible, self.mates_drawn, self.strangers_drawn
        ).T
        self.missed = {
            fpir: _Sampled(metrics.fnir_at_fpir(self.ranking, self.strangers, fpir), 1 - shares, len(self.ranking.rank))
            for fpir, shares in zip(possible, matched, strict=True)
        }
        self.asked = {fpir: (threshold, *self._at(threshold)) for fpir, threshold in asked.items()}

    def _at(self, threshold: float) -> tuple[_Sampled, _Sampled]:
        """Return FPIR and FNIR at a given threshold."""
        alarmed = self.strangers >= threshold
        share = float(np.mean(alarmed)) if len(alarmed) else math.nan
        fpir = _Sampled(share, bootstrap.share_samples(alarmed, self.strangers_drawn), len(alarmed))
        return fpir, self._of_mates((self.ranking.rank > 1) | (self.ranking.mate_score < threshold))

    def _of_mates(self, happened: NDArray[np.bool_]) -> _Sampled:
        samples = bootstrap.share_samples(happened, self.mates_drawn)
        return _Sampled(float(np.mean(happened)), samples, len(happened))

    @property
    def figures(self) -> dict[str, _Sampled]:
        """Return the figures by the names that the summary prints."""
        figures = {"rank-1": self.ranks[0]}
        figures |= {f"FNIR at FPIR {fpir:g}": missed for fpir, missed in self.missed.items()}
        for fpir, (_, alarmed, missed) in self.asked.items():
            figures |= {f"fpir={fpir:g} asked: FPIR": alarmed, f"fpir={fpir:g} asked: FNIR": missed}
        return figures

    @property
    def curve(self) -> Curve:
        """Return FNIR over FPIR at every threshold from the lowest score on."""
        curve = metrics.error_curve(self.ranking.first_score, self.strangers)
        finite = curve.threshold > -math.inf
        return Curve(curve.threshold[finite], curve.fmr[finite], curve.fnmr[finite])

    @property
    def identification(self) -> Identification:
        return Identification(
            seed=self.draw.seed,
            subjects=len(self.draw.enrolled),
            mated_searches=len(self.ranking.rank),
            stranger_searches=len(self.strangers),
            rank1=self.ranks[0].interval,
            cmc=tuple(rate.value for rate in self.ranks),
            cmc_intervals=tuple(rate.interval for rate in self.ranks),
            match_rates=tuple(
                MatchRate(fpir, metrics.threshold_at_fmr(self.strangers, fpir), missed.missing.interval)
                for fpir, missed in self.missed.items()
            ),
            served=tuple(
                Served(fpir, threshold, alarmed.value, alarmed.interval, missed.value, missed.interval)
                for fpir, (threshold, alarmed, missed) in self.asked.items()
            ),
        )


def _summary(of_draws: Sequence[_Sampled]) -> Summary:
    values = [rate.value for rate in of_draws]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Summary(float(np.mean(values)), deviation, min(values), max(values), _mean(of_draws))


def _mean(of_draws: Sequence[_Sampled]) -> Interval:
    value = float(np.mean([rate.value for rate in of_draws]))
    samples = np.mean([rate.samples for rate in of_draws], axis=0)
    return bootstrap.share_interval(value, samples, min(rate.searches for rate in of_draws))


def searches(templates: Templates, draw: Draw) -> tuple[metrics.Ranking, Floats]:
    """Return the ranking of the mates' searches, and each stranger's highest score, (S,)."""
    enrolled, mates = templates.rows(draw.enrolled), templates.rows(draw.mates)
    strangers = templates.rows(draw.strangers)
    ranking = metrics.rank_subjects(_scores(templates, mates, enrolled), np.array(draw.columns, np.int64))
    return ranking, _scores(templates, strangers, enrolled).max(axis=1, initial=NO_MATCH)


def _scores(templates: Templates, probes: Ints, enrolled: Ints) -> NDArray[np.float64]:
    scores = (templates.vectors[probes] @ templates.vectors[enrolled].T).astype(np.float64)
    both_shown = templates.found[probes][:, None] & templates.found[enrolled][None, :]
    return np.where(both_shown, scores, NO_MATCH)
