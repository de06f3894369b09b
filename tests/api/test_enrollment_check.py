"""Enrolling looks before it adds: the same photo, and somebody else's face, through the whole service."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
from PIL import Image

from app.recognition.duplicate_check import DUPLICATE_SCORE
from tests.support.service import AGAIN, COLLINS, HOPPER, error_of


def saved_again(photo: bytes, scale: float = 1.0) -> bytes:
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    file = io.BytesIO()
    image.resize((round(image.width * scale), round(image.height * scale))).save(file, "JPEG", quality=70)
    return file.getvalue()


def enroll(api: httpx.Client, gallery: str, subject: str, *images: bytes, **params: Any) -> httpx.Response:
    files = [("images", image) for image in images]
    return api.post(f"{gallery}/subjects/{subject}/faces", files=files, params={"quality": "none", **params})


def rows(answer: httpx.Response) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer.raise_for_status().json()["enrolled"]
    return found


def test_a_first_photo_and_another_person_are_nobodys_double(api: httpx.Client, gallery: str) -> None:
    (first,) = rows(enroll(api, gallery, "eileen", COLLINS))
    (other,) = rows(enroll(api, gallery, "grace", HOPPER))
    assert [first["duplicate"], first["conflict"], other["duplicate"], other["conflict"]] == [None] * 4


@pytest.mark.parametrize("scale", [0.75, 1.0])
def test_the_same_photo_saved_again_is_a_duplicate(api: httpx.Client, gallery: str, scale: float) -> None:
    (first,) = rows(enroll(api, gallery, "eileen", COLLINS))
    (again,) = rows(enroll(api, gallery, "eileen", saved_again(COLLINS, scale)))
    assert again["conflict"] is None
    assert (again["duplicate"]["subject"], again["duplicate"]["face_id"]) == ("eileen", first["face_id"])
    assert DUPLICATE_SCORE <= again["duplicate"]["score"] <= 1
    assert again["duplicate"]["score"] == round(again["duplicate"]["score"], 2), "no finer than decisions need"
    assert again["duplicate"]["index"] is None


def test_one_persons_photo_under_anothers_name_is_a_conflict(api: httpx.Client, gallery: str) -> None:
    api.post(f"{gallery}/subjects", json={"id": "eileen", "name": "Eileen Collins"})
    (first,) = rows(enroll(api, gallery, "eileen", COLLINS))
    (wrong,) = rows(enroll(api, gallery, "grace", COLLINS))
    assert wrong["conflict"] == wrong["duplicate"]
    found = wrong["conflict"]
    assert (found["subject"], found["name"], found["face_id"]) == ("eileen", "Eileen Collins", first["face_id"])
    assert api.get(gallery).json()["faces"] == 2, "a warning stops nothing"


def test_photos_of_one_request_are_compared_with_each_other(api: httpx.Client, gallery: str) -> None:
    first, other, again = rows(enroll(api, gallery, "eileen", COLLINS, HOPPER, saved_again(COLLINS)))
    assert [first["duplicate"], other["duplicate"]] == [None, None]
    assert (again["duplicate"]["index"], again["duplicate"]["face_id"]) == (0, first["face_id"])


def test_a_photo_that_looks_like_none_of_its_subjects_is_unlike(api: httpx.Client, gallery: str) -> None:
    (first,) = rows(enroll(api, gallery, "eileen", COLLINS))
    (second,) = rows(enroll(api, gallery, "eileen", AGAIN))
    (right,) = rows(enroll(api, gallery, "eileen", saved_again(AGAIN)))
    (wrong,) = rows(enroll(api, gallery, "eileen", HOPPER))
    assert "unlike" not in first | second | right
    found = wrong["unlike"]
    assert (found["subject"], found["index"], found["score"]) == ("eileen", None, None), "below the floor"
    assert found["face_id"] in {first["face_id"], second["face_id"], right["face_id"]}
    assert api.get(gallery).json()["faces"] == 4, "a warning stops nothing"


def test_of_two_faces_of_a_subject_either_may_be_the_wrong_one(api: httpx.Client, gallery: str) -> None:
    (first,) = rows(enroll(api, gallery, "eileen", COLLINS))
    (wrong,) = rows(enroll(api, gallery, "eileen", HOPPER))
    (last,) = rows(enroll(api, gallery, "eileen", AGAIN))
    assert "unlike" not in first | wrong | last


def test_photos_of_one_request_may_be_unlike_each_other(api: httpx.Client, gallery: str) -> None:
    one, again, wrong = rows(enroll(api, gallery, "eileen", COLLINS, AGAIN, HOPPER))
    assert "unlike" not in one | again
    assert (wrong["unlike"]["face_id"], wrong["unlike"]["index"]) in {(one["face_id"], 0), (again["face_id"], 1)}


def test_whether_a_photo_is_unlike_is_not_said_without_recognize_nor_without_a_look(
    api: httpx.Client, gallery: str
) -> None:
    rows(enroll(api, gallery, "eileen", COLLINS, AGAIN))
    key = api.post("/v1/keys", json={"scopes": ["enroll"]}).raise_for_status().json()["secret"]
    files = {"headers": {"x-api-key": key}, "files": {"images": HOPPER}}
    url = f"{gallery}/subjects/eileen/faces?quality=none"
    assert "unlike" not in rows(api.post(url, **files))[0]  # type: ignore[arg-type]
    assert "unlike" not in rows(enroll(api, gallery, "eileen", HOPPER, on_conflict="allow"))[0]


def test_rejected_faces_are_listed_with_whom_they_resemble(api: httpx.Client, gallery: str) -> None:
    (first,) = rows(enroll(api, gallery, "eileen", COLLINS))
    answer = enroll(api, gallery, "grace", HOPPER, COLLINS, saved_again(HOPPER), on_conflict="reject")
    body = answer.raise_for_status().json()
    assert [row["index"] for row in body["enrolled"]] == [0]
    assert [(row["index"], row["code"]) for row in body["rejected"]] == [(1, "face_conflict"), (2, "duplicate_face")]
    conflict, duplicate = body["rejected"]
    assert (conflict["conflict"]["subject"], conflict["conflict"]["face_id"]) == ("eileen", first["face_id"])
    assert (duplicate["duplicate"]["index"], duplicate["duplicate"]["face_id"]) == (0, body["enrolled"][0]["face_id"])
    assert api.get(gallery).json()["faces"] == 2


def test_when_all_are_rejected_nothing_changes(api: httpx.Client, gallery: str) -> None:
    (first,) = rows(enroll(api, gallery, "eileen", COLLINS))
    details = error_of(enroll(api, gallery, "nobody", COLLINS, on_conflict="reject"), 422, "face_conflict")
    assert (details["subject"], details["face_id"]) == ("eileen", first["face_id"])
    (row,) = details["rejected"]
    assert row["conflict"]["subject"] == "eileen"
    error_of(enroll(api, gallery, "eileen", COLLINS, on_conflict="reject"), 422, "duplicate_face")
    error_of(api.get(f"{gallery}/subjects/nobody"), 404, "subject_not_found")


def test_the_gallery_says_what_happens_and_a_call_may_say_otherwise(api: httpx.Client, gallery: str) -> None:
    assert api.get(gallery).json()["on_conflict"] == "warn"
    enroll(api, gallery, "eileen", COLLINS).raise_for_status()
    assert api.patch(gallery, json={"on_conflict": "reject"}).json()["on_conflict"] == "reject"
    assert api.get(gallery).json()["search"] == "fp32", "what isn't given stays"
    error_of(enroll(api, gallery, "grace", COLLINS), 422, "face_conflict")
    (row,) = rows(enroll(api, gallery, "grace", COLLINS, on_conflict="allow"))
    assert (row["duplicate"], row["conflict"]) == (None, None)
    made = api.post("/v1/galleries", json={"id": "lax", "on_conflict": "allow"}).json()
    assert made["on_conflict"] == "allow"
    for _ in range(2):
        (row,) = rows(enroll(api, "/v1/galleries/lax", "eileen", COLLINS))
        assert (row["duplicate"], row["conflict"]) == (None, None)
    assert "search" not in enroll(api, "/v1/galleries/lax", "a", COLLINS, explain=True).json()["explain"]["stages"]
    api.delete("/v1/galleries/lax")
    error_of(api.patch(gallery, json={"on_conflict": "never"}), 422, "invalid_request")


def test_a_key_that_may_not_recognize_learns_only_that_there_is_somebody(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS).raise_for_status()
    made = api.post("/v1/keys", json={"scopes": ["enroll"]}).json()
    headers = {"x-api-key": made["secret"]}
    path = f"{gallery}/subjects/grace/faces"
    answer = api.post(path, files={"images": COLLINS}, params={"on_conflict": "reject"}, headers=headers)
    assert "eileen" not in answer.text
    error_of(answer, 422, "face_conflict")
    (row,) = rows(api.post(path, files={"images": COLLINS}, headers=headers))
    assert row["conflict"] == dict.fromkeys(("subject", "name", "face_id", "score", "index"))
    api.delete(f"/v1/keys/{made['id']}")


def test_an_expired_or_deleted_subject_is_nobodys_double(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS).raise_for_status()
    api.delete(f"{gallery}/subjects/eileen").raise_for_status()
    (row,) = rows(enroll(api, gallery, "grace", COLLINS))
    assert (row["duplicate"], row["conflict"]) == (None, None)


def test_enroll_alone_does_not_learn_who_is_there_where_the_gallery_allows_all(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS).raise_for_status()
    secrets = [
        api.post("/v1/keys", json={"scopes": scopes}).raise_for_status().json()["secret"]
        for scopes in (["enroll"], ["enroll", "recognize"])
    ]
    alone, both = ({"x-api-key": secret} for secret in secrets)
    where = f"{gallery}/subjects/grace/faces"

    def ask(headers: dict[str, str], policy: str) -> httpx.Response:
        return api.post(where, files={"images": COLLINS}, params={"on_conflict": policy}, headers=headers)

    error_of(ask(alone, "reject"), 422, "face_conflict")
    api.patch(gallery, json={"on_conflict": "allow"}).raise_for_status()
    for policy in ("reject", "warn"):
        assert error_of(ask(alone, policy), 403, "missing_scope")["scope"] == "recognize"
    error_of(ask(both, "reject"), 422, "face_conflict")
    ask(alone, "allow").raise_for_status()
