"""CompreFace's REST interface, held against its documentation (docs/Rest-API-description.md of version 1.2).

Every call, parameter, status, error number, and the shape of every example.
"""

from __future__ import annotations

import base64
import io
import itertools
import unicodedata
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

from app.api.operation import Operation
from app.db.encryption import encode_key
from app.db.schema import FACES as FACES_TABLE
from app.error_codes import ERROR_CODES, About
from app.errors import LikenessError
from app.features.compreface import wire
from app.features.compreface.routes import ROUTERS
from app.features.similarity import Similarity
from app.package.folders import load_package
from app.package.thresholds import Thresholds
from tests.conftest import PROJECT
from tests.support.following import engine_of
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, encoded, error_of, running

API = "/api/v1"
RECOGNITION = f"{API}/recognition"
SUBJECTS, FACES = f"{RECOGNITION}/subjects", f"{RECOGNITION}/faces"
NOBODY = "6b135f5b-a365-4522-b1f1-4c9ac2dd0728"
WALL = encoded(np.full((200, 200, 3), 128, np.uint8))


@pytest.fixture(scope="module")
def bound(api: httpx.Client) -> Iterator[httpx.Client]:
    """A client with a key that is bound to a gallery of this file's own."""
    gallery = f"compreface-{uuid.uuid4().hex}"
    api.post("/v1/galleries", json={"id": gallery}).raise_for_status()
    made = api.post(
        "/v1/keys", json={"scopes": ["read", "recognize", "enroll", "delete", "templates"], "galleries": [gallery]}
    ).json()
    key = api.headers["x-api-key"]
    api.headers["x-api-key"] = made["secret"]
    yield api
    api.headers["x-api-key"] = key
    api.delete(f"/v1/galleries/{gallery}").raise_for_status()


@pytest.fixture(autouse=True)
def empty(bound: httpx.Client) -> None:
    bound.delete(SUBJECTS).raise_for_status()


def body64(**images: bytes) -> dict[str, str]:
    return {name: base64.b64encode(image).decode() for name, image in images.items()}


def add(client: httpx.Client, subject: str, photo: bytes) -> str:
    answer = client.post(FACES, params={"subject": subject}, files={"file": photo})
    assert answer.status_code == 201, answer.text
    image_id: str = answer.json()["image_id"]
    return image_id


def refused(answer: httpx.Response, status: int, number: int, message: str | None = None) -> None:
    """CompreFace's error, in its one shape."""
    found = answer.json()
    assert set(found) == {"message", "code"}, found
    assert (answer.status_code, found["code"]) == (status, number), found
    assert isinstance(found["message"], str)
    assert found["message"]
    if message is not None:
        assert found["message"] == message


BOX = {"probability": 0.99, "x_max": 1420, "y_max": 1368, "x_min": 548, "y_min": 295}
LANDMARKS = [[814, 713], [1104, 829], [832, 937], [704, 1030], [1017, 1133]]
TIMES = {"detector": 117.0, "calculator": 45.0}
VERSIONS = {"detector": "facenet.FaceDetector", "calculator": "facenet.Calculator"}
POSE = {"pitch": 0.0, "roll": 0.0, "yaw": 0.0}
EMBEDDING = [9.424854069948196e-4, -0.011415496468544006]
FACE = {"embedding": EMBEDDING, "box": BOX, "landmarks": LANDMARKS, "pose": POSE, "execution_time": TIMES}
"""The documentation's examples, without what no model here computes: age, gender, mask."""
RECOGNIZED = {
    "result": [FACE | {"subjects": [{"similarity": 0.97858, "subject": "subject1"}]}],
    "plugins_versions": VERSIONS | {"pose": "facenet.PoseEstimator"},
}
VERIFIED_FACE = {
    "result": [FACE | {"similarity": 0.97858, "subject": "subject1"}],
    "plugins_versions": RECOGNIZED["plugins_versions"],
}
DETECTED = {"result": [FACE], "plugins_versions": RECOGNIZED["plugins_versions"]}
VERIFIED = {
    "result": [
        {
            "source_image_face": FACE,
            "face_matches": [FACE | {"similarity": 0.97858}],
            "plugins_versions": RECOGNIZED["plugins_versions"],
        }
    ]
}
EVERYTHING = "face_plugins=calculator,landmarks,pose,age,gender,mask&status=true"


