"""Damaged images and damaged requests are refused with a code or answered: no crash, no 5xx, no growth.

`python -m pytest tests/api/test_fuzz.py --full -s` tries 200,000 images and 50,000 requests. What failed once is
kept in
`tests/regressions/` and tried by every run.
"""

from __future__ import annotations

import json
import random
import re
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from app.errors import LikenessError
from app.face.detect import Detector
from app.face.formats import Limits
from app.pipeline import Pipeline
from tests.conftest import PROJECT
from tests.support.images import EVERY_KIND
from tests.support.live import LiveServer, serving
from tests.support.mutations import mutated
from tests.support.service import COLLINS
from tests.support.soak import resident_mib

REGRESSIONS = PROJECT / "tests" / "regressions"
IMAGES, FULL_IMAGES = 1_500, 200_000
REQUESTS, FULL_REQUESTS = 700, 50_000
GROWTH_MIB = 64
"""Between a tenth of the way and the end: allocators keep some, a leak of 1 KiB an image would be 175 MiB."""
ANSWER_S = 60.0
UNFINISHED_S = 1.0
"""Without a byte for so long, a request that is not whole is ended, and so is a connection that was answered."""
AT_ONCE, BLOCK = 16, 100


@pytest.fixture(scope="module")
def pipeline(yunet: Path) -> Pipeline:
    return Pipeline(Detector(yunet), Limits(max_pixels=2_000_000))


def tried(pipeline: Pipeline, image: bytes) -> str:
    """The code it is refused with, or how many faces it shows. Anything else than a refusal is raised."""
    try:
        return f"{min(len(pipeline.detect(image).faces), 2)} faces"
    except LikenessError as error:
        return error.code


def kept(data: bytes, suffix: str) -> Path:
    """Where what failed is left, to be moved to the regressions."""
    with tempfile.NamedTemporaryFile(prefix="fuzz-", suffix=suffix, delete=False) as file:
        file.write(data)
        return Path(file.name)


def test_what_failed_once_is_refused_or_read(pipeline: Pipeline) -> None:
    for path in sorted(REGRESSIONS.glob("*.image")):
        tried(pipeline, path.read_bytes())


@pytest.mark.long
def test_damaged_images_are_refused_or_read(pipeline: Pipeline, full: bool) -> None:
    chance = random.Random(time.time_ns() if full else 11)
    corpus = [make() for make in EVERY_KIND.values()]
    outcomes: Counter[str] = Counter()
    count = FULL_IMAGES if full else IMAGES
    settled = 0.0
    for number in range(count):
        image = mutated(chance.choice(corpus), chance, corpus)
        try:
            outcomes[tried(pipeline, image)] += 1
        except BaseException as error:
            error.add_note(f"the image is kept in {kept(image, '.image')}")
            raise
        if number == count // 10:
            settled = resident_mib()
    growth = resident_mib() - settled
    print(f"{count} images: {dict(outcomes.most_common())}; {growth:+.0f} MiB")  # noqa: T201 (shown by `pytest -s`)
    assert {"invalid_image", "unsupported_image"} < set(outcomes), "nothing was damaged"
    assert any("faces" in outcome for outcome in outcomes), "everything was"
    assert growth < GROWTH_MIB


# --- Requests --------------------------------------------------------------------------------------------------------


def form(fields: dict[str, bytes]) -> tuple[bytes, bytes]:
    """(content type, body) of a multipart form of files."""
    parts = [
        b'--line\r\nContent-Disposition: form-data; name="%s"; filename="a.jpg"\r\n'
        b"Content-Type: image/jpeg\r\n\r\n%s\r\n" % (name.encode(), content)
        for name, content in fields.items()
    ]
    return b"multipart/form-data; boundary=line", b"".join(parts) + b"--line--\r\n"


def requests_of_all_kinds(photo: bytes) -> list[tuple[str, bytes, bytes]]:
    """(method and path, content type, body) of plain requests, one of each kind."""
    json_type = b"application/json"
    gallery = "/v1/galleries/fuzz"
    text = {
        "POST /v1/galleries": {"id": "fuzz-2", "store": "none", "metadata": {"a": [1, 2.5, None, "ü"]}},
        f"POST {gallery}/subjects": {"id": "somebody", "name": "Some Body", "metadata": {}},
        f"PATCH {gallery}/subjects/somebody": {"name": "Another", "metadata": {"x": 1}},
        "POST /v1/keys": {"id": "k", "scopes": ["read"], "rate": "10/s", "galleries": ["fuzz"]},
    }
    bare = (
        f"GET {gallery}",
        f"GET {gallery}/subjects?limit=5&search=some",
        f"GET {gallery}/subjects/somebody",
        f"GET {gallery}/subjects/somebody/faces?limit=3",
        f"GET {gallery}/subjects/somebody/faces/00/crop",
        f"DELETE {gallery}/subjects/nobody",
        f"GET {gallery}/check",
        "GET /v1/galleries?cursor=AAAA",
        "GET /v1/audit?limit=2",
        "GET /v1/models",
        "GET /v1/keys",
        "GET /metrics",
        "GET /openapi.json",
        "GET /readyz",
        "HEAD /livez",
        "OPTIONS /v1/detect",
    )
    images = [
        ("POST /v1/detect", *form({"image": photo})),
        ("POST /v1/verify?fmr=1e-3&explain=true", *form({"image1": photo, "image2": photo})),
        (f"POST {gallery}/subjects/somebody/faces?quality=low", *form({"images": photo})),
        (f"POST {gallery}/identify?limit=3&fpir=0.01", b"image/jpeg", photo),
        (f"POST {gallery}/subjects/somebody/verify", b"image/jpeg", photo),
    ]
    return [
        *((line, json_type, json.dumps(value).encode()) for line, value in text.items()),
        *((line, b"text/plain", b"") for line in bare),
        *images,
    ]


