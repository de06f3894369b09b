"""DeepStack's interface: requests as its clients send them, and what they do with the answers."""

from __future__ import annotations

import base64
import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from app.features.similarity import of_fmr
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, encoded, running

FACE = "/v1/vision/face"
RECOGNIZE, REGISTER, LIST, DELETE, MATCH = (
    f"{FACE}/{name}" for name in ("recognize", "register", "list", "delete", "match")
)
CRLF = "\r\n"
WALL = encoded(np.full((200, 200, 3), 128, np.uint8))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("deepstack") / "data", deepstack="on") as api:
        yield api


@pytest.fixture
def key(service: httpx.Client) -> str:
    """A key of a gallery of its own, and no header that sends another."""
    gallery = f"home-{uuid.uuid4().hex}"
    service.post("/v1/galleries", json={"id": gallery}).raise_for_status()
    scopes = ["read", "recognize", "enroll", "delete"]
    made: dict[str, str] = service.post("/v1/keys", json={"scopes": scopes, "galleries": [gallery]}).json()
    return made["secret"]


def form(agent: str, *parts: tuple[str, bytes, str | None]) -> tuple[bytes, dict[str, str]]:
    """Return a form's body and headers, byte by byte as the library writes them; a part has a name, its content, and a
    file's name."""
    boundary = {"axios": "--------------------------804593", "requests": "9c1f", ".NET": "6f7c-11aa"}[agent]
    body = b""
    for name, content, file in parts:
        quote = "" if agent == ".NET" else '"'
        head = f"Content-Disposition: form-data; name={quote}{name}{quote}"
        head += f"; filename={quote}{file}{quote}" if file else ""
        if agent == "axios" and file:
            head += f"{CRLF}Content-Type: image/jpeg"
        if agent == ".NET" and not file:
            head = f"Content-Type: text/plain; charset=utf-8{CRLF}{head}"
        body += f"--{boundary}{CRLF}{head}{CRLF}{CRLF}".encode() + content + CRLF.encode()
    return body + f"--{boundary}--{CRLF}".encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


def post(service: httpx.Client, path: str, agent: str, *parts: tuple[str, bytes, str | None], **headers: str) -> Any:
    body, sent = form(agent, *parts)
    return answered(service, path, body, sent | headers)


