"""Faces of any subject are moved, deleted and listed; the index and other processes follow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from app.db.schema import DISMISSALS, SUBJECTS
from app.errors import Conflict, NotFound
from app.features.checks.comparing import check_index
from app.features.listing import count_people
from app.features.transfers import (
    AlreadyAnswered,
    Move,
    delete_faces,
    dissolve_subject,
    keep_answer,
    move_faces,
    recall_answer,
)
from app.gallery.records import Origin, StoredFace
from app.gallery.service import Galleries
from app.gallery.subjects import create_subject
from app.gallery.text import unnamed_id
from app.types import Box, Quality
from tests.support.changing import changed, written
from tests.support.following import engine_of, found, log_of, quiet
from tests.support.galleries import DIMENSION, PACKAGE, enroll, staff, template
from tests.support.service import COLLINS, error_of


def unnamed(galleries: Galleries, seed: int, origin: Origin | None = None) -> tuple[str, str]:
    """Face id and subject id of a face that nobody named."""
    face = StoredFace("", template(seed), Quality(50, ()), Box(1, 2, 3, 4), origin=origin)
    made = galleries.enroll(galleries.store.gallery("staff"), unnamed_id(), [face])
    return made.faces[0].face_id, made.subject


def agree(*galleries: Galleries) -> bool:
    for server in galleries:
        server.indexes.follow()
    return all(check_index(server, server.store.gallery("staff")).ok for server in galleries)


def test_a_moved_face_keeps_its_key_and_the_log_says_so(pair: tuple[Galleries, Galleries], database_url: str) -> None:
    here, _ = pair
    made = enroll(here, "ann", 1)
    enroll(here, "bob", 2)
    store, home = here.store, staff(here)
    before = store.face(home, made.faces[0].face_id, "ann")
    changed(here, "staff", move_faces, [Move(before.face_id, "ann", "bob")])
    moved = store.face(home, before.face_id, "bob")
    assert np.array_equal(moved.template.vector, before.template.vector)
    assert replace(moved, template=before.template) == replace(before, subject="bob")
    assert log_of(database_url)[-1][2:] == ("move", store.subject(home, "bob").key, before.key)


def test_what_said_something_of_a_face_as_its_subjects_goes_when_it_moves(pair: tuple[Galleries, Galleries]) -> None:
    """Objections and dismissals refer to faces by their ids; a calibration's pairs, by their keys, stay."""
    here, _ = pair
    face = enroll(here, "ann", 1).faces[0].face_id
    other = enroll(here, "bob", 2).faces[0].face_id
    with here.store.database.write() as connection:
        values = {"gallery_key": staff(here).key, "kind": "one_person", "face_id": face, "other_face_id": other}
        connection.execute(sa.insert(DISMISSALS).values(values | {"created_at": "2026-01-01T00:00:00.000000Z"}))
    changed(here, "staff", move_faces, [Move(other, "bob", unnamed_id())])
    with here.store.database.read() as connection:
        assert connection.execute(sa.select(DISMISSALS)).all() == []


def test_moves_happen_together_or_not_at_all(pair: tuple[Galleries, Galleries]) -> None:
    here, other = pair
    ann = enroll(here, "ann", 1, 2)
    enroll(here, "bob", 3)
    ids = [face.face_id for face in ann.faces]
    for moves, code in (
        ([Move(ids[0], "ann", "bob"), Move(ids[1], "ann", "nobody")], "subject_not_found"),
        ([Move(ids[0], "ann", "bob"), Move("f" * 32, "ann", "bob")], "face_not_found"),
        ([Move(ids[0], "ann", "bob"), Move(ids[1], "bob", "ann")], "face_not_found"),
        ([Move(ids[0], "nobody", "bob")], "face_not_found"),
    ):
        with pytest.raises(NotFound) as caught:
            changed(here, "staff", move_faces, moves)
        assert caught.value.code == code
    assert (found(here, 1), found(here, 2)) == (["ann"], ["ann"])
    changed(here, "staff", move_faces, [Move(ids[0], "ann", "ann")])
    changed(here, "staff", move_faces, [])
    assert agree(here, other)


def recalled(galleries: Galleries, operation: str, token: str) -> tuple[bytes, str] | None:
    with galleries.store.database.read() as connection:
        return recall_answer(connection, staff(galleries), operation, token)


def test_an_answer_is_kept_with_the_change_that_it_speaks_of(pair: tuple[Galleries, Galleries]) -> None:
    here, other = pair

    def make(galleries: Galleries, subject: str, token: str, digest: bytes = b"digest") -> None:
        with galleries.change(galleries.store.gallery("staff")) as change:
            keep_answer(change, "CreateUser", token, digest, "{}")
            create_subject(change, subject)

    assert recalled(here, "CreateUser", "token") is None
    make(here, "ann", "token")
    with pytest.raises(AlreadyAnswered):
        make(other, "bob", "token", b"another")
    assert [person.id for person in here.store.subjects(staff(here), named=True).items] == ["ann"]
    assert recalled(other, "CreateUser", "token") == (b"digest", "{}")
    assert recalled(other, "DeleteUser", "token") is None
    with pytest.raises(Conflict):
        make(here, "ann", "failed")
    assert recalled(here, "CreateUser", "failed") is None, "what failed is not answered"


