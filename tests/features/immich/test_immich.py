"""What Immich's server asks of its machine learning, as it asks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.features.immich.routes import DIMENSION, padded
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, encoded, running, running_here
from tests.support.waiting import until

FACES = {
    "facial-recognition": {
        "detection": {"modelName": "buffalo_l", "options": {"minScore": 0.7}},
        "recognition": {"modelName": "buffalo_l"},
    }
}
CLIP = {"clip": {"textual": {"modelName": "ViT-B-32__openai", "options": {"language": "en"}}}}
WALL = encoded(np.full((200, 300, 3), 128, np.uint8))
HERE: dict[str, Any] = {"immich": "on", "immich_networks": ("127.0.0.0/8",)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("immich") / "data", **HERE) as api:
        del api.headers["x-api-key"]
        yield api


def predict(service: httpx.Client, entries: Any, image: bytes | None = None, **fields: str) -> httpx.Response:
    """Send what `MachineLearningRepository.predict` sends: a form of Node's, in which the photo is a nameless blob."""
    boundary = "----formdata-undici-012345678901"
    parts = [(f'form-data; name="{name}"', value.encode()) for name, value in (("entries", entries), *fields.items())]
    lines = [f"--{boundary}\r\nContent-Disposition: {head}\r\n\r\n".encode() + value for head, value in parts]
    if image is not None:
        head = 'form-data; name="image"; filename="blob"\r\nContent-Type: application/octet-stream'
        lines.append(f"--{boundary}\r\nContent-Disposition: {head}\r\n\r\n".encode() + image)
    body = b"\r\n".join([*lines, f"--{boundary}--\r\n".encode()])
    return service.post("/predict", content=body, headers={"content-type": f"multipart/form-data; boundary={boundary}"})


def faces_of(service: httpx.Client, photo: bytes) -> list[dict[str, Any]]:
    answer = predict(service, json.dumps(FACES), photo)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["facial-recognition"]
    return found


def test_it_answers_a_ping(service: httpx.Client) -> None:
    answer = service.get("/ping")
    assert (answer.status_code, answer.text) == (200, "pong")


@pytest.mark.anyio
async def test_a_server_that_starts_or_stops_is_not_there_for_immich(tmp_path: Path) -> None:
    async with running_here(tmp_path / "data", **HERE) as (app, client):
        for status in ("starting", "draining"):
            app.state.status = status
            answer = await client.get("/ping")
            assert (answer.status_code, set(answer.json())) == (503, {"detail"})
        app.state.status = "ok"
        assert (await client.get("/ping")).text == "pong"


def test_faces_have_boxes_scores_and_embeddings_that_its_database_takes(service: httpx.Client) -> None:
    answer = predict(service, json.dumps(FACES), BOTH).json()
    assert set(answer) == {"facial-recognition", "imageHeight", "imageWidth"}
    assert len(answer["facial-recognition"]) == 2
    for face in answer["facial-recognition"]:
        assert set(face) == {"boundingBox", "embedding", "score"}
        box = face["boundingBox"]
        assert 0 <= box["x1"] < box["x2"] <= answer["imageWidth"]
        assert 0 <= box["y1"] < box["y2"] <= answer["imageHeight"]
        assert isinstance(face["embedding"], str), "which goes into SQL as it is"
        assert len(json.loads(face["embedding"])) == DIMENSION
        assert face["score"] > 0.7


def test_distances_are_those_of_the_package(service: httpx.Client) -> None:
    """Immich takes faces of a cosine distance of at most 0.5 for one person's."""
    first, again, other = (
        np.array(json.loads(faces_of(service, photo)[0]["embedding"])) for photo in (COLLINS, AGAIN, HOPPER)
    )
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-3)
    assert 1 - first @ again < 0.4
    assert 1 - first @ other > 0.7


def test_a_photo_without_a_face(service: httpx.Client) -> None:
    answer = predict(service, json.dumps(FACES), WALL).json()
    assert answer == {"facial-recognition": [], "imageHeight": 200, "imageWidth": 300}


def test_a_longer_embedding_is_refused() -> None:
    assert len(padded(np.zeros(DIMENSION, np.float32), "large@1")) == DIMENSION
    with pytest.raises(Exception, match="large@1 has 513"):
        padded(np.zeros(DIMENSION + 1, np.float32), "large@1")


