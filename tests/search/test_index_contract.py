"""What holds wherever vectors are searched: in this process, or in Milvus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.errors import Conflict, NotFound
from app.features.checks.comparing import check_index
from app.features.transfers import delete_subjects, rename_subject
from app.gallery.records import Candidate, StoredFace
from app.gallery.service import Galleries
from app.gallery.subjects import create_subject, delete_face, delete_subject
from app.types import Box, Quality, Template, Vector
from tests.support.changing import changed, written
from tests.support.following import found, quiet
from tests.support.galleries import DIMENSION, PACKAGE, enroll, staff, template
from tests.support.indexes import rebuild
from tests.support.milvus import lite, remote

KINDS = ("faiss", "milvus")
ROUNDS = 80


def open_galleries(kind: str, folder: Path) -> Galleries:
    url = f"sqlite:///{folder / 'likeness.db'}"
    return quiet(url) if kind == "faiss" else remote(url, lite(folder))


@pytest.fixture(params=["faiss", pytest.param("milvus", marks=pytest.mark.long)])
def galleries(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Galleries]:
    monkeypatch.setattr(
        "app.features.milvus.search.COUNT_CHEAP_S", 60.0
    )  # counted at once, however slow the machine is
    galleries = open_galleries(request.param, tmp_path)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    yield galleries
    galleries.close()


def add(galleries: Galleries, subject: str, vector: Vector, quality: float = 50) -> str:
    face = StoredFace("", Template(vector, PACKAGE), Quality(quality, ()), Box(0, 0, 1, 1))
    return galleries.enroll(galleries.store.gallery("staff"), subject, [face]).faces[0].face_id


def ask(galleries: Galleries, vector: Vector, limit: int) -> list[Candidate]:
    return galleries.open_search(galleries.store.gallery("staff")).search([Template(vector, PACKAGE)], limit)[0]


def near(vector: Vector, by: float, seed: int) -> Vector:
    moved = vector + by * np.random.default_rng(seed).standard_normal(len(vector)).astype(np.float32)
    return np.asarray(moved / np.linalg.norm(moved), np.float32)


def test_an_empty_gallery_finds_nobody_and_knows_that_it_is_whole(galleries: Galleries) -> None:
    assert found(galleries, 1) == []
    assert sum(galleries.open_search(staff(galleries)).sizes.values()) == 0
    assert check_index(galleries, galleries.store.gallery("staff")).ok
    written(galleries.store, staff(galleries), create_subject, "ann")
    with pytest.raises(Conflict) as caught:
        galleries.open_search(galleries.store.gallery("staff")).verify("ann", template(1))
    assert caught.value.code == "subject_without_faces"


def test_what_was_acknowledged_is_found_and_what_was_deleted_is_not(galleries: Galleries) -> None:
    made = enroll(galleries, "ann", 1, 2)
    enroll(galleries, "bob", 3)
    assert (found(galleries, 1), found(galleries, 2), found(galleries, 3)) == (["ann"], ["ann"], ["bob"])
    assert sum(galleries.open_search(staff(galleries)).sizes.values()) == 2
    changed(galleries, "staff", delete_face, "ann", made.faces[0].face_id)
    assert (found(galleries, 1), found(galleries, 2)) == ([], ["ann"])
    changed(galleries, "staff", delete_subject, "ann")
    assert (found(galleries, 2), found(galleries, 3)) == ([], ["bob"])
    assert sum(galleries.open_search(staff(galleries)).sizes.values()) == 1
    report = check_index(galleries, galleries.store.gallery("staff"))
    assert (report.ok, report.faces, report.indexed) == (True, 1, 1)
    rebuild(galleries, galleries.store.gallery("staff"))
    assert (found(galleries, 2), found(galleries, 3)) == ([], ["bob"])
    galleries.delete_gallery(galleries.store.gallery("staff"))
    with pytest.raises(NotFound):
        found(galleries, 3)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    assert found(galleries, 3) == []


def test_who_gets_another_id_and_whose_faces_go_over_is_found_by_it(galleries: Galleries) -> None:
    enroll(galleries, "ann", 1, 2)
    enroll(galleries, "bob", 3)
    changed(galleries, "staff", rename_subject, "ann", "anna")
    assert (found(galleries, 1), found(galleries, 3)) == (["anna"], ["bob"])
    changed(galleries, "staff", rename_subject, "anna", "bob")
    assert [found(galleries, seed) for seed in (1, 2, 3)] == [["bob"]] * 3
    assert sum(galleries.open_search(staff(galleries)).sizes.values()) == 1
    assert check_index(galleries, galleries.store.gallery("staff")).ok
    changed(galleries, "staff", delete_subjects)
    assert found(galleries, 1) == []
    assert check_index(galleries, galleries.store.gallery("staff")).ok


def test_subjects_with_hundreds_of_near_faces_take_one_place_each(galleries: Galleries) -> None:
    vector = template(0).vector
    for subject in ("ann", "bob"):
        galleries.enroll(
            galleries.store.gallery("staff"),
            subject,
            [
                StoredFace("", Template(near(vector, 0.05, seed), PACKAGE), Quality(50, ()), Box(0, 0, 1, 1))
                for seed in range(200 if subject == "ann" else 100)
            ],
        )
    add(galleries, "cem", near(vector, 1, 7))
    add(galleries, "dan", np.negative(vector))
    assert {candidate.subject for candidate in ask(galleries, vector, 2)} == {"ann", "bob"}
    assert [candidate.subject for candidate in ask(galleries, vector, 4)][2:] == ["cem", "dan"]
    assert [candidate.subject for candidate in ask(galleries, np.negative(vector), 1)] == ["dan"]


def test_among_equal_scores_the_face_enrolled_first_wins(galleries: Galleries) -> None:
    vector = template(0).vector
    names = [f"subject {number}" for number in range(70)]
    for name in names:
        add(galleries, name, vector)
    assert [candidate.subject for candidate in ask(galleries, vector, 3)] == names[:3]
    changed(galleries, "staff", delete_subject, names[0])
    assert [candidate.subject for candidate in ask(galleries, vector, 3)] == names[1:4]


def brute_force(faces: dict[str, tuple[str, float, Vector]], probe: Vector, limit: int) -> list[tuple[str, ...]]:
    """Subject, its best face, its score and its mean's, as text: face by face, in order of enrollment."""
    best: dict[str, tuple[float, str]] = {}
    for face_id, (subject, _, vector) in faces.items():
        score = float(vector.astype(np.float64) @ probe.astype(np.float64))
        if subject not in best or score > best[subject][0]:
            best[subject] = (score, face_id)
    ranked = sorted(best, key=lambda subject: -best[subject][0])[:limit]
    rows: list[tuple[str, ...]] = []
    for subject in ranked:
        mine = [vector.astype(np.float64) for whose, _, vector in faces.values() if whose == subject]
        mean = np.mean(mine, axis=0)
        mean_score = float(mean / np.linalg.norm(mean) @ probe.astype(np.float64))
        rows.append((subject, best[subject][1], f"{best[subject][0]:.6f}", f"{mean_score:.6f}"))
    return rows