def rendered(line: str, content_type: bytes, body: bytes, key: str) -> bytes:
    fields = (f"{line} HTTP/1.1", "Host: fuzz", f"X-Api-Key: {key}", f"Content-Length: {len(body)}")
    head = "\r\n".join(fields).encode()
    return head + b"\r\nContent-Type: " + content_type + b"\r\nConnection: close\r\n\r\n" + body


def damaged_requests(key: str, chance: random.Random) -> Iterator[bytes]:
    """Without end: damaged bodies under honest heads, damaged heads, and damage anywhere."""
    kinds = requests_of_all_kinds(EVERY_KIND["jpeg"]())
    whole = [rendered(*kind, key) for kind in kinds]
    bodies = [body for _, _, body in kinds]
    while True:
        line, content_type, body = chance.choice(kinds)
        what = chance.random()
        if what < 0.4:
            yield rendered(line, content_type, mutated(body, chance, bodies), key)
        elif what < 0.6:
            method, target = line.split(" ", 1)
            odd = mutated(target.encode(), chance, [kind.encode() for kind, *_ in kinds]).decode("latin-1")
            safe = "".join(c for c in odd if c.isprintable() and c != " ") or "/"
            yield rendered(f"{method} {safe.encode('latin-1', 'ignore').decode('latin-1')}", content_type, body, key)
        else:
            yield mutated(rendered(line, content_type, body, key), chance, whole)


def is_whole(request: bytes) -> bool:
    """As its own head tells it: the server waits for no more of it."""
    head, end, body = request.lstrip(b"\r\n").partition(b"\r\n\r\n")  # RFC 9112, 2.2: empty lines before are skipped
    length = re.search(rb"^content-length:[ \t]*(\d{1,18})[ \t]*\r?$", head, re.IGNORECASE | re.MULTILINE)
    return bool(end) and len(body) >= int(length[1] if length else 0)


def answered(server: LiveServer, request: bytes) -> int:
    """The status of the answer to one request on a connection of its own; 0 where none comes.

    One that is not whole is waited for, so that the end is announced after a while; and so is one that was answered on
    a connection which stays.
    """
    host, port = server.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as connection:
        # Refused before it was all there, the answer may be readable all the same.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        connection.settimeout(ANSWER_S if is_whole(request) else UNFINISHED_S)
        with suppress(ConnectionResetError):
            while chunk := _received(connection):
                received += chunk
                connection.settimeout(UNFINISHED_S)
    head = received.split(b"\r\n", 1)[0].split(b" ")
    return int(head[1]) if len(head) > 1 and head[1].isdigit() else 0


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except TimeoutError:
        connection.settimeout(ANSWER_S)
        with suppress(OSError):  # the server has closed it meanwhile
            connection.shutdown(socket.SHUT_WR)
        return connection.recv(65536)


@pytest.fixture
def open_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server that takes wrong keys as often as they come, with a gallery and somebody in it."""
    with serving(tmp_path / "data", {"FAILED_KEYS": "1000000/s", "MAX_IMAGE_PIXELS": 2_000_000}) as server:
        with server.client("/v1") as client:
            client.post("/galleries", json={"id": "fuzz"}).raise_for_status()
            client.post("/galleries/fuzz/subjects/somebody/faces", files={"images": COLLINS}).raise_for_status()
        yield server


@pytest.mark.long
def test_damaged_requests_are_refused_or_answered(open_server: LiveServer, full: bool) -> None:
    chance = random.Random(time.time_ns() if full else 12)
    statuses: Counter[int] = Counter()
    count = FULL_REQUESTS if full else REQUESTS
    settled = 0.0
    requests = damaged_requests(open_server.key, chance)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in range(0, count, BLOCK):
            block = list(islice(requests, BLOCK))
            for request, status in zip(block, pool.map(partial(answered, open_server), block), strict=True):
                statuses[status] += 1
                assert status < 500, f"{status}: kept in {kept(request, '.request')}"
                assert status or not is_whole(request), f"no answer: kept in {kept(request, '.request')}"
            if not settled and done >= count // 10:
                settled = resident_mib(open_server.process.pid)
    growth = resident_mib(open_server.process.pid) - settled
    print(f"{count} requests: {dict(sorted(statuses.items()))}; {growth:+.0f} MiB")  # noqa: T201 (shown by `pytest -s`)
    assert statuses[200], "everything was refused"
    assert statuses[400] + statuses[422], "nothing was"
    assert statuses[0] < count / 4, "too many were not whole"
    assert growth < GROWTH_MIB
    assert open_server.process.poll() is None
    log = open_server.log.read_text()
    assert "Traceback" not in log
    with open_server.client() as client:
        answer = client.get("/v1/galleries/fuzz/check")
    assert answer.status_code == 404 or answer.json()["ok"]  # damage can turn one request into the gallery's deletion


@pytest.mark.long
def test_requests_that_failed_once_are_refused_or_answered(open_server: LiveServer) -> None:
    for path in sorted(REGRESSIONS.glob("*.request")):
        request = path.read_bytes().replace(b"@KEY@", open_server.key.encode())
        assert answered(open_server, request) < 500, path.name
