"""The index against brute force: exact, whatever is added, removed, equal or crowded."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from app.choices import IndexKind
from app.memory import room_to_grow
from app.search import index as module
from app.search.index import Index, View
from app.search.quantised import Near
from app.search.types import Match
from app.types import Vector, Vectors
from tests.support.index_faces import DIMENSION, Face, block, random_units


def unit(*numbers: float) -> Vector:
    vector = np.zeros(DIMENSION, np.float32)
    vector[: len(numbers)] = numbers
    length = np.linalg.norm(vector)
    return np.asarray(vector / length if length else np.eye(DIMENSION, dtype=np.float32)[0], dtype=np.float32)


def filled(faces: Sequence[Face], dimension: int = DIMENSION, kind: IndexKind = "fp32") -> Index:
    index = Index(dimension, kind=kind)
    index.add(block(faces, dimension))
    return index


def compact(index: Index) -> None:
    """Copy the rows that are left into new ones, however few were removed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMPACT_FROM", 0)
        patch.setattr(module, "COMPACT_SHARE", 0)
        index.maintain()
    assert index._rows.removed == 0


def dot(a: Vector, b: Vector) -> float:
    return float((a.astype(np.float64) * b.astype(np.float64)).sum())


def oracle(faces: Sequence[Face], probe: Vector, limit: int) -> list[tuple[int, int, float, float]]:
    """Subject, best face, its score and the mean's, face by face in plain Python."""
    best: dict[int, tuple[float, int]] = {}
    for key, subject, _, vector in faces:
        score = (-dot(probe, vector), key)
        best[subject] = min(best.get(subject, score), score)
    ranked = sorted(best, key=lambda subject: best[subject])[:limit]
    answers = []
    for subject in ranked:
        mine = [v.astype(np.float64) for _, s, _, v in sorted(faces, key=lambda f: f[0]) if s == subject]
        mean = np.mean(mine, axis=0)
        length = float(np.linalg.norm(mean))
        mean_score = float((mean / length) @ probe.astype(np.float64)) if length > 0 else 0.0
        answers.append((subject, best[subject][1], -best[subject][0], mean_score))
    return answers


def assert_agree(found: Sequence[Match], expected: Sequence[tuple[int, int, float, float]]) -> None:
    assert [(match.subject, match.face) for match in found] == [row[:2] for row in expected]
    np.testing.assert_allclose(
        [match.score for match in found], np.clip([row[2] for row in expected], -1, 1), atol=1e-12
    )
    np.testing.assert_allclose([match.mean_score for match in found], [row[3] for row in expected], atol=1e-6)


# Few directions: many exactly equal vectors and scores.
VECTORS = st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0]), min_size=3, max_size=3).map(lambda numbers: unit(*numbers))
RANDOM = st.integers(0, 1_000).map(lambda seed: random_units(1, seed=seed)[0])
QUALITIES = st.sampled_from([0.0, 0.5, 30.0, 99.0])


KINDS: tuple[IndexKind, ...] = get_args(IndexKind)
every_kind = pytest.mark.parametrize("kind", KINDS)


