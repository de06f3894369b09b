"""The log holds nothing of anybody: every operation is called with marked ids, names, metadata, keys and images."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.conftest import PROJECT
from tests.support import packages, turning
from tests.support.connections import opened
from tests.support.jobs import waiting_job
from tests.support.live import LiveServer, serving
from tests.support.postgres import cluster
from tests.support.service import COLLINS, HOPPER
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended, until

MARK = "zqxmark"
GALLERY, SUBJECT, NAME = f"{MARK}-gallery é/", f"{MARK}-subject %", f"{MARK} von Eileen"
KEY = f"lk_{MARK}" + "k" * 40
LEVELS = ("debug", "info", "warning", "error")
WAIT_S = 60.0
OUTAGE_S = 3.0
"""Long enough for every worker to have tried more than once."""
WORKERS = {"following", "jobs"}
"""Those that ask the database all the time."""
METHODS = ("get", "post", "patch", "delete", "put")
PARAMETERS = {
    "gallery": GALLERY,
    "subject": SUBJECT,
    "face_id": f"{MARK}face",
    "key": f"{MARK}-key",
    "job": f"{MARK}-job",
}


def marked_photo(kind: str) -> bytes:
    """A face's photo that says the mark in its EXIF fields."""
    with Image.open(io.BytesIO(COLLINS)) as photo:
        exif = photo.getexif()
        exif[270] = f"{MARK} description"
        file = io.BytesIO()
        photo.save(file, kind, exif=exif)
    return file.getvalue()


def damaged_tiff() -> bytes:
    """One that libtiff would complain about to standard error."""
    file = io.BytesIO()
    Image.effect_noise((64, 64), 100).save(file, "TIFF", compression="tiff_adobe_deflate")
    data = bytearray(file.getvalue())
    data[200:300] = bytes(100)
    return bytes(data)


def quoted(text: str) -> str:
    return httpx.URL("http://x", params={"x": text}).query.decode()[2:].replace("+", "%20").replace("/", "%2F")


def as_promised(client: httpx.Client, data_dir: Path) -> Iterator[httpx.Response]:
    """Every operation in an order in which each one succeeds."""
    photo, gallery = marked_photo("JPEG"), f"/v1/galleries/{quoted(GALLERY)}"
    person = f"{gallery}/subjects/{quoted(SUBJECT)}"
    metadata = {f"{MARK} key": [f"{MARK} value"]}
    file = (f"{MARK}.jpg", photo, f"image/{MARK}")
    yield client.post("/v1/galleries", json={"id": GALLERY, "metadata": metadata})
    yield client.post(f"{gallery}/subjects", json={"id": SUBJECT, "name": NAME, "metadata": metadata})
    enrolled = client.post(f"{person}/faces", files={"images": file})
    yield enrolled
    face = f"{person}/faces/{enrolled.json()['enrolled'][0]['face_id']}"
    for kind in ("JPEG", "TIFF", "PNG"):
        yield client.post("/v1/detect", content=marked_photo(kind), headers={"content-type": "image/x"})
    yield client.post("/v1/embed?explain=true", json={"image": base64.b64encode(photo).decode()})
    yield client.post("/v1/verify", files={"image1": file, "image2": file})
    yield client.post(f"{gallery}/identify?explain=true", files={"image": file})
    yield client.post(f"{person}/verify", files={"image": file})
    for path in (gallery, f"{gallery}/check", f"{gallery}/subjects", person, f"{person}/faces", face, f"{face}/crop"):
        yield client.get(path)
    yield client.get(f"{gallery}/subjects", params={"search": MARK})
    yield client.post(f"{face}/move", json={"subject": SUBJECT})
    for path in (
        "/v1/galleries",
        "/v1/models",
        "/v1/server-key",
        "/v1/key",
        "/livez",
        "/readyz",
        "/version",
        "/metrics",
        "/docs",
        "/openapi.json",
    ):
        yield client.get(path)
    yield from challenged(client, gallery)
    yield from reembedded(client, gallery)
    yield from kept_right(client, gallery, person, file)
    yield from signed_in(client)
    yield client.patch(gallery, json={"search": "int8"})
    yield client.patch(person, json={"name": NAME + "2", "metadata": metadata})
    yield client.post("/v1/keys", json={"id": f"{MARK}-key", "name": NAME, "scopes": ["read"], "galleries": [GALLERY]})
    for path in ("/v1/keys", f"/v1/keys/{MARK}-key"):
        yield client.get(path)
    yield client.get("/v1/audit", params={"gallery": GALLERY})
    job = f"/v1/jobs/{waiting_job(data_dir, GALLERY).id}"
    for path in ("/v1/jobs", job, f"{job}/report"):
        yield client.get(path)
    yield client.post(f"{job}/cancel")
    upload = tar_of({f"{MARK}-person/{MARK}.jpg": photo, f"{MARK}-other/{MARK}": MARK.encode()})
    made = client.post(f"{gallery}/import", files={"archive": (f"{MARK}.tar", upload)})
    yield made
    job_ended(client, made.json()["id"])
    exported = client.post(f"{gallery}/export")
    yield exported
    job_ended(client, exported.json()["id"])
    yield client.get(f"/v1/jobs/{exported.json()['id']}/result")
    grouped = client.post(f"{gallery}/group", files={"archive": (f"{MARK}.tar", upload)})
    yield grouped
    job_ended(client, grouped.json()["id"])
    yield client.get(f"{gallery}/group/{grouped.json()['id']}")
    yield client.post("/v1/models", params={"name": "mine", "licence": MARK}, files={"file": (MARK, MARK.encode())})
    pulled = client.post("/v1/models/pull", json={"name": "best"})
    yield pulled
    yield client.post(f"/v1/jobs/{pulled.json()['id']}/cancel")
    rotated = client.post(f"/v1/keys/{MARK}-key/rotate", json={})
    yield rotated
    yield client.get(gallery, headers={"x-api-key": rotated.json()["secret"]})


