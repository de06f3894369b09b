"""Photos of which nobody said who they show are put together by face, and nobody is enrolled by that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.gallery.records import Gallery
from app.gallery.service import Galleries
from tests.support import packages
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, error_of, running
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended

TAR = {"content-type": "application/x-tar"}
ROLL = {"a/1.jpg": COLLINS, "b/1.jpg": AGAIN, "2.jpg": HOPPER, "3.jpg": BOTH, "cut.jpg": COLLINS[:2000]}
HOME = "/v1/galleries/roll"


@pytest.fixture
def home(api: httpx.Client) -> Iterator[httpx.Client]:
    api.post("/v1/galleries", json={"id": "roll"}).raise_for_status()
    yield api
    api.delete(HOME)


def grouped(api: httpx.Client, content: bytes) -> dict[str, Any]:
    job = api.post(f"{HOME}/group", content=content, headers=TAR).raise_for_status().json()["id"]
    job_ended(api, job)
    found: dict[str, Any] = api.get(f"{HOME}/group/{job}").raise_for_status().json()
    return found


def test_the_faces_of_a_person_come_together_and_can_be_enrolled_by_their_places(home: httpx.Client) -> None:
    found = grouped(home, tar_of(ROLL))
    assert (found["job"]["state"], found["without"]) == ("done", 0)
    assert found["job"]["counts"] == {"people": len(found["groups"]), "faces": 5, "refused": 1}
    collins, hopper = found["groups"][:2]
    assert [(one["photo"], one["name"]) for one in collins][:2] == [(0, "a/1.jpg"), (1, "b/1.jpg")]
    assert {one["photo"] for one in hopper} == {2, 3}
    assert home.get(HOME).json()["faces"] == 0, "nobody is enrolled"
    report = home.get(f"/v1/jobs/{found['job']['id']}/report").text
    assert "cut.jpg" in report
    photos = list(ROLL.values())
    for one in collins:
        answer = home.post(
            f"{HOME}/subjects/eileen/faces",
            params={"face": one["face"], "quality": "low", "on_conflict": "allow"},
            files={"images": photos[one["photo"]]},
        )
        assert answer.raise_for_status().json()["enrolled"][0]["box"] == one["box"]


def test_photos_are_grouped_by_one_package_while_the_gallery_moves_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers by the old package until it has built the index of the new one."""
    packages.install(tmp_path / "data" / "packages", "small", dimension=12)
    turns = itertools.count()

    def answering(_: Galleries, gallery: Gallery) -> str:
        return gallery.index_specs[next(turns) % len(gallery.index_specs)].key.package

    with running(tmp_path / "data") as home:
        home.post("/v1/galleries", json={"id": "roll"}).raise_for_status()
        moved = home.post(f"{HOME}/reembed", json={"embedder": "small"}).raise_for_status().json()
        assert job_ended(home, moved["job"]["id"])["state"] == "done"
        monkeypatch.setattr(Galleries, "probed_by", answering)
        found = grouped(home, tar_of(ROLL))
    assert (found["job"]["state"], found["job"]["counts"]["faces"]) == ("done", 5)


def test_photos_without_a_face_are_no_group(home: httpx.Client) -> None:
    found = grouped(home, tar_of({"cut.jpg": COLLINS[:2000]}))
    assert (found["groups"], found["without"]) == ([], 0)


@pytest.mark.parametrize("content", [b"x" * 2000, tar_of(ROLL)[:100_000]], ids=["no tar", "cut"])
def test_what_is_no_tar_fails_in_the_job(home: httpx.Client, content: bytes) -> None:
    found = grouped(home, content)
    assert (found["job"]["state"], found["job"]["error"]["code"]) == ("failed", "invalid_archive")
    assert found["groups"] == []


def test_only_the_key_that_sent_the_photos_sees_where_faces_are(home: httpx.Client) -> None:
    keys = {}
    for name in ("one", "two"):
        made = home.post("/v1/keys", json={"id": f"roll-{name}", "scopes": ["enroll"], "galleries": ["roll"]})
        keys[name] = {"x-api-key": made.raise_for_status().json()["secret"]}
    answer = home.post(f"{HOME}/group", content=tar_of({"1.jpg": COLLINS}), headers=TAR | keys["one"])
    where = f"{HOME}/group/{answer.raise_for_status().json()['id']}"
    job_ended(home, answer.json()["id"])
    assert len(home.get(where, headers=keys["one"]).raise_for_status().json()["groups"]) == 1
    error_of(home.get(where, headers=keys["two"]), 404, "job_not_found")
    home.post("/v1/galleries", json={"id": "other"}).raise_for_status()
    error_of(home.get(where.replace("roll", "other", 1)), 404, "job_not_found")
    home.delete("/v1/galleries/other")
    for name in keys:
        home.delete(f"/v1/keys/roll-{name}")