def same_shape(found: Any, example: Any, where: str = "answer") -> None:
    """The same keys and types as the example; of a list, its every item as the example's first."""
    if isinstance(example, dict):
        assert isinstance(found, dict), where
        assert set(found) == set(example), where
        for key, value in example.items():
            same_shape(found[key], value, f"{where}.{key}")
    elif isinstance(example, list):
        assert isinstance(found, list), where
        assert found, where
        for item in found:
            same_shape(item, example[0], f"{where}[]")
    else:
        assert type(found) is type(example), (where, found)


@pytest.mark.parametrize("kind", ["multipart", "base64"])
@pytest.mark.parametrize(
    ("path", "names", "example"),
    [
        (f"{RECOGNITION}/recognize", ("file",), RECOGNIZED),
        (f"{FACES}/{{image_id}}/verify", ("file",), VERIFIED_FACE),
        (f"{API}/detection/detect", ("file",), DETECTED),
        (f"{API}/verification/verify", ("source_image", "target_image"), VERIFIED),
    ],
)
def test_answers_have_the_documented_shape(
    bound: httpx.Client, path: str, names: tuple[str, ...], example: Any, kind: str
) -> None:
    image_id = add(bound, "Eileen", COLLINS)
    images = dict.fromkeys(names, AGAIN)
    sent: dict[str, Any] = {"files": images} if kind == "multipart" else {"json": body64(**images)}
    path = path.format(image_id=image_id)
    full = bound.post(f"{path}?{EVERYTHING}", **sent)
    assert full.status_code == 200, full.text
    same_shape(full.json(), example)
    plain = bound.post(path, **sent).raise_for_status().json()
    faces = plain["result"]
    if "verification" in path:
        (one,) = faces
        assert set(one) == {"source_image_face", "face_matches"}
        faces = [one["source_image_face"], *one["face_matches"]]
    assert "plugins_versions" not in plain
    for face in faces:
        assert set(face) <= {"box", "subjects", "similarity", "subject"}, "no plugin, no more than the box"


def test_embeddings_have_the_documented_shape(bound: httpx.Client) -> None:
    image_id = add(bound, "Eileen", COLLINS)
    add(bound, "Grace", HOPPER)
    detected = bound.post(f"{API}/detection/detect?face_plugins=calculator", files={"file": AGAIN}).json()
    embedding = detected["result"][0]["embedding"]
    away = [-one for one in embedding]

    found = bound.post(f"{RECOGNITION}/embeddings/recognize", json={"embeddings": [embedding, away]}).json()
    assert [one["embedding"] for one in found["result"]] == [embedding, away]
    assert [[hit["subject"] for hit in one["similarities"]] for one in found["result"]] == [["Eileen"], ["unknown"]]
    found = {"result": found["result"][:1]}
    same_shape(found, {"result": [{"embedding": [0.1], "similarities": [{"subject": "John", "similarity": 0.55988}]}]})
    both = bound.post(f"{RECOGNITION}/embeddings/recognize?prediction_count=9", json={"embeddings": [embedding]}).json()
    assert [hit["subject"] for hit in both["result"][0]["similarities"]] == ["Eileen"], "Grace is below the floor"

    example = {"result": [{"embedding": [0.1], "similarity": 0.55988}]}
    of_face = bound.post(f"{RECOGNITION}/embeddings/faces/{image_id}/verify", json={"embeddings": [away, embedding]})
    of_source = bound.post(
        f"{API}/verification/embeddings/verify", json={"source": embedding, "targets": [away, embedding]}
    )
    for answer in (of_face, of_source):
        same_shape(answer.json(), example)
        assert [one["embedding"] for one in answer.json()["result"]] == [embedding, away], "the most alike first"
    assert of_source.json()["result"][0]["similarity"] > 0.9999
    assert of_source.json()["result"][1]["similarity"] == of_face.json()["result"][1]["similarity"] == 0


def test_an_embedding_of_any_length_counts_by_its_direction(bound: httpx.Client) -> None:
    add(bound, "Eileen", COLLINS)
    detected = bound.post(f"{API}/detection/detect?face_plugins=calculator", files={"file": COLLINS}).json()
    embedding = detected["result"][0]["embedding"]
    for scale in (1e-200, 1.0, 1e200):
        scaled = [one * scale for one in embedding]
        found = bound.post(f"{RECOGNITION}/embeddings/recognize", json={"embeddings": [scaled]}).json()
        assert found["result"][0]["similarities"][0]["similarity"] > 0.999


