"""Liveness over REST: off costs nothing, report says what it knows, and require never passes what it cannot judge."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from app.types import Pixels
from tests.conftest import PROJECT
from tests.support import liveness
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, encoded, error_of, running

FACES = "/v1/galleries/staff/subjects/collins/faces"
IDENTIFY = "/v1/galleries/staff/identify"


def decoded(photo: bytes) -> Pixels:
    return np.array(Image.open(io.BytesIO(photo)).convert("RGB"), np.uint8)


def darker(photo: bytes, factor: float = 0.35) -> bytes:
    return encoded((decoded(photo) * factor).astype(np.uint8))


DARK = darker(COLLINS)


def models_dir(folder: Path) -> Path:
    shutil.copytree(PROJECT / "models", folder / "models")
    return folder / "models"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server whose liveness package takes bright photos for live, dark ones for spoofs."""
    folder = tmp_path_factory.mktemp("liveness")
    models = models_dir(folder)
    made = liveness.install(models, liveness.brightness_model(middle=0.25, steepness=40))
    liveness.calibrate(made, live_from=0.9, spoof_below=0.1)
    with running(folder / "data", models_dir=models) as client:
        client.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        client.post(FACES, files={"images": COLLINS}).raise_for_status()
        yield client


def verify(client: httpx.Client, one: bytes, two: bytes, **asked: str) -> httpx.Response:
    return client.post("/v1/verify", files={"image1": one, "image2": two}, params=asked)


def identify(client: httpx.Client, photo: bytes, **asked: str) -> httpx.Response:
    return client.post(IDENTIFY, files={"image": photo}, params=asked)


def test_nothing_is_said_and_nothing_is_spent_unless_it_is_asked_for(client: httpx.Client) -> None:
    answer = identify(client, DARK, explain="true").json()
    assert answer["faces"][0]["liveness"] is None
    assert "liveness" not in answer["explain"]["stages"]
    assert verify(client, COLLINS, DARK).json()["face2"]["liveness"] is None


def test_verdicts_are_reported_on_each_face(client: httpx.Client) -> None:
    answer = verify(client, AGAIN, DARK, liveness="report", explain="true").json()
    assert answer["match"]
    assert answer["face1"]["liveness"]["live"] == "live"
    assert answer["face1"]["liveness"]["reason"] is None
    assert answer["face2"]["liveness"] == {
        "live": "spoof",
        "live_score": pytest.approx(0, abs=0.1),
        "reason": "low_score",
    }
    assert answer["explain"]["stages"]["liveness"] > 0
    (face,) = identify(client, DARK, liveness="report").json()["faces"]
    assert (face["decision"], face["liveness"]["live"]) == ("known", "spoof")
    both = client.post(IDENTIFY, files={"image": BOTH}, params={"liveness": "report"}).json()
    assert [face["liveness"]["live"] for face in both["faces"]] == ["live", "live"]


def test_required_liveness_refuses_with_a_code_of_its_own(client: httpx.Client) -> None:
    details = error_of(verify(client, COLLINS, DARK, liveness="require"), 422, "not_live")
    assert (details["image"], details["live"], details["reasons"]) == ("image2", "spoof", ["spoof", "low_score"])
    assert error_of(identify(client, DARK, liveness="require"), 422, "not_live")["live"] == "spoof"
    subject = client.post(
        "/v1/galleries/staff/subjects/collins/verify", files={"image": DARK}, params={"liveness": "require"}
    )
    assert error_of(subject, 422, "not_live")["image"] == "image"
    assert verify(client, COLLINS, AGAIN, liveness="require").json()["match"]
    assert identify(client, AGAIN, liveness="require").json()["faces"][0]["decision"] == "known"


def test_a_document_need_not_be_live(client: httpx.Client) -> None:
    answer = verify(client, DARK, AGAIN, liveness="require", liveness_of="image2").json()
    assert (answer["match"], answer["face1"]["liveness"]) == (True, None)
    assert answer["face2"]["liveness"]["live"] == "live"
    error_of(verify(client, DARK, AGAIN, liveness="require", liveness_of="image1"), 422, "not_live")


def test_of_a_group_only_the_live_are_searched_for(client: httpx.Client) -> None:
    faces = identify(client, BOTH).json()["faces"]
    left = min(faces, key=lambda face: float(face["box"]["x"]))
    middle = sum(face["box"]["x"] + face["box"]["width"] / 2 for face in faces) / 2
    half = decoded(BOTH)
    half[:, : int(middle)] = (half[:, : int(middle)] * 0.3).astype(np.uint8)
    answer = identify(client, encoded(half), liveness="require").json()
    by_place = sorted(answer["faces"], key=lambda face: float(face["box"]["x"]))
    assert len(by_place) == 2
    assert (by_place[0]["liveness"]["live"], by_place[0]["decision"], by_place[0]["candidates"]) == (
        "spoof",
        "unknown",
        [],
    )
    assert by_place[1]["liveness"]["live"] == "live"
    assert by_place[1]["candidates"]
    assert left["decision"] in {"known", "unknown"}


def test_enrollment_lists_what_is_not_live_and_takes_the_rest(client: httpx.Client) -> None:
    path = "/v1/galleries/staff/subjects/hopper/faces"
    files = [("images", darker(HOPPER)), ("images", HOPPER)]
    answer = client.post(path, files=files, params={"liveness": "require", "quality": "none"}).json()
    (rejected,), (enrolled,) = answer["rejected"], answer["enrolled"]
    assert (rejected["index"], rejected["code"], rejected["reasons"]) == (0, "not_live", ["spoof", "low_score"])
    assert (enrolled["index"], enrolled["liveness"]["live"]) == (1, "live")
    refused = client.post(path, files=files[:1], params={"liveness": "require", "quality": "none"})
    assert error_of(refused, 422, "not_live")["rejected"][0]["index"] == 0
    reported = client.post(path, files=files[:1], params={"liveness": "report", "quality": "none"}).json()
    assert reported["enrolled"][0]["liveness"]["live"] == "spoof"


