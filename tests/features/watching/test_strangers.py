"""Unknown people are grouped, each one person; and named, ignored, merged and parted by a person."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.features.grouping import group_faces
from app.features.watching.rows import Stored
from app.features.watching.strangers import Strangers
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled, error_of, running
from tests.support.sighted import HOME, events_of, make_home, told


@pytest.fixture
def home(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "data", watching="on", stranger_days=3) as api:
        make_home(api)
        yield api


def test_one_person_is_one_stranger_and_two_are_two(home: httpx.Client) -> None:
    first, second = told(home, HOPPER, HOPPER), told(home, HOPPER, HOPPER, camera="garden")
    other = told(home, COLLINS, AGAIN)
    assert first["stranger"] == second["stranger"] != other["stranger"]
    strangers = {row["id"]: row for row in home.get(f"{HOME}/strangers").json()["strangers"]}
    assert strangers[first["stranger"]]["sightings"] == 2
    assert strangers[first["stranger"]]["cameras"] == ["door", "garden"]
    assert home.get(f"{HOME}/subjects").json()["subjects"] == [], "strangers are apart from the enrolled"


def test_naming_a_stranger_gives_all_sightings_and_searches_back(home: httpx.Client, tmp_path: Path) -> None:
    seen = [told(home, HOPPER, HOPPER, ended=True) for _ in range(2)]
    before = told(home, HOPPER, ended=True)
    stranger = seen[0]["stranger"]
    found = home.get(f"{HOME}/strangers/{stranger}/resembling").raise_for_status().json()["resembling"]
    assert [row["sighting"]["id"] for row in found] == [before["id"]]
    body = {"subject": "grace", "also": [before["id"]]}
    named = home.post(f"{HOME}/strangers/{stranger}/name", json=body).raise_for_status().json()["sightings"]
    assert {row["id"] for row in named} == {before["id"], *(row["id"] for row in seen)}
    assert {row["subject"] for row in named} == {"grace"}
    assert home.get(f"{HOME}/subjects/grace").json()["face_count"] == 2
    error_of(home.get(f"{HOME}/strangers/{stranger}"), 404, "stranger_not_found")
    assert [event["event"] for event in events_of(tmp_path / "data")][-2:] == ["name_changed", "name_changed"]
    assert told(home, HOPPER)["subject"] == "grace"


def test_an_ignored_stranger_is_a_known_nobody(home: httpx.Client, tmp_path: Path) -> None:
    stranger = told(home, HOPPER, HOPPER)["stranger"]
    before = len(events_of(tmp_path / "data"))
    edit = {"ignored": True, "note": "the postman"}
    assert home.patch(f"{HOME}/strangers/{stranger}", json=edit).raise_for_status().json()["note"] == "the postman"
    again = told(home, HOPPER, HOPPER, ended=True)
    assert again["stranger"] == stranger
    assert len(events_of(tmp_path / "data")) == before


def test_two_who_were_joined_come_apart_and_two_who_are_one_become_one(home: httpx.Client) -> None:
    first, second = told(home, HOPPER, HOPPER), told(home, HOPPER, HOPPER)
    path = f"{HOME}/strangers/{first['stranger']}"
    other = home.post(f"{path}/part", json={"sightings": [second["id"]]}).raise_for_status().json()
    assert other["id"] != first["stranger"]
    assert home.get(path).json()["sightings"] == other["sightings"] == 1
    merged = home.post(f"{path}/merge", json={"into": other["id"]}).raise_for_status().json()
    assert merged["sightings"] == 2
    home.delete(f"{HOME}/strangers/{other['id']}").raise_for_status()
    assert home.get(f"{HOME}/sightings").json()["sightings"] == []


def test_a_stranger_who_was_enrolled_elsewhere_is_no_stranger_any_more(home: httpx.Client) -> None:
    seen = told(home, HOPPER, HOPPER)
    enrolled(home, HOME, "grace", HOPPER)
    again = told(home, HOPPER, HOPPER, sighting=seen["id"])
    assert (again["subject"], again["stranger"]) == ("grace", None)
    assert home.get(f"{HOME}/strangers").json()["strangers"] == []


@pytest.mark.parametrize(("length", "is_joined"), [(1.0, True), (0.5, False)])
def test_photos_that_differ_make_grouping_stricter(
    home: httpx.Client, tmp_path: Path, length: float, is_joined: bool
) -> None:
    """A score that joins two single photos joins no track whose photos are so unlike that their mean is short."""
    first = told(home, HOPPER, HOPPER)
    with closing(sqlite3.connect(tmp_path / "data" / "likeness.db")) as database:
        [(kept,)] = database.execute("SELECT template FROM sightings").fetchall()
        own = np.frombuffer(kept, "<f4").astype(np.float64)
        across = np.random.default_rng(0).normal(size=len(own))
        across -= (across @ own) / (own @ own) * own
        like = 0.58 * own / np.linalg.norm(own) + np.sqrt(1 - 0.58**2) * across / np.linalg.norm(across)
        database.execute("UPDATE sightings SET template = ?", ((length * like).astype("<f4").tobytes(),))
        database.commit()
    assert (told(home, HOPPER, HOPPER)["stranger"] == first["stranger"]) is is_joined


def slowly(vectors: NDArray[np.float32], threshold: float) -> set[frozenset[int]]:
    """Average linkage by its definition: the best pair of groups is joined, again and again."""
    groups = [frozenset([place]) for place in range(len(vectors))]
    scores = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    while len(groups) > 1:
        pairs = [
            (float(np.mean([scores[a, b] for a in first for b in second])), i, j)
            for i, first in enumerate(groups)
            for j, second in enumerate(groups)
            if i < j
        ]
        best, i, j = max(pairs)
        if best < threshold:
            break
        joined = groups[i] | groups[j]
        groups = [group for place, group in enumerate(groups) if place not in {i, j}] + [joined]
    return set(groups)


@given(st.integers(0, 10_000), st.integers(1, 14), st.floats(-0.2, 0.9))
def test_groups_are_those_of_average_linkage_by_its_definition(seed: int, count: int, threshold: float) -> None:
    drawn = np.random.default_rng(seed).normal(size=(count, 4))
    vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    groups = group_faces(vectors, threshold)
    found = {frozenset(np.flatnonzero(groups == number).tolist()) for number in np.unique(groups)}
    assert found == slowly(vectors, threshold)


def test_a_wrong_sighting_beside_the_name_enrolls_nobody(home: httpx.Client) -> None:
    stranger = told(home, HOPPER, HOPPER)["stranger"]
    asked = {"subject": "grace", "also": ["0" * 32]}
    error_of(home.post(f"{HOME}/strangers/{stranger}/name", json=asked), 404, "sighting_not_found")
    assert home.get(f"{HOME}/subjects").json()["subjects"] == []
    assert home.get(f"{HOME}/strangers/{stranger}").raise_for_status()


def test_only_a_strangers_own_sightings_are_parted(home: httpx.Client) -> None:
    first, other = told(home, HOPPER, HOPPER), told(home, COLLINS, AGAIN)
    assert first["stranger"] != other["stranger"]
    asked = {"sightings": [first["id"], other["id"]]}
    error_of(home.post(f"{HOME}/strangers/{first['stranger']}/part", json=asked), 404, "sighting_not_found")
    asked = {"sightings": [other["id"]]}
    error_of(home.post(f"{HOME}/strangers/{first['stranger']}/part", json=asked), 404, "sighting_not_found")
    for seen in (first, other):
        assert home.get(f"{HOME}/sightings/{seen['id']}").json()["stranger"] == seen["stranger"]


def test_of_two_who_name_a_stranger_at_once_one_does(home: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one person would be enrolled under two ids."""
    stranger = told(home, HOPPER, HOPPER)["stranger"]
    both, read = threading.Barrier(2), Strangers.seen

    def seen(self: Strangers, *about: Any) -> list[Stored]:
        found = read(self, *about)
        both.wait(60)
        return found

    monkeypatch.setattr(Strangers, "seen", seen)
    with ThreadPoolExecutor(2) as pool:
        paths = [f"{HOME}/strangers/{stranger}/name"] * 2
        answers = list(pool.map(lambda path, name: home.post(path, json={"subject": name}), paths, ("grace", "hopper")))
    assert sorted(answer.status_code for answer in answers) == [200, 404]
    subjects = home.get(f"{HOME}/subjects").json()["subjects"]
    assert [subject["face_count"] for subject in subjects] == [1]
