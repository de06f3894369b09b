"""Solving for enrolled templates by scores of chosen vectors: without the scope `templates`, and with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from app.compat.similarity import Similarity
from app.decisions import CoarseScores
from app.inference.manifest import Manifest, Thresholds
from app.inference.package import load_package
from tests.conftest import PROJECT
from tests.support.service import AGAIN, COLLINS, HOPPER, running

RECOGNITION = "/api/v1/recognition"
EMBEDDINGS = f"{RECOGNITION}/embeddings"
PEOPLE = {"Eileen": COLLINS, "Grace": HOPPER}
DIMENSION = 128
UNITS = np.eye(DIMENSION)
MANIFESTS = [load_package(PROJECT / "models" / name).manifest for name in ("sface", "mobilefacenet-64")]


def key_of(client: httpx.Client, *scopes: str) -> dict[str, str]:
    made = client.post("/v1/keys", json={"scopes": scopes}).raise_for_status().json()
    return {"x-api-key": made["secret"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("extraction"), vector_rate="600/m:128") as client:
        for subject, photo in PEOPLE.items():
            client.post(f"{RECOGNITION}/faces", params={"subject": subject}, files={"file": photo}).raise_for_status()
        yield client


def template(client: httpx.Client, photo: bytes) -> np.ndarray[Any, Any]:
    found = client.post("/v1/embed", files={"image": photo}).raise_for_status().json()
    return np.array(found["faces"][0]["embedding"])


def ask(client: httpx.Client, key: dict[str, str], vectors: np.ndarray[Any, Any]) -> httpx.Response:
    return client.post(
        f"{EMBEDDINGS}/recognize",
        params={"prediction_count": 1000},
        json={"embeddings": vectors.tolist()},
        headers=key,
    )


def solved(
    client: httpx.Client, key: dict[str, str], subject: str, vectors: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any] | None:
    """The subject's template by least squares over the answered scores; None if no score was answered."""
    scale = Similarity.of(Thresholds(MANIFESTS[0]))
    rows, scores = [], []
    for vector, row in zip(vectors, ask(client, key, vectors).raise_for_status().json()["result"], strict=True):
        for found in row["similarities"]:
            if found["subject"] == subject:
                rows.append(vector)
                scores.append(scale.cosine_of(found["similarity"]))
    if not rows:
        return None
    made = np.linalg.lstsq(np.array(rows), np.array(scores), rcond=None)[0]
    return np.asarray(made / np.linalg.norm(made))


def test_unit_vectors_show_no_template(server: httpx.Client) -> None:
    """One request of 128 unit vectors gave every template to a `recognize` key (cosine 1.0)."""
    every = key_of(server, "read", "recognize", "enroll", "admin")
    refused = ask(server, every, UNITS)
    assert (refused.status_code, refused.json()["code"]) == (403, 1)
    key = key_of(server, "templates")
    answered = ask(server, key, UNITS).raise_for_status().json()["result"]
    assert [row["similarities"] for row in answered] == [[]] * DIMENSION


def test_a_face_is_no_oracle(server: httpx.Client) -> None:
    image_id = server.get(f"{RECOGNITION}/faces").json()["faces"][0]["image_id"]
    path, body = f"{EMBEDDINGS}/faces/{image_id}/verify", {"embeddings": UNITS.tolist()}
    refused = server.post(path, json=body, headers=key_of(server, "recognize", "enroll", "admin"))
    assert (refused.status_code, refused.json()["code"]) == (403, 1)
    answered = server.post(path, json=body, headers=key_of(server, "templates")).raise_for_status().json()
    assert {row["similarity"] for row in answered["result"]} == {0.0}


def test_what_the_scope_gives_away_is_known(server: httpx.Client) -> None:
    """Who holds the scope and begins near a face comes near its template: that is why no key has it unless given."""
    key, truth, near = key_of(server, "templates"), template(server, COLLINS), template(server, AGAIN)
    vectors = near + np.vstack([0.5 * UNITS])
    found = solved(server, key, "Eileen", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    assert found is not None
    assert near @ truth < float(found @ truth) < 0.9999


def test_vectors_are_limited(server: httpx.Client) -> None:
    key = key_of(server, "templates")
    too_many = ask(server, key, np.ones((129, DIMENSION)))
    assert (too_many.status_code, too_many.json()["code"]) == (400, 26)
    assert ask(server, key, UNITS).is_success
    waiting = ask(server, key, UNITS)
    assert waiting.status_code == 429
    assert 1 <= int(waiting.headers["retry-after"]) <= 13


def test_the_own_embedding_still_finds_its_subject(server: httpx.Client) -> None:
    key = key_of(server, "templates")
    (found,) = ask(server, key, template(server, AGAIN)[None]).raise_for_status().json()["result"]
    assert [one["subject"] for one in found["similarities"]] == ["Eileen"]
    assert found["similarities"][0]["similarity"] > 0.9


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one.name)
def test_coarse_scores_change_no_decision_at_an_operating_point(manifest: Manifest) -> None:
    thresholds = Thresholds(manifest)
    scores, scale = CoarseScores.of(thresholds), Similarity.of(thresholds)
    assert thresholds.calibration is not None
    points = [point.threshold for point in thresholds.calibration.points]
    assert scores.step == pytest.approx(0.01)
    exact = np.random.default_rng(7).uniform(-1, 1, 20_000).tolist() + points + [one - 1e-9 for one in points]
    for score in exact:
        coarse = scores.coarse(score)
        if coarse is None:
            assert score < points[0]
            continue
        assert score - scores.step - 1e-9 < coarse <= score
        for point in points:
            assert (coarse >= point) == (score >= point)
            asked = scale.of_cosine(point)
            assert (scale.of_cosine(coarse) >= asked) == (scale.of_cosine(score) >= asked)