def again(galleries: Galleries, operation: str, verb: Callable[..., object], *args: object) -> None:
    with galleries.change(galleries.store.gallery("staff")) as change:
        keep_answer(change, operation, "token", b"digest", "{}")
        verb(change, *args)


def test_what_was_answered_is_not_done_again(pair: tuple[Galleries, Galleries]) -> None:
    here, other = pair
    written(here.store, staff(here), create_subject, "ann")
    face, owner = unnamed(here, 1)
    again(here, "AssociateFaces", move_faces, [Move(face, owner, "ann")])
    changed(here, "staff", move_faces, [Move(face, "ann", unnamed_id())])
    with pytest.raises(AlreadyAnswered):
        again(other, "AssociateFaces", move_faces, [Move(face, owner, "ann")])
    again(here, "DeleteUser", dissolve_subject, "ann")
    written(here.store, staff(here), create_subject, "ann")
    with pytest.raises(AlreadyAnswered):
        again(other, "DeleteUser", dissolve_subject, "ann")
    assert [person.id for person in here.store.subjects(staff(here), named=True).items] == ["ann"]
    assert count_people(here.store, staff(here)) == 1
    assert agree(here, other)


def test_any_order_of_moves_leaves_everybody_in_agreement(database_url: str) -> None:
    rng = random.Random(5)
    here, other = quiet(database_url), quiet(database_url)
    here.create_gallery("staff", PACKAGE, DIMENSION)
    owner: dict[str, str] = {}
    seeds: dict[str, int] = {}
    for name in ("ann", "bob"):
        written(here.store, staff(here), create_subject, name)
    for step in range(40):
        actor = rng.choice([here, other])
        kind = rng.choice(["enroll", "move", "loosen", "delete", "follow"]) if owner else "enroll"
        face = rng.choice(list(owner)) if owner else ""
        if kind == "enroll":
            face_id, subject = unnamed(actor, step)
            owner[face_id], seeds[face_id] = subject, step
        elif kind == "move":
            target = rng.choice(["ann", "bob"])
            changed(actor, "staff", move_faces, [Move(face, owner[face], target)])
            owner[face] = target
        elif kind == "loosen":
            target = unnamed_id()
            changed(actor, "staff", move_faces, [Move(face, owner[face], target)])
            owner[face] = target
        elif kind == "delete":
            assert changed(actor, "staff", delete_faces, [face]) == [face]
            del owner[face]
        else:
            actor.indexes.follow()
    assert agree(here, other)
    for galleries in (here, other):
        assert {face: found(galleries, seeds[face]) for face in owner} == {face: [who] for face, who in owner.items()}
        assert galleries.store.counts(staff(galleries)).faces == len(owner)
        galleries.close()
    with engine_of(database_url).connect() as connection:
        there = set(connection.execute(sa.select(SUBJECTS.c.id)).scalars())
    assert there == {"ann", "bob"} | set(owner.values())


def test_a_face_is_given_to_another_subject_over_http(api: httpx.Client, gallery: str) -> None:
    subjects = f"{gallery}/subjects"
    face = api.post(f"{subjects}/ann/faces", files={"images": COLLINS}).raise_for_status().json()["enrolled"][0]
    path = f"{subjects}/ann/faces/{face['face_id']}/move"
    error_of(api.post(path, json={"subject": "bob"}), 404, "subject_not_found")
    api.post(subjects, json={"id": "bob"}).raise_for_status()
    before = api.get(f"{subjects}/ann/faces/{face['face_id']}").json()
    assert api.post(path, json={"subject": "bob"}).raise_for_status().json() == before
    error_of(api.post(path, json={"subject": "bob"}), 404, "face_not_found")
    error_of(api.post(path.replace("/ann/", "/nobody/"), json={"subject": "bob"}), 404, "subject_not_found")
    (seen,) = api.post(f"{gallery}/identify", files={"image": COLLINS}).json()["faces"]
    assert [(candidate["subject"], candidate["face_id"]) for candidate in seen["candidates"]] == [
        ("bob", face["face_id"])
    ]
    assert [api.get(f"{subjects}/{name}").json()["face_count"] for name in ("ann", "bob")] == [0, 1]
    assert api.get(f"{gallery}/check").json()["ok"]
    crop = api.get(f"{subjects}/bob/faces/{face['face_id']}/crop")
    assert crop.headers["content-type"] == "image/jpeg"
