"""Rates that a gallery's own faces show, and their intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from app.features.review.separation import LEAST_SUBJECTS, Separation, count


def counts(subjects: int, share: float, seed: int) -> np.ndarray:
    """Of subjects with 1 to 6 faces, each missed and each taken for somebody with probability `share`."""
    rng = np.random.default_rng(seed)
    rows = []
    for faces in rng.integers(1, 7, subjects).tolist():
        wrong = rng.random((2, faces)) < share
        rows.append(count(wrong[0], wrong[1], mated=np.full(faces, faces > 1)))
    return np.stack(rows)


def test_rates_are_shares_of_faces() -> None:
    rows = counts(500, 0.2, 1)
    found = Separation()
    found.add(rows, seed=0)
    assert found.fnmr is not None
    assert found.fpir is not None
    assert found.fnmr.value == rows[:, 1].sum() / rows[:, 0].sum()
    assert found.fpir.value == rows[:, 3].sum() / rows[:, 2].sum()
    assert (found.fnmr.faces, found.fpir.faces) == (rows[:, 0].sum(), rows[:, 2].sum())
    assert (found.fnmr.subjects, found.fpir.subjects) == ((rows[:, 0] > 0).sum(), 500)


@pytest.mark.long
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(200):
        found = Separation()
        found.add(counts(150, 0.1, seed), seed=seed)
        assert found.fpir is not None
        covered += found.fpir.low <= 0.1 <= found.fpir.high
    assert 180 <= covered <= 199


def test_a_resumed_count_goes_on_where_it_was() -> None:
    parts = [counts(40, 0.3, seed) for seed in range(3)]
    whole = Separation()
    for seed, part in enumerate(parts):
        whole.add(part, seed=seed)
    resumed = Separation()
    for seed, part in enumerate(parts):
        resumed = Separation(json.loads(json.dumps(resumed.save())))
        resumed.add(part, seed=seed)
    assert resumed.fnmr == whole.fnmr
    assert resumed.fpir == whole.fpir


def test_too_few_subjects_say_nothing() -> None:
    found = Separation()
    found.add(counts(LEAST_SUBJECTS - 1, 0.1, 1), seed=1)
    assert found.fpir is None
    found.add(counts(1, 0.1, 2), seed=2)
    assert found.fpir is not None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_no_errors_are_no_proof_of_none(share: float) -> None:
    found = Separation()
    found.add(counts(100, share, 1), seed=1)
    assert found.fpir is not None
    assert found.fpir.high - found.fpir.low == pytest.approx(0.037, abs=1e-3), "Wilson's of none of 100"