def reembedded(client: httpx.Client, gallery: str) -> Iterator[httpx.Response]:
    reembed = f"{gallery}/reembed"
    yield client.post(reembed, json={"embedder": "small"})
    wait_reembedded(client, reembed, "switched")
    yield client.post(f"{reembed}/rollback")
    yield client.get(reembed)
    yield client.delete(reembed)
    wait_reembedded(client, reembed, None)
    yield client.post(reembed, json={"embedder": "small"})
    wait_reembedded(client, reembed, "switched")
    yield client.post(f"{reembed}/finish")


def challenged(client: httpx.Client, gallery: str) -> Iterator[httpx.Response]:
    asked = client.post(f"{gallery}/challenges", json={"operation": "verify", "subject": SUBJECT})
    yield asked
    frames = [("images", turning.frame(step)) for step in asked.json()["steps"]]
    yield client.post(f"{gallery}/challenges/answer", data={"challenge": asked.json()["challenge"]}, files=frames)


def kept_right(
    client: httpx.Client, gallery: str, person: str, file: tuple[str, bytes, str]
) -> Iterator[httpx.Response]:
    yield from reviewed(client, gallery, person)
    yield from corrected(client, person, file)
    yield from merged(client, person)
    yield from calibrated(client, gallery)


def reviewed(client: httpx.Client, gallery: str, person: str) -> Iterator[httpx.Response]:
    """A review that finds the same face twice."""
    client.post(f"{person}-twin/faces", files={"images": marked_photo("JPEG")}).raise_for_status()
    review = f"{gallery}/review"
    started = client.post(review)
    yield started
    job_ended(client, started.json()["id"])
    found = client.get(review)
    yield found
    dismiss = f"{review}/{found.json()['findings'][0]['id']}/dismiss"
    yield client.post(dismiss)
    yield client.delete(dismiss)
    client.delete(f"{person}-twin").raise_for_status()


def corrected(client: httpx.Client, person: str, file: tuple[str, bytes, str]) -> Iterator[httpx.Response]:
    made = client.post(f"{person}/corrections", files={"image": file}, params={"confirm": True})
    yield made
    yield client.get(f"{person}/corrections")
    yield client.delete(f"{person}/corrections/{made.json()['id']}")


