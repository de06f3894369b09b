"""Approximate search against brute force in float64: what it finds is exact, and what it misses is what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from app.search import cells as cells_module
from app.search import follower as live_module
from app.search import index as index_module
from app.search.cells import NOISE, Cells
from app.search.index import Index, Match
from app.search.quantised import Near
from app.types import Vector, Vectors
from tests.search.test_index import DIMENSION, RANDOM, VECTORS, Face, assert_agree, block, dot, oracle, random_units
from tests.support.service import BOTH, COLLINS, HOPPER, running

SOON_S = 20.0


def crowd(people: int, each: int, dimension: int, seed: int = 0) -> Vectors:
    """Faces of people who are alike and unlike, as templates are."""
    generator = np.random.default_rng(seed)
    persons = np.repeat(generator.standard_normal((people, dimension)), each, axis=0)
    vectors = persons + 0.7 * generator.standard_normal(persons.shape)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def alone(vectors: Vectors, start: int = 1) -> list[Face]:
    """Each face a subject of its own."""
    return [(key, key, 50.0, vector) for key, vector in enumerate(vectors, start)]


def approximate(faces: list[Face], dimension: int = DIMENSION, least: int = 1, *, train: bool = True) -> Index:
    index = Index(dimension, kind="approximate", approximate_from=least)
    index.add(block(faces, dimension))
    if train:
        index.train()
    return index


def cells_of(index: Index) -> Cells:
    assert index._cells is not None
    return index._cells


def look_at(index: Index, probes: int) -> None:
    """So many cells, whatever was measured."""
    cells = cells_of(index)
    cells.approximation = replace(cells.approximation, probes=min(probes, cells.approximation.cells))


def measured_with(index: Index) -> int | None:
    """So many faces; None where search is exact."""
    return None if index.approximation is None else index.approximation.faces


def assert_in_step(index: Index) -> None:
    """Each row is in the list of one cell, the one that its vector is nearest to, at the place that is noted."""
    cells = cells_of(index)
    listed = [array[:count].tolist() for array, count in zip(cells._lists, cells._counts, strict=True)]
    assert sorted(row for rows in listed for row in rows) == list(range(index.faces))
    assert cells.count == index.faces
    scores = index._rows.vectors.astype(np.float64) @ cells._centroids.astype(np.float64).T
    for cell, rows in enumerate(listed):
        for place, row in enumerate(rows):
            assert (cells._cell_of[row], cells._place_of[row]) == (cell, place)
            assert scores[row, cell] >= scores[row].max() - 1e-5


def assert_true(found: list[Match], faces: dict[int, Face], probe: Vector) -> None:
    """Faces that are there, of different subjects, with their exact scores, best first."""
    assert len({match.subject for match in found}) == len(found)
    for match in found:
        _, subject, _, vector = faces[match.face]
        assert subject == match.subject
        assert match.score == pytest.approx(np.clip(dot(probe, vector), -1, 1), abs=1e-12)
    assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)


def noisy(vectors: Vectors, generator: np.random.Generator) -> Vectors:
    probes = vectors + generator.standard_normal(vectors.shape) * NOISE / vectors.shape[1] ** 0.5
    return np.asarray(probes / np.linalg.norm(probes, axis=1, keepdims=True), np.float32)


@pytest.mark.parametrize("dimension", [32, 128])
def test_the_recall_it_shows_is_what_searches_find(dimension: int) -> None:
    vectors = crowd(400, 15, dimension)
    faces = alone(vectors)
    index = approximate(faces, dimension)
    shown = index.approximation
    assert shown is not None
    assert (shown.faces, shown.cells) == (6_000, round(2 * 6_000**0.5))
    assert 0.99 <= shown.recall_at_1 <= 1
    assert shown.recall_at_10 < 1
    assert shown.probes < shown.cells, "a search looks at some of the faces only"
    generator = np.random.default_rng(99)
    probes = noisy(vectors[generator.choice(len(vectors), 500)], generator)
    assert cells_of(index).candidates(probes[:1]) is not None
    firsts, tens = [], []
    for probe in probes:
        scores = vectors.astype(np.float64) @ probe.astype(np.float64)
        best = (np.argsort(-scores)[:10] + 1).tolist()
        found = index.search(probe[None], 10)[0]
        assert_true(found, {face[0]: face for face in faces}, probe)
        assert len(found) == 10
        firsts.append(found[0].face == best[0])
        tens.append(len({match.face for match in found} & set(best)) / 10)
    assert np.mean(firsts) == pytest.approx(shown.recall_at_1, abs=0.015)
    assert np.mean(tens) == pytest.approx(shown.recall_at_10, abs=0.02)


def test_fewer_cells_find_less_and_as_few_as_are_needed_are_chosen() -> None:
    vectors = crowd(300, 10, 64)
    cells = cells_module.trained(vectors)
    chosen = cells.approximation
    assert chosen.probes > 1
    generator = np.random.default_rng(cells_module.SEED)
    rows = generator.choice(len(vectors), cells_module.PROBES, replace=False)
    probes = noisy(vectors[rows], generator)
    best = np.argmax(vectors.astype(np.float64) @ probes.astype(np.float64).T, axis=0)
    shares: list[float] = []
    for looked in (chosen.probes - 1, chosen.probes):
        cells.approximation = replace(chosen, probes=looked)
        found: list[NDArray[np.int64]] = []
        for probe in probes:
            candidates = cells.candidates(probe[None])
            assert candidates is not None
            found += candidates
        shares.append(float(np.mean([mine in some for mine, some in zip(best, found, strict=True)])))
    assert shares[0] < cells_module.RECALL <= shares[1]
    assert chosen.recall_at_1 == pytest.approx(shares[1], abs=1e-3)


@pytest.fixture(scope="module", autouse=True)
def always_cells() -> Iterator[None]:
    """However many faces lie in them: few faces lie in few cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells_module, "PASS_SHARE", 1e9)
        yield