@pytest.mark.parametrize(
    "name", ["Ann", "Müller 王芳 😀", "a.b?c&d=%41#e", "'; DROP TABLE subjects"[2:].replace(";", "").strip()]
)
def test_a_subjects_life(bound: httpx.Client, name: str) -> None:
    path = f"{SUBJECTS}/{httpx.URL('http://x/', params={'x': name}).query.decode()[2:].replace('+', '%20')}"
    made = bound.post(SUBJECTS, json={"subject": name})
    assert (made.status_code, made.json()) == (201, {"subject": name})
    assert bound.get(f"{SUBJECTS}/").json() == bound.get(SUBJECTS).json() == {"subjects": [name]}
    refused(bound.post(SUBJECTS, json={"subject": name}), 400, 43, "Subject already exists")
    renamed = bound.put(path, json={"subject": "Anna", "more": 1})
    assert (renamed.status_code, renamed.json()) == (200, {"updated": True})
    assert bound.put(f"{SUBJECTS}/Anna", json={"subject": "Anna"}).json() == {"updated": False}
    refused(bound.put(path, json={"subject": "Bob"}), 404, 42)
    assert bound.delete(f"{SUBJECTS}/Anna").json() == {"subject": "Anna"}
    refused(bound.delete(f"{SUBJECTS}/Anna"), 404, 42)
    assert bound.get(SUBJECTS).json() == {"subjects": []}


def test_a_renamed_subject_keeps_its_faces_and_one_renamed_to_another_gives_them_over(bound: httpx.Client) -> None:
    eileen, grace = add(bound, "Eileen", COLLINS), add(bound, "Grace", HOPPER)
    assert bound.put(f"{SUBJECTS}/Eileen", json={"subject": "Collins"}).json() == {"updated": True}
    listed = bound.get(FACES).json()["faces"]
    assert listed == [{"image_id": eileen, "subject": "Collins"}, {"image_id": grace, "subject": "Grace"}]
    assert bound.put(f"{SUBJECTS}/Collins", json={"subject": "Grace"}).json() == {"updated": True}
    assert bound.get(SUBJECTS).json() == {"subjects": ["Grace"]}
    found = bound.post(f"{RECOGNITION}/recognize", files={"file": AGAIN}).json()["result"][0]["subjects"]
    assert found[0]["subject"] == "Grace"
    assert found[0]["similarity"] > 0.9


def test_all_subjects_at_once(bound: httpx.Client) -> None:
    add(bound, "Eileen", COLLINS)
    bound.post(SUBJECTS, json={"subject": "Nobody yet"})
    assert bound.delete(SUBJECTS).json() == {"deleted": 2}
    assert bound.delete(SUBJECTS).json() == {"deleted": 0}
    assert bound.get(FACES).json()["total_elements"] == 0


@pytest.mark.parametrize(
    ("name", "number"), [("", 26), (" ", 26), (None, 26), ("x" * 51, 26), ("a;b", 36), ("a/b", 36), ("a\\b", 36)]
)
def test_names_that_compreface_refuses(bound: httpx.Client, name: str | None, number: int) -> None:
    refused(bound.post(SUBJECTS, json={"subject": name}), 400, number)
    bound.post(SUBJECTS, json={"subject": "Ann"})
    refused(bound.put(f"{SUBJECTS}/Ann", json={"subject": name}), 400, number)


def test_a_name_is_as_long_as_it_is_composed(bound: httpx.Client) -> None:
    composed = "\u00e9" * 50
    sent = {"subject": unicodedata.normalize("NFD", composed)}
    assert bound.post(SUBJECTS, json=sent).raise_for_status().json() == {"subject": composed}
    assert bound.get(SUBJECTS).json() == {"subjects": [composed]}


def test_faces_page_by_page(bound: httpx.Client) -> None:
    ids = [add(bound, subject, COLLINS) for subject in ("Ann", "Bob", "Ann")]
    everything = bound.get(FACES).json()
    example = {
        "faces": [{"image_id": ids[0], "subject": "Ann"}],
        "page_number": 0,
        "page_size": 20,
        "total_pages": 1,
        "total_elements": 3,
    }
    same_shape(everything, example)
    assert [one["image_id"] for one in everything["faces"]] == ids
    assert (everything["page_size"], everything["total_pages"]) == (20, 1)
    second = bound.get(FACES, params={"page": 1, "size": 2}).json()
    assert second == {
        "faces": [{"image_id": ids[2], "subject": "Ann"}],
        "page_number": 1,
        "page_size": 2,
        "total_pages": 2,
        "total_elements": 3,
    }
    of_ann = bound.get(FACES, params={"subject": "Ann"}).json()
    assert ([one["image_id"] for one in of_ann["faces"]], of_ann["total_elements"]) == ([ids[0], ids[2]], 2)
    assert bound.get(FACES, params={"subject": "nobody"}).json()["total_pages"] == 0
    assert bound.get(FACES, params={"size": 10**6}).json()["page_size"] == 2000
    assert bound.get(FACES, params={"page": 9}).json()["faces"] == []


