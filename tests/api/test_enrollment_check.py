"""Enrolling looks before it adds: the same photo, and somebody else's face, through the whole service."""

from __future__ import annotations

import io

import httpx
import pytest
from PIL import Image

from app.recognition.duplicates import DUPLICATE_SCORE
from tests.support.service import AGAIN, COLLINS, HOPPER, enroll, enrolled, error_of


def saved_again(photo: bytes, scale: float = 1.0) -> bytes:
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    file = io.BytesIO()
    image.resize((round(image.width * scale), round(image.height * scale))).save(file, "JPEG", quality=70)
    return file.getvalue()


def test_a_first_photo_and_another_persons_or_one_of_who_was_deleted_are_nobodys_double(
    api: httpx.Client, gallery: str
) -> None:
    faces = enrolled(api, gallery, "eileen", COLLINS) + enrolled(api, gallery, "grace", HOPPER)
    api.delete(f"{gallery}/subjects/eileen").raise_for_status()
    faces += enrolled(api, gallery, "new", COLLINS)
    assert [(face["duplicate"], face["conflict"]) for face in faces] == [(None, None)] * 3


@pytest.mark.parametrize("scale", [0.75, 1.0])
def test_the_same_photo_saved_again_is_a_duplicate(api: httpx.Client, gallery: str, scale: float) -> None:
    (first,) = enrolled(api, gallery, "eileen", COLLINS)
    (again,) = enrolled(api, gallery, "eileen", saved_again(COLLINS, scale))
    assert again["conflict"] is None
    assert (again["duplicate"]["subject"], again["duplicate"]["face_id"]) == ("eileen", first["face_id"])
    assert DUPLICATE_SCORE <= again["duplicate"]["score"] <= 1
    assert again["duplicate"]["score"] == round(again["duplicate"]["score"], 2), "no finer than decisions need"
    assert again["duplicate"]["index"] is None


def test_one_persons_photo_under_anothers_name_is_a_conflict(api: httpx.Client, gallery: str) -> None:
    api.post(f"{gallery}/subjects", json={"id": "eileen", "name": "Eileen Collins"})
    (first,) = enrolled(api, gallery, "eileen", COLLINS)
    (wrong,) = enrolled(api, gallery, "grace", COLLINS)
    assert wrong["conflict"] == wrong["duplicate"]
    found = wrong["conflict"]
    assert (found["subject"], found["name"], found["face_id"]) == ("eileen", "Eileen Collins", first["face_id"])
    assert api.get(gallery).json()["faces"] == 2, "a warning stops nothing"


def test_photos_of_one_request_are_compared_with_each_other(api: httpx.Client, gallery: str) -> None:
    first, other, again = enrolled(api, gallery, "eileen", COLLINS, HOPPER, saved_again(COLLINS))
    assert [first["duplicate"], other["duplicate"]] == [None, None]
    assert (again["duplicate"]["index"], again["duplicate"]["face_id"]) == (0, first["face_id"])


def test_a_photo_that_looks_like_none_of_its_subjects_is_unlike(api: httpx.Client, gallery: str) -> None:
    (first,) = enrolled(api, gallery, "eileen", COLLINS)
    (second,) = enrolled(api, gallery, "eileen", AGAIN)
    (right,) = enrolled(api, gallery, "eileen", saved_again(AGAIN))
    (wrong,) = enrolled(api, gallery, "eileen", HOPPER)
    assert "unlike" not in first | second | right
    found = wrong["unlike"]
    assert (found["subject"], found["index"], found["score"]) == ("eileen", None, None), "below the floor"
    assert found["face_id"] in {first["face_id"], second["face_id"], right["face_id"]}
    assert api.get(gallery).json()["faces"] == 4, "a warning stops nothing"
    assert "unlike" not in enrolled(api, gallery, "eileen", HOPPER, on_conflict="allow")[0]


def test_of_two_faces_of_a_subject_either_may_be_the_wrong_one(api: httpx.Client, gallery: str) -> None:
    (first,) = enrolled(api, gallery, "eileen", COLLINS)
    (wrong,) = enrolled(api, gallery, "eileen", HOPPER)
    (last,) = enrolled(api, gallery, "eileen", AGAIN)
    assert "unlike" not in first | wrong | last


def test_photos_of_one_request_may_be_unlike_each_other(api: httpx.Client, gallery: str) -> None:
    first, again, wrong = enrolled(api, gallery, "eileen", COLLINS, AGAIN, HOPPER)
    assert "unlike" not in first | again
    assert (wrong["unlike"]["face_id"], wrong["unlike"]["index"]) in {(first["face_id"], 0), (again["face_id"], 1)}


