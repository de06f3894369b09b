"""JSON from outside is bounded before it becomes objects, and reads as `json.loads` reads it."""

from __future__ import annotations

import base64
import binascii
import json
import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api import body as body_module
from app.api import json_reader
from app.api.body import JSON_TYPE, MANY_IMAGES, ONE_IMAGE, Body, BodyLimits, decode_base64, parse_images
from app.api.json_reader import MAX_VALUES, SMALL_BYTES, load_json, load_with_images
from app.errors import InvalidInput
from tests.support.allocated import peak_bytes
from tests.support.refusals import refused

MIB = 1024**2
LIMITS = BodyLimits(
    image_bytes=10 * MIB, request_bytes=64 * MIB, images=50, seconds=1, json_bytes=MIB, upload_bytes=65536
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=60),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
)

HOSTILE = {
    "objects": (b'{"image":[', b"{},", 20, b"{}]}"),
    "lists": (b'{"image":', b"[[],", 15, b"]"),
    "numbers": (b'{"image":[', b"0,", 30, b"0]}"),
    "strings": (b'{"image":[', b'"",', 20, b'""]}'),
    "names": (b'{"image":{', b'"":0,', 12, b'"":0}}'),
    "escaped quotes": (b'{"image":"', b'\\"', 30, b'"}'),
    "strings for many images": (b'{"images":[', b'"",', 20, b'""]}'),
}
"""How a body begins, what it repeats, how many million times (2^20), and how it ends."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_sixty_megabytes_of_values_become_no_objects(kind: str) -> None:
    start, repeated, millions, end = HOSTILE[kind]
    body = Body(start + repeated * (millions * MIB) + end, JSON_TYPE)
    wanted = MANY_IMAGES if b"images" in start else ONE_IMAGE
    took_s = list[float]()

    def refuse() -> None:
        started = time.thread_time()
        with refused("payload_too_large", InvalidInput):
            parse_images(body, wanted, LIMITS)
        took_s.append(time.thread_time() - started)

    assert peak_bytes(refuse, 2 * MIB) < 2 * MIB
    assert min(took_s) < 1.5, "the interpreter's other threads wait meanwhile"


def test_vectors_are_read_and_more_values_than_that_are_refused() -> None:
    numbers = list(range(MAX_VALUES - 10))
    assert load_json(json.dumps({"source": numbers}).encode()) == {"source": numbers}
    with pytest.raises(InvalidInput, match="more than"):
        load_json(json.dumps({"source": [*numbers, *numbers]}).encode())


@settings(max_examples=30, deadline=None)
@given(VALUES, st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", "\t: ")]), st.booleans())
def test_what_is_counted_reads_as_json_reads_it(value: object, separators: tuple[str, str], ascii_only: bool) -> None:
    text = json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "SMALL_BYTES", 20)
        assert load_json(text) == value
        read, _ = load_with_images(text)
        lifted = json.dumps(read, default=lambda view: bytes(view).decode(), ensure_ascii=False)
        assert json.loads(lifted) == value


@pytest.mark.parametrize("text", [b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": "', b'{"a": "\\"}', b"["])
def test_what_is_not_json_is_refused_whatever_its_size(text: bytes) -> None:
    for padding in (b"", b" " * SMALL_BYTES):
        for read in (load_json, load_with_images):
            with refused("invalid_json", InvalidInput):
                read(padding + text)


def test_a_large_image_is_decoded_from_the_body_without_a_copy_of_its_text() -> None:
    image = bytes(range(256)) * 32 * 1024
    forms = (base64.b64encode(image), b"data:image/png;base64," + base64.b64encode(image), base64.encodebytes(image))
    for number, text in enumerate(forms):
        body = Body(b'{"limit":3,"image":"%s"}' % text.replace(b"\n", b"\\n"), JSON_TYPE)
        parts = parse_images(body, ONE_IMAGE, LIMITS)
        assert (parts.images, parts.fields) == ({"image": [image]}, {"limit": 3})
        if number < 2:
            most = 1.1 * len(image)
            assert peak_bytes(partial(parse_images, body, ONE_IMAGE, LIMITS), most) < most


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 3), st.sampled_from([b"=", b"A", b"-", b" "]), st.data())
def test_base64_is_decoded_in_pieces_as_at_once(content: bytes, more: int, sign: bytes, data: st.DataObject) -> None:
    text = base64.b64encode(content)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + sign * more + text[at:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_module, "BASE64_PIECE", 16)
        try:
            whole = binascii.a2b_base64(text if len(text) % 4 == 0 else b"=", strict_mode=True)  # it takes "AAAA="
        except binascii.Error:
            with pytest.raises(binascii.Error):
                decode_base64(text)
        else:
            assert decode_base64(text) == decode_base64(memoryview(text)) == whole
        with pytest.raises(binascii.Error):  # padding where a piece ends
            decode_base64(b"A" * 15 + b"=AAAA")
        with pytest.raises(binascii.Error):  # and where the first piece has all
            decode_base64(b"A" * 16 + b"=")


def test_base64_in_millions_of_words_takes_no_more_memory_than_in_one() -> None:
    words = Body(b'{"image":"%s"}' % (b"QUJ D" * (2 * MIB)), JSON_TYPE)
    most = 2.1 * len(words.data)
    assert peak_bytes(partial(parse_images, words, ONE_IMAGE, LIMITS), most) < most


def test_only_images_are_long() -> None:
    with refused("payload_too_large", InvalidInput):
        parse_images(Body(b'{"image":"AAAA","name":"%s"}' % (b"A" * 100_000), JSON_TYPE), ONE_IMAGE, LIMITS)


def test_single_quotes_are_answered_with_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="need double quotes") as caught:
        load_json(b"{'id': 'crew'}")
    assert caught.value.code == "invalid_json"