@settings(max_examples=60, stateful_step_count=30)
class ApproximateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = Index(DIMENSION, kind="approximate", approximate_from=6)
        self.faces: dict[int, Face] = {}
        self.next_key = 1

    @rule(new=st.lists(st.tuples(st.integers(1, 9), st.just(50.0), VECTORS | RANDOM), max_size=40))
    def add(self, new: list[tuple[int, float, Vector]]) -> None:
        faces = [(self.next_key + place, *rest) for place, rest in enumerate(new)]
        self.next_key += len(new)
        self.index.add(block(faces))
        self.faces |= {face[0]: face for face in faces}

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.faces:
            for key in data.draw(st.lists(st.sampled_from(sorted(self.faces)), unique=True, max_size=9)):
                assert self.index.remove(key, self.faces.pop(key)[1])

    @rule(subject=st.integers(0, 9))
    def remove_subject(self, subject: int) -> None:
        gone = [key for key, face in self.faces.items() if face[1] == subject]
        assert self.index.remove_subject(subject) == len(gone)
        for key in gone:
            del self.faces[key]

    @rule(probes=st.integers(1, 4))
    def train(self, probes: int) -> None:
        self.index.train()
        if self.index._cells is not None:
            look_at(self.index, probes)

    @rule(away=st.sampled_from(["fp32", "int8"]))
    def convert(self, away: str) -> None:
        self.index.convert("int8" if away == "int8" else "fp32")
        assert self.index.approximation is None
        self.index.convert("approximate")

    @rule(probes=st.lists(VECTORS | RANDOM, min_size=1, max_size=5), limit=st.integers(1, 9))
    def search(self, probes: list[Vector], limit: int) -> None:
        there = len({face[1] for face in self.faces.values()})
        for found, probe in zip(self.index.search(np.array(probes), limit), probes, strict=True):
            assert_true(found, self.faces, probe)
            assert len(found) == min(limit, there)

    @rule(vector=RANDOM, subject=st.integers(1, 9))
    def a_new_face_is_found_at_once(self, vector: Vector, subject: int) -> None:
        self.index.add(block([(self.next_key, subject, 50.0, vector)]))
        self.faces[self.next_key] = (self.next_key, subject, 50.0, vector)
        self.next_key += 1
        assert self.index.search(vector[None], 1)[0][0].score == pytest.approx(1, abs=1e-6)

    @rule(probe=VECTORS | RANDOM, subject=st.integers(0, 9))
    def verify(self, probe: Vector, subject: int) -> None:
        expected = oracle([face for face in self.faces.values() if face[1] == subject], probe, 1)
        found = self.index.verify(probe[None], subject)[0]
        assert (found is None) == (not expected)
        if found is not None:
            assert (found.subject, found.face) == expected[0][:2]

    @invariant()
    def agrees(self) -> None:
        difference = self.index.compare([block(list(self.faces.values()))])
        assert (difference.missing, difference.different, difference.extra) == ((), (), 0)
        if self.index._cells is not None:
            assert_in_step(self.index)


