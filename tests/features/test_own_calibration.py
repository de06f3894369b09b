"""In a gallery that decides by its own operating points, similarities follow these, to the last step."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("boto3", reason="the dev extra brings boto3")

from app.types import Vector
from tests.support import aws
from tests.support.calibrating import add_random_people, add_templates, calibrate
from tests.support.live import LiveServer
from tests.support.tarred import units

FMR, SIMILARITY = 1e-3, 0.8
"""What every package's similarity 0.8 stands for."""
ABOVE = 1e-5
"""By how much the pair's score exceeds the gallery's threshold: far less than answered scores' steps."""


@dataclass
class Own:
    """A gallery with own operating points, and a pair of its faces whose score is just above that of FMR 1e-3."""

    gallery: str
    near: str
    """The id of one face."""
    probe: Vector
    """The template of the other, of the subject `probe`."""


@pytest.fixture(scope="module")
def api(shared_server: LiveServer) -> Iterator[httpx.Client]:
    with shared_server.client() as client:
        yield client


@pytest.fixture(scope="module")
def own(api: httpx.Client) -> Own:
    gallery = f"own-{uuid.uuid4().hex}"
    api.post("/v1/galleries", json={"id": gallery, "store": "none"}).raise_for_status()
    add_random_people(api, gallery)
    point = calibrate(api, gallery)[FMR]
    assert point["decides"] < point["package"], "else the package's own steps would do"
    score = point["decides"] + ABOVE
    one, other = units(2, seed=9)
    other -= (one @ other) * one
    probe = (score * one + np.sqrt(1 - score**2) * other / np.linalg.norm(other)).astype(np.float32)
    add_templates(api, gallery, ["near", "probe"], np.stack([one, probe]))
    (face,) = api.get(f"/v1/galleries/{gallery}/subjects/near/faces").json()["faces"]
    return Own(gallery, face["face_id"], probe)


def test_compreface_recognizes_whom_the_gallerys_threshold_recognizes(api: httpx.Client, own: Own) -> None:
    scopes = ["recognize", "read", "templates"]
    made = api.post("/v1/keys", json={"scopes": scopes, "galleries": [own.gallery]}).raise_for_status().json()
    key, embeddings = {"x-api-key": made["secret"]}, {"embeddings": [own.probe.tolist()]}
    where = "/api/v1/recognition/embeddings"
    asked = {"params": {"prediction_count": 5}, "json": embeddings, "headers": key}
    found: dict[str, Any] = api.post(f"{where}/recognize", **asked).raise_for_status().json()  # type: ignore[arg-type]
    scores = {one["subject"]: one["similarity"] for one in found["result"][0]["similarities"]}
    face = str(uuid.UUID(own.near))
    one = api.post(f"{where}/faces/{face}/verify", json=embeddings, headers=key).raise_for_status().json()
    assert SIMILARITY <= one["result"][0]["similarity"] < SIMILARITY + 0.01
    assert SIMILARITY <= scores["near"] < SIMILARITY + 0.01, "other subjects' numbers of faces change nothing"


def test_rekognition_finds_whom_the_gallerys_threshold_finds(shared_server: LiveServer, own: Own) -> None:
    with shared_server.client() as api:
        made = api.post("/v1/keys", json={"scopes": ["recognize", "read"], "aws": True}).raise_for_status().json()
    client = aws.client(shared_server.url, made["aws_access_key_id"], made["aws_secret_access_key"])
    for threshold in (50, 100 * SIMILARITY):  # the answer is as exact if the client asks for much less
        found = client.search_faces(
            CollectionId=own.gallery, FaceId=str(uuid.UUID(own.near)), FaceMatchThreshold=threshold, MaxFaces=10
        )["FaceMatches"]
        assert 100 * SIMILARITY <= found[0]["Similarity"] < 100 * SIMILARITY + 1
