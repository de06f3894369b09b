"""Pairs found block by block are those that a loop over all pairs finds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.calibration.pairs import Pairs, close_pairs
from tests.support.index_faces import random_units


def found_in(parts: list[Pairs]) -> dict[tuple[int, int], float]:
    """Each pair found with its score, after making sure that none is found twice."""
    listed = [
        (pair, score)
        for part in parts
        for pair, score in zip(
            zip(part.first.tolist(), part.second.tolist(), strict=True), part.score.tolist(), strict=True
        )
    ]
    found = dict(listed)
    assert len(found) == len(listed)
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 9), st.floats(-1, 1))
def test_close_pairs_are_those_of_a_loop(faces: int, block: int, seed: int, floor: float) -> None:
    vectors, subjects = random_units(faces, seed=seed), np.random.default_rng(seed).integers(0, 8, faces)
    found = found_in(list(close_pairs(vectors, subjects, floor, block=block)))
    scores = {(i, j): float(vectors[i] @ vectors[j]) for i, j in combinations(range(faces), 2)}
    expected = {pair for pair, score in scores.items() if subjects[pair[0]] != subjects[pair[1]] and score >= floor}
    # a score within rounding of the floor may fall on either side: the sum's order differs
    assert all(abs(scores[pair] - floor) < 1e-6 for pair in expected ^ found.keys())
    assert all(score == pytest.approx(scores[pair], abs=1e-6) for pair, score in found.items())
