"""From photos to answers, over HTTP: detect, embed, verify, enroll, identify."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from app.api import schemas
from app.package.folders import load_package
from app.package.thresholds import Thresholds, fuse_templates
from tests.support.ready import MODELS
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, covered, encoded, enroll, error_of

EMPTY = encoded(np.full((200, 300, 3), 90, np.uint8))
WAYS = ("form", "json", "data url", "raw")


def send(api: httpx.Client, path: str, image: bytes, way: str = "form", **params: Any) -> httpx.Response:
    """One image in one of the ways there are; the parameters beside it, or in the query where there is no beside."""
    text = base64.b64encode(image).decode()
    if way == "form":
        return api.post(path, files={"image": image}, data=params)
    if way == "raw":
        return api.post(path, content=image, headers={"content-type": "image/jpeg"}, params=params)
    return api.post(path, json={"image": f"data:image/jpeg;base64,{text}" if way == "data url" else text} | params)


@pytest.mark.parametrize("way", WAYS)
def test_a_photo_may_come_in_every_way(api: httpx.Client, way: str) -> None:
    response = send(api, "/v1/detect", COLLINS, way)
    answer = schemas.DetectAnswer.model_validate(response.json())
    assert len(answer.faces) == 1
    assert response.json() == send(api, "/v1/detect", COLLINS).json()
    assert answer.faces[0].quality.score > 50
    assert answer.explain is None


def test_no_face_is_an_empty_answer(api: httpx.Client) -> None:
    answer = schemas.DetectAnswer.model_validate(send(api, "/v1/detect", EMPTY).json())
    assert (answer.image.width, answer.image.height, answer.faces) == (300, 200, [])
    assert schemas.EmbedAnswer.model_validate(send(api, "/v1/embed", EMPTY).json()).faces == []


def test_embeddings_are_unit_vectors_whose_product_is_the_score(api: httpx.Client) -> None:
    embedded = [schemas.EmbedAnswer.model_validate(send(api, "/v1/embed", image).json()) for image in (COLLINS, AGAIN)]
    first, second = (np.array(answer.faces[0].embedding) for answer in embedded)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    verified = api.post("/v1/verify", files={"image1": COLLINS, "image2": AGAIN}).json()
    assert verified["score"] == pytest.approx(float(first @ second), abs=1e-5)
    assert verified["model"] == embedded[0].model


def test_verification_tells_people_apart(api: httpx.Client) -> None:
    same, other = (
        schemas.VerifyAnswer.model_validate(api.post("/v1/verify", files={"image1": COLLINS, "image2": image}).json())
        for image in (AGAIN, HOPPER)
    )
    assert same.match
    assert same.score >= same.threshold
    assert not other.match
    assert other.score < other.threshold
    assert same.fmr == 1e-4
    assert same.fmr_asked is None
    assert same.face1.image.width == 512
    assert same.face1.faces == 1


def changed(photo: bytes, *, side: int = 256, light: float = 1.0) -> bytes:
    """The photo with no more details than one of ``side`` pixels has, and this share of its light."""
    picture = Image.open(io.BytesIO(photo)).convert("RGB")
    blurred = picture.resize((side, side), Image.Resampling.BOX).resize((256, 256), Image.Resampling.BILINEAR)
    return encoded((np.asarray(blurred) * light).astype(np.uint8))


def test_a_face_that_hardly_looks_like_one_is_never_known(api: httpx.Client, gallery: str) -> None:
    """The same dark photo twice scores 1, and shows hardly anybody."""
    poor = changed(COLLINS, light=0.05)
    enroll(api, gallery, "eileen", poor, quality="none").raise_for_status()
    for quality, decision, reason in (("low", "uncertain", "low_quality"), ("none", "known", None)):
        asked = {} if quality == "low" else {"quality": quality}
        (face,) = send(api, f"{gallery}/identify", poor, **asked).json()["faces"]
        pair_answer = api.post("/v1/verify", files={"image1": poor, "image2": poor}, params=asked).json()
        subject_answer = send(api, f"{gallery}/subjects/eileen/verify", poor, **asked).json()
        assert face["quality"]["score"] < 20
        for answer in (face, pair_answer, subject_answer):
            assert (answer["decision"], answer["reason"]) == (decision, reason)
        assert pair_answer["match"] is subject_answer["match"] is (decision == "known")
        assert pair_answer["score"] >= pair_answer["threshold"]


def test_a_face_without_landmarks_is_shown_and_never_compared(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS).raise_for_status()
    photo = covered()
    for path in ("/v1/detect", "/v1/embed", f"{gallery}/identify"):
        answer = send(api, path, photo).json()
        (face,) = answer["faces"]
        assert face["landmarks"] is None
        assert face["quality"] == {"score": 0, "reasons": ["unalignable"]}
        assert face.get("embedding") is None
        assert face.get("decision", "unknown") == "unknown"
        assert face.get("candidates", []) == []
    reached = api.post("/v1/verify", files={"image1": COLLINS, "image2": photo})
    assert error_of(reached, 422, "face_unalignable")["image"] == "image2"
    error_of(send(api, f"{gallery}/subjects/eileen/verify", photo), 422, "face_unalignable")
    (rejected,) = error_of(enroll(api, gallery, "eileen", photo, quality="none"), 422, "face_unalignable")["rejected"]
    assert (rejected["code"], rejected["reasons"]) == ("face_unalignable", ["unalignable"])
    both = api.post(f"{gallery}/subjects/eileen/faces", files=[("images", photo), ("images", AGAIN)]).json()
    assert [row["index"] for row in both["enrolled"]] == [1]
    assert [row["code"] for row in both["rejected"]] == ["face_unalignable"]


@pytest.mark.parametrize("degrees", [45, 90, 135, 225, 315])
def test_a_turned_face_is_the_one_that_was_enrolled_upright(api: httpx.Client, gallery: str, degrees: int) -> None:
    enroll(api, gallery, "eileen", COLLINS).raise_for_status()
    enroll(api, gallery, "grace", HOPPER).raise_for_status()
    turned = np.array(Image.open(io.BytesIO(COLLINS)).convert("RGB").rotate(-degrees, expand=True))
    (face,) = send(api, f"{gallery}/identify", encoded(turned)).json()["faces"]
    assert (face["decision"], face["candidates"][0]["subject"]) == ("known", "eileen")


def test_a_small_gallery_decides_as_strictly_as_verification(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS)
    enroll(api, gallery, "grace", HOPPER)
    by_default, asked = (send(api, f"{gallery}/identify", AGAIN, **rate).json() for rate in ({}, {"fpir": "0.01"}))
    verified = api.post("/v1/verify", files={"image1": COLLINS, "image2": AGAIN}).json()
    assert by_default["faces"][0]["threshold"] == verified["threshold"]
    assert by_default["fmr"] == pytest.approx(1e-4)
    assert by_default["fpir"] == pytest.approx(2e-4, rel=0.01)
    assert asked["faces"][0]["threshold"] < verified["threshold"]
    assert asked["fpir"] == pytest.approx(0.01)


def test_a_pair_between_the_thresholds_is_uncertain(api: httpx.Client, gallery: str) -> None:
    """In verification as in identification."""
    less = changed(COLLINS, side=90)
    enroll(api, gallery, "eileen", COLLINS)
    decisions = []
    for fmr in ("1e-2", "1e-3", "1e-4", "1e-5", "1e-6"):
        pair_answer = api.post("/v1/verify", files={"image1": COLLINS, "image2": less}, params={"fmr": fmr}).json()
        subject_answer = send(api, f"{gallery}/subjects/eileen/verify", less, fmr=fmr).json()
        assert subject_answer["decision"] == pair_answer["decision"]
        for answer in (pair_answer, subject_answer):
            reached = [answer["score"] >= answer[name] for name in ("threshold", "threshold_uncertain")]
            assert answer["decision"] == {2: "known", 1: "uncertain", 0: "unknown"}[sum(reached)]
            assert (answer["match"], answer["reason"]) == (answer["decision"] == "known", None)
        decisions.append(pair_answer["decision"])
    assert {"known", "uncertain"} <= set(decisions)


def test_chosen_faces_are_verified(api: httpx.Client) -> None:
    """`face1` and `face2` are places in the list of detect."""
    faces = api.post("/v1/detect", files={"image": BOTH}).json()["faces"]
    answers = []
    for index in range(len(faces)):
        answer = api.post("/v1/verify", files={"image1": COLLINS, "image2": BOTH}, params={"face2": index}).json()
        assert answer["face2"]["box"] == faces[index]["box"]
        answers.append(answer["match"])
    assert sorted(answers) == [False, True]
    none = api.post("/v1/verify", files={"image1": COLLINS, "image2": BOTH}, data={"face1": 1})
    assert error_of(none, 422, "no_face") == {"image": "image1", "faces": 1}
    error_of(api.post("/v1/verify", files={"image1": BOTH, "image2": BOTH}, data={"face1": -1}), 422, "invalid_request")


def test_a_chosen_face_is_enrolled(api: httpx.Client, gallery: str) -> None:
    faces = api.post("/v1/detect", files={"image": BOTH}).json()["faces"]
    where = f"{gallery}/subjects/chosen/faces"
    for face in range(2):
        (made,) = api.post(where, files={"images": BOTH}, params={"face": face}).json()["enrolled"]
        assert made["box"] == faces[face]["box"]
    error_of(api.post(where, files={"images": BOTH}, params={"face": 2}), 422, "no_face")
    two = [("images", COLLINS), ("images", BOTH)]
    error_of(api.post(where, files=two, params={"face": 0}), 422, "invalid_request")


def test_a_stricter_rate_gives_a_higher_threshold(api: httpx.Client) -> None:
    answers = [
        api.post("/v1/verify", files={"image1": COLLINS, "image2": AGAIN}, params={"fmr": fmr}).json()
        for fmr in (1e-2, 1e-3, 3e-5)
    ]
    thresholds = [answer["threshold"] for answer in answers]
    assert thresholds == sorted(thresholds)
    assert [answer["fmr"] for answer in answers] == [answer["fmr_asked"] for answer in answers] == [1e-2, 1e-3, 3e-5]


def test_parameters_may_stand_in_query_form_or_json_alike(api: httpx.Client) -> None:
    photos = {"image1": COLLINS, "image2": AGAIN}
    texts = {name: base64.b64encode(photo).decode() for name, photo in photos.items()}
    answers = [
        api.post("/v1/verify", files=photos, params={"fmr": "1e-3"}),
        api.post("/v1/verify", files=photos, data={"fmr": "1e-3"}),
        api.post("/v1/verify", json=texts | {"fmr": 1e-3}),
        api.post("/v1/verify", json=texts, params={"fmr": "0.001"}),
    ]
    assert {answer.raise_for_status().json()["threshold"] for answer in answers} == {answers[0].json()["threshold"]}


def test_a_rate_that_was_never_measured_is_refused(api: httpx.Client) -> None:
    response = api.post("/v1/verify", files={"image1": COLLINS, "image2": AGAIN}, params={"fmr": 1e-12})
    details = error_of(response, 422, "operating_point_unavailable")
    assert 0 < details["lowest"] < details["highest"] < 1


def test_verification_says_which_photo_has_no_face_or_is_damaged(api: httpx.Client) -> None:
    response = api.post("/v1/verify", files={"image1": COLLINS, "image2": EMPTY})
    assert error_of(response, 422, "no_face") == {"image": "image2"}
    response = api.post("/v1/verify", files={"image1": COLLINS[:3000], "image2": COLLINS})
    assert error_of(response, 422, "invalid_image")["image"] == "image1"


def test_everyone_in_a_photo_is_identified_once(api: httpx.Client, gallery: str) -> None:
    for subject, image in {"eileen": COLLINS, "grace": HOPPER}.items():
        assert enroll(api, gallery, subject, image).status_code == 201
    answer = schemas.IdentifyAnswer.model_validate(send(api, f"{gallery}/identify", BOTH).json())
    assert answer.subjects == 2
    assert sorted(face.candidates[0].subject for face in answer.faces) == ["eileen", "grace"]
    assert {face.decision for face in answer.faces} == {"known"}
    for face in answer.faces:
        assert len(face.candidates) == 1, "the other one is given to the other face"
        assert face.threshold_uncertain <= face.threshold <= face.candidates[0].score
        assert face.candidates[0].template_score == pytest.approx(face.candidates[0].score, abs=1e-5)


def test_a_face_of_somebody_who_is_in_the_photo_already_says_whose_it_is(api: httpx.Client, gallery: str) -> None:
    """A mirror, a collage, the second picture on an ID card."""
    enroll(api, gallery, "eileen", COLLINS)
    enroll(api, gallery, "grace", HOPPER)
    again = Image.open(io.BytesIO(AGAIN)).convert("RGB")
    sheet = Image.new("RGB", (2 * again.width, again.height))
    sheet.paste(again, (0, 0))
    sheet.paste(again.transpose(Image.Transpose.FLIP_LEFT_RIGHT), (again.width, 0))
    faces = send(api, f"{gallery}/identify", encoded(np.asarray(sheet))).json()["faces"]
    (first,) = [index for index, face in enumerate(faces) if face["decision"] == "known"]
    assert [face["displaced_by"] for face in faces] == [None if index == first else first for index in (0, 1)]
    alone = send(api, f"{gallery}/identify", BOTH).json()["faces"]
    assert [face["displaced_by"] for face in alone] == [None, None]


def test_who_is_not_enrolled_is_unknown(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "grace", HOPPER)
    (face,) = send(api, f"{gallery}/identify", COLLINS).json()["faces"]
    assert face["decision"] == "unknown"
    assert face["candidates"][0]["subject"] == "grace"
    assert face["margin"] is None


def test_an_empty_gallery_knows_nobody(api: httpx.Client, gallery: str) -> None:
    answer = send(api, f"{gallery}/identify", COLLINS).json()
    assert [(face["decision"], face["candidates"]) for face in answer["faces"]] == [("unknown", [])]
    assert send(api, f"{gallery}/identify", EMPTY).json()["faces"] == []


def test_candidates_are_limited_and_ranked(api: httpx.Client, gallery: str, astronaut: NDArray[np.uint8]) -> None:
    for turn in range(4):
        enroll(
            api, gallery, f"copy-{turn}", encoded(np.roll(astronaut, 5 * turn, axis=1), "JPEG", quality=90 - 20 * turn)
        )
    full, short = (send(api, f"{gallery}/identify", COLLINS, limit=limit).json()["faces"][0] for limit in (5, 2))
    scores = [candidate["score"] for candidate in full["candidates"]]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert short["candidates"] == full["candidates"][:2]
    assert short["margin"] == full["margin"] == pytest.approx(scores[0] - scores[1])


def test_fpir_is_asked_for_and_answered(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "grace", HOPPER)
    answer = send(api, f"{gallery}/identify", COLLINS, fpir=0.001).json()
    assert (answer["fpir_asked"], answer["fmr_asked"]) == (0.001, None)
    assert answer["fpir"] == pytest.approx(0.001)
    assert answer["fmr"] == pytest.approx(0.001)


def test_fmr_and_fpir_together_are_refused(api: httpx.Client, gallery: str) -> None:
    for response in (
        send(api, f"{gallery}/identify", COLLINS, fpir=0.001, fmr=0.001),
        api.post(f"{gallery}/identify", files={"image": COLLINS}, data={"fmr": "0.001"}, params={"fpir": "0.001"}),
    ):
        error_of(response, 422, "invalid_request")


def test_good_photos_are_taken_and_each_bad_one_is_answered(
    api: httpx.Client, gallery: str, astronaut: NDArray[np.uint8]
) -> None:
    small = encoded(astronaut[::5, ::5])
    pair = encoded(np.concatenate([astronaut, astronaut[:, ::-1]], axis=1))
    photos = [EMPTY, COLLINS, COLLINS[:2000], pair, small, b"text", AGAIN]
    answer = schemas.EnrollAnswer.model_validate(enroll(api, gallery, "eileen", *photos, quality="high").json())
    assert answer.created
    assert [face.index for face in answer.enrolled] == [1, 6]
    codes = {rejected.index: rejected.code for rejected in answer.rejected}
    assert codes == {
        0: "no_face",
        2: "invalid_image",
        3: "ambiguous_face",
        4: "low_quality",
        5: "unsupported_image",
    }
    (poor,) = (rejected for rejected in answer.rejected if rejected.index == 4)
    assert "small_face" in poor.reasons
    assert api.get(f"{gallery}/subjects/eileen").json()["face_count"] == 2
    again = schemas.EnrollAnswer.model_validate(enroll(api, gallery, "eileen", small, quality="none").json())
    assert not again.created
    assert api.get(f"{gallery}/subjects/eileen").json()["face_count"] == 3


def test_when_no_photo_is_good_nothing_changes(api: httpx.Client, gallery: str) -> None:
    details = error_of(enroll(api, gallery, "nobody", EMPTY, EMPTY), 422, "no_face")
    assert [(row["index"], row["code"]) for row in details["rejected"]] == [(0, "no_face"), (1, "no_face")]
    details = error_of(enroll(api, gallery, "nobody", EMPTY, b"text"), 422, "nothing_enrolled")
    assert [row["code"] for row in details["rejected"]] == ["no_face", "unsupported_image"]
    error_of(api.get(f"{gallery}/subjects/nobody"), 404, "subject_not_found")


@pytest.mark.parametrize("way", ["form", "json", "raw"])
def test_photos_to_enroll_may_come_in_every_way(api: httpx.Client, gallery: str, way: str) -> None:
    path = f"{gallery}/subjects/eileen/faces"
    if way == "form":
        response = api.post(path, files=[("images", COLLINS)], data={"quality": "low"})
    elif way == "json":
        response = api.post(path, json={"images": [base64.b64encode(COLLINS).decode()], "quality": "low"})
    else:
        response = api.post(path, content=COLLINS, headers={"content-type": "image/jpeg"}, params={"quality": "low"})
    assert response.status_code == 201
    assert len(response.json()["enrolled"]) == 1


def test_a_subject_is_decided_by_its_faces_together(api: httpx.Client, gallery: str) -> None:
    """Its score is that of their mean template, reduced to a photo's; without one of them, that of the other."""
    faces = enroll(api, gallery, "eileen", COLLINS, AGAIN, quality="none").json()["enrolled"]
    embedded = [send(api, "/v1/embed", image).json()["faces"][0]["embedding"] for image in (COLLINS, AGAIN, HOPPER)]
    mean, length = fuse_templates(np.array(embedded[:2], np.float32))
    fusion = Thresholds(load_package(MODELS / "sface").manifest).fusion
    assert fusion is not None
    path = f"{gallery}/subjects/eileen/verify"
    answer = schemas.SubjectVerifyAnswer.model_validate(send(api, path, COLLINS).json())
    candidate = send(api, f"{gallery}/identify", COLLINS).json()["faces"][0]["candidates"][0]
    cosine = float(mean @ np.array(embedded[0], np.float32))
    assert answer.match
    assert answer.template_score == candidate["template_score"] == pytest.approx(cosine, abs=1e-4)
    assert answer.score == candidate["score"] == pytest.approx(cosine * length**fusion, abs=1e-4)
    assert cosine * length**fusion < cosine
    assert answer.face_id == candidate["face_id"] == faces[0]["face_id"]
    assert send(api, path, HOPPER).json()["match"] is False
    api.delete(f"{gallery}/subjects/eileen/faces/{faces[1]['face_id']}").raise_for_status()
    alone = send(api, path, COLLINS, explain=True).json()
    assert alone["score"] == alone["template_score"] == pytest.approx(1, abs=1e-4)
    assert alone["explain"]["comparisons"] == 1