@settings(max_examples=40, stateful_step_count=30)
class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = Index(DIMENSION)
        self.faces: dict[int, Face] = {}
        self.next_key = 1

    @rule(new=st.lists(st.tuples(st.integers(1, 6), QUALITIES, VECTORS), max_size=60))
    def add(self, new: list[tuple[int, float, Vector]]) -> None:
        faces = [(self.next_key + place, *rest) for place, rest in enumerate(new)]
        self.next_key += len(new)
        self.index.add(block(faces))
        self.faces |= {face[0]: face for face in faces}

    @precondition(lambda self: self.faces)
    @rule(data=st.data(), how_many=st.integers(1, 10))
    def remove(self, data: st.DataObject, how_many: int) -> None:
        for key in data.draw(st.lists(st.sampled_from(sorted(self.faces)), unique=True, max_size=how_many)):
            assert self.index.remove(key, self.faces.pop(key)[1])

    @precondition(lambda self: self.faces)
    @rule(data=st.data(), stray=st.integers(10_000, 10_001))
    def move(self, data: st.DataObject, stray: int) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.faces)), unique=True, max_size=10))
        subjects = data.draw(st.lists(st.integers(1, 9), min_size=len(keys), max_size=len(keys)))
        self.index.move(np.array([*keys, stray], np.int64), np.array([*subjects, 1], np.int64))
        for key, subject in zip(keys, subjects, strict=True):
            _, _, quality, vector = self.faces[key]
            self.faces[key] = (key, subject, quality, vector)

    @rule(key=st.integers(-5, 500), subject=st.integers(0, 8))
    def remove_what_is_not_there(self, key: int, subject: int) -> None:
        if key not in self.faces or self.faces[key][1] != subject:
            assert not self.index.remove(key, subject)

    @rule(subject=st.integers(0, 8))
    def remove_subject(self, subject: int) -> None:
        gone = [key for key, face in self.faces.items() if face[1] == subject]
        assert self.index.remove_subject(subject) == len(gone)
        for key in gone:
            del self.faces[key]

    @initialize(kind=st.sampled_from(KINDS))
    def begin(self, kind: IndexKind) -> None:
        self.index = Index(DIMENSION, kind=kind)

    @rule(kind=st.sampled_from(KINDS))
    def convert(self, kind: IndexKind) -> None:
        self.index.convert(kind)
        assert self.index.kind == kind

    @rule()
    def compact(self) -> None:
        compact(self.index)

    @rule(probes=st.lists(VECTORS, min_size=1, max_size=5), limit=st.integers(0, 9))
    def search(self, probes: list[Vector], limit: int) -> None:
        for found, probe in zip(self.index.search(np.array(probes), limit), probes, strict=True):
            assert_agree(found, oracle(list(self.faces.values()), probe, limit))

    @rule(probe=VECTORS, subject=st.integers(0, 8))
    def verify(self, probe: Vector, subject: int) -> None:
        expected = oracle([face for face in self.faces.values() if face[1] == subject], probe, 1)
        found = [match for match in self.index.verify(probe[None], subject) if match]
        assert_agree(found, expected)

    @invariant()
    def agrees(self) -> None:
        assert self.index.faces == len(self.faces)
        assert self.index.sizes == Counter(Counter(face[1] for face in self.faces.values()).values())
        difference = self.index.compare([block(list(self.faces.values()))])
        assert (difference.missing, difference.different, difference.extra) == ((), (), 0)


TestIndex = IndexMachine.TestCase


@every_kind
def test_a_subject_with_hundreds_of_near_faces_takes_one_place(kind: IndexKind) -> None:
    crowd = random_units(1, seed=1)[0] + 0.01 * random_units(700, seed=2)
    crowd /= np.linalg.norm(crowd, axis=1, keepdims=True)
    others = random_units(60, seed=3)
    faces = [(key, 1, 50.0, vector) for key, vector in enumerate(crowd.astype(np.float32), 1)]
    faces += [(1000 + key, 2 + key % 20, 50.0, vector) for key, vector in enumerate(others)]
    index = filled(faces, kind=kind)
    probes = np.concatenate([crowd[:2].astype(np.float32), random_units(3, seed=4)])
    for limit in (1, 2, 5, 21, 50):
        for found, probe in zip(index.search(probes, limit), probes, strict=True):
            assert_agree(found, oracle(faces, probe, limit))


@every_kind
def test_among_equal_scores_the_face_enrolled_first_wins_wherever_it_lies(kind: IndexKind) -> None:
    same = unit(1, 2, 3)
    faces = [(key, key % 300, 50.0, same) for key in range(1, 900)]
    order = np.random.default_rng(0).permutation(len(faces))
    index = filled([faces[place] for place in order], kind=kind)
    found = index.search(same[None], 4)[0]
    assert [(match.subject, match.face) for match in found] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    index.remove(2, 2)
    index.remove_subject(1)
    found = index.search(same[None], 4)[0]
    assert [(match.subject, match.face) for match in found] == [(3, 3), (4, 4), (5, 5), (6, 6)]


@every_kind
@pytest.mark.parametrize("spread", [3e-7, 1e-7, 3e-8, 1e-8])
def test_scores_that_float32_cannot_tell_apart_are_ranked_exactly(spread: float, kind: IndexKind) -> None:
    base = random_units(1, 128, seed=5)[0]
    nudges = np.random.default_rng(6).standard_normal((400, 128)) * spread
    vectors = (base + nudges).astype(np.float32)
    faces = [(key, key, 50.0, vector) for key, vector in enumerate(vectors, 1)]
    index = filled(faces, 128, kind)
    for limit in (1, 3, 7, 20):
        assert_agree(index.search(base[None], limit)[0], oracle(faces, base, limit))


