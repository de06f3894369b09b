"""Bad input: each kind is answered with a 4xx and a code of its own, the server lives on, and nothing has changed."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.support.black_png import black_png
from tests.support.postgres import new_database
from tests.support.service import COLLINS, HOPPER, encoded, error_of, running

PIXELS = np.asarray(Image.open(io.BytesIO(COLLINS)).convert("RGB"))[::2, ::2].copy()
FILES = {
    "JPEG": encoded(PIXELS, "JPEG"),
    "PNG": encoded(PIXELS, "PNG"),
    "WEBP": encoded(PIXELS, "WEBP"),
}
ROUTES = ["/v1/detect", "/v1/embed", "{gallery}/identify", "{gallery}/subjects/eileen/verify"]
BASE64 = base64.b64encode(COLLINS).decode()


def state(api: httpx.Client, gallery: str) -> tuple[Any, ...]:
    """All that the gallery holds, and that its index agrees."""
    subjects = api.get(f"{gallery}/subjects").json()
    faces = [api.get(f"{gallery}/subjects/{subject['id']}/faces").json() for subject in subjects["subjects"]]
    return api.get(gallery).json(), subjects, faces, api.get(f"{gallery}/check").json()


@pytest.fixture(scope="module")
def inhabited(api: httpx.Client) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """A gallery with somebody in it, and its state."""
    api.post("/v1/galleries", json={"id": "bad-input"}).raise_for_status()
    path = "/v1/galleries/bad-input"
    api.post(f"{path}/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
    yield path, state(api, path)
    (face,) = api.post(f"{path}/identify", files={"image": COLLINS}).json()["faces"]
    assert (face["decision"], face["candidates"][0]["subject"]) == ("known", "eileen")
    api.delete(path)


@pytest.fixture
def people(api: httpx.Client, inhabited: tuple[str, tuple[Any, ...]]) -> Iterator[str]:
    """That gallery's path; when the test ends, it must be as it was, in a server that still answers."""
    path, before = inhabited
    yield path
    assert state(api, path) == before


def everywhere(api: httpx.Client, gallery: str, image: bytes) -> list[httpx.Response]:
    """The same bytes as the image of every operation that takes one."""
    answers = [api.post(route.format(gallery=gallery), files={"image": image}) for route in ROUTES]
    answers.append(api.post("/v1/verify", files={"image1": COLLINS, "image2": image}))
    answers.append(api.post(f"{gallery}/subjects/eileen/faces", files={"images": image}))
    return answers


IMAGES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 422, "empty_image"),
    "text": (b"This is a text and not a picture of anyone, however long one looks at it.", 415, "unsupported_image"),
    "damaged": (FILES["JPEG"][:-2000], 422, "invalid_image"),
    "one pixel": (encoded(np.zeros((1, 1, 3), np.uint8)), 422, "image_too_small"),
    "a bomb of a few kilobytes": (black_png(60_000, rows=400), 413, "image_too_large"),
    "too many bytes": (COLLINS + bytes(10 * 1024 * 1024), 413, "payload_too_large"),
}


@pytest.mark.parametrize("what", IMAGES)
def test_an_image_that_is_none_is_refused_by_every_operation_and_is_never_no_face(
    api: httpx.Client, people: str, what: str
) -> None:
    image, status, code = IMAGES[what]
    for answer in everywhere(api, people, image):
        error_of(answer, status, code)


def test_an_empty_body(api: httpx.Client, people: str) -> None:
    for route in ROUTES:
        path = route.format(gallery=people)
        error_of(api.post(path), 422, "empty_image")
        error_of(api.post(path, content=b"", headers={"content-type": "image/jpeg"}), 422, "empty_image")
        error_of(api.post(path, content=b"", headers={"content-type": "application/json"}), 400, "invalid_json")