TestApproximate = ApproximateMachine.TestCase


class Interrupted(Index):
    """Somebody changes it while a pass over candidates runs."""

    change: Callable[[], None] | None = None

    def _nearest_of(self, vectors: Vectors, candidates: list[NDArray[np.int64]], probes: Vectors, fetch: int) -> Near:
        found = super()._nearest_of(vectors, candidates, probes, fetch)
        if self.change is not None:
            change, self.change = self.change, None
            change()
        return found


@pytest.mark.parametrize("threads", [1, 3])
def test_what_comes_and_goes_during_a_pass_is_in_the_answer(threads: int) -> None:
    generator = np.random.default_rng(2)
    vectors = crowd(200, 10, 32)
    faces = {face[0]: face for face in alone(vectors)}
    index = Interrupted(32, kind="approximate", approximate_from=10, threads=threads)
    index.add(block(list(faces.values()), 32))
    index.train()
    for turn in range(20):
        probes = noisy(vectors[generator.choice(len(vectors), 5)], generator)
        best = [match.face for row in index.search(probes, 2) for match in row]
        come = [(5_000 + 5 * turn + place, 9_000, 50.0, probe) for place, probe in enumerate(probes)]

        def change(gone: list[int] = best, come: list[Face] = come) -> None:
            for key in set(gone):
                assert index.remove(key, faces.pop(key)[1])
            index.add(block(come, 32))
            faces.update({face[0]: face for face in come})

        index.change = change
        answers = index.search(probes, 5)
        assert vars(index)["change"] is None, "they were looked for in cells"
        for found, probe, face in zip(answers, probes, come, strict=True):
            assert_true(found, faces, probe)
            assert found[0].face == face[0]
        assert index.remove_subject(9_000) == 5
        for face in come:
            del faces[face[0]]
    assert_in_step(index)


@settings(max_examples=40)
@given(data=st.data())
def test_what_comes_and_goes_during_training_is_in_its_cells(data: st.DataObject) -> None:
    faces = {face[0]: face for face in alone(random_units(data.draw(st.integers(1, 60)), seed=1))}
    index = approximate(list(faces.values()), train=False)
    train = cells_module.trained

    def trained(vectors: Vectors) -> Cells:
        made = train(vectors)
        for turn in range(data.draw(st.integers(1, 3))):
            for key in data.draw(st.lists(st.sampled_from([*faces, 0]), unique=True)):
                if key:
                    assert index.remove(key, faces.pop(key)[1])
            new = alone(random_units(data.draw(st.integers(0, 30)), seed=turn + 2), 1_000 * (turn + 1))
            index.add(block(new))
            faces.update({face[0]: face for face in new})
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "trained", trained)
        index.train()
    assert_in_step(index)
    for key, subject, _, vector in list(faces.values())[:5]:
        assert (found := index.search(vector[None], 1)[0][0]).subject == subject, key
        assert found.face == key