@every_kind
def test_the_number_of_probes_in_a_pass_changes_nothing(kind: IndexKind) -> None:
    vectors = random_units(2000, 128)
    faces = [(key, key // 3, 50.0, vector) for key, vector in enumerate(vectors, 1)]
    index = filled(faces, 128, kind=kind)
    probes = random_units(64, 128, seed=9)
    together = index.search(probes, 5)
    assert together == [index.search(probe[None], 5)[0] for probe in probes]
    assert together == index.search(probes[:3], 5) + index.search(probes[3:], 5)


@every_kind
def test_the_order_in_which_faces_came_changes_no_bit(kind: IndexKind) -> None:
    """A mean's number is a sum over a subject's faces; where they differ by much, it depends on their order."""
    vectors, probes = random_units(300, 128), np.eye(128, dtype=np.float32)[:5]
    vectors[:, :5] *= 10.0 ** -np.random.default_rng(1).uniform(0, 12, (300, 5))
    faces: list[Face] = [(key, key % 12, 50.0, vector) for key, vector in enumerate(vectors, 1)]
    expected = filled(faces, 128, kind).search(probes, 12)
    assert all(match.faces == 25 for found in expected for match in found)
    order = np.random.default_rng(2).permutation(len(faces))
    assert filled([faces[place] for place in order], 128, kind).search(probes, 12) == expected
    moved = filled([(key, 99, quality, vector) for key, _, quality, vector in faces], 128, kind)
    for key, subject, *_ in reversed(faces):
        moved.move(np.array([key]), np.array([subject]))
    assert moved.search(probes, 12) == expected


@every_kind
def test_an_index_that_could_not_grow_finds_all_that_it_has(monkeypatch: pytest.MonkeyPatch, kind: IndexKind) -> None:
    vectors = random_units(60)
    faces: list[Face] = [(key, key // 2, 50.0, vector) for key, vector in enumerate(vectors, 1)]
    index = filled(faces[:10], kind=kind)
    columns = itertools.count()

    def too_little(rows: int, row: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        if next(columns) == 4:
            raise MemoryError
        return room_to_grow(rows, row, dtype)

    monkeypatch.setattr("app.search.index.room_to_grow", too_little)
    with pytest.raises(MemoryError):
        index.add(block(faces[10:]))
    assert_agree(index.search(vectors[:1], 3)[0], oracle(faces[:10], vectors[0], 3))


@every_kind
def test_removed_vectors_leave_no_numbers_in_memory(kind: IndexKind) -> None:
    index = filled([(key, key, 50.0, vector) for key, vector in enumerate(random_units(10), 1)], kind=kind)
    for key in (3, 10):
        assert index.remove(key, key)
    assert index.remove_subject(1) == 1
    index.move(np.array([5]), np.array([6]))
    arrays = [array for array in (index._rows._vectors, index._rows._codes) if array.shape[1]]
    assert len(arrays) == (1 if kind == "fp32" else 2)
    for array in arrays:
        assert np.flatnonzero(~array[:11].any(axis=1)).tolist() == [0, 2, 4, 9], "the moved one is in the last row"


def test_subjects_that_come_and_go_do_not_pile_up() -> None:
    index = Index(DIMENSION)
    vectors = random_units(100)
    for turn in range(40):
        faces = [(turn * 100 + place + 1, turn * 100 + place + 1, 50.0, vector) for place, vector in enumerate(vectors)]
        index.add(block(faces))
        if turn:
            for face in range((turn - 1) * 100 + 1, turn * 100 + 1):
                assert index.remove_subject(face) == 1
        index.maintain()
        assert index._rows.count <= 100 + module.COMPACT_FROM / (1 - module.COMPACT_SHARE) + 100
        assert index.size < 2 * 1_600 * (29 + 4 * DIMENSION + 40)
        assert index.search(vectors[:1], 1)[0][0].subject == turn * 100 + 1
    difference = index.compare([block(faces)])
    assert (difference.missing, difference.different, difference.extra) == ((), (), 0)


def test_unfit_vectors_change_nothing() -> None:
    index = filled([(1, 1, 50.0, unit(1))])
    with pytest.raises(ValueError, match="2 faces need"):
        index.add(block([(2, 2, 50.0, random_units(1, 6)[0]), (3, 3, 50.0, random_units(1, 6)[0])], 6))
    assert (index.faces, index.sizes) == (1, {1: 1})


@settings(max_examples=50)
@given(data=st.data(), size=st.integers(1, 40), at_once=st.integers(1, 15))
def test_every_difference_is_found(data: st.DataObject, size: int, at_once: int) -> None:
    faces: list[Face] = [(key * 2, key % 5, 50.0, vector) for key, vector in enumerate(random_units(size), 1)]
    index = filled(faces)
    keys = st.lists(st.sampled_from([face[0] for face in faces]), unique=True)
    removed, doctored = set(data.draw(keys)), set(data.draw(keys))
    extra: list[Face] = [
        (key + 1, subject, quality, vector) for key, subject, quality, vector in faces if key in data.draw(keys)
    ]
    index.add(block(extra))
    for key, subject, *_ in faces:
        if key in removed:
            index.remove(key, subject)
    expected: list[Face] = []
    for key, subject, quality, vector in faces:
        kinds: list[Face] = [
            (key, subject + 1, quality, vector),
            (key, subject, quality + 1, vector),
            (key, subject, quality, np.roll(vector, 1)),
        ]
        expected.append(kinds[key // 2 % 3] if key in doctored else (key, subject, quality, vector))
    blocks = [block(expected[start : start + at_once]) for start in range(0, size, at_once)]
    difference = index.compare(blocks)
    assert set(difference.missing) == removed
    assert set(difference.different) == doctored - removed
    assert difference.extra == len(extra)


@every_kind
def test_searches_are_right_while_faces_come_and_go(kind: IndexKind) -> None:
    """Faces that stay, or move to another subject, are found with the same scores in every search; those that come and
    go may be."""
    stay = random_units(50, 32, seed=1)
    passing = random_units(3000, 32, seed=2)
    index = filled([(key, key, 50.0, vector) for key, vector in enumerate(stay, 1)], 32, kind=kind)
    done = False

    def change() -> None:
        nonlocal done
        for start in range(0, 3000, 100):
            faces = [(1000 + start + n, 1000 + start + n, 50.0, passing[start + n]) for n in range(100)]
            index.add(block(faces, 32))
            for key, subject, *_ in faces[: 100 if start % 200 else 60]:
                index.remove(key, subject)
            index.move(np.arange(1, 11), np.arange(1, 11) + 50 * (start // 100 % 2))
            if start % 500 == 0:
                compact(index)
        done = True

    def search(seed: int) -> int:
        probes = stay[np.random.default_rng(seed).permutation(50)[:6]]
        turns = 0
        while not done or turns == 0:
            for found, probe in zip(index.search(probes, 3), probes, strict=True):
                assert dot(stay[found[0].face - 1], probe) == pytest.approx(found[0].score)
                assert found[0].score == pytest.approx(1)
                assert found[0].subject % 50 == found[0].face % 50
            turns += 1
        return turns

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search, seed) for seed in range(3)]
        pool.submit(change).result()
        assert all(future.result() for future in searches)
    assert index.faces == 50 + 15 * 40


@every_kind
def test_rows_split_between_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, kind: IndexKind) -> None:
    vectors = random_units(1500, 32)
    faces = [(key, key // 4, 50.0, vector) for key, vector in enumerate(vectors, 1)]
    alone = filled(faces, 32)
    split = Index(32, threads=4, kind=kind)
    split.add(block(faces, 32))
    probes = random_units(12, 32, seed=9)
    for rows in (7, 400, 700):
        monkeypatch.setattr(module, "SPLIT_ROWS", rows)
        for limit in (1, 5, 200):
            expected = alone.search(probes, limit)
            assert split.search(probes, limit) == expected
            assert [split.search(probe[None], limit)[0] for probe in probes[:3]] == expected[:3]
    for key in range(1, 1500, 2):
        for index in (alone, split):
            index.remove(key, key // 4)
    assert split.search(probes, 5) == alone.search(probes, 5)


class Interrupted(Index):
    """Its next pass is followed by a change, before the answer is made."""

    change: Callable[[], None] | None = None

    def _nearest(self, view: View, probes: Vectors, fetch: int, *, start: int = 0) -> Near:
        found = super()._nearest(view, probes, fetch, start=start)
        if self.change is not None:
            change, self.change = self.change, None
            change()
        return found


@settings(max_examples=80)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_what_changes_during_a_pass_makes_no_answer_wrong(data: st.DataObject, kind: IndexKind) -> None:
    """The answer has all that was there when it began and wasn't removed; where rows got other places, all there is."""
    new = st.lists(st.tuples(st.integers(1, 30), QUALITIES, VECTORS | RANDOM), max_size=80)
    faces: dict[int, Face] = {key: (key, *rest) for key, rest in enumerate(data.draw(new), 1)}
    index = Interrupted(DIMENSION, kind=kind)
    index.add(block(list(faces.values())))
    before, places = set(faces), (index._rows, index._rows.renewals)
    keys = itertools.count(len(faces) + 1)  # none is given twice

    def change() -> None:
        for _ in range(data.draw(st.integers(1, 4))):
            come = [(next(keys), *rest) for rest in data.draw(new)]
            index.add(block(come))
            faces.update({face[0]: face for face in come})
            for key in data.draw(st.lists(st.sampled_from([*faces, 0]), unique=True, max_size=60)):
                if key:
                    assert index.remove(key, faces.pop(key)[1])
            for key in data.draw(st.lists(st.sampled_from([*faces, 0]), max_size=1)):
                if key:
                    subject = data.draw(st.integers(1, 30))
                    index.move(np.array([key]), np.array([subject]))
                    faces[key] = (key, subject, *faces[key][2:])
            if data.draw(st.integers(0, 1)):
                compact(index)

    index.change = change
    limit = data.draw(st.integers(1, 40))
    probes = np.array(data.draw(st.lists(VECTORS | RANDOM, min_size=1, max_size=5)))
    if not before:
        index.change = None
    answers = index.search(probes, limit)
    renewed = places != (index._rows, index._rows.renewals)
    there = [face for key, face in faces.items() if renewed or key in before]
    for found, probe in zip(answers, probes, strict=True):
        assert_agree(found, oracle(there, probe, limit))


@every_kind
def test_a_large_index_that_changes_during_passes_is_searched_exactly(kind: IndexKind) -> None:
    """Longer than what is fetched, so that the pass's floors decide."""
    generator = np.random.default_rng(5)
    vectors = random_units(6_000, 16)
    faces: dict[int, Face] = {key: (key, key // 2, 50.0, vectors[key]) for key in range(4_000)}
    index = Interrupted(16, kind=kind)
    index.add(block(list(faces.values()), 16))
    come, keys = 4_000, np.arange(4_000)

    def change() -> None:
        nonlocal come, keys
        for key in generator.choice(sorted(faces), 200, replace=False).tolist():
            assert index.remove(key, faces.pop(key)[1])
        keys = np.array(sorted(faces))
        new: list[Face] = [(key, key // 2, 50.0, vectors[key]) for key in range(come, come + 200)]
        come += 200
        index.add(block(new, 16))
        faces.update({face[0]: face for face in new})

    for turn in range(10):
        index.change = change
        probes = random_units(3, 16, seed=100 + turn)
        answers = index.search(probes, 3)
        scores = vectors[keys].astype(np.float64) @ probes.astype(np.float64).T
        for found, column in zip(answers, scores.T, strict=True):
            order = keys[np.argsort(-column)]
            expected = list(dict.fromkeys((order // 2).tolist()))[:3]
            assert [match.subject for match in found] == expected
            assert found[0].score == pytest.approx(column.max(), abs=1e-12)


def test_a_vector_that_is_all_one_number_costs_an_int8_index_no_face() -> None:
    """Its code is cut; its neighbours are found all the same, and by it."""
    vectors = random_units(3_000, 128)
    vectors[17] = np.eye(128, dtype=np.float32)[3]
    faces: list[Face] = [(key, key, 50.0, vector) for key, vector in enumerate(vectors, 1)]
    index = filled(faces, 128, "int8")
    for probe in (vectors[17], vectors[200]):
        assert_agree(index.search(probe[None], 5)[0], oracle(faces, probe, 5))


@every_kind
def test_the_size_counts_the_copy(kind: IndexKind) -> None:
    vectors = random_units(1_000, 128)
    plain, index = (
        filled([(key, key, 50.0, vector) for key, vector in enumerate(vectors, 1)], 128, searched)
        for searched in (KINDS[0], kind)
    )
    assert index.size - plain.size == {"fp32": 0, "int8": 128_000}[kind]