def test_rejected_faces_are_listed_with_whom_they_resemble(api: httpx.Client, gallery: str) -> None:
    (first,) = enrolled(api, gallery, "eileen", COLLINS)
    answer = enroll(api, gallery, "grace", HOPPER, COLLINS, saved_again(HOPPER), on_conflict="reject")
    body = answer.raise_for_status().json()
    assert [row["index"] for row in body["enrolled"]] == [0]
    assert [(row["index"], row["code"]) for row in body["rejected"]] == [(1, "face_conflict"), (2, "duplicate_face")]
    conflict, duplicate = body["rejected"]
    assert (conflict["conflict"]["subject"], conflict["conflict"]["face_id"]) == ("eileen", first["face_id"])
    assert (duplicate["duplicate"]["index"], duplicate["duplicate"]["face_id"]) == (0, body["enrolled"][0]["face_id"])
    assert api.get(gallery).json()["faces"] == 2


def test_when_all_are_rejected_nothing_changes(api: httpx.Client, gallery: str) -> None:
    (first,) = enrolled(api, gallery, "eileen", COLLINS)
    details = error_of(enroll(api, gallery, "nobody", COLLINS, on_conflict="reject"), 422, "face_conflict")
    assert (details["subject"], details["face_id"]) == ("eileen", first["face_id"])
    (row,) = details["rejected"]
    assert row["conflict"]["subject"] == "eileen"
    error_of(enroll(api, gallery, "eileen", COLLINS, on_conflict="reject"), 422, "duplicate_face")
    error_of(api.get(f"{gallery}/subjects/nobody"), 404, "subject_not_found")


def test_the_gallery_says_what_happens_and_a_call_may_say_otherwise(api: httpx.Client, gallery: str) -> None:
    assert api.get(gallery).json()["on_conflict"] == "warn"
    enrolled(api, gallery, "eileen", COLLINS)
    assert api.patch(gallery, json={"on_conflict": "reject"}).json()["on_conflict"] == "reject"
    assert api.get(gallery).json()["search"] == "fp32", "what isn't given stays"
    error_of(enroll(api, gallery, "grace", COLLINS), 422, "face_conflict")
    (row,) = enrolled(api, gallery, "grace", COLLINS, on_conflict="allow")
    assert (row["duplicate"], row["conflict"]) == (None, None)
    made = api.post("/v1/galleries", json={"id": "lax", "on_conflict": "allow"}).json()
    assert made["on_conflict"] == "allow"
    for _ in range(2):
        (row,) = enrolled(api, "/v1/galleries/lax", "eileen", COLLINS)
        assert (row["duplicate"], row["conflict"]) == (None, None)
    assert "search" not in enroll(api, "/v1/galleries/lax", "a", COLLINS, explain=True).json()["explain"]["stages"]
    api.delete("/v1/galleries/lax")
    error_of(api.patch(gallery, json={"on_conflict": "never"}), 422, "invalid_request")


def secret_of(api: httpx.Client, *scopes: str) -> str:
    made = api.post("/v1/keys", json={"scopes": scopes}).raise_for_status().json()
    return str(made["secret"])


def test_a_key_that_may_not_recognize_learns_only_that_there_is_somebody(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "eileen", COLLINS, AGAIN)
    alone = secret_of(api, "enroll")
    answer = enroll(api, gallery, "grace", COLLINS, key=alone, on_conflict="reject")
    assert "eileen" not in answer.text
    error_of(answer, 422, "face_conflict")
    (row,) = enrolled(api, gallery, "grace", COLLINS, key=alone)
    assert row["conflict"] == dict.fromkeys(("subject", "name", "face_id", "score", "index"))
    (row,) = enrolled(api, gallery, "eileen", HOPPER, key=alone)
    assert "unlike" not in row


def test_enroll_alone_does_not_learn_who_is_there_where_the_gallery_allows_all(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "eileen", COLLINS)
    alone, both = secret_of(api, "enroll"), secret_of(api, "enroll", "recognize")

    def ask(key: str, policy: str) -> httpx.Response:
        return enroll(api, gallery, "grace", COLLINS, key=key, on_conflict=policy)

    error_of(ask(alone, "reject"), 422, "face_conflict")
    api.patch(gallery, json={"on_conflict": "allow"}).raise_for_status()
    for policy in ("reject", "warn"):
        assert error_of(ask(alone, policy), 403, "missing_scope")["scope"] == "recognize"
    error_of(ask(both, "reject"), 422, "face_conflict")
    ask(alone, "allow").raise_for_status()