def merged(client: httpx.Client, person: str) -> Iterator[httpx.Response]:
    """Two subjects that become one, and two again."""
    client.post(f"{person}-twin/faces", files={"images": marked_photo("JPEG")}).raise_for_status()
    made = client.post(f"{person}-twin/merge", json={"into": SUBJECT})
    yield made
    parted = {"faces": made.json()["faces"], "subject": f"{SUBJECT}-twin", "create": True}
    yield client.post(f"{person}/faces/move", json=parted)
    client.delete(f"{person}-twin").raise_for_status()


def calibrated(client: httpx.Client, gallery: str) -> Iterator[httpx.Response]:
    yield client.post(f"{gallery}/calibration")
    yield client.get(f"{gallery}/calibration")


def signed_in(client: httpx.Client) -> Iterator[httpx.Response]:
    made = client.post("/v1/sign-in-codes")
    yield made
    yield client.post("/v1/sign-in", headers={"x-api-key": made.json()["code"]})


def through_compreface(client: httpx.Client) -> Iterator[httpx.Response]:
    """The same people by CompreFace's interface, in the gallery `default`."""
    recognition, name = "/api/v1/recognition", f"{MARK} of 王"
    file = (f"{MARK}.jpg", marked_photo("JPEG"), f"image/{MARK}")
    yield client.post(f"{recognition}/subjects", json={"subject": name})
    added = client.post(f"{recognition}/faces", params={"subject": name}, files={"file": file})
    yield added
    face = f"{recognition}/faces/{added.json()['image_id']}"
    yield client.post(f"{recognition}/recognize?face_plugins=calculator&status=true", files={"file": file})
    yield client.post(f"{face}/verify", files={"file": file})
    yield client.post("/api/v1/detection/detect", files={"file": file})
    yield client.post("/api/v1/verification/verify", files={"source_image": file, "target_image": file})
    for path in (f"{recognition}/subjects", f"{recognition}/faces?subject={quoted(name)}", f"{face}/img"):
        yield client.get(path)
    yield client.put(f"{recognition}/subjects/{quoted(name)}", json={"subject": f"{name}2"})
    yield client.delete(face)
    yield client.delete(f"{recognition}/subjects/{quoted(name)}2")


def wait_reembedded(client: httpx.Client, path: str, state: str | None) -> None:
    """Until the re-embedding has come to this state, or, with None, to its end."""
    until(lambda: client.get(path).json().get("state") == state)


def deletions(client: httpx.Client) -> Iterator[httpx.Response]:
    gallery = f"/v1/galleries/{quoted(GALLERY)}"
    person = f"{gallery}/subjects/{quoted(SUBJECT)}"
    face = client.get(f"{person}/faces").json()["faces"][0]["face_id"]
    yield client.delete(f"{person}/faces/{face}")
    yield client.delete(person)
    yield client.post(f"{gallery}/subjects", json={"id": SUBJECT, "name": NAME})
    erased = client.post(f"{person}/erase")
    yield erased
    yield client.get("/v1/receipts")
    yield client.get(f"/v1/receipts/{erased.json()['id']}")
    yield client.delete(gallery)
    yield client.delete(f"/v1/keys/{MARK}-key")
    yield client.delete("/v1/models/added")


