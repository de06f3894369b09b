"""Corrections over HTTP: recorded by photo, counted by identify and verify, explained, deleted, exported."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.support.service import BOTH, COLLINS, HOPPER, covered, encoded, enrolled, error_of

SURE = {"confirm": True}
"""The photos here show the person, more or less."""


def identify(api: httpx.Client, gallery: str, image: bytes) -> tuple[str, list[str], list[Any]]:
    answer = api.post(f"{gallery}/identify", files={"image": image}, params={"explain": True}).raise_for_status().json()
    (face,) = answer["faces"]
    names = [candidate["subject"] for candidate in face["candidates"]]
    return face["decision"], names, answer["explain"]["ruled_out"][0]


def test_a_wrong_answer_is_not_given_again(api: httpx.Client, gallery: str) -> None:
    """Grace was enrolled with a photo that resembles Eileen's: a copy with noise, whose score is high but not 1."""
    enrolled(api, gallery, "grace", noisy(COLLINS, 1))
    assert identify(api, gallery, COLLINS)[:2] == ("known", ["grace"])
    made = api.post(f"{gallery}/subjects/grace/corrections", files={"image": COLLINS}, params=SURE)
    assert made.status_code == 201
    body = made.json()
    assert (body["subject"], body["has_crop"]) == ("grace", True)
    decision, names, ruled_out = identify(api, gallery, COLLINS)
    assert (decision, names) == ("unknown", [])
    (out,) = ruled_out
    assert (out["subject"], out["correction"]) == ("grace", body["id"])
    assert out["correction_score"] == pytest.approx(1, abs=1e-4)
    assert out["score"] < out["correction_score"]
    verified = (
        api.post(f"{gallery}/subjects/grace/verify", files={"image": COLLINS}, params={"explain": True})
        .raise_for_status()
        .json()
    )
    assert verified["match"] is False
    assert verified["score"] > verified["threshold"]
    assert [candidate["subject"] for candidate in verified["explain"]["ruled_out"][0]] == ["grace"]
    assert identify(api, gallery, noisy(COLLINS, 1))[:2] == ("known", ["grace"]), "grace's own photo is still hers"
    listed = api.get(f"{gallery}/subjects/grace/corrections").json()["corrections"]
    assert listed == [body]
    path = f"{gallery}/subjects/grace/corrections/{body['id']}"
    assert api.delete(path).status_code == 204
    error_of(api.delete(path), 404, "correction_not_found")
    assert identify(api, gallery, COLLINS)[:2] == ("known", ["grace"])


def test_a_face_without_landmarks_corrects_nothing(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "grace", HOPPER)
    refused = api.post(f"{gallery}/subjects/grace/corrections", files={"image": covered()}, params=SURE)
    error_of(refused, 422, "face_unalignable")


def noisy(photo: bytes, seed: int) -> bytes:
    pixels = np.array(Image.open(io.BytesIO(photo)).convert("RGB")).astype(np.int16)
    pixels += np.random.default_rng(seed).normal(0, 30, pixels.shape).astype(np.int16)
    return encoded(pixels.clip(0, 255).astype(np.uint8))


def test_the_next_candidate_is_the_answer(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "grace", noisy(COLLINS, 1))
    enrolled(api, gallery, "eileen", noisy(COLLINS, 2))
    _, names, _ = identify(api, gallery, COLLINS)
    first, second = names
    api.post(f"{gallery}/subjects/{first}/corrections", files={"image": COLLINS}, params=SURE).raise_for_status()
    assert identify(api, gallery, COLLINS)[:2] == ("known", [second])


def test_any_face_of_a_photo_can_be_meant(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "grace", HOPPER)
    found = api.post("/v1/detect", files={"image": BOTH}).json()["faces"]
    assert len(found) == 2
    path = f"{gallery}/subjects/grace/corrections"
    for face in (0, 1):
        api.post(path, files={"image": BOTH}, params=SURE | {"face": face}).raise_for_status()
    error_of(api.post(path, files={"image": BOTH}, params={"face": 2}), 422, "no_face")
    assert len(api.get(path).json()["corrections"]) == 2


def test_bad_requests_are_told_why(api: httpx.Client, gallery: str) -> None:
    path = f"{gallery}/subjects/nobody/corrections"
    error_of(api.post(path, files={"image": COLLINS}), 404, "subject_not_found")
    error_of(api.get(path), 404, "subject_not_found")
    enrolled(api, gallery, "nobody", COLLINS)
    error_of(api.post(path, files={"image": b"text"}), 415, "unsupported_image")
    past = SURE | {"expires_at": "2001-01-01T00:00:00Z"}
    error_of(api.post(path, files={"image": COLLINS}, params=past), 422, "invalid_expiry")
    made = api.post("/v1/keys", json={"scopes": ["read", "recognize"]}).json()
    error_of(api.post(path, files={"image": COLLINS}, headers={"x-api-key": made["secret"]}), 403, "missing_scope")
    api.delete(f"/v1/keys/{made['id']}")


def test_enroll_alone_does_not_learn_whom_a_photo_shows(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "eileen", COLLINS)
    api.patch(gallery, json={"on_conflict": "allow"}).raise_for_status()
    made = api.post("/v1/keys", json={"scopes": ["enroll"]}).raise_for_status().json()
    path, alone = f"{gallery}/subjects/eileen/corrections", {"x-api-key": made["secret"]}
    for photo in (COLLINS, HOPPER):
        answer = api.post(path, files={"image": photo}, headers=alone)
        assert error_of(answer, 403, "missing_scope")["scope"] == "recognize"
        assert api.post(path, files={"image": photo}, params=SURE, headers=alone).status_code == 201


def test_a_right_photo_is_recorded_only_on_purpose(api: httpx.Client, gallery: str) -> None:
    """It would make its person unknown."""
    enrolled(api, gallery, "eileen", COLLINS)
    path = f"{gallery}/subjects/eileen/corrections"
    error_of(api.post(path, files={"image": COLLINS}), 409, "correction_unlikely")
    assert api.get(path).json()["corrections"] == []
    assert identify(api, gallery, COLLINS)[0] == "known"
    assert api.post(path, files={"image": HOPPER}).status_code == 201, "anybody else's is taken at once"
    assert api.post(path, files={"image": COLLINS}, params=SURE).status_code == 201