def answered(service: httpx.Client, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    """Return status and content; the request has no key beside those in ``headers`` and ``body``."""
    request = service.build_request("POST", path, content=body, headers=headers)
    if "x-api-key" not in headers:
        del request.headers["x-api-key"]
    answer = service.send(request)
    return answer.status_code, answer.json()


def text(name: str, value: str) -> tuple[str, bytes, None]:
    return name, value.encode(), None


def test_double_take(service: httpx.Client, key: str) -> None:
    """Its `deepstack.js`: train, recognize, remove; `predictions` are read without a look at `success`."""
    trained = post(
        service, REGISTER, "axios", ("image", COLLINS, "a.jpg"), text("userid", "eileen"), text("api_key", key)
    )
    assert trained == (200, {"success": True, "message": "face added"})
    status, body = post(service, RECOGNIZE, "axios", ("image", BOTH, "b.jpg"), text("api_key", key))
    assert (status, body["success"]) == (200, True)
    named = {each["userid"]: each for each in body["predictions"]}
    assert set(named) == {"eileen", "unknown"}
    assert all(set(each) == {"userid", "confidence", "x_min", "y_min", "x_max", "y_max"} for each in named.values())
    assert all(type(each["x_max"]) is int for each in named.values())
    assert 0.9 <= named["eileen"]["confidence"] <= 1
    assert named["unknown"]["confidence"] == 0
    removed = post(service, DELETE, "axios", text("userid", "eileen"), text("api_key", key))
    assert removed == (200, {"success": True})
    _, body = post(service, RECOGNIZE, "axios", ("image", COLLINS, "b.jpg"), text("api_key", key))
    assert [each["userid"] for each in body["predictions"]] == ["unknown"]


def test_double_take_with_codeproject_ai_sends_no_field(service: httpx.Client, key: str) -> None:
    """Its `aiserver.js` has a URL alone, and axios sends what stands before an @ in it as HTTP Basic."""
    basic = {"authorization": "Basic " + base64.b64encode(f"double-take:{key}".encode()).decode()}
    status, body = post(service, REGISTER, "axios", ("image", COLLINS, "a.jpg"), text("userid", "eileen"), **basic)
    assert (status, body["success"]) == (200, True)
    status, _ = post(service, RECOGNIZE, "axios", ("image", COLLINS, "a.jpg"), **basic, origin="https://elsewhere")
    assert status == 401, "a browser may have been led here by another site"
    status, body = post(service, RECOGNIZE, "axios", ("image", COLLINS, "a.jpg"))
    assert (status, body) == (401, {"success": False, "error": "Incorrect api key", "code": 401})


def test_viseron(service: httpx.Client, key: str) -> None:
    """Deletes a person before training, by a form that is no multipart one; wants one face in `detect`, then registers.

    Its `DeepstackFace` sends `api_key` in whatever dictionary it has, which is shared between calls: fields of an
    earlier call come along.
    """
    urlencoded = {"content-type": "application/x-www-form-urlencoded"}
    for sent, code in (("userid=Zo%C3%AB", 200), ("userid=Zo\u00eb", 200), ("userid=Zo%FF", 400)):
        status, body = answered(service, DELETE, f"{sent}&api_key={key}".encode(), urlencoded)
        assert status == code, (sent, body)
    status, body = answered(service, DELETE, f"userid=Tom+Cruise&api_key={key}".encode(), urlencoded)
    assert (status, body) == (200, {"success": True}), "though there is nobody"
    photo = ("image", COLLINS, "image")
    status, body = post(service, FACE, "requests", text("api_key", key), photo)
    assert (status, len(body["predictions"])) == (200, 1)
    assert set(body["predictions"][0]) == {"confidence", "x_min", "y_min", "x_max", "y_max"}
    status, body = post(service, REGISTER, "requests", text("userid", "Tom Cruise"), text("api_key", key), photo)
    assert (status, body["message"]) == (200, "face added")
    assert answered(service, LIST, f"api_key={key}".encode(), urlencoded)[1]["faces"] == ["Tom Cruise"]
    fields = text("userid", "Tom Cruise"), text("api_key", key), text("camera", "door")
    status, body = post(service, RECOGNIZE, "requests", *fields, ("image", AGAIN, "image"))
    assert [each["userid"] for each in body["predictions"]] == ["Tom Cruise"]


def test_the_python_sdk(service: httpx.Client, key: str) -> None:
    """`deepstack-sdk` names each photo by a UUID, and always sends `min_confidence`."""
    photos = [(f"image{uuid.uuid4()}", photo, "image") for photo in (COLLINS, COLLINS)]
    status, body = post(service, REGISTER, "requests", text("api_key", key), text("userid", "eileen"), *photos)
    assert (status, body["message"]) == (200, "face added")
    status, body = post(service, REGISTER, "requests", text("api_key", key), text("userid", "eileen"), photos[0])
    assert (status, body["message"]) == (200, "face updated"), "one more photo"
    for confidence, who in (("0.7", "eileen"), ("0.0", "eileen"), ("", "eileen"), ("1", "unknown")):
        fields = text("api_key", key), text("min_confidence", confidence)
        status, body = post(service, RECOGNIZE, "requests", *fields, ("image", AGAIN, "image"))
        assert [each["userid"] for each in body["predictions"]] == [who], confidence
    status, body = post(service, FACE, "requests", text("api_key", key), text("min_confidence", "0.4"), photos[0])
    assert body["predictions"][0]["confidence"] > 0.99
    status, _ = post(service, FACE, "requests", text("api_key", key), text("min_confidence", "2"), photos[0])
    assert status == 400, "Invalid image, says the SDK, and would say Unknown error to 422"


def test_the_documentation_of_codeproject_ai(service: httpx.Client, key: str) -> None:
    """`imageN` is what its page calls the photo; .NET writes names without quotes."""
    status, body = post(
        service, REGISTER, ".NET", ("imageN", COLLINS, "any.jpg"), text("userid", "Jane"), text("api_key", key)
    )
    assert (status, body["success"]) == (200, True)
    pair = ("image1", COLLINS, "a.jpg"), ("image2", AGAIN, "b.jpg")
    status, same = post(service, MATCH, ".NET", *pair, text("api_key", key))
    assert (status, same["success"], same["similarity"] > 0.99) == (200, True, True)
    _, other = post(service, MATCH, ".NET", pair[0], ("image2", HOPPER, "b.jpg"), text("api_key", key))
    assert other["similarity"] < 0.8
    status, body = post(service, MATCH, ".NET", pair[0], text("api_key", key))
    assert (status, body["success"]) == (400, False)


def test_who_is_named_is_what_identify_decides(service: httpx.Client, key: str) -> None:
    """DeepStack's default of 0.67 and its SDK's of 0.7 would be one comparison of strangers in some hundred."""
    post(service, REGISTER, "requests", text("api_key", key), text("userid", "eileen"), ("image", COLLINS, "image"))
    small = io.BytesIO()
    Image.open(io.BytesIO(HOPPER)).save(small, "JPEG", quality=60)
    for photo in (HOPPER, small.getvalue()):
        fields = text("api_key", key), text("min_confidence", "0.01")
        _, body = post(service, RECOGNIZE, "requests", *fields, ("image", photo, "image"))
        assert [(each["userid"], each["confidence"]) for each in body["predictions"]] == [("unknown", 0)]
    _, body = post(service, RECOGNIZE, "requests", text("api_key", key), ("image", AGAIN, "image"))
    assert body["predictions"][0]["confidence"] >= of_fmr(1e-4)


@pytest.mark.parametrize(
    ("path", "parts", "error"),
    [
        (REGISTER, [("image", COLLINS, "a.jpg")], "userid not specified"),
        (REGISTER, [text("userid", "eileen")], "No valid image file found"),
        (REGISTER, [("image", WALL, "a.png"), text("userid", "eileen")], "no face detected"),
        (RECOGNIZE, [], "No valid image file found"),
        (DELETE, [], "userid not specified"),
        (RECOGNIZE, [("image", b"no photo", "a.jpg")], None),
    ],
)
def test_errors(
    service: httpx.Client, key: str, path: str, parts: list[tuple[str, bytes, str | None]], error: str | None
) -> None:
    status, body = post(service, path, "axios", *parts, text("api_key", key))
    assert (status, body["success"], body["code"]) == (400, False, 400)
    assert error is None or body["error"] == error


def test_a_photo_without_a_face_has_no_predictions(service: httpx.Client, key: str) -> None:
    for path in (FACE, RECOGNIZE):
        status, body = post(service, path, "axios", ("image", WALL, "a.png"), text("api_key", key))
        assert (status, body) == (200, {"success": True, "predictions": []})


def test_keys(service: httpx.Client, key: str) -> None:
    """In the form, in a header, and none; what the key may not do is forbidden."""
    photo = ("image", COLLINS, "a.jpg")
    assert post(service, RECOGNIZE, "axios", photo, **{"x-api-key": key})[0] == 200
    assert post(service, RECOGNIZE, "axios", photo, text("admin_key", key))[0] == 200
    for wrong in ("", "lk_wrong"):
        status, body = post(service, RECOGNIZE, "axios", photo, text("api_key", wrong))
        assert (status, body["error"]) == (401, "Incorrect api key")
    assert answered(service, LIST, b"", {})[0] == 401
    only = service.post("/v1/keys", json={"scopes": ["recognize"]}).json()["secret"]
    status, body = post(service, DELETE, "axios", text("userid", "x"), text("api_key", only))
    assert (status, body["success"]) == (403, False)
    assert answered(service, f"{FACE}/scene", b"", {"x-api-key": key})[0] == 404
    assert answered(service, f"{FACE}/scene", b"", {})[0] == 401


def test_a_field_that_comes_twice_is_not_read_as_one_of_both(service: httpx.Client, key: str) -> None:
    """Two ids one after the other would be a third person's."""
    own = text("api_key", key)
    image = ("image", COLLINS, "face.jpg")
    assert post(service, f"{FACE}/register", "requests", own, text("userid", "eileengrace"), image)[0] == 200
    twice = post(service, f"{FACE}/delete", "requests", own, text("userid", "eileen"), text("userid", "grace"))
    assert twice == (400, {"success": False, "error": "userid: given twice.", "code": 400})
    assert post(service, f"{FACE}/list", "requests", own)[1]["faces"] == ["eileengrace"]


def test_the_audit_log_names_the_subject(service: httpx.Client, key: str) -> None:
    post(service, REGISTER, "requests", text("api_key", key), text("userid", "eileen"), ("image", COLLINS, "image"))
    post(service, DELETE, "requests", text("api_key", key), text("userid", "eileen"))
    entries = service.get("/v1/audit?limit=20").json()["entries"]
    found = [(entry["operation"], entry["subject"], entry["status"]) for entry in entries]
    assert ("enroll", "eileen", 200) in found
    assert ("delete_subject", "eileen", 200) in found


def test_it_is_off_unless_switched_on(tmp_path: Path) -> None:
    with running(tmp_path / "data") as api:
        assert api.post(LIST).status_code == 404