@pytest.mark.parametrize(
    "entries",
    ["", "{", "[]", "null", '{"facial-recognition": 1}', '{"facial-recognition": {"detection": {"options": 1}}}', "{}"],
)
def test_entries_of_other_shapes_are_refused(service: httpx.Client, entries: str) -> None:
    answer = predict(service, entries, COLLINS)
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()) == {"detail"}


def test_what_we_do_not_do_is_an_error_that_names_the_setting(service: httpx.Client) -> None:
    answer = predict(service, json.dumps(CLIP), text="a dog")
    assert answer.status_code == 422
    assert "clip" in answer.json()["detail"]
    assert "LIKENESS_IMMICH_OTHERS" in answer.json()["detail"]
    assert predict(service, json.dumps(FACES)).status_code == 422, "without a photo"
    assert predict(service, json.dumps(CLIP | FACES), COLLINS).status_code == 422


@contextmanager
def machine_learning() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Immich's own, as far as that it answers."""
    asked: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.headers["content-type"], body))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"clip": "[0.5,0.5]"}')

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_rest_is_handed_on_as_it_came(tmp_path: Path) -> None:
    with machine_learning() as (url, asked), running(tmp_path / "data", **HERE, immich_others=url) as api:
        answer = predict(api, json.dumps(CLIP), text="a dog")
        assert (answer.status_code, answer.json()) == (200, {"clip": "[0.5,0.5]"})
        (kind, body) = asked[0]
        assert kind == "multipart/form-data; boundary=----formdata-undici-012345678901"
        assert b"a dog" in body
        assert len(faces_of(api, COLLINS)) == 1, "faces are ours"
        assert len(asked) == 1


def test_what_is_handed_on_keeps_a_boundary_that_needs_quotes(tmp_path: Path) -> None:
    kind = b'multipart/form-data; boundary="a b"' + b'; x="\xe9"'
    part = f'Content-Disposition: form-data; name="entries"\r\n\r\n{json.dumps(CLIP)}'
    body = f"--a b\r\n{part}\r\n--a b--\r\n"
    with machine_learning() as (url, asked), running(tmp_path / "data", **HERE, immich_others=url) as api:
        answer = api.post("/predict", content=body, headers={b"content-type": kind})
        assert answer.status_code == 200, answer.text
    assert asked[0][0].encode("latin-1") == kind


def test_nobody_there_to_hand_on_to_is_an_error_by_which_immich_asks_the_next(tmp_path: Path) -> None:
    with running(tmp_path / "data", **HERE, immich_others="http://127.0.0.1:9") as api:
        answer = predict(api, json.dumps(CLIP), text="a dog")
        assert answer.status_code == 503
        assert "IMMICH_OTHERS" in answer.json()["detail"]


def test_without_networks_a_key_is_needed_and_without_one_no_gallery_is_seen(tmp_path: Path) -> None:
    with running(tmp_path / "data", immich="on") as api:
        assert len(faces_of(api, COLLINS)) == 1, "the key of a proxy, for example"
        del api.headers["x-api-key"]
        assert predict(api, json.dumps(FACES), COLLINS).status_code == 401
        assert api.get("/ping").status_code == 200
    with running(tmp_path / "others", immich="on", immich_networks=("10.0.0.0/8",)) as api:
        del api.headers["x-api-key"]
        assert predict(api, json.dumps(FACES), COLLINS).status_code == 401
    with running(tmp_path / "home", **HERE) as api:
        key = api.headers.pop("x-api-key")
        assert len(faces_of(api, COLLINS)) == 1
        assert api.get("/v1/galleries").status_code == 401, "the networks open nothing else"

        def recorded() -> bool:
            entries = api.get("/v1/audit", headers={"x-api-key": key}).json()["entries"]
            return ("immich.networks", "embed") in {(entry["key"], entry["operation"]) for entry in entries}

        until(recorded)


def test_it_is_off_unless_switched_on(tmp_path: Path) -> None:
    with running(tmp_path / "data") as api:
        assert api.get("/ping").status_code == 404
        assert api.post("/predict").status_code == 404