@pytest.mark.parametrize("kind", FILES)
def test_an_image_cut_at_every_tenth_of_its_length(api: httpx.Client, people: str, kind: str) -> None:
    whole = FILES[kind]
    assert len(api.post("/v1/detect", files={"image": whole}).json()["faces"]) == 1
    for tenth in range(1, 10):
        cut = whole[: len(whole) * tenth // 10]
        error_of(api.post("/v1/detect", files={"image": cut}), 422, "invalid_image")
        error_of(api.post(f"{people}/subjects/eileen/faces", files={"images": cut}), 422, "invalid_image")


def test_a_body_of_too_many_bytes(api: httpx.Client, people: str) -> None:
    big = IMAGES["too many bytes"][0]
    answer = api.post("/v1/detect", content=big + big, headers={"content-type": "image/jpeg"})
    error_of(answer, 413, "payload_too_large")
    answer = api.post("/v1/detect", json={"image": base64.b64encode(big).decode()})
    error_of(answer, 413, "payload_too_large")
    content = json.dumps({"id": "x", "metadata": {"a": "b" * 1_000_000}})
    answer = api.post(f"{people}/subjects", content=content, headers={"content-type": "application/json"})
    error_of(answer, 413, "payload_too_large")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "video/mp4", "", "nonsense"])
def test_a_wrong_content_type(api: httpx.Client, people: str, kind: str) -> None:
    for route in [*ROUTES, "/v1/verify", "{gallery}/subjects/eileen/faces"]:
        answer = api.post(route.format(gallery=people), content=COLLINS, headers={"content-type": kind})
        assert "application/json" in error_of(answer, 415, "unsupported_media_type")["supported"]
    error_of(
        api.post("/v1/verify", content=COLLINS, headers={"content-type": "image/jpeg"}), 415, "unsupported_media_type"
    )
    for path in ("/v1/galleries", f"{people}/subjects"):
        answer = api.post(path, content=b'{"id": "x"}', headers={"content-type": kind})
        error_of(answer, 415, "unsupported_media_type")