def test_it_is_exact_up_to_a_size_and_trained_again_when_it_has_doubled() -> None:
    faces = alone(random_units(1_000))
    index = approximate(faces[:99], least=100)
    assert measured_with(index) is None
    index.add(block(faces[99:150]))
    assert measured_with(index) is None, "nobody waits for training"
    index.train()
    assert measured_with(index) == 150
    index.add(block(faces[150:299]))
    index.train()
    assert measured_with(index) == 150
    index.add(block(faces[299:300]))
    index.train()
    assert measured_with(index) == 300
    for key in range(1, 202):
        index.remove(key, key)
    assert measured_with(index) is None
    assert_in_step(index)
    for key in range(202, 252):
        index.remove(key, key)
    index.train()
    assert index._cells is None
    index.add(block(faces[500:600]))
    index.convert("fp32")
    index.train()
    assert measured_with(index) is None


def test_many_probes_at_once_are_searched_exactly_where_that_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = random_units(3_000, 64)
    index = approximate(alone(vectors), 64)
    look_at(index, 1)
    monkeypatch.setattr(cells_module, "PASS_SHARE", 0.22)
    cells = cells_of(index)
    assert cells.candidates(vectors[:1]) is not None
    assert cells.candidates(vectors[:16]) is not None, "one cell of a hundred each"
    look_at(index, cells.approximation.cells)
    assert cells.candidates(vectors[:1]) is None
    look_at(index, cells.approximation.cells // 8)
    assert cells.candidates(vectors[:1]) is not None
    assert cells.candidates(vectors[:16]) is None


def test_where_it_would_cost_more_search_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of faces of which none is like another too many cells would have to be looked at."""
    monkeypatch.setattr(cells_module, "PASS_SHARE", 0.22)
    faces = alone(random_units(2_000, 64))
    index = approximate(faces[:1_000], 64)
    assert measured_with(index) is None
    assert index._trained_with == 1_000
    index.add(block(faces[1_000:1_999], 64))
    index.train()
    assert index._trained_with == 1_000, "it isn't tried again all the time"
    index.add(block(faces[1_999:], 64))
    index.train()
    assert index._trained_with == 2_000
    for probe in random_units(5, 64, seed=9):
        assert_agree(index.search(probe[None], 5)[0], oracle(faces, probe, 5))


def test_a_subject_with_hundreds_of_near_faces_takes_one_place() -> None:
    vectors = crowd(100, 5, 32)
    near = noisy(np.repeat(vectors[:1], 400, axis=0), np.random.default_rng(3))
    faces = alone(vectors) + [(10_000 + place, 7_777, 50.0, vector) for place, vector in enumerate(near)]
    index = approximate(faces, 32)
    found = index.search(vectors[:1], 10)[0]
    assert len(found) == 10
    assert_true(found, {face[0]: face for face in faces}, vectors[0])


def test_its_size_is_told() -> None:
    index = approximate(alone(random_units(2_500, 128)), 128, train=False)
    before = index.size
    index.train()
    assert index.size - before == 100 * 128 * 4 + 2_500 * 12


def test_the_api_shows_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "APPROXIMATE_FROM", 2)
    with running(tmp_path / "data") as client:
        made = client.post("/v1/galleries", json={"id": "crew", "search": "approximate"}).json()
        assert (made["search"], made["approximation"]) == ("approximate", None)
        for subject, photo in (("eileen", COLLINS), ("grace", HOPPER)):
            faces = f"/v1/galleries/crew/subjects/{subject}/faces"
            client.post(faces, files={"images": photo}).raise_for_status()
        until = time.monotonic() + SOON_S
        while (shown := client.get("/v1/galleries/crew").json())["approximation"] is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        found = shown["approximation"]
        assert (found["recall_at_1"], found["faces"], found["cells"]) == (1, 2, 2)
        assert 0.5 <= found["recall_at_10"] <= 1
        assert f"likeness_index_recall_at_1 {found['recall_at_1']}" in client.get("/metrics").text
        identified = client.post("/v1/galleries/crew/identify", files={"image": BOTH}).raise_for_status().json()
        assert {face["candidates"][0]["subject"] for face in identified["faces"]} == {"eileen", "grace"}
        assert client.get("/v1/galleries/crew/check").json()["ok"]
        patched = client.patch("/v1/galleries/crew", json={"search": "int8"}).json()
        assert patched["approximation"] is None
        assert "likeness_index_recall_at_1" not in client.get("/metrics").text
