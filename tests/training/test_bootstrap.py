"""Intervals by bootstrap over people equal drawing the people by hand, hold their figures and repeat themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from app.models.calibration.intervals import Bools, Floats, Interval, Ints, people_weights, wilson
from training.evaluation import bootstrap, metrics

ROUNDS, SEED = 40, 3


def scored(people: int = 14, pairs: int = 260) -> tuple[Floats, Bools, Ints]:
    """Scores with many ties, mated or not, and who is on either side."""
    rng = np.random.default_rng(1)
    sides = rng.integers(0, people, size=(pairs, 2))
    sides[::2, 1] = sides[::2, 0]
    mated: Bools = sides[:, 0] == sides[:, 1]
    return mated * 0.4 + rng.integers(-6, 7, pairs) / 10, mated, sides.astype(np.int64)


def by_hand(mated: Bools, sides: Ints, people: int = 14) -> list[NDArray[np.int64]]:
    """Round by round, each pair's place as often as drawing its people brings it."""
    rounds = []
    for weight in people_weights(people, ROUNDS, SEED):
        places: list[int] = []
        for place, (mate, (i, j)) in enumerate(zip(mated, sides, strict=True)):
            places += [place] * int(weight[i] if mate else weight[i] * weight[j])
        rounds.append(np.array(places))
    return rounds


def expected(value: float, samples: list[float]) -> Interval:
    low, high = np.quantile(samples, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def close(ours: Interval, theirs: Interval) -> bool:
    return (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high))


def test_equal_error_rate_of_people_drawn_by_hand() -> None:
    scores, mated, sides = scored()
    samples = []
    for places in by_hand(mated, sides):
        drawn, is_mated = scores[places], mated[places]
        samples.append(metrics.equal_error_rate(drawn[is_mated], drawn[~is_mated]))
    ours = bootstrap.equal_error_rate_interval(scores, mated, sides, rounds=ROUNDS, seed=SEED)
    assert close(ours, expected(metrics.equal_error_rate(scores[mated], scores[~mated]), samples))
    assert ours.low < ours.value < ours.high


def test_match_rate_of_people_drawn_by_hand() -> None:
    scores, mated, sides = scored()

    def match_rate(scores: Floats, mated: Bools) -> float:
        return 1 - metrics.fnmr_at(metrics.threshold_at_fmr(scores[~mated], 0.1), scores[mated])

    samples = [match_rate(scores[places], mated[places]) for places in by_hand(mated, sides)]
    ours = bootstrap.match_rate_interval(scores, mated, sides, 0.1, rounds=ROUNDS, seed=SEED)
    assert close(ours, expected(match_rate(scores, mated), samples))
    assert ours.low < ours.high


def test_accuracy_over_folds_of_people_drawn_by_hand() -> None:
    scores, mated, sides = scored()
    folds = np.arange(len(scores)) % 5
    samples = [
        metrics.fold_accuracy(scores[places], mated[places], folds[places]).mean for places in by_hand(mated, sides)
    ]
    ours = bootstrap.fold_accuracy_interval(scores, mated, folds, sides, rounds=ROUNDS, seed=SEED)
    assert close(ours, expected(metrics.fold_accuracy(scores, mated, folds).mean, samples))
    assert ours.low < ours.value < ours.high


def test_nmi_of_people_drawn_by_hand() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 12, 150)
    assigned = np.where(rng.random(150) < 0.3, rng.integers(0, 12, 150), labels % 9)
    samples = []
    for weight in people_weights(12, ROUNDS, SEED):
        places = np.repeat(np.arange(150), weight[labels])
        samples.append(metrics.normalised_mutual_information(labels[places], assigned[places]))
    ours = bootstrap.nmi_interval(labels, assigned, rounds=ROUNDS, seed=SEED)
    assert close(ours, expected(metrics.normalised_mutual_information(labels, assigned), samples))
    assert ours.low < ours.high


def test_searches_of_people_drawn_by_hand() -> None:
    rng = np.random.default_rng(4)
    scores = rng.integers(0, 20, size=(30, 10)) / 20
    mates = rng.integers(0, 10, 30)
    scores[np.arange(30), mates] += 0.5
    strangers = rng.integers(8, 30, size=50) / 20
    ranking = metrics.rank_subjects(scores, mates)
    mates_drawn, strangers_drawn = people_weights(30, ROUNDS, 5), people_weights(50, ROUNDS, 6)
    fpirs = (0.02, 0.1, 1.0)
    found = bootstrap.found_samples(ranking, strangers, fpirs, mates_drawn, strangers_drawn)
    ranks = bootstrap.share_samples(ranking.rank[:, None] <= np.arange(1, 4), mates_drawn)
    for r in range(ROUNDS):
        drawn_mates = np.repeat(np.arange(30), mates_drawn[r])
        again = metrics.rank_subjects(scores[drawn_mates], mates[drawn_mates])
        others = np.repeat(strangers, strangers_drawn[r])
        assert found[r] == pytest.approx([1 - metrics.fnir_at_fpir(again, others, fpir) for fpir in fpirs])
        assert ranks[r] == pytest.approx([np.mean(again.rank <= rank) for rank in (1, 2, 3)])


def test_a_share_of_all_or_none_is_no_certainty() -> None:
    everybody = bootstrap.share_interval(1.0, np.ones(ROUNDS), 50)
    assert everybody == Interval(1.0, wilson(50, 50).low, 1.0)
    assert bootstrap.share_interval(0.0, np.zeros(ROUNDS), 50).high == pytest.approx(1 - everybody.low)
    half = bootstrap.share_interval(0.5, np.linspace(0.4, 0.6, 401), 50)
    assert (half.low, half.high) == pytest.approx((0.405, 0.595))
    assert math.isnan(bootstrap.share_interval(math.nan, np.full(ROUNDS, math.nan), 0).value)


def test_a_person_is_drawn_alike_for_all_photos() -> None:
    drawn = bootstrap.resampling(["Ann/1", "Ann/2", "Bo/1", "Cy/1"], rounds=ROUNDS, seed=SEED)
    weights = drawn.of(["Bo/1", "Ann/2", "Ann/1"])
    assert (weights[:, 1] == weights[:, 2]).all()
    assert not (weights[:, 0] == weights[:, 1]).all()
    assert (drawn.weights.sum(axis=1) == 3).all()