def test_answers_are_those_of_brute_force_whatever_comes_and_goes(galleries: Galleries) -> None:
    random = np.random.default_rng(5)
    centres = [template(seed).vector for seed in range(4)]
    faces: dict[str, tuple[str, float, Vector]] = {}
    for turn in range(ROUNDS):
        what = random.integers(6)
        subject = f"subject {random.integers(12)}"
        if what <= 3 or not faces:
            vector, quality = near(centres[random.integers(4)], 0.3, turn), float(random.integers(101))
            faces[add(galleries, subject, vector, quality)] = (subject, quality, vector)
        elif what == 4:
            face_id = str(random.choice(list(faces)))
            changed(galleries, "staff", delete_face, faces.pop(face_id)[0], face_id)
        elif any(whose == subject for whose, _, _ in faces.values()):
            changed(galleries, "staff", delete_subject, subject)
            faces = {key: face for key, face in faces.items() if face[0] != subject}
        if turn % 8 == 0:
            galleries.indexes.follow()
        if turn == ROUNDS // 2:
            rebuild(galleries, galleries.store.gallery("staff"))
        probe, limit = near(centres[random.integers(4)], 0.3, 1000 + turn), int(random.integers(1, 9))
        answered = [
            (candidate.subject, candidate.face_id, f"{candidate.score:.6f}", f"{candidate.template_score:.6f}")
            for candidate in ask(galleries, probe, limit)
        ]
        assert answered == brute_force(faces, probe, limit)
    assert check_index(galleries, galleries.store.gallery("staff")).ok


def test_both_give_the_same_answers_to_the_last_bit(tmp_path: Path) -> None:
    answers = []
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        galleries = open_galleries(kind, tmp_path / kind)
        galleries.create_gallery("staff", PACKAGE, DIMENSION)
        for seed in range(60):
            add(galleries, f"subject {seed % 25}", template(seed).vector, quality=seed)
        probes = [template(seed) for seed in range(100, 110)]
        found = galleries.open_search(galleries.store.gallery("staff")).search(probes, 7)
        found.append(
            [galleries.open_search(galleries.store.gallery("staff")).verify("subject 3", probe) for probe in probes]
        )
        answers.append(
            [[(candidate.subject, candidate.score, candidate.template_score) for candidate in row] for row in found]
        )
        galleries.close()
    assert answers[0] == answers[1]