def wrongly(client: httpx.Client, document: dict[str, Any]) -> Iterator[httpx.Response]:
    """Every operation without a right key, about nobody, and with what it does not take."""
    for template, operations in document["paths"].items():
        if template == "/":
            continue  # signed requests have a test of their own
        path = template
        for name, value in PARAMETERS.items():
            path = path.replace(f"{{{name}}}", quoted("no " + value))
        for method in set(operations) & set(METHODS):
            yield client.request(method, path, headers={"x-api-key": KEY})
            yield client.request(method, path, headers={"x-api-key": "", "authorization": f"Bearer {KEY}"})
            yield client.request(method, path, params={MARK: MARK, "limit": MARK, "cursor": MARK, "fmr": MARK})
            for kind in ("application/json", "image/jpeg", f"text/{MARK}", f"multipart/form-data; boundary={MARK}"):
                yield client.request(method, path, content=f'{{"{MARK}": '.encode(), headers={"content-type": kind})
            yield client.request(method, path, json={MARK: MARK, "id": MARK, "name": MARK, "image": MARK})
            yield client.request(method, path, files={"image": HOPPER, MARK: MARK.encode()})
    yield client.post("/v1/detect", content=damaged_tiff(), headers={"content-type": "image/tiff"})
    yield client.get(f"/{MARK}/{MARK}?{MARK}")
    yield client.request(MARK.upper(), "/v1/models")
    yield client.request("PUT", "/v1/models", params={MARK: MARK})
    yield client.get("/v1/galleries/%ff" + MARK)


def broken(client: httpx.Client, server: LiveServer) -> Iterator[httpx.Response]:
    """What the server itself can't help: rows that make no sense, tables that are not there."""
    gallery = f"/v1/galleries/{quoted(GALLERY)}"
    with closing(sqlite3.connect(server.data_dir / "likeness.db", timeout=30, isolation_level=None)) as database:
        database.execute("update galleries set metadata = ?", [f"{MARK} garbage"])
        yield client.get(gallery)
        yield client.get("/v1/galleries")
        database.execute("update galleries set metadata = '{}'")
        database.execute("alter table subjects rename to hidden")
        yield client.get(f"{gallery}/subjects/{quoted(SUBJECT)}")
        yield client.post(f"{gallery}/subjects", json={"id": SUBJECT + "2", "name": NAME})
        yield client.post(f"{gallery}/subjects/{quoted(SUBJECT)}/faces", files={"images": COLLINS})
        yield client.post(f"{gallery}/identify", files={"image": COLLINS})
        database.execute("alter table hidden rename to subjects")


def logged(server: LiveServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]


def operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Those of our own interface."""
    paths = document["paths"].items()
    return {
        (method.upper(), path)
        for path, found in paths
        for method in found
        if path != "/" and not path.startswith("/api/v1/")
    }


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_of_anybody_is_in_the_log(tmp_path: Path, level: str, full: bool) -> None:
    if level != "debug" and not full:
        pytest.skip("the other levels say less; pytest --full asks them too")
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "admin.key").write_text(KEY[::-1])
    client_headers = {"x-api-key": KEY[::-1], "user-agent": MARK, "cookie": MARK, "referer": f"http://{MARK}/"}
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models", models)
    packages.install(models, "small")
    (data / "packages").mkdir()
    packages.install(data / "packages", "added")
    settings = {"LOG_LEVEL": level, "MAX_IMAGE_SIDE": 4096, "FAILED_KEYS": "100000/s", "MODELS_DIR": models}
    with serving(data, settings) as server:
        with server.client(headers=client_headers) as client:
            good = list(as_promised(client, data))
            document = client.get("/openapi.json").json()
            bad = list(wrongly(client, document))
            worse = list(broken(client, server))
            good += [*deletions(client), *through_compreface(client)]
        with opened(server) as connection:
            connection.sendall(MARK.encode() + b" \x00\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert [answer.status_code for answer in good if not answer.is_success] == []
    assert {answer.status_code for answer in bad} >= {400, 401, 404, 405, 415, 422}
    assert {answer.status_code for answer in worse} >= {500, 503}
    assert not [answer for answer in bad if answer.status_code >= 500]

    called = {(line["method"], line["route"]) for line in logged(server) if 200 <= line.get("status", 0) < 300}
    assert level not in {"debug", "info"} or operations(document) <= called, "every operation was called, and done"

    log = server.log.read_text()
    embedded = next(answer for answer in good if answer.request.url.path == "/v1/embed").json()
    made = [answer.json()["secret"] for answer in good if answer.request.url.path.endswith("/rotate")]
    secrets = [
        *made,
        MARK,
        KEY[::-1],
        str(embedded["faces"][0]["embedding"][0]),
        base64.b64encode(COLLINS[:30]).decode(),
    ]
    assert len(made) == 1
    for secret in secrets:
        assert secret.lower() not in log.lower(), secret
    lines = logged(server)
    outside = [line for line in log.splitlines() if not line.startswith("{")]
    assert len(outside) == 6, "the greeting, and all else is structured"
    assert {line["level"] for line in lines} >= ({"info", "error"} if level in {"debug", "info"} else {"error"})
    assert {line.get("status") for line in lines} >= {500}
    if level in {"debug", "info"}:
        routes = {line.get("route") for line in lines}
        assert {"/v1/galleries/{gallery}/subjects/{subject}/faces", "/api/v1/recognition/subjects/{subject}"} <= routes
        failed = {line["request_id"] for line in lines if line.get("status") == 500}
        assert failed == {line["request_id"] for line in lines if "exception" in line}


@pytest.mark.long
def test_an_outage_of_the_database_is_told_when_it_begins_and_when_it_is_over(tmp_path: Path) -> None:
    with cluster() as database:
        settings = {"DATABASE_URL": database.new_database()}
        with (
            serving(tmp_path / "data", settings) as server,
            server.client() as client,
        ):
            client.get("/v1/galleries").raise_for_status()
            database.kill()
            end = time.monotonic() + 3 * WAIT_S
            while client.get("/v1/galleries").status_code != 503 or not troubles(server).keys() >= WORKERS:
                assert time.monotonic() < end
                time.sleep(0.1)
            time.sleep(OUTAGE_S)
            database.start()
            while client.get("/v1/galleries").status_code != 200 or not all_over(server):
                assert time.monotonic() < end
                time.sleep(0.1)
        said = troubles(server)
        for lines in said.values():
            assert len(lines) == 2, [line["message"] for line in lines]
            assert not [line for line in lines if "exception" in line]


def troubles(server: LiveServer) -> dict[str, list[dict[str, Any]]]:
    """What workers said, by their names."""
    said: dict[str, list[dict[str, Any]]] = {}
    for line in logged(server):
        if line["logger"] == "app.concurrency.threads":
            said.setdefault(line["message"].partition(":")[0], []).append(line)
    return said


def all_over(server: LiveServer) -> bool:
    return all(lines[-1]["message"].endswith(": works again") for lines in troubles(server).values())


SPEAKING = """
import asyncio, logging, sys, warnings
import sqlalchemy
from app.logs import configure
configure(sys.argv[1])
secret = "zqx" + "mark"
for name in ("sqlalchemy.engine.Engine", "PIL.TiffImagePlugin", "python_multipart", "uvicorn.error", "asyncio", "any"):
    for level in (10, 20, 30, 40, 50):
        logging.getLogger(name).log(level, "it says %s", secret)
logging.getLogger("asyncio").error("never retrieved\\nfuture: " + secret)
warnings.warn(f"tag {secret}")
engine = sqlalchemy.create_engine("sqlite://")
with engine.connect() as connection:
    print(connection.execute(sqlalchemy.text("select :x"), {"x": 1}).all(), file=sys.stdout)
    try:
        connection.execute(sqlalchemy.text("select :x from nowhere"), {"x": secret})
    except Exception:
        logging.getLogger("likeness").exception("internal error")
async def fail():
    raise ValueError(secret)
async def main():
    task = asyncio.ensure_future(fail())
    await asyncio.sleep(0.01)
    del task
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "level", [level if level == "info" else pytest.param(level, marks=pytest.mark.long) for level in LEVELS]
)
def test_what_others_would_say_is_left_out_at_every_level(level: str) -> None:
    done = subprocess.run([sys.executable, "-c", SPEAKING, level], capture_output=True, text=True, check=True)
    assert MARK not in done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    messages = [line["message"] for line in lines]
    assert messages.count("it says %s") == 6 * (2 if level == "error" else 3)
    assert "never retrieved" in messages
    assert any("OperationalError" in line.get("exception", "") for line in lines)
    assert any("UserWarning" in message for message in messages) == (level != "error")
