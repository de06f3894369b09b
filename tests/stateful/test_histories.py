"""Histories that once ended otherwise than the model."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stateful.machine import photo
from tests.stateful.service import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("histories"), None)
    yield made
    made.stop()


@pytest.fixture
def home(service: Service) -> str:
    return new_gallery(service)


def new_gallery(service: Service) -> str:
    name = uuid.uuid4().hex
    service.call("POST", "/v1/galleries", json={"id": name, "on_conflict": "allow"})
    return f"/v1/galleries/{name}"


def exported(service: Service, home: str) -> bytes:
    job = service.finished(service.call("POST", f"{home}/export"))
    archive: bytes = service.call("GET", f"/v1/jobs/{job['id']}/result")
    return archive


def imported(service: Service, home: str, archive: bytes) -> None:
    params = {"content": "archive", "trust": service.trust}
    service.finished(service.upload(home.rpartition("/")[2], archive, params))


def subjects(service: Service, home: str) -> dict[str, int]:
    listed: list[dict[str, Any]] = service.call("GET", f"{home}/subjects")["subjects"]
    return {one["id"]: one["face_count"] for one in listed}


def test_an_archive_brings_back_no_unnamed_subject_whose_face_has_got_a_name(service: Service, home: str) -> None:
    (face,) = service.index_faces(home.rpartition("/")[2], photo(0, 1))
    archive = exported(service, home)
    (unnamed,) = subjects(service, home)
    move = {"faces": [face], "subject": "ann", "create": True}
    service.call("POST", f"{home}/subjects/{unnamed}/faces/move", json=move)
    imported(service, home, archive)
    assert subjects(service, home) == {"ann": 1}
    other = new_gallery(service)
    for _ in range(3):
        imported(service, other, archive)
        assert subjects(service, other) == {unnamed: 1}


def test_an_unnamed_subject_goes_with_its_face(service: Service, home: str) -> None:
    (face,) = service.index_faces(home.rpartition("/")[2], photo(0, 2))
    (unnamed,) = subjects(service, home)
    service.call("DELETE", f"{home}/subjects/{unnamed}/faces/{face}")
    assert subjects(service, home) == {}


def test_a_correction_that_came_from_elsewhere_is_there_once(service: Service, home: str) -> None:
    """Also when its original is gone by the time that the archive comes again."""
    corrections = f"{home}/subjects/ann/corrections"
    service.call("POST", f"{home}/subjects/ann/faces", files={"images": photo(0, 3)})
    made = service.call("POST", corrections, files={"image": photo(2, 3)})
    archive, other = exported(service, home), new_gallery(service)
    imported(service, other, archive)
    service.call("DELETE", f"{corrections}/{made['id']}")
    imported(service, other, archive)
    assert len(service.call("GET", f"{other}/subjects/ann/corrections")["corrections"]) == 1