def test_faces_are_deleted_one_by_one_many_at_once_and_by_subject(bound: httpx.Client) -> None:
    ids = [add(bound, subject, COLLINS) for subject in ("Ann", "Ann", "Bob", "Bob", "Cat")]
    assert bound.delete(f"{FACES}/{ids[0]}").json() == {"image_id": ids[0], "subject": "Ann"}
    refused(bound.delete(f"{FACES}/{ids[0]}"), 404, 44)
    deleted = bound.post(f"{FACES}/delete", json=[ids[0], ids[1], ids[2].upper(), NOBODY])
    assert deleted.json() == [{"image_id": ids[1], "subject": "Ann"}, {"image_id": ids[2], "subject": "Bob"}]
    assert bound.delete(FACES, params={"subject": "Bob"}).json() == {"deleted": 1}
    assert bound.delete(FACES, params={"subject": "Bob"}).json() == {"deleted": 0}
    assert bound.get(SUBJECTS).json() == {"subjects": ["Ann", "Cat"]}, "the subject goes with all of its faces"
    assert bound.delete(FACES).json() == {"deleted": 1}
    assert bound.get(SUBJECTS).json() == {"subjects": []}


def test_a_face_is_the_same_by_our_own_api_and_its_image_is_the_aligned_crop(bound: httpx.Client) -> None:
    image_id = add(bound, "Ann", COLLINS)
    gallery = bound.get("/v1/galleries").json()["galleries"][0]["id"]
    faces = bound.get(f"/v1/galleries/{gallery}/subjects/Ann/faces").json()["faces"]
    assert [uuid.UUID(one["face_id"]) for one in faces] == [uuid.UUID(image_id)]
    image = bound.get(f"{FACES}/{image_id}/img")
    assert image.headers["content-type"] == "application/octet-stream"
    with Image.open(io.BytesIO(image.content)) as crop:
        assert crop.size == (112, 112)
    nobodys = bound.get(f"{FACES}/{NOBODY}/img")
    assert (nobodys.status_code, nobodys.content) == (200, b"")


def test_the_largest_face_comes_first_and_limit_takes_so_many(bound: httpx.Client) -> None:
    def widths(**params: Any) -> list[int]:
        found = bound.post(f"{API}/detection/detect", params=params, files={"file": BOTH}).raise_for_status().json()
        return [face["box"]["x_max"] - face["box"]["x_min"] for face in found["result"]]

    everybody = widths()
    assert len(everybody) == 2
    assert everybody == sorted(everybody, reverse=True)
    assert widths(limit=0) == widths(limit=5) == everybody
    assert widths(limit=1) == everybody[:1]


def test_det_prob_threshold_leaves_unsure_faces_out(bound: httpx.Client) -> None:
    path = f"{API}/detection/detect"
    found = bound.post(path, files={"file": BOTH}).json()["result"]
    low, high = sorted(face["box"]["probability"] for face in found)
    between = {"det_prob_threshold": (low + high) / 2}
    kept = bound.post(path, params=between, files={"file": BOTH}).json()["result"]
    assert [face["box"]["probability"] for face in kept] == [high]
    refused(bound.post(path, params={"det_prob_threshold": 1}, files={"file": BOTH}), 400, 28)
    in_form = bound.post(path, data={"det_prob_threshold": str(between["det_prob_threshold"])}, files={"file": BOTH})
    assert len(in_form.json()["result"]) == 1, "parameters may come in the form, too"
    added = bound.post(FACES, params={"subject": "one", **between}, files={"file": BOTH})
    assert added.status_code == 201, "one face is left"


def test_prediction_count_is_how_many_subjects_a_face_gets(bound: httpx.Client) -> None:
    add(bound, "Eileen", COLLINS)
    add(bound, "Grace", HOPPER)

    def subjects(**params: Any) -> list[list[str]]:
        found = bound.post(f"{RECOGNITION}/recognize", params=params, files={"file": BOTH}).raise_for_status().json()
        return [[hit["subject"] for hit in face["subjects"]] for face in found["result"]]

    assert subjects() == [["Grace"], ["Eileen"]]
    assert subjects(prediction_count=2) == [["Grace", "Eileen"], ["Eileen", "Grace"]]
    assert subjects(prediction_count=10**6, limit=1) == [["Grace", "Eileen"]]


