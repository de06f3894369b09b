"""Signatures: botocore's own signer is the oracle of what is accepted; everything else is refused."""

from __future__ import annotations

import hashlib
import string
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.features.one_time import KEPT_S, SeenSignatures
from app.features.rekognition import errors, sigv4
from app.features.rekognition.errors import RekognitionError
from app.features.rekognition.sigv4 import Claim, SignedRequest, signing_key
from app.features.rekognition.wire import REPEAT_S, use_once
from app.gallery.store import Store

botocore_auth = pytest.importorskip("botocore.auth", reason="the dev extra brings boto3")
ACCESS_KEY, SECRET, REGION = "LKIA_DOOR", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-central-1"
URL = "http://faces.example:8000/"
TARGET = "RekognitionService.ListCollections"
OWN_HEADERS = {"x-amz-target", "x-amz-date", "host", "authorization", "date", "x-amz-security-token"}

header_names = st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=20).filter(
    lambda name: name.lower() not in OWN_HEADERS | {"x-amz-content-sha256", *botocore_auth.SIGNED_HEADERS_BLACKLIST}
)
printable = st.characters(min_codepoint=32, exclude_categories=["C", "Z"]) | st.just(" ")
header_values = st.text(printable, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def sign(
    *,
    headers: Mapping[str, str] | None = None,
    query: str = "",
    body: bytes = b"{}",
    secret: str = SECRET,
    token: str | None = None,
    region: str = REGION,
) -> SignedRequest:
    """A request as botocore signs it, now, and as it then lies on the wire."""
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 (only where the oracle is there)
    from botocore.credentials import Credentials  # noqa: PLC0415

    url = URL + (f"?{query}" if query else "")
    request = AWSRequest("POST", url, {"X-Amz-Target": TARGET, **(headers or {})}, body)
    botocore_auth.SigV4Auth(Credentials(ACCESS_KEY, secret, token), sigv4.SERVICE, region).add_auth(request)
    prepared = request.prepare()
    sent = [("host", urlsplit(URL).netloc), *prepared.headers.items()]
    wire = [(name.encode(), value if isinstance(value, bytes) else str(value).encode()) for name, value in sent]
    return SignedRequest.of("POST", "/", urlsplit(prepared.url).query.encode(), wire)


@pytest.fixture(scope="module")
def plain() -> SignedRequest:
    """A request as botocore signs it, once for many examples of what is altered in it."""
    return sign()


def holds(request: SignedRequest, body: bytes = b"{}", secret: str = SECRET, now: float | None = None) -> bool:
    """Whether the request is what the holder of the secret signed."""
    claim = sigv4.read_claim(request, time.time() if now is None else now)
    digest = hashlib.sha256(body).hexdigest()
    sigv4.check_body(request, digest)
    key = signing_key(secret, claim.date, claim.region)
    return sigv4.is_signed_with(key, claim, request, digest)


def refusal(request: SignedRequest, **given: Any) -> str:
    """The name it is refused under; empty where it isn't."""
    try:
        return "" if holds(request, **given) else errors.INVALID_SIGNATURE
    except RekognitionError as error:
        return error.name


def changed(request: SignedRequest, name: str, *values: bytes) -> SignedRequest:
    headers = {**request.headers, name: values}
    return replace(request, headers={key: found for key, found in headers.items() if found})


@settings(max_examples=150)
@given(
    headers=st.dictionaries(header_names, header_values, max_size=6),
    query=st.lists(st.tuples(texts, texts), max_size=5),
    body=st.binary(max_size=200),
    region=st.sampled_from([REGION, "us-east-1", ""]),
)
def test_what_botocore_signs_holds(
    headers: dict[str, str], query: list[tuple[str, str]], body: bytes, region: str
) -> None:
    headers = {name.lower(): value for name, value in headers.items()}
    text = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query)
    request = sign(headers=headers, query=text, body=body, region=region)
    assert holds(request, body)
    assert not holds(request, body + b" ")
    assert not holds(request, body, secret=SECRET + "x")
    assert not holds(replace(request, query=request.query + b"&more=1"), body)
    assert not holds(replace(request, method="PUT"), body)
    for name in headers:
        assert not holds(changed(request, name, b"x" + b"".join(request.headers[name])), body)


@settings(max_examples=60)
@given(at=st.integers(0, 63), digit=st.sampled_from("0123456789abcdef"))
def test_a_changed_signature_holds_no_more(plain: SignedRequest, at: int, digit: str) -> None:
    text = plain.headers["authorization"][0].decode()
    start = text.index("Signature=") + len("Signature=") + at
    altered = text[:start] + digit + text[start + 1 :]
    assert holds(changed(plain, "authorization", altered.encode())) == (altered == text)


@pytest.mark.parametrize(
    ("off_s", "name"),
    [
        (0, ""),
        (290, ""),
        (-290, ""),
        (310, errors.INVALID_SIGNATURE),
        (-310, errors.INVALID_SIGNATURE),
        (1000, errors.EXPIRED),
        (-1000, errors.EXPIRED),
    ],
)
def test_clocks_may_be_five_minutes_apart(off_s: int, name: str) -> None:
    assert refusal(sign(), now=time.time() + off_s) == name


def test_a_header_of_awss_must_be_signed() -> None:
    request = sign()
    assert refusal(changed(request, "x-amz-user-agent", b"added")) == errors.INVALID_SIGNATURE
    assert refusal(changed(request, "accept", b"text/added")) == ""
    assert refusal(changed(request, "x-amz-target", b"RekognitionService.DeleteCollection")) == errors.INVALID_SIGNATURE
    assert refusal(changed(request, "x-amz-target", TARGET.encode(), b"other")) == errors.INVALID_SIGNATURE
    assert refusal(changed(request, "x-amz-target")) == errors.INVALID_SIGNATURE
    assert refusal(changed(request, "host", b"elsewhere.example")) == errors.INVALID_SIGNATURE


