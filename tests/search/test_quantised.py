"""Passes over rows: what they leave out, and how wrong their scores may be, against float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.choices import IndexKind
from app.search.index import Rows
from app.search.quantised import LARGEST, NO_ROW, Columns, rounding
from app.search.types import FaceBlock
from app.types import Vectors

KINDS: tuple[IndexKind, ...] = get_args(IndexKind)


def made(generator: np.random.Generator, count: int, dimension: int, heavy: float) -> Vectors:
    """(count, dimension) unit vectors, the heavier the more of their length lies in few numbers."""
    vectors = generator.standard_normal((count, dimension))
    if heavy:
        vectors *= np.exp(heavy * generator.standard_normal((count, dimension)))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def append(rows: Rows, vectors: Vectors) -> None:
    keys = np.arange(rows.count, rows.count + len(vectors))
    rows.append(FaceBlock(keys, keys, np.ones(len(vectors), np.float32), vectors))


def rows_of(vectors: Vectors, kind: IndexKind) -> Rows:
    """Rows that were appended in several pieces."""
    rows = Rows(vectors.shape[1], kind)
    for start in range(0, len(vectors), 1_000):
        append(rows, vectors[start : start + 1_000])
    return rows


@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10_000),
    dimension=st.sampled_from([1, 2, 8, 64, 129, 512]),
    count=st.integers(1, 12_000),
    queries=st.sampled_from([1, 3, 4, 65]),
    fetch=st.integers(1, 200),
    heavy=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_a_scan_finds_the_highest_scores_and_says_how_wrong_they_may_be(  # noqa: PLR0917 - all drawn by name
    kind: IndexKind, seed: int, dimension: int, count: int, queries: int, fetch: int, heavy: float
) -> None:
    generator = np.random.default_rng(seed)
    vectors, probes = (made(generator, number, dimension, heavy) for number in (count, queries))
    rows = rows_of(vectors, kind)
    start, end = sorted(generator.integers(0, count + 1, 2).tolist())
    if start == end:
        start, end = 0, count
    exact = vectors[start:end].astype(np.float64) @ probes.astype(np.float64).T  # (N, Q)
    scan = rows.view().scan
    near = scan.nearest(start, end, probes, fetch)
    errors = near.errors
    assert near.scores.shape == near.rows.shape
    for place in range(queries):
        found = near.rows[place][near.rows[place] != NO_ROW] - start
        scores = near.scores[place][: len(found)]
        assert len(found) <= fetch
        assert len(set(found.tolist())) == len(found)
        assert (np.diff(scores) <= 0).all()
        assert np.abs(exact[found, place] - scores).max(initial=0) <= errors[place]
        others = np.delete(exact[:, place], found)
        assert others.max(initial=-np.inf) <= near.floors[place] + errors[place]
        assert near.floors[place] == -np.inf or len(others)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_finds_about_as_many_as_are_wanted(kind: IndexKind) -> None:
    """With fewer nothing would be wrong, but every search would look at everything."""
    generator = np.random.default_rng(4)
    rows = rows_of(made(generator, 60_000, 64, 0.0), kind)
    near = rows.view().scan.nearest(0, 60_000, made(generator, 64, 64, 0.0), 100)
    counts = np.count_nonzero(near.rows != NO_ROW, axis=1)
    assert counts.max() == 100
    assert np.median(counts) > 80
    assert counts.min() > 20


@pytest.mark.parametrize(("kind", "most"), [("fp32", 0.0), ("int8", 0.04)])
@pytest.mark.parametrize("dimension", [128, 512])
def test_scores_of_common_vectors_are_nearly_right(kind: IndexKind, most: float, dimension: int) -> None:
    """A looser bound would be as true, and have every search look at everything."""
    generator = np.random.default_rng(1)
    rows = rows_of(made(generator, 20_000, dimension, 0.0), kind)
    near = rows.view().scan.nearest(0, 20_000, made(generator, 50, dimension, 0.0), 1)
    assert near.errors.max() <= most + rounding(dimension)


@pytest.mark.parametrize("order", [1, -1])
def test_rows_that_get_better_all_the_way_are_found(order: int) -> None:
    """The worst order there is for what keeps the best so far."""
    probe = np.eye(8, dtype=np.float32)[:1]
    angles = np.linspace(3, 0.01, 20_000)[::order]
    vectors = np.zeros((20_000, 8), np.float32)
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    for kind in KINDS:
        rows = rows_of(vectors, kind)
        near = rows.view().scan.nearest(0, 20_000, probe, 50)
        assert 20 < len(set(near.rows[0].tolist())) <= 50
        assert near.scores[0].min() > 0.99


@pytest.mark.parametrize(("rows", "dimension", "columns"), [(1, 1, 1), (333, 512, 19), (70, 129, 64), (5, 4_096, 1)])
def test_integer_products_are_exact_at_their_largest(rows: int, dimension: int, columns: int) -> None:
    """Where a processor would add in 16 bits, too; and on any thread, though some have to be allowed what AMX needs."""
    generator = np.random.default_rng(2)
    left, right = (
        generator.choice(np.array([-LARGEST, -1, LARGEST], np.int8), (n, dimension)) for n in (rows, columns)
    )
    left[0], right[0] = LARGEST, -LARGEST
    with ThreadPoolExecutor(1) as pool:
        found = [Columns(right).products(left), pool.submit(Columns(right).products, left).result()]
    expected = left.astype(np.int64) @ right.astype(np.int64).T
    np.testing.assert_array_equal(found, [expected, expected])


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_outlives_what_becomes_of_its_rows(kind: IndexKind) -> None:
    generator = np.random.default_rng(3)
    vectors = made(generator, 500, 32, 0.0)
    rows = rows_of(vectors, kind)
    scan = rows.view().scan
    append(rows, made(generator, 5_000, 32, 0.0))  # which moves them to a larger place
    for row in range(100):
        rows.remove(row)
    near = scan.nearest(0, 500, vectors[:2], 1)
    assert near.rows[:, 0].tolist() == [0, 1]
    assert near.scores[:, 0] == pytest.approx([1, 1], abs=0.05)