def test_a_similarity_is_the_mapped_score_of_our_own_api(bound: httpx.Client) -> None:
    add(bound, "Eileen", COLLINS)
    gallery = bound.get("/v1/galleries").json()["galleries"][0]["id"]
    ours = bound.post(f"/v1/galleries/{gallery}/identify", files={"image": AGAIN}).json()
    theirs = bound.post(f"{RECOGNITION}/recognize", files={"file": AGAIN}).json()
    score = ours["faces"][0]["candidates"][0]["score"]
    similarity = Similarity.of(Thresholds(load_package(PROJECT / "models" / "sface").manifest)).of_cosine(score)
    assert theirs["result"][0]["subjects"][0]["similarity"] == pytest.approx(similarity, abs=1e-5)
    add(bound, "Eileen", COLLINS)
    more = bound.post(f"{RECOGNITION}/recognize", files={"file": AGAIN}).json()["result"][0]["subjects"][0]
    assert more["similarity"] == pytest.approx(similarity, abs=1e-5), "a subject of several photos is one chance"


EMBEDDINGS = f"{RECOGNITION}/embeddings"
PHOTO = {"files": {"file": COLLINS}}
UNCHANGED: dict[str, Any] = {}
VERIFY = f"{API}/verification/verify"
Case: TypeAlias = tuple[str, str, dict[str, Any], int, int, str | None]


def pair(source: bytes, target: bytes) -> dict[str, Any]:
    return {"files": {"source_image": source, "target_image": target}}