def test_a_subject_without_faces_cannot_be_verified(api: httpx.Client, gallery: str) -> None:
    api.post(f"{gallery}/subjects", json={"id": "ghost"})
    error_of(send(api, f"{gallery}/subjects/ghost/verify", COLLINS), 409, "subject_without_faces")
    error_of(send(api, f"{gallery}/subjects/none/verify", COLLINS), 404, "subject_not_found")


def test_explain_tells_where_the_time_went_and_who_came_near(api: httpx.Client, gallery: str) -> None:
    enroll(api, gallery, "eileen", COLLINS)
    enroll(api, gallery, "grace", HOPPER)
    identified = send(api, f"{gallery}/identify", COLLINS, "raw", explain="true").json()["explain"]
    assert {"decode", "detect", "align", "quality", "embed", "search"} <= set(identified["stages"])
    assert all(spent >= 0 for spent in identified["stages"].values())
    assert identified["batch_size"] >= 1
    assert [other["subject"] for other in identified["nearest_other"]] == ["grace"]
    assert identified["comparisons"] == 2, "two subjects of one face each"

    verified = send(api, f"{gallery}/subjects/eileen/verify", BOTH, "json", explain=True).json()["explain"]
    (choice,) = verified["chosen"]
    assert choice["why"]
    assert 0 < choice["runner_up_share"] <= 1
    (other,) = verified["nearest_other"]
    assert other["subject"] == "grace"
    assert verified["comparisons"] == 1


def test_an_enrollment_explains_its_choices(api: httpx.Client, gallery: str) -> None:
    explained = enroll(api, gallery, "eileen", COLLINS, explain=True).json()["explain"]
    assert explained["chosen"] == [{"index": 0, "why": "the only face", "runner_up_share": None, "track": None}]
    assert explained["stages"]["store"] > 0


def test_answers_hold_no_nan_and_only_lists_of_numbers_as_vectors(api: httpx.Client) -> None:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} in an answer")

    body = json.loads(send(api, "/v1/embed", COLLINS).text, parse_constant=refuse)
    assert {type(value) for value in body["faces"][0]["embedding"]} == {float}
