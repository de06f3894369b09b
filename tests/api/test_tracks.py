"""A track is one probe: several images of one person, decided once."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from likeness_client import Client
from PIL import Image

from app.api import schemas
from tests.support.live import LiveServer
from tests.support.service import AGAIN, COLLINS, HOPPER, SAMPLES, encoded, enroll, error_of

EMPTY = encoded(np.full((200, 300, 3), 90, np.uint8))


def dark(photo: bytes) -> bytes:
    """So dark that its quality is below the gate."""
    pixels = np.asarray(Image.open(io.BytesIO(photo)).convert("RGB").resize((256, 256)))
    return encoded((pixels * 0.05).astype(np.uint8))


def small(photo: bytes) -> bytes:
    """So small that its template is another, though of the same person."""
    return encoded(np.asarray(Image.open(io.BytesIO(photo)).convert("RGB").resize((64, 64)).resize((256, 256))))


def identified(api: httpx.Client, gallery: str, *images: bytes, **params: str) -> schemas.IdentifyAnswer:
    asked = {"track": "true", "explain": "true", **params}
    response = api.post(f"{gallery}/identify", files=[("image", image) for image in images], data=asked)
    return schemas.IdentifyAnswer.model_validate(response.raise_for_status().json())


def test_several_photos_of_one_person_are_decided_once(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS)
    enroll(api, gallery, "grace", HOPPER)
    single = api.post(f"{gallery}/identify", files={"image": AGAIN}).raise_for_status().json()["faces"][0]
    answer = identified(api, gallery, AGAIN, COLLINS, EMPTY)
    (face,) = answer.faces
    assert (face.decision, face.candidates[0].subject) == ("known", "eileen")
    assert answer.explain is not None
    assert answer.explain.track == [0, 1], "the third image shows nobody"
    assert face.threshold > single["threshold"], "two photos that differ"
    assert answer.fmr == pytest.approx(1e-4), "and still the rate of the whole track"
    embedded = [
        api.post("/v1/embed", files={"image": image}).json()["faces"][0]["embedding"] for image in (AGAIN, COLLINS)
    ]
    mean = np.mean(embedded, axis=0)
    assert face.candidates[0].score == pytest.approx(float(mean @ embedded[1] / np.linalg.norm(mean)), abs=1e-4)


def test_photos_below_the_quality_do_not_count(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS)
    with_it, without = identified(api, gallery, AGAIN, dark(COLLINS)), identified(api, gallery, AGAIN)
    assert with_it.explain is not None
    assert with_it.explain.track == [0]
    assert with_it.faces == without.faces
    assert identified(api, gallery, dark(COLLINS)).faces == []
    every = identified(api, gallery, AGAIN, dark(COLLINS), quality="none")
    assert every.explain is not None
    assert every.explain.track == [0, 1]


def test_one_photo_is_decided_as_without_a_track(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS)
    plain = api.post(f"{gallery}/identify", files={"image": AGAIN}).json()["faces"][0]
    (face,) = identified(api, gallery, AGAIN).faces
    assert face.threshold == pytest.approx(plain["threshold"], abs=1e-6)  # a template is of length 1 but for rounding
    assert face.candidates[0].score == pytest.approx(plain["candidates"][0]["score"], abs=1e-6)


def test_a_track_is_verified_and_comes_as_json_too(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", HOPPER, COLLINS, quality="none")
    images = [base64.b64encode(image).decode() for image in (AGAIN, COLLINS)]
    path = f"{gallery}/subjects/eileen/verify"
    verified = api.post(path, json={"image": images, "track": True, "explain": True}).raise_for_status().json()
    assert verified["decision"] == "known"
    assert verified["explain"]["track"] == [0, 1]
    none = api.post(path, json={"image": [base64.b64encode(dark(COLLINS)).decode()], "track": True})
    error_of(none, 422, "no_face")


def test_several_images_need_a_track(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS)
    for path in (f"{gallery}/identify", f"{gallery}/subjects/eileen/verify"):
        error_of(api.post(path, files=[("image", AGAIN), ("image", COLLINS)]), 422, "too_many_images")
    three = [("image1", AGAIN), ("image1", COLLINS), ("image2", COLLINS)]
    error_of(api.post("/v1/verify", files=three), 422, "too_many_images")


def test_two_tracks_are_compared_once(api: httpx.Client) -> None:
    images = [("image1", AGAIN), ("image1", dark(HOPPER)), ("image2", COLLINS), ("image2", AGAIN), ("image2", EMPTY)]
    asked = {"track": "true", "explain": "true"}
    answer = api.post("/v1/verify", files=images, data=asked).raise_for_status().json()
    assert answer["match"]
    assert [choice["track"] for choice in answer["explain"]["chosen"]] == [[0], [0, 1]]
    embedded = [
        api.post("/v1/embed", files={"image": photo}).json()["faces"][0]["embedding"] for photo in (AGAIN, COLLINS)
    ]
    mean = np.mean(embedded, axis=0)
    assert answer["score"] == pytest.approx(float(mean @ embedded[0] / np.linalg.norm(mean)), abs=1e-4)
    single = api.post("/v1/verify", files={"image1": AGAIN, "image2": COLLINS}).json()
    assert answer["threshold"] > single["threshold"], "a mean of photos that differ scores higher with everybody"
    other = api.post("/v1/verify", files=[("image1", HOPPER), *images[2:]], data=asked).raise_for_status().json()
    assert other["decision"] == "unknown"
    nobody = error_of(api.post("/v1/verify", files=[("image1", EMPTY), *images[2:]], data=asked), 422, "no_face")
    assert nobody["image"] == "image1"
    error_of(api.post("/v1/verify", files=images, data=asked | {"face1": "0"}), 422, "invalid_request")


def test_a_track_is_enrolled_with_one_decision_of_conflict(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS)
    path = f"{gallery}/subjects/grace/faces"
    asked = {"on_conflict": "reject", "quality": "low", "explain": "true"}

    def enrolled(*images: bytes, **more: str) -> httpx.Response:
        return api.post(path, files=[("images", image) for image in images], data=asked | more)

    rejected = error_of(enrolled(AGAIN, dark(AGAIN), track="true"), 422, "nothing_enrolled")["rejected"]
    assert [row["code"] for row in rejected] == ["face_conflict", "low_quality"]
    rejected = error_of(enrolled(EMPTY, small(AGAIN), small(AGAIN), track="true"), 422, "nothing_enrolled")["rejected"]
    assert rejected[2]["duplicate"]["index"] == 1, "the image's index, though the first image was not taken"
    mixed = enrolled(HOPPER, AGAIN).raise_for_status().json()
    assert [row["index"] for row in mixed["rejected"]] == [1], "one by one the second is Eileen"
    api.delete(f"{gallery}/subjects/grace").raise_for_status()
    warned = enrolled(AGAIN, COLLINS, track="true", on_conflict="warn").raise_for_status().json()
    assert {row["conflict"]["subject"] for row in warned["enrolled"]} == {"eileen"}
    assert len({row["conflict"]["score"] for row in warned["enrolled"]}) == 1, "that of the mean"
    assert warned["explain"]["track"] == [0, 1]


@pytest.mark.long
def test_the_client_and_the_command_send_tracks(shared_server: LiveServer) -> None:
    paths = [SAMPLES / "collins.jpg", SAMPLES / "collins_again.jpg"]
    with Client(shared_server.url, key=shared_server.key) as client:
        client.create_gallery("track")
        client.enroll("track", "eileen", [SAMPLES / "collins.jpg"])
        answer = client.identify("track", paths, track=True, explain=True)
        assert answer.explain is not None
        assert answer.explain.track == [0, 1]
        assert len(client.identify("track", paths[0]).faces) == 1
        assert len(client.identify("track", Path(paths[0]).read_bytes()).faces) == 1
        client.delete_gallery("track")