ERRORS: list[Case] = [
    ("POST", f"{FACES}?subject=x", {"files": {"file": WALL}}, 400, 28, "No face is found in the given image"),
    ("POST", f"{RECOGNITION}/recognize", {"files": {"file": WALL}}, 400, 28, None),
    ("POST", f"{API}/detection/detect", {"files": {"file": WALL}}, 400, 28, None),
    ("POST", VERIFY, pair(WALL, COLLINS), 400, 28, None),
    ("POST", VERIFY, pair(COLLINS, WALL), 400, 28, None),
    ("POST", VERIFY, pair(BOTH, COLLINS), 400, 31, "More than one face in the source image"),
    ("POST", f"{FACES}?subject=x", {"files": {"file": BOTH}}, 400, 31, "More than one face in the source image"),
    ("POST", FACES, PHOTO, 400, 33, "Required parameter subject is missing"),
    ("POST", f"{FACES}?subject=", PHOTO, 400, 26, "Subject name is empty"),
    ("POST", f"{FACES}?subject=x", {"files": {"other": COLLINS}}, 400, 34, "Required part file is missing"),
    ("POST", f"{FACES}?subject=x", {"data": {}, "files": {"det_prob_threshold": "1"}}, 400, 34, None),
    ("POST", f"{FACES}?subject=x", {"json": {}}, 400, 5, "Field file cannot be empty"),
    ("POST", VERIFY, {"json": {"source_image": "AA=="}}, 400, 5, None),
    ("POST", f"{FACES}?subject=x", {"json": {"file": "~~~"}}, 400, 21, "Provided value is not Base64"),
    ("POST", f"{FACES}?subject=x", {"files": {"file": b"no image"}}, 400, 21, None),
    ("POST", f"{FACES}?subject=x", {"files": {"file": COLLINS[: len(COLLINS) // 2]}}, 400, 21, None),
    ("POST", f"{FACES}?subject=x", {"files": {"file": b""}}, 400, 21, None),
    ("POST", f"{FACES}?subject=x", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, 0, None),
    ("POST", f"{FACES}?subject=x", {"content": b"x", "headers": {"content-type": "text/plain"}}, 415, 0, None),
    ("POST", f"{FACES}?subject=x&det_prob_threshold=1.5", PHOTO, 400, 26, None),
    ("POST", f"{FACES}?subject={'x' * 256}", PHOTO, 400, 26, None),
    ("POST", f"{RECOGNITION}/recognize?limit=-1", PHOTO, 400, 26, None),
    ("POST", f"{RECOGNITION}/recognize?limit=many", PHOTO, 400, 26, None),
    ("POST", f"{RECOGNITION}/recognize?prediction_count=0", PHOTO, 400, 26, None),
    ("POST", f"{RECOGNITION}/recognize?detect_faces=false", PHOTO, 400, 26, None),
    ("POST", f"{RECOGNITION}/recognize?status=perhaps", PHOTO, 400, 26, None),
    ("POST", f"{FACES}/{NOBODY}/verify", PHOTO, 404, 44, f"Image {NOBODY} not found"),
    ("POST", f"{FACES}/nonsense/verify", PHOTO, 400, 36, None),
    ("GET", f"{FACES}/nonsense/img", UNCHANGED, 400, 36, None),
    ("DELETE", f"{FACES}/{NOBODY}", UNCHANGED, 404, 44, f"Image {NOBODY} not found"),
    ("DELETE", f"{FACES}?subject=%20", UNCHANGED, 400, 26, "Subject name is empty"),
    ("POST", f"{FACES}/delete", {"json": {"ids": []}}, 400, 26, None),
    ("POST", f"{FACES}/delete", {"json": ["nonsense"]}, 400, 36, None),
    ("PUT", f"{SUBJECTS}/nobody", {"json": {"subject": "x"}}, 404, 42, "Subject nobody not found"),
    ("DELETE", f"{SUBJECTS}/nobody", UNCHANGED, 404, 42, "Subject nobody not found"),
    ("POST", SUBJECTS, {"json": {}}, 400, 26, "Subject name cannot be empty"),
    ("POST", SUBJECTS, {"json": {"subject": 5}}, 400, 26, None),
    ("POST", SUBJECTS, {"json": [1]}, 400, 26, None),
    ("POST", f"{EMBEDDINGS}/recognize", {"json": {}}, 400, 5, "Field embeddings cannot be empty"),
    ("POST", f"{EMBEDDINGS}/recognize", {"json": {"embeddings": []}}, 400, 5, None),
    ("POST", f"{EMBEDDINGS}/recognize", {"json": {"embeddings": [[0.5]]}}, 400, 36, None),
    ("POST", f"{EMBEDDINGS}/recognize", {"json": {"embeddings": [[0.0] * 128]}}, 400, 36, None),
    ("POST", f"{EMBEDDINGS}/recognize", {"json": {"embeddings": [["x"] * 128]}}, 400, 26, None),
    ("POST", f"{EMBEDDINGS}/recognize", {"json": {"embeddings": [[]]}}, 400, 26, None),
    ("POST", f"{EMBEDDINGS}/recognize?prediction_count=0", {"json": {"embeddings": [[1.0] * 128]}}, 400, 26, None),
    ("POST", f"{EMBEDDINGS}/faces/{NOBODY}/verify", {"json": {"embeddings": [[1.0] * 128]}}, 404, 44, None),
    ("POST", f"{API}/verification/embeddings/verify", {"json": {"targets": [[1.0]]}}, 400, 5, None),
    ("POST", f"{API}/verification/embeddings/verify", {"json": {"source": [1.0] * 128}}, 400, 5, None),
    ("GET", f"{FACES}?page=-1", UNCHANGED, 400, 26, None),
    ("GET", f"{FACES}?size=0", UNCHANGED, 400, 26, None),
    ("GET", f"{API}/nothing/here", UNCHANGED, 404, 0, None),
    ("PATCH", SUBJECTS, UNCHANGED, 404, 0, None),
    ("GET", SUBJECTS, {"headers": {"x-api-key": ""}}, 400, 20, "Missing header: x-api-key"),
    ("GET", SUBJECTS, {"headers": {"x-api-key": NOBODY}}, 404, 10, None),
    ("GET", f"{API}/nothing", {"headers": {"x-api-key": NOBODY}}, 404, 10, None),
]


@pytest.mark.parametrize("case", ERRORS, ids=[f"{case[4]}-{case[0]}-{place}" for place, case in enumerate(ERRORS)])
def test_what_is_refused_is_refused_as_documented(bound: httpx.Client, case: Case) -> None:
    method, path, sent, status, number, message = case
    refused(bound.request(method, path, **sent), status, number, message)
    assert bound.get(FACES).json()["total_elements"] == 0


HOSTILE: list[dict[str, Any]] = [
    {},
    {"json": None},
    {"json": "text"},
    {"json": {"subject": "\x00", "file": 5, "embeddings": 5, "source": "x", "targets": {}}},
    {"json": {"subject": ["x"], "file": ["AA=="], "embeddings": [5], "source": [None], "targets": [[None]]}},
    {"json": {"embeddings": [[1e308] * 128, [-1e308] * 128], "source": [1e308] * 128, "targets": [[1e-320] * 128]}},
    {"content": b'{"subject": "\\ud800", "embeddings": [[NaN]]}', "headers": {"content-type": "application/json"}},
    {"content": b'{"embeddings": ' + b"[" * 100_000, "headers": {"content-type": "application/json"}},
    {"content": b"\xff\xfe", "headers": {"content-type": "application/json"}},
    {"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=x"}},
    {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
    {"files": [("file", COLLINS), ("file", COLLINS)]},
    {"files": {"file": b"GIF89a" + b"\xff" * 100}, "data": {"limit": "-1"}},
]
QUERIES = (
    "",
    "?subject=%00",
    "?subject=.&page=99999999999999999999&size=-1&limit=1e9",
    "?det_prob_threshold=nan&prediction_count=99999999999999999999",
    "?status=&face_plugins=%F0%9F%98%80,,,calculator",
    "?subject=a&subject=b",
)


@pytest.mark.parametrize(
    "call",
    [operation for router in ROUTERS for operation in router.operations],
    ids=lambda call: f"{call.method} {call.path}",
)
def test_whatever_comes_is_answered_and_never_by_a_fault_of_ours(bound: httpx.Client, call: Operation) -> None:
    some = [*zip(HOSTILE, itertools.cycle(QUERIES), strict=False), *itertools.product([{}, PHOTO], QUERIES)]
    for place, (sent, query) in enumerate(some):
        name = ("%00", "%2E", "%ff", "nobody", NOBODY)[place % 5]
        path = call.path.format(subject=name, face_id=name)
        answer = bound.request(call.method, path + query, **sent)
        assert answer.status_code < 500, (path + query, sent, answer.text)
        if not answer.is_success:
            assert set(answer.json()) == {"message", "code"}, answer.text
            assert isinstance(answer.json()["code"], int)


def test_every_code_of_the_one_table_has_its_answer_here() -> None:
    assert set(wire.NAMED) <= {error.code for error in ERROR_CODES} | {"invalid_template"}
    for error in ERROR_CODES:
        found, _, _ = wire.answer_of(LikenessError("Why.", code=error.code))
        if error.code in wire.NAMED:
            continue
        if error.about is About.REQUEST and error.status in {400, 422}:
            assert found.status == 400, error.code  # CompreFace knows no 422
        elif error.about is About.KEY:
            assert (found.status, found.number) in {(404, 10), (403, 1)}, error.code
        else:
            assert (found.status, found.number) == (error.status, 0), error.code


@pytest.fixture(scope="module")
def fresh_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fresh") / "data"


@pytest.fixture(scope="module")
def fresh(fresh_dir: Path) -> Iterator[httpx.Client]:
    """A service without galleries, with the key of all of them."""
    sealed = encode_key(bytes(range(32)))
    with running(fresh_dir, max_image_bytes=len(COLLINS) + 1, encryption_key=sealed) as client:
        yield client


def test_neither_reading_nor_deleting_creates_the_gallery(fresh: httpx.Client) -> None:
    embedding = {"embeddings": [[1.0] * 128]}
    photo: dict[str, Any] = {"files": {"file": COLLINS}}
    assert fresh.get(SUBJECTS).json() == {"subjects": []}
    assert fresh.get(FACES).json()["total_elements"] == 0
    assert fresh.get(f"{FACES}/{NOBODY}/img").content == b""
    assert fresh.post(f"{RECOGNITION}/recognize", **photo).json()["result"][0]["subjects"] == []
    found = fresh.post(f"{RECOGNITION}/embeddings/recognize", json=embedding).json()
    assert found["result"][0]["similarities"] == []
    refused(fresh.post(f"{FACES}/{NOBODY}/verify", **photo), 404, 44)
    refused(fresh.post(f"{RECOGNITION}/embeddings/faces/{NOBODY}/verify", json=embedding), 404, 44)
    refused(fresh.put(f"{SUBJECTS}/x", json={"subject": "y"}), 404, 42)
    refused(fresh.delete(f"{SUBJECTS}/x"), 404, 42)
    assert fresh.delete(SUBJECTS).json() == fresh.delete(FACES).json() == {"deleted": 0}
    refused(fresh.delete(f"{FACES}/{NOBODY}"), 404, 44)
    assert fresh.post(f"{FACES}/delete", json=[NOBODY]).json() == []
    assert fresh.get("/v1/galleries").json()["galleries"] == []


def test_a_key_of_all_galleries_works_on_default_made_on_first_use(fresh: httpx.Client) -> None:
    assert fresh.get("/v1/galleries").json()["galleries"] == []
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: fresh.post(SUBJECTS, json={"subject": f"s{name}"}), range(16)))
    assert {answer.status_code for answer in answers} == {201}, "many create first, at once"
    fresh.delete(SUBJECTS).raise_for_status()
    assert [one["id"] for one in fresh.get("/v1/galleries").json()["galleries"]] == ["default"]
    add(fresh, "Eileen", COLLINS)
    assert fresh.get("/v1/galleries/default").json()["subjects"] == 1
    entries = fresh.get("/v1/audit", params={"gallery": "default", "order": "oldest"}).json()["entries"]
    made = [one["status"] for one in entries if one["operation"] == "create_gallery"]
    assert made.count(201) == 1
    assert set(made) <= {201, 409}
    (enrolled,) = (one for one in entries if one["operation"] == "enroll")
    assert (enrolled["subject"], enrolled["status"]) == ("Eileen", 201)


def test_a_key_of_some_galleries_works_on_the_one_that_is_meant(fresh: httpx.Client) -> None:
    fresh.post(SUBJECTS, json={"subject": "of default"})

    def bound_to(*galleries: str) -> dict[str, str]:
        for gallery in galleries:
            fresh.post("/v1/galleries", json={"id": gallery})
        made = fresh.post("/v1/keys", json={"scopes": ["read"], "galleries": galleries}).json()
        return {"x-api-key": made["secret"]}

    assert fresh.get(SUBJECTS, headers=bound_to("own")).json() == {"subjects": []}
    assert "of default" in fresh.get(SUBJECTS, headers=bound_to("own", "default")).json()["subjects"]
    refused(fresh.get(SUBJECTS, headers=bound_to("own", "other")), 404, 10)
    gone = bound_to("short")
    fresh.delete("/v1/galleries/short").raise_for_status()
    refused(fresh.get(SUBJECTS, headers=gone), 404, 10)


def test_limits_are_those_of_our_own_api(fresh: httpx.Client) -> None:
    refused(fresh.post(f"{API}/detection/detect", files={"file": COLLINS + b"\0\0"}), 413, 0)
    made = fresh.post("/v1/keys", json={"scopes": ["read"], "rate": "1/m:1"}).json()
    headers = {"x-api-key": made["secret"]}
    assert fresh.get(SUBJECTS, headers=headers).is_success
    slower = fresh.get(SUBJECTS, headers=headers)
    refused(slower, 429, 0)
    assert 1 <= int(slower.headers["retry-after"]) <= 60


def test_every_face_is_named_by_itself(fresh: httpx.Client) -> None:
    """Also where one person is in a photo twice, as in a mirror, and for a key that sees no exact scores."""
    fresh.delete(SUBJECTS).raise_for_status()
    add(fresh, "Eileen", COLLINS)
    once = Image.open(io.BytesIO(AGAIN)).convert("RGB")
    twice = Image.new("RGB", (2 * once.width, once.height))
    twice.paste(once, (0, 0))
    twice.paste(once.transpose(Image.Transpose.FLIP_LEFT_RIGHT), (once.width, 0))
    photo = encoded(np.asarray(twice), "JPEG")
    key = fresh.post("/v1/keys", json={"scopes": ["recognize"]}).json()["secret"]
    found = fresh.post(f"{RECOGNITION}/recognize", files={"file": photo}, headers={"x-api-key": key}).json()
    assert [[hit["subject"] for hit in face["subjects"]] for face in found["result"]] == [["Eileen"], ["Eileen"]]


def test_faces_with_damaged_templates_are_deleted(fresh: httpx.Client, fresh_dir: Path) -> None:
    fresh.delete(SUBJECTS).raise_for_status()
    ids = [add(fresh, subject, COLLINS) for subject in ("Ann", "Bob")]
    with engine_of(f"sqlite:///{fresh_dir / 'likeness.db'}").begin() as connection:
        connection.execute(sa.update(FACES_TABLE).values(template=bytes(33)))
    assert fresh.delete(f"{FACES}/{ids[0]}").json() == {"image_id": ids[0], "subject": "Ann"}
    assert fresh.post(f"{FACES}/delete", json=ids).json() == [{"image_id": ids[1], "subject": "Bob"}]


def test_each_interface_can_be_switched_off(tmp_path: Path) -> None:
    """Also Rekognition's, which is at the root."""
    with running(tmp_path / "data", compreface="off", rekognition="off") as client:
        error_of(client.get(SUBJECTS), 404, "not_found")
        answer = client.post("/", headers={"X-Amz-Target": "RekognitionService.ListCollections"}, json={})
        error_of(answer, 405, "method_not_allowed")
