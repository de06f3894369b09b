"""Solving for enrolled templates by scores of chosen vectors: without the scope `templates`, and with it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from likeness_client import Client
from PIL import Image

from app.features.similarity import Similarity
from app.package.folders import load_package
from app.package.manifest import Manifest
from app.package.thresholds import Thresholds, fmr_for
from app.recognition.decisions import AnsweredScores
from tests.conftest import PROJECT
from tests.support.live import LiveServer
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, encoded, running

RECOGNITION = "/api/v1/recognition"
EMBEDDINGS = f"{RECOGNITION}/embeddings"
PEOPLE = {"Eileen": COLLINS, "Grace": HOPPER}
DIMENSION = 128
UNITS = np.eye(DIMENSION)
MANIFESTS = [load_package(PROJECT / "models" / name).manifest for name in ("sface", "sface-slim")]


def key_of(client: httpx.Client, *scopes: str, **terms: str) -> dict[str, str]:
    made = client.post("/v1/keys", json={"scopes": scopes, **terms}).raise_for_status().json()
    return {"x-api-key": made["secret"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("extraction"), vector_rate="600/m:128") as client:
        for subject, photo in PEOPLE.items():
            client.post(f"{RECOGNITION}/faces", params={"subject": subject}, files={"file": photo}).raise_for_status()
        yield client


def template(client: httpx.Client, photo: bytes) -> np.ndarray[Any, Any]:
    found = client.post("/v1/embed", files={"image": photo}).raise_for_status().json()
    return np.array(found["faces"][0]["embedding"])


def ask(client: httpx.Client, key: dict[str, str], vectors: np.ndarray[Any, Any]) -> httpx.Response:
    return client.post(
        f"{EMBEDDINGS}/recognize",
        params={"prediction_count": 1000},
        json={"embeddings": vectors.tolist()},
        headers=key,
    )


def test_unit_vectors_show_no_template(server: httpx.Client) -> None:
    """One request of 128 unit vectors gave every template to a `recognize` key (cosine 1.0)."""
    every = key_of(server, "read", "recognize", "enroll", "admin")
    refused = ask(server, every, UNITS)
    assert (refused.status_code, refused.json()["code"]) == (403, 1)
    key = key_of(server, "templates")
    answered = ask(server, key, UNITS).raise_for_status().json()["result"]
    assert [row["similarities"] for row in answered] == [[{"subject": "unknown", "similarity": 0.0}]] * DIMENSION


def test_a_face_is_no_oracle(server: httpx.Client) -> None:
    image_id = server.get(f"{RECOGNITION}/faces").json()["faces"][0]["image_id"]
    path, body = f"{EMBEDDINGS}/faces/{image_id}/verify", {"embeddings": UNITS.tolist()}
    refused = server.post(path, json=body, headers=key_of(server, "recognize", "enroll", "admin"))
    assert (refused.status_code, refused.json()["code"]) == (403, 1)
    answered = server.post(path, json=body, headers=key_of(server, "templates")).raise_for_status().json()
    assert {row["similarity"] for row in answered["result"]} == {0.0}


def test_vectors_are_limited(server: httpx.Client) -> None:
    key = key_of(server, "templates")
    too_many = ask(server, key, np.ones((129, DIMENSION)))
    assert (too_many.status_code, too_many.json()["code"]) == (400, 26)
    assert ask(server, key, UNITS).is_success
    waiting = ask(server, key, UNITS)
    assert waiting.status_code == 429
    assert 1 <= int(waiting.headers["retry-after"]) <= 13


def test_the_own_embedding_still_finds_its_subject(server: httpx.Client) -> None:
    key = key_of(server, "templates")
    (found,) = ask(server, key, template(server, AGAIN)[None]).raise_for_status().json()["result"]
    assert [similarity["subject"] for similarity in found["similarities"]] == ["Eileen"]
    assert found["similarities"][0]["similarity"] > 0.9


def test_a_photo_of_one_person_many_times_shows_one_score(server: httpx.Client) -> None:
    """Twelve faces of one person in a photo gave twelve scores of that person.

    Every face is named. All but the best one's score is the threshold of an operating point.
    """
    once = np.asarray(Image.open(io.BytesIO(AGAIN)).convert("RGB"))
    darker = [(once * share).astype(np.uint8) for share in (1.0, 0.8, 0.6)]
    photo = encoded(np.hstack(darker))
    key = key_of(server, "recognize")
    answer = server.post(f"{RECOGNITION}/recognize", files={"file": photo}, params={"prediction_count": 5}, headers=key)
    faces = answer.raise_for_status().json()["result"]
    assert len(faces) == 3
    assert [face["subjects"][0]["subject"] for face in faces] == ["Eileen"] * 3
    found = [SCALE.cosine_of(face["subjects"][0]["similarity"]) for face in faces]
    points = [any(score == pytest.approx(point, abs=1e-3) for point in SCORES.thresholds) for score in found]
    assert points.count(False) <= 1, found
    assert all(coarse(score) for score in found), found


def answered_numbers(answer: Any) -> Iterator[float]:
    """Every score of an enrolled face in an answer of any protocol, as a cosine."""
    if isinstance(answer, list):
        for item in answer:
            yield from answered_numbers(item)
    elif isinstance(answer, dict):
        for name, value in answer.items():
            if "subject" in answer and name in {"score", "template_score"} and value is not None:
                yield value
            elif name == "similarity":
                yield SCALE.cosine_of(value)
            elif name in {"Similarity", "Confidence"} and "BoundingBox" not in answer:
                yield SCALE.cosine_of(value / 100)
            else:
                yield from answered_numbers(value)


def coarse(score: float) -> bool:
    """Whether it is a step, or the threshold of an operating point or of the request."""
    steps = [round(score, 2), *SCORES.thresholds, *ASKED]
    return min(abs(score - step) for step in steps) < 1e-3  # similarities have 5 decimals, and are rounded down


SCORES = AnsweredScores.of(Thresholds(MANIFESTS[0]))
SCALE = Similarity.of(Thresholds(MANIFESTS[0]))
ASKED = [Thresholds(MANIFESTS[0]).threshold(fmr_for(0.01, 2)), SCALE.cosine_of(0.85)]
PHOTOS = {"again": AGAIN, "both": BOTH}


def ask_by_photo(client: httpx.Client, key: dict[str, str], call: str, photo: bytes) -> httpx.Response:
    """The answer of one of the calls that compare a photo with enrolled faces."""
    gallery = "/v1/galleries/default"
    image: dict[str, Any] = {"content": photo, "headers": key | {"content-type": "image/jpeg"}}
    if call == "identify":
        answer = client.post(f"{gallery}/identify?explain=true&limit=100", **image)
    elif call == "verify_subject":
        answer = client.post(f"{gallery}/subjects/Eileen/verify?explain=true", **image)
    elif call == "recognize":
        answer = client.post(
            f"{RECOGNITION}/recognize", params={"prediction_count": 9}, files={"file": photo}, headers=key
        )
    else:
        face = client.get(f"{RECOGNITION}/faces").json()["faces"][0]["image_id"]
        answer = client.post(f"{RECOGNITION}/faces/{face}/verify", files={"file": photo}, headers=key)
    return answer


BY_PHOTO = ["identify", "verify_subject", "recognize", "verify_face"]


@pytest.mark.parametrize("call", ["identify", "recognize", "verify_face"])
def test_rates_count_faces(server: httpx.Client, call: str) -> None:
    waits = []
    for photo in (COLLINS, BOTH):
        key = key_of(server, "recognize", rate="1/m:1")
        ask_by_photo(server, key, call, photo).raise_for_status()
        again = ask_by_photo(server, key, call, photo)
        assert again.status_code == 429
        waits.append(int(again.headers["retry-after"]))
    assert waits[1] > waits[0]


def numbers_of(client: httpx.Client, key: dict[str, str], call: str) -> list[float]:
    answers = [ask_by_photo(client, key, call, photo).raise_for_status().json() for photo in PHOTOS.values()]
    return list(answered_numbers(answers))


@pytest.mark.parametrize("call", BY_PHOTO)
def test_scores_of_photos_are_coarse_unless_the_key_may_have_the_templates(server: httpx.Client, call: str) -> None:
    exact_key, key = key_of(server, "recognize", "templates"), key_of(server, "recognize", "admin")
    exact, found = numbers_of(server, exact_key, call), numbers_of(server, key, call)
    assert not all(coarse(score) for score in exact)
    assert min(exact) < SCORES.floor
    assert found
    assert all(coarse(score) and (score >= SCORES.floor or score == -1) for score in found), found


def test_decisions_are_the_same_for_every_key(server: httpx.Client) -> None:
    keys = key_of(server, "recognize", "templates"), key_of(server, "recognize")
    for photo in PHOTOS.values():
        exact, found = (ask_by_photo(server, key, "identify", photo).json() for key in keys)
        assert [face["decision"] for face in exact["faces"]] == [face["decision"] for face in found["faces"]]
        for shown, other in zip(exact["faces"], found["faces"], strict=True):
            subjects = [candidate["subject"] for candidate in other["candidates"]]
            assert subjects == [candidate["subject"] for candidate in shown["candidates"]][: len(subjects)]
            best = other["candidates"][0]["score"]
            assert (best >= other["threshold"]) == (other["decision"] == "known")
            assert other["margin"] is None, "nobody else comes near"


def test_below_the_floor_there_is_no_score(server: httpx.Client) -> None:
    key = key_of(server, "recognize")
    answer = server.post(
        "/v1/galleries/default/subjects/Grace/verify?explain=true", files={"image": AGAIN}, headers=key
    ).raise_for_status()
    assert (answer.json()["match"], answer.json()["score"], answer.json()["template_score"]) == (False, None, None)
    (nearest,) = answer.json()["explain"]["nearest_other"]
    assert (nearest["subject"], coarse(nearest["score"])) == ("Eileen", True)


def test_rekognition_answers_coarse_scores(shared_server: LiveServer) -> None:
    pytest.importorskip("boto3", reason="the dev extra brings boto3")
    from tests.support import aws  # noqa: PLC0415 (which needs boto3)

    within: dict[str, Any] = {"CollectionId": "people"}
    image, found = {"Bytes": AGAIN}, dict[bool, list[float]]()
    with Client(shared_server.url, shared_server.key) as admin:
        admin.create_gallery("people")
        for exact in (True, False):
            made = admin.create_key(["recognize", "read", "enroll", *(["templates"] if exact else [])], aws=True)
            rekognition = aws.client(shared_server.url, made.aws_access_key_id, made.aws_secret_access_key)
            if exact:
                eileen, grace = (
                    rekognition.index_faces(**within, Image={"Bytes": photo})["FaceRecords"][0]["Face"]["FaceId"]
                    for photo in (COLLINS, HOPPER)
                )
                rekognition.create_user(**within, UserId="Eileen")
                rekognition.associate_faces(**within, UserId="Eileen", FaceIds=[eileen])
            strict = rekognition.search_faces_by_image(**within, Image=image, FaceMatchThreshold=85)
            assert [match["Similarity"] >= 85 for match in strict["FaceMatches"]] == [True]
            answers = [
                strict,
                rekognition.search_faces_by_image(**within, Image=image, FaceMatchThreshold=0),
                rekognition.search_faces(**within, FaceId=eileen, FaceMatchThreshold=0),
                rekognition.search_users_by_image(**within, Image=image, UserMatchThreshold=0),
                rekognition.search_users(**within, FaceId=grace, UserMatchThreshold=0),
                rekognition.associate_faces(**within, UserId="Eileen", FaceIds=[grace], UserMatchThreshold=100),
            ]
            found[exact] = [score for answer in answers for score in answered_numbers(answer)]
    assert min(found[True]) < SCORES.floor
    assert not all(coarse(score) for score in found[True])
    assert found[False]
    assert all(coarse(score) and (score >= SCORES.floor or score == -1) for score in found[False]), found[False]


def test_photos_show_no_template() -> None:
    """What the scores of 300 photos give away: exact ones the template, answered ones nothing but who is near.

    Random directions stand for photos of different people, whose scores are as low.
    """
    rng = np.random.default_rng(3)
    photos = rng.standard_normal((300, DIMENSION))
    photos /= np.linalg.norm(photos, axis=1, keepdims=True)
    enrolled = rng.standard_normal(DIMENSION)
    enrolled /= np.linalg.norm(enrolled)
    exact = photos @ enrolled
    made = np.linalg.lstsq(photos, exact, rcond=None)[0]
    assert made @ enrolled / np.linalg.norm(made) == pytest.approx(1)
    seen = [row for row, score in enumerate(exact) if SCORES.answered(score) is not None]
    assert len(seen) <= 3
    assert all((photos[row] @ enrolled) < 0.5 for row in seen)


CLOSE = 0.999
"""Cosine of a template that serves as the enrolled one."""


def vectors_to_rebuild(seed: int, at_once: int = 64, most: int = 960) -> int:
    """How many vectors of its choice a client sends for a template CLOSE to the enrolled one, by coarse scores alone.

    It starts from the mean face (cosine 0.33), asks about what it has and random vectors around that, takes each score
    for the middle of its step, and solves for the template (ridge).
    """
    rng = np.random.default_rng(seed)
    enrolled, found = unit(rng.standard_normal(DIMENSION)), rng.standard_normal(DIMENSION)
    found = 0.33 * enrolled + np.sqrt(1 - 0.33**2) * unit(found - (found @ enrolled) * enrolled)
    rows, scores, sent = np.empty((0, DIMENSION)), np.empty(0), 0
    while found @ enrolled < CLOSE and sent < most:
        around = rng.standard_normal((at_once - 1, DIMENSION))
        tried = np.vstack([found, unit(found + 0.6 * unit(around - np.outer(around @ found, found)))])
        answers = [(row, score) for row in tried if (score := SCORES.answered(float(row @ enrolled))) is not None]
        rows = np.vstack([rows, *(row for row, _ in answers)])
        scores = np.append(scores, [score + SCORES.step / 2 for _, score in answers])
        found = unit(np.linalg.solve(rows.T @ rows + 1e-3 * np.eye(DIMENSION), rows.T @ scores + 1e-3 * found))
        sent += at_once
    return sent


def unit(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def test_some_five_hundred_chosen_vectors_rebuild_a_template() -> None:
    """The figure in docs/explanation/security.md: it says what the scope `templates` and the rates are for."""
    assert all(400 <= vectors_to_rebuild(seed) <= 750 for seed in range(2))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_coarse_scores_change_no_decision_at_an_operating_point(manifest: Manifest) -> None:
    thresholds = Thresholds(manifest)
    asked = thresholds.threshold(3e-5)
    scores, scale = AnsweredScores.of(thresholds, asked), Similarity.of(thresholds)
    assert thresholds.calibration is not None
    points = [asked, *(point.threshold for point in thresholds.calibration.points)]
    assert scores.step == pytest.approx(0.01)
    exact = np.random.default_rng(7).uniform(-1, 1, 20_000).tolist() + points + [point - 1e-9 for point in points]
    last = None
    for score in sorted(exact):
        answered = scores.answered(score)
        if answered is None:
            assert score < scores.floor
            continue
        assert score - scores.step - 1e-9 < answered <= score
        assert last is None or answered >= last, "the order of candidates stays"
        last = answered
        for point in points:
            assert (answered >= point) == (score >= point)
            level = scale.of_cosine(point)
            assert (scale.of_cosine(answered) >= level) == (scale.of_cosine(score) >= level)