def test_a_gallery_has_a_default_and_its_requirement_cannot_be_lowered(client: httpx.Client) -> None:
    made = client.post("/v1/galleries", json={"id": "door", "liveness": "report"}).json()
    assert made["liveness"] == "report"
    faces, look = "/v1/galleries/door/subjects/c/faces", "/v1/galleries/door/identify"
    assert client.post(faces, files={"images": COLLINS}).json()["enrolled"][0]["liveness"]["live"] == "live"
    assert client.post(look, files={"image": DARK}).json()["faces"][0]["liveness"]["live"] == "spoof"
    off = client.post(look, files={"image": DARK}, params={"liveness": "off"}).json()
    assert off["faces"][0]["liveness"] is None
    changed = client.patch("/v1/galleries/door", json={"liveness": "require"}).json()
    assert (changed["liveness"], changed["search"]) == ("require", "fp32")
    for asked in ({}, {"liveness": "off"}, {"liveness": "report"}):
        error_of(client.post(look, files={"image": DARK}, params=asked), 422, "not_live")
        error_of(client.post(faces, files={"images": DARK}, params=asked), 422, "not_live")
    assert client.patch("/v1/galleries/door", json={}).json()["liveness"] == "require"
    assert client.patch("/v1/galleries/door", json={"liveness": "off"}).json()["liveness"] == "off"
    assert client.post(look, files={"image": DARK}).json()["faces"][0]["decision"] == "known"


def test_what_another_interface_sends_to_such_a_gallery_must_be_live_too(client: httpx.Client) -> None:
    client.post("/v1/galleries", json={"id": "default", "liveness": "require"}).raise_for_status()
    add = "/api/v1/recognition/faces?subject=c"
    refused = client.post(add, files={"file": DARK})
    assert refused.status_code == 422
    assert "not live" in refused.json()["message"]
    assert client.post(add, files={"file": COLLINS}).status_code == 201
    look = "/api/v1/recognition/recognize"
    assert client.post(look, files={"file": DARK}).status_code == 422
    assert client.post(look, files={"file": AGAIN}).json()["result"][0]["subjects"][0]["subject"] == "c"


def test_the_package_is_listed_with_its_points_and_its_work_is_counted(client: httpx.Client) -> None:
    identify(client, COLLINS, liveness="report").raise_for_status()
    (model,) = [each for each in client.get("/v1/models").json()["models"] if each["task"] == "liveness"]
    assert (model["loaded"], model["device"], model["dimension"]) == (True, "cpu", None)
    assert model["liveness"]["live"] == "live"
    (calibration,) = model["liveness"]["calibrations"]
    assert [point["threshold"] for point in calibration["points"]] == [0.1, 0.9]
    metrics = client.get("/metrics").text
    (count,) = [line for line in metrics.splitlines() if 'likeness_stage_seconds_count{stage="liveness"}' in line]
    assert float(count.split()[1]) >= 1
    assert 'likeness_batcher_waiting{batcher="liveness"} 0.0' in metrics


# --- Servers that cannot decide --------------------------------------------------------------------------------------


def test_without_operating_points_scores_are_reported_and_nothing_is_decided(tmp_path: Path) -> None:
    models = models_dir(tmp_path)
    made = liveness.install(models, liveness.brightness_model(middle=0.25, steepness=40))
    with running(tmp_path / "data", models_dir=models) as client:
        client.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        client.post(FACES, files={"images": COLLINS}).raise_for_status()
        answer = verify(client, COLLINS, DARK, liveness="report").json()
        assert answer["face1"]["liveness"]["live_score"] > 0.9 > answer["face2"]["liveness"]["live_score"]
        for face in (answer["face1"], answer["face2"]):
            assert (face["liveness"]["live"], face["liveness"]["reason"]) == ("not_measured", "no_operating_points")
        for response in liveness.asked_everywhere(client, "require"):
            details = error_of(response, 503, "liveness_not_measured")
            assert details["models"] == ["bright@1"]
            assert "evaluate liveness" in response.json()["error"]["message"]
        liveness.calibrate(made, live_from=0.5, spoof_below=0.5)  # while the server runs
        assert verify(client, COLLINS, AGAIN, liveness="require").status_code == 200
        error_of(verify(client, COLLINS, DARK, liveness="require"), 422, "not_live")


def test_between_the_thresholds_and_below_the_measured_size_it_is_uncertain_and_refused(tmp_path: Path) -> None:
    models = models_dir(tmp_path)
    made = liveness.install(models, liveness.brightness_model(middle=0.25, steepness=0.1))
    liveness.calibrate(made, live_from=0.9, spoof_below=0.1)
    with running(tmp_path / "data", models_dir=models) as client:
        details = error_of(verify(client, COLLINS, AGAIN, liveness="require"), 422, "not_live")
        assert details["reasons"] == ["uncertain", "between_thresholds"]
        liveness.calibrate(made, live_from=0.2, spoof_below=0.1, smallest=2000)
        face = verify(client, COLLINS, AGAIN, liveness="report").json()["face1"]
        assert (face["liveness"]["live"], face["liveness"]["reason"]) == ("uncertain", "small_face")
