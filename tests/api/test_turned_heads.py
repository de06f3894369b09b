"""A head that is turned too far to be enrolled alone is enrolled beside a good photo that it matches."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.features.bulk.photo_import import PHOTOS_AT_ONCE
from app.recognition.operations import Operations
from app.types import Photo, Quality, Reason
from tests.support.service import AGAIN, COLLINS, HOPPER, enroll, error_of
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended

TURNED = Quality(25.0, (Reason.EXTREME_POSE, Reason.LOW_SCORE))


@pytest.fixture(autouse=True)
def _heads_are_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two photos show heads that are turned away, as far as their quality goes."""
    detect = Operations.detect

    def turned(self: Operations, image: bytes, *more: Any) -> Photo:
        photo = detect(self, image, *more)
        if image in {AGAIN, HOPPER}:
            photo = replace(photo, faces=tuple(replace(face, quality=TURNED) for face in photo.faces))
        return photo

    monkeypatch.setattr(Operations, "detect", turned)


def test_it_is_enrolled_beside_a_good_photo_of_the_same_request(api: httpx.Client, gallery: str) -> None:
    answer = enroll(api, gallery, "eileen", AGAIN, COLLINS, HOPPER).json()
    assert [row["index"] for row in answer["enrolled"]] == [0, 1]
    assert answer["enrolled"][0]["quality"]["reasons"] == ["extreme_pose", "low_score"]
    (refused,) = answer["rejected"]
    assert (refused["index"], refused["code"]) == (2, "low_quality")
    assert refused["reasons"] == ["extreme_pose", "low_score"]


def test_it_is_enrolled_beside_a_photo_that_the_subject_has(api: httpx.Client, gallery: str) -> None:
    error_of(enroll(api, gallery, "eileen", AGAIN), 422, "low_quality")
    assert enroll(api, gallery, "eileen", COLLINS).status_code == 201
    error_of(enroll(api, gallery, "eileen", HOPPER), 422, "low_quality")
    error_of(enroll(api, gallery, "eileen", AGAIN, quality="high"), 422, "low_quality")
    assert len(enroll(api, gallery, "eileen", AGAIN).json()["enrolled"]) == 1


@pytest.mark.long
def test_an_import_takes_it_beside_a_good_photo_of_its_folder(api: httpx.Client, gallery: str) -> None:
    """Before it or behind it, or enrolled before; a folder of sixteen photos and more is not parted."""
    many = {f"eileen/{number:02}.jpg": AGAIN for number in range(PHOTOS_AT_ONCE + 1)}
    upload = tar_of(
        {"grace/1.jpg": COLLINS, "grace/2.jpg": AGAIN, **many, "eileen/99.jpg": COLLINS, "hopper/1.jpg": HOPPER}
    )
    assert imported(api, gallery, upload) == (len(many) + 3, [("hopper/1.jpg", "low_quality")])
    alone = tar_of({"hopper/1.jpg": HOPPER, "grace/3.jpg": AGAIN, "other/1.jpg": AGAIN, "other/2.jpg": HOPPER})
    refused = ["hopper/1.jpg", "other/1.jpg", "other/2.jpg"]
    assert imported(api, gallery, alone) == (1, [(name, "low_quality") for name in refused])
    assert imported(api, gallery, alone, quality="high")[0] == 0


def imported(api: httpx.Client, gallery: str, upload: bytes, **query: str) -> tuple[int, list[tuple[str, str]]]:
    """Import photos; return how many were enrolled, and the others' names and codes."""
    headers, params = {"content-type": "application/x-tar"}, {"on_conflict": "allow", **query}
    answer = api.post(f"{gallery}/import", content=upload, headers=headers, params=params).raise_for_status()
    job = job_ended(api, answer.json()["id"])
    assert job["state"] == "done", job
    report = api.get(f"/v1/jobs/{job['id']}/report").raise_for_status().text
    return job["counts"].get("enrolled", 0), [
        (line["name"], line["code"]) for line in map(json.loads, report.splitlines()) if not line["enrolled"]
    ]


def test_a_wrong_answer_for_a_turned_head_is_corrected_with_it(api: httpx.Client, gallery: str) -> None:
    """A correction takes a photo of any quality: poor ones are taken for others more often."""
    assert enroll(api, gallery, "grace", COLLINS).status_code == 201
    answer = api.post(f"{gallery}/identify", files={"image": AGAIN}).raise_for_status().json()
    assert answer["faces"][0]["candidates"][0]["subject"] == "grace"
    corrections = f"{gallery}/subjects/grace/corrections"
    api.post(corrections, files={"image": AGAIN}, params={"confirm": True}).raise_for_status()
    answer = api.post(f"{gallery}/identify", files={"image": AGAIN}).raise_for_status().json()
    assert (answer["faces"][0]["decision"], answer["faces"][0]["candidates"]) == ("unknown", [])
    error_of(enroll(api, gallery, "eileen", AGAIN), 422, "low_quality")


def test_who_may_only_enroll_does_not_learn_whether_it_matches_the_subject(api: httpx.Client, gallery: str) -> None:
    name = gallery.rsplit("/", 1)[-1]
    made = api.post("/v1/keys", json={"scopes": ["enroll"], "galleries": [name]}).raise_for_status().json()
    key = made["secret"]
    assert enroll(api, gallery, "eileen", COLLINS, key=key).status_code == 201
    error_of(enroll(api, gallery, "eileen", AGAIN, key=key), 422, "low_quality")
    both = enroll(api, gallery, "eileen", COLLINS, AGAIN, key=key).json()
    assert len(both["enrolled"]) == 2, "that photo is the caller's own"


@pytest.mark.parametrize("other", [Reason.LOW_SHARPNESS, Reason.SMALL_FACE, Reason.CUT_OFF])
def test_a_face_that_is_poor_in_another_way_is_refused(
    api: httpx.Client, gallery: str, other: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.TURNED", Quality(25.0, (Reason.EXTREME_POSE, other)))
    answer = enroll(api, gallery, "eileen", AGAIN, COLLINS).json()
    assert [row["index"] for row in answer["enrolled"]] == [1]