def test_a_compressed_body(api: httpx.Client, people: str) -> None:
    headers = {"content-type": "image/jpeg", "content-encoding": "gzip"}
    error_of(api.post(f"{people}/identify", content=COLLINS, headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("text", ["!", "AAAAA", BASE64 + "====", "data:image/png,abc", "AAA=AAAA", "AA=", "é"])
def test_broken_base64(api: httpx.Client, people: str, text: str) -> None:
    for route in ROUTES:
        error_of(api.post(route.format(gallery=people), json={"image": text}), 422, "invalid_base64")
    error_of(api.post("/v1/verify", json={"image1": BASE64, "image2": text}), 422, "invalid_base64")
    error_of(api.post(f"{people}/subjects/eileen/faces", json={"images": [BASE64, text]}), 422, "invalid_base64")


@pytest.mark.parametrize("value", [1, True, {}, {"data": BASE64}])
def test_json_that_is_no_image(api: httpx.Client, people: str, value: object) -> None:
    error_of(api.post(f"{people}/identify", json={"image": value}), 422, "invalid_base64")


@pytest.mark.parametrize("image", [COLLINS, COLLINS + b"1", COLLINS + b"12"], ids=len)
def test_base64_may_be_wrapped_into_lines_for_urls_and_unpadded(api: httpx.Client, image: bytes) -> None:
    plain, for_urls = base64.b64encode(image), base64.urlsafe_b64encode(image)
    assert plain != for_urls
    for text in (base64.encodebytes(image), for_urls, plain.rstrip(b"="), for_urls.rstrip(b"=")):
        assert api.post("/v1/detect", json={"image": text.decode()}).status_code == 200


def test_json_may_begin_with_a_byte_order_mark(api: httpx.Client, people: str) -> None:
    headers = {"content-type": "application/json"}
    for content in (b'{"image": "%s"}' % BASE64.encode(), b'{"image": "%s"}' % base64.b64encode(FILES["PNG"])):
        assert api.post("/v1/detect", content=b"\xef\xbb\xbf" + content, headers=headers).status_code == 200
    made = api.post(f"{people}/subjects", content=b'\xef\xbb\xbf{"id": "bom"}', headers=headers)
    assert (made.status_code, made.json()["id"]) == (201, "bom")
    api.delete(f"{people}/subjects/bom")


@pytest.mark.parametrize("names", [("images[]", "images[]"), ("images[0]", "images[1]"), ("images", "images[]")])
def test_many_images_may_be_named_as_lists_of_forms_are(api: httpx.Client, people: str, names: tuple[str, str]) -> None:
    files = [(names[0], COLLINS), (names[1], HOPPER)]
    answer = api.post(f"{people}/subjects/listed/faces?quality=none", files=files)
    assert (answer.status_code, len(answer.json()["enrolled"])) == (201, 2), answer.text
    api.delete(f"{people}/subjects/listed")
    error_of(api.post("/v1/detect", files=[("image[]", COLLINS)]), 422, "invalid_request")


def test_a_form_may_have_a_preamble_and_an_epilogue(api: httpx.Client) -> None:
    head = b'--line\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    form = head + COLLINS + b"\r\n--line--\r\nThis is the epilogue.\r\n"
    headers = {"content-type": "multipart/form-data; boundary=line"}
    for preamble in (b"", b"\r\n", b"This is a message in MIME format.\r\n", b"a\n" * 2000):
        assert api.post("/v1/detect", content=preamble + form, headers=headers).status_code == 200
    for wrong in (b"no boundary here", b"x" * 20_000 + b"\r\n" + form):
        error_of(api.post("/v1/detect", content=wrong, headers=headers), 400, "invalid_multipart")


def test_an_empty_content_encoding_is_none(api: httpx.Client) -> None:
    headers = {"content-type": "image/jpeg", "content-encoding": ""}
    assert api.post("/v1/detect", content=COLLINS, headers=headers).status_code == 200


def test_ids_and_names_are_counted_composed_and_have_no_spaces_that_nobody_sees(api: httpx.Client, people: str) -> None:
    long = "e\u0301" * 255
    made = api.post(f"{people}/subjects", json={"id": long, "name": long})
    assert (made.status_code, made.json()["id"], made.json()["name"]) == (201, "é" * 255, "é" * 255)
    api.delete(f"{people}/subjects/{'é' * 255}")
    error_of(api.post(f"{people}/subjects", json={"id": long + "e"}), 422, "invalid_request")
    for odd in ("ada ", " ada", "ada\u00a0", "a\u00a0da", "a\u2009da"):
        error_of(api.post(f"{people}/subjects", json={"id": odd}), 422, "invalid_id")
    made = api.post(f"{people}/subjects", json={"id": "a da", "name": " Ada\u00a0L. "})
    assert (made.json()["id"], made.json()["name"]) == ("a da", "Ada L.")
    api.delete(f"{people}/subjects/a da")


def test_two_images_where_one_is_due(api: httpx.Client, people: str) -> None:
    for route in ROUTES:
        path = route.format(gallery=people)
        error_of(api.post(path, files=[("image", COLLINS), ("image", HOPPER)]), 422, "too_many_images")
        error_of(api.post(path, json={"image": [BASE64, BASE64]}), 422, "too_many_images")
    three = [("image1", COLLINS), ("image1", HOPPER), ("image2", COLLINS)]
    error_of(api.post("/v1/verify", files=three), 422, "too_many_images")


def test_more_images_than_an_enrollment_takes(api: httpx.Client, people: str) -> None:
    many = [("images", FILES["WEBP"])] * 51
    assert error_of(api.post(f"{people}/subjects/eileen/faces", files=many), 422, "too_many_images") == {"limit": 50}
    error_of(api.post(f"{people}/subjects/eileen/faces", json={"images": ["AAAA"] * 51}), 422, "too_many_images")


def test_a_missing_image(api: httpx.Client, people: str) -> None:
    for answer in (
        api.post("/v1/verify", files={"image1": COLLINS}),
        api.post("/v1/verify", json={"image2": BASE64}),
        api.post("/v1/detect", json={}),
        api.post("/v1/detect", json={"image": None}),
        api.post("/v1/detect", files={"explain": (None, "true")}),
        api.post(f"{people}/subjects/eileen/faces", json={"images": []}),
    ):
        assert error_of(answer, 422, "missing_image")["expected"]


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"x", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary=b"),
        (b"--b\r\ncontent-disposition: form-data; name=image\r\n\r\ncut", "multipart/form-data; boundary=b"),
        (b"--b\r\ncontent-disposition: form-data\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b"),
        (b"--b\r\n" + b"a: b\r\n" * 100 + b"\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b"),
        (
            b'--b\r\ncontent-disposition: form-data; name="fmr"\r\n\r\n\xff\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (b"--" + b"b" * 300 + b"\r\n", "multipart/form-data; boundary=" + "b" * 300),
    ],
)
def test_a_broken_form(api: httpx.Client, people: str, content: bytes, content_type: str) -> None:
    answer = api.post(f"{people}/identify", content=content, headers={"content-type": content_type})
    error_of(answer, 400, "invalid_multipart")


def test_a_form_of_too_many_fields(api: httpx.Client, people: str) -> None:
    fields: dict[str, Any] = {f"field{index}": (None, "x") for index in range(100)}
    error_of(api.post(f"{people}/identify", files=fields), 413, "payload_too_large")
    twice: Any = [("image", COLLINS), ("fmr", (None, b"0.1")), ("fmr", (None, b"0.1"))]
    error_of(api.post(f"{people}/identify", files=twice), 422, "invalid_request")
    long: dict[str, Any] = {"image": COLLINS, "fmr": (None, "1" * 10_000)}
    error_of(api.post(f"{people}/identify", files=long), 413, "payload_too_large")


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff", b"[" * 60_000, b'{"id": NaN}', b'{"a": 1e999}', b'{"id": "\\ud800"}', b"{" + b"9" * 5000 + b"}"],
)
def test_broken_json(api: httpx.Client, people: str, content: bytes) -> None:
    for path in ("/v1/galleries", f"{people}/subjects", f"{people}/identify"):
        answer = api.post(path, content=content, headers={"content-type": "application/json"})
        error_of(answer, 400, "invalid_json")


@pytest.mark.parametrize("content", [b"[]", b"1", b'"text"', b"null"])
def test_json_that_is_no_object(api: httpx.Client, people: str, content: bytes) -> None:
    for path in ("/v1/galleries", f"{people}/subjects", f"{people}/identify"):
        answer = api.post(path, content=content, headers={"content-type": "application/json"})
        error_of(answer, 422, "invalid_request")


@pytest.mark.parametrize("name", ["fmr", "fpir"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "inf", "-1", "0", "1", "1e400", "x", "", "None"])
def test_rates_that_are_none(api: httpx.Client, people: str, name: str, value: str) -> None:
    path = f"{people}/identify"
    error_of(api.post(path, files={"image": COLLINS}, params={name: value}), 422, "invalid_request")
    error_of(api.post(path, files={"image": COLLINS}, data={name: value}), 422, "invalid_request")


@pytest.mark.parametrize("value", [-1, 0, 101, 1.5, "5", True, None, [], 10**30])
def test_limits_that_are_none(api: httpx.Client, people: str, value: object) -> None:
    error_of(api.post(f"{people}/identify", json={"image": BASE64, "limit": value}), 422, "invalid_request")


@pytest.mark.parametrize(
    "params", [{"limit": "-1"}, {"limit": "1001"}, {"limit": "NaN"}, {"page": "2"}, {"cursor": "x" * 3000}]
)
def test_wrong_parameters_of_lists(api: httpx.Client, people: str, params: dict[str, str]) -> None:
    for path in ("/v1/galleries", f"{people}/subjects", f"{people}/subjects/eileen/faces"):
        error_of(api.get(path, params=params), 422, "invalid_request")


def test_unknown_fields(api: httpx.Client, people: str) -> None:
    for answer in (
        api.post("/v1/detect", files={"image": COLLINS}, params={"treshold": "1"}),
        api.post("/v1/detect", files={"image": COLLINS, "image2": COLLINS}),
        api.post("/v1/detect", json={"image": BASE64, "url": "http://example.com/x.jpg"}),
        api.post("/v1/galleries", json={"id": "x", "embeder": "sface"}),
        api.patch(f"{people}/subjects/eileen", json={"identity": "other"}),
        api.post(f"{people}/subjects/eileen/faces", files={"images": COLLINS}, params={"quality": "best"}),
    ):
        details = error_of(answer, 422, "invalid_request")
        assert details["errors"][0]["where"]


def test_errors_do_not_repeat_what_was_sent(api: httpx.Client, people: str) -> None:
    for answer in (
        api.post("/v1/detect", json={"image": BASE64, "explain": "very-secret"}),
        api.post(f"{people}/subjects", json={"id": ["very-secret"]}),
        api.get(f"{people}/subjects", params={"limit": "very-secret"}),
    ):
        assert "very-secret" not in answer.text
        assert BASE64[:40] not in answer.text


def test_ids_with_slashes_and_emoji_do_not_reach_others(api: httpx.Client, people: str) -> None:
    """(That they work is in test_api_galleries.)"""
    error_of(api.get(f"{people}/subjects/eileen%2Ffaces"), 404, "subject_not_found")
    error_of(api.get(f"{people}/subjects/%F0%9F%8E%89"), 404, "subject_not_found")
    error_of(api.get(f"{people}%2Fsubjects%2Feileen"), 404, "gallery_not_found")
    error_of(api.get(f"{people}/subjects/x/../eileen%00"), 422, "invalid_id")


def test_metadata_of_ten_thousand_keys(api: httpx.Client, people: str) -> None:
    huge = {f"key {index}": index for index in range(10_000)}
    error_of(api.post(f"{people}/subjects", json={"id": "x", "metadata": huge}), 422, "invalid_metadata")
    error_of(api.patch(f"{people}/subjects/eileen", json={"metadata": huge}), 422, "invalid_metadata")
    error_of(api.post("/v1/galleries", json={"id": "x", "metadata": huge}), 422, "invalid_metadata")


@pytest.mark.parametrize("metadata", [[], "text", 1, None, True])
def test_metadata_that_is_no_object(api: httpx.Client, people: str, metadata: object) -> None:
    error_of(api.post(f"{people}/subjects", json={"id": "x", "metadata": metadata}), 422, "invalid_request")
    error_of(api.patch(f"{people}/subjects/eileen", json={"metadata": metadata}), 422, "invalid_request")


def test_metadata_that_is_deep_or_holds_what_no_database_takes(api: httpx.Client, people: str) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    for metadata in (deep, {"a": "\x00"}, {"\x00": 1}):
        error_of(api.post(f"{people}/subjects", json={"id": "x", "metadata": metadata}), 422, "invalid_metadata")


MEANT: dict[str, tuple[dict[str, Any], str]] = {
    "a form's field": ({"files": {"file": COLLINS}}, "the photo goes into image"),
    "a threshold": ({"files": {"image": COLLINS}, "params": {"threshold": "0.8"}}, "as fmr or fpir"),
    "a slip": ({"files": {"image": COLLINS}, "params": {"limt": "1"}}, "Did you mean limit?"),
    "a field of JSON": ({"json": {"image": BASE64, "min_score": 0.5}}, "as fmr or fpir"),
    "a rate": (
        {"files": {"image": COLLINS}, "params": {"fmr": "often"}},
        "query.fmr: Give a rate between 0 and 1, such as",
    ),
    "per cent": ({"files": {"image": COLLINS}, "params": {"fpir": "1%"}}, "1 % is 0.01"),
    "a slip of a rate": (
        {"files": {"image": COLLINS}, "data": {"fmr": "1e-4x"}},
        "such as 0.0001 (one in ten thousand",
    ),
    "a rate of one": ({"files": {"image": COLLINS}, "params": {"fmr": "1"}}, "between 0 and 1"),
    "a rate in quotes": ({"json": {"image": BASE64, "fmr": "0.001"}}, "between 0 and 1"),
    "a count": ({"files": {"image": COLLINS}, "params": {"limit": "1e3"}}, "limit: Give a whole number, such as 10"),
    "a count in quotes": ({"json": {"image": BASE64, "limit": "5"}}, "limit: Give a whole number without quotes"),
    "a count of none": ({"files": {"image": COLLINS}, "params": {"limit": "0"}}, "limit: Give at least 1"),
    "a choice": ({"files": {"image": COLLINS}, "params": {"quality": "maybe"}}, "quality: Give 'none', 'low'"),
    "a yes": ({"files": {"image": COLLINS}, "params": {"explain": "ja"}}, "explain: Give true or false"),
    "a parameter that is none": ({"files": {"image": COLLINS}, "params": {"q": "1"}}, "there are track, quality, "),
    "an address": ({"files": {"image": b"https://example.org/a.jpg"}}, "send the photo itself"),
    "an address in JSON": ({"json": {"image": "https://example.org/a.jpg"}}, "send the photo itself"),
    "a file's name": ({"files": {"image": b"photos/a.jpg"}}, "with an @"),
}
"""What people send in place of what is meant, and what the message then says."""


@pytest.mark.parametrize("what", MEANT)
def test_messages_say_what_to_do(api: httpx.Client, people: str, what: str) -> None:
    sent, words = MEANT[what]
    answer = api.post(f"{people}/identify", **sent)
    assert answer.is_client_error
    message = answer.json()["error"]["message"]
    assert words in message
    assert "Value error" not in message
    assert "unable to" not in message


def test_a_message_names_both_photos_of_a_pair(api: httpx.Client) -> None:
    answer = api.post("/v1/verify", files={"photo": COLLINS})
    assert "the photos go into image1 and image2" in answer.json()["error"]["message"]


LIBRARIES = re.compile(
    "Value error|unable to|instance of|dictionary|after validation|Extra inputs|Traceback|pydantic"
    "|Input should be (?:a valid|'|\\w+ than or)|Field required|should match pattern"
)
"""Words of pydantic and of Python, which say nothing to whoever sent the request."""
WRONG = ("abc", "", "-1", "1e999", "\0")
WRONG_JSON: tuple[Any, ...] = (None, 1, "", "x" * 2000, [1], [[]], {"a": 1})


def test_no_message_has_words_of_a_library(api: httpx.Client) -> None:
    """Wrong values of every parameter and every field of JSON, one at a time."""
    api.post("/v1/galleries", json={"id": "wording"}).raise_for_status()
    api.post("/v1/galleries/wording/subjects", json={"id": "eileen"}).raise_for_status()
    document = api.get("/openapi.json").json()
    refused = []
    for path, methods in document["paths"].items():
        where = re.sub(r"\{\w+\}", "0", path.replace("{gallery}", "wording").replace("{subject}", "eileen"))
        for method, operation in methods.items():
            streams = "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
            if method == "delete" or streams:
                continue
            content = operation.get("requestBody", {}).get("content", {})
            files = {"image": HOPPER} if "multipart/form-data" in content else None
            named = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
            answers = [
                api.request(method, where, params={name: value}, files=files) for name in named for value in WRONG
            ]
            schema = content.get("application/json", {}).get("schema", {})
            fields = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
            bodies = [{name: value} for name in fields.get("properties", ()) for value in WRONG_JSON]
            answers += [api.request(method, where, json=body) for body in bodies if content.get("application/json")]
            refused += [(method, path, answer.text) for answer in answers if answer.is_client_error]
            assert not [answer.text for answer in answers if answer.is_server_error]
    api.delete("/v1/galleries/wording").raise_for_status()
    assert len(refused) > 500
    assert not [answer for answer in refused if LIBRARIES.search(answer[2])]


@pytest.mark.parametrize(
    ("path", "method", "words"),
    [
        ("/galleries", "GET", "/docs shows those that there are"),
        ("/v1/galleries", "PUT", "The route takes GET, HEAD, POST."),
    ],
)
def test_a_route_that_is_none_says_where_they_are(api: httpx.Client, path: str, method: str, words: str) -> None:
    assert words in api.request(method, path).json()["error"]["message"]


def test_json_without_its_content_type_is_told_to_name_it(api: httpx.Client) -> None:
    answer = api.post(
        "/v1/galleries", content=b'{"id": "x"}', headers={"content-type": "application/x-www-form-urlencoded"}
    )
    error_of(answer, 415, "unsupported_media_type")
    assert "name it in the header Content-Type" in answer.json()["error"]["message"]


def test_a_parameter_may_be_in_query_and_body_if_they_agree(api: httpx.Client, people: str) -> None:
    """openapi-python-client sends the defaults of both."""
    sent: dict[str, Any] = {"params": {"limit": "5", "track": "false"}, "files": {"image": COLLINS}}
    assert api.post(f"{people}/identify", data={"limit": "5", "track": "false"}, **sent).status_code == 200
    answer = api.post(f"{people}/identify", data={"limit": "6", "track": "false"}, **sent)
    error_of(answer, 422, "invalid_request")
    assert "limit: given in the query and in the body" in answer.json()["error"]["message"]


@pytest.mark.long
def test_a_text_that_postgresql_can_not_hold_is_refused_wherever_it_stands(tmp_path: Path, postgresql: Path) -> None:
    """U+0000 in each id of a path and in each parameter of the query, of every operation."""
    on: dict[str, Any] = dict.fromkeys(("deepstack", "immich", "watching"), "on")
    with running(tmp_path / "data", database_url=new_database(postgresql), **on) as api:
        api.post("/v1/galleries", json={"id": "g"}).raise_for_status()
        paths = api.get("/openapi.json").json()["paths"]
        for path, operations in paths.items():
            names = re.findall(r"\{(\w+)\}", path)
            plain = path.format_map(dict.fromkeys(names, "g"))
            for method, operation in operations.items():
                tried = [(path.format_map(dict.fromkeys(names, "g") | {name: "a%00b"}), "") for name in names]
                listed = (field["name"] for field in operation.get("parameters", ()) if field["in"] == "query")
                tried += [(plain, f"?{name}=a%00b") for name in listed]
                for where, query in tried:
                    answer = api.request(method.upper(), where + query, json={})
                    assert answer.status_code < 500, (method, where, query, answer.text)
