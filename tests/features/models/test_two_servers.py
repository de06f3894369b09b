"""Model packages of two servers on one PostgreSQL, each with a data folder of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.inference import embedders
from tests.conftest import PROJECT
from tests.support.service import AGAIN, COLLINS, enrolled, error_of, two_running
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended

SLIM = PROJECT / "models" / "sface-slim"
MODEL = (SLIM / "model.onnx").read_bytes()
FREE = {"name": "Apache-2.0", "non_commercial": False}
USERS = "/v1/galleries/users"


@pytest.fixture
def servers(tmp_path: Path, postgresql: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    with two_running(tmp_path, postgresql) as both:
        yield both


def add(api: httpx.Client, colour: str = "rgb") -> None:
    """Add the package `mine@1`, of which there are two, by the colour order that their network gets."""
    manifest = json.loads((SLIM / "manifest.json").read_bytes()) | {"name": "mine", "version": "1", "licence": FREE}
    manifest.pop("golden")
    manifest["prepare"]["input"]["colour"] = colour
    files = {"mine/manifest.json": json.dumps(manifest).encode(), "mine/model.onnx": MODEL}
    headers = {"content-type": "application/x-tar"}
    job = api.post("/v1/models", content=tar_of(files), headers=headers).raise_for_status().json()
    ended = job_ended(api, job["id"])
    assert ended["state"] == "done", ended


def identify(api: httpx.Client) -> httpx.Response:
    return api.post(f"{USERS}/identify", files={"image": AGAIN})


def embedded(api: httpx.Client) -> list[float]:
    answer = api.post("/v1/embed", files={"image": COLLINS}, params={"model": "mine@1"}).raise_for_status()
    vector: list[float] = answer.json()["faces"][0]["embedding"]
    return vector


@pytest.mark.long
def test_a_server_without_the_model_says_so_until_it_is_added_there_too(
    servers: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = servers
    add(one)
    one.post("/v1/galleries", json={"id": "users", "embedder": "mine@1", "force": True}).raise_for_status()
    enrolled(one, USERS, "eileen", COLLINS)
    assert error_of(identify(two), 503, "package_unavailable")["reason"] == "package_unknown"
    error_of(two.delete("/v1/models/mine"), 404, "package_not_found")
    two.post("/v1/galleries", json={"id": "others"}).raise_for_status()
    enrolled(two, "/v1/galleries/others", "eileen", COLLINS)
    add(two)
    faces = identify(two).raise_for_status().json()["faces"]
    assert [candidate["subject"] for candidate in faces[0]["candidates"]] == ["eileen"]
    for api in servers:
        assert error_of(api.delete("/v1/models/mine"), 409, "package_in_use")["galleries"] == ["users"]


@pytest.mark.long
def test_another_model_under_the_same_id_compares_nothing_and_can_be_exchanged(
    servers: tuple[httpx.Client, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedders, "BOUND_S", 0.0)
    one, two = servers
    add(one)
    add(two)
    first = embedded(two)  # it is open there
    assert one.delete("/v1/models/mine").is_success
    add(one, "bgr")
    one.post("/v1/galleries", json={"id": "users", "embedder": "mine@1", "force": True}).raise_for_status()
    enrolled(one, USERS, "eileen", COLLINS)
    assert error_of(identify(two), 503, "package_unavailable")["reason"] == "package_changed"
    assert embedded(one) != pytest.approx(first, abs=1e-3)
    assert two.delete("/v1/models/mine").is_success  # no gallery can use this one
    add(two, "bgr")
    assert embedded(two) == pytest.approx(embedded(one), abs=1e-5)
    assert identify(two).json() | {"request_id": ""} == identify(one).json() | {"request_id": ""}