def test_a_body_must_be_what_its_header_says() -> None:
    digest = hashlib.sha256(b"{}").hexdigest()
    assert refusal(sign(headers={"X-Amz-Content-SHA256": digest})) == ""
    assert refusal(sign(headers={"X-Amz-Content-SHA256": digest}), body=b"[]") == errors.INVALID_SIGNATURE
    assert refusal(sign(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})) == errors.INVALID_SIGNATURE
    assert refusal(sign(headers={"X-Amz-Content-SHA256": "ü"})) == errors.INVALID_SIGNATURE


def test_session_tokens_are_nobodys() -> None:
    assert refusal(sign(token="FwoGZXIvYXdzE")) == errors.UNKNOWN_CLIENT


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", errors.INCOMPLETE),
        ("AWS4-HMAC-SHA256", "Bearer", errors.INCOMPLETE),
        ("Credential=", "Credentials=", errors.INCOMPLETE),
        ("SignedHeaders=", "SignedHeaders=;", errors.INVALID_SIGNATURE),
        ("SignedHeaders=", "SignedHeaders=zebra;", errors.INCOMPLETE),
        ("Signature=", "Signature=x", errors.INCOMPLETE),
        ("Signature=", "Signature=A", errors.INCOMPLETE),
        (", Signature=", ", Signature=0, Signature=", errors.INCOMPLETE),
        (f"{ACCESS_KEY}/", f"{ACCESS_KEY}//", errors.INCOMPLETE),
        (f"{ACCESS_KEY}/", "/", errors.INCOMPLETE),
        (f"{REGION}/rekognition", f"{REGION}/s3", errors.INVALID_SIGNATURE),
        (f"{REGION}/rekognition", "ÄÖ/rekognition", errors.INVALID_SIGNATURE),
        (f"{REGION}/rekognition", "us-east-1/rekognition", errors.INVALID_SIGNATURE),
        ("aws4_request", "aws4_requests", errors.INVALID_SIGNATURE),
        ("/20", "/19", errors.INVALID_SIGNATURE),
        ("SignedHeaders=host;", "SignedHeaders=accept;host;", errors.INVALID_SIGNATURE),
    ],
)
def test_what_is_no_signature_is_refused(old: str, new: str, name: str) -> None:
    request = sign()
    text = request.headers["authorization"][0].decode()
    assert old in text
    assert refusal(changed(request, "authorization", text.replace(old, new, 1).encode())) == name


@pytest.mark.parametrize("text", ["", "20261121", "20261321T000000Z", "2026-11-21T00:00:00Z", "٢٠٢٦١١٢١T٠٠٠٠٠٠Z"])
def test_what_is_no_date_is_refused(text: str) -> None:
    assert refusal(changed(sign(), "x-amz-date", text.encode())) == errors.INCOMPLETE


@settings(max_examples=200)
@given(st.text(max_size=100) | st.text("AWS4-HMACSHA256 =/,;CredentialSignedHeadersSignature0", max_size=120))
def test_no_authorization_breaks_the_reader(plain: SignedRequest, text: str) -> None:
    assert refusal(changed(plain, "authorization", text.encode())) != ""


@pytest.fixture
def now() -> list[float]:
    return [1_000_000.0]


@pytest.fixture
def seen(database_url: str, now: list[float]) -> Iterator[SeenSignatures]:
    with closing(Store(database_url)) as store:
        yield SeenSignatures(store.database, lambda: now[0])


def use(seen: SeenSignatures, signature: str, attempt: str = "", *, changes: bool = True) -> None:
    claim = Claim(ACCESS_KEY, "20261122", REGION, "20261122T000000Z", 0.0, ("host",), signature)
    use_once(seen, claim, {"amz-sdk-request": attempt} if attempt else {}, changes=changes)


def test_a_signature_is_good_once_for_what_changes_something(seen: SeenSignatures, now: list[float]) -> None:
    use(seen, "a")
    with pytest.raises(RekognitionError, match="used already") as caught:
        use(seen, "a")
    assert caught.value.name == errors.THROTTLING, "two requests of one second, maybe: sign anew"
    use(seen, "b")
    seen.release("a")
    use(seen, "a")
    now[0] += KEPT_S - 1
    with pytest.raises(RekognitionError):
        use(seen, "a")


def test_other_questions_of_the_same_second_are_told_apart_for_a_moment(seen: SeenSignatures, now: list[float]) -> None:
    for attempt in ("attempt=1", "attempt=2"):
        use(seen, "a", attempt, changes=False)
        with pytest.raises(RekognitionError):
            use(seen, "a", attempt, changes=False)
    now[0] += REPEAT_S + 0.1
    with pytest.raises(RekognitionError):
        use(seen, "a", "attempt=3", changes=False)


def test_what_changes_nothing_may_be_asked_again_for_a_moment(seen: SeenSignatures, now: list[float]) -> None:
    for _ in range(3):
        use(seen, "a", changes=False)
    now[0] += REPEAT_S + 0.1
    with pytest.raises(RekognitionError):
        use(seen, "a", changes=False)


def test_signatures_are_forgotten_when_their_date_refuses_them(seen: SeenSignatures, now: list[float]) -> None:
    use(seen, "a")
    now[0] += KEPT_S + 1
    use(seen, "a")
