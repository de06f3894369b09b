"""CompreFace's own Python SDK, unmodified, every call it has, against a running server with real photos."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import PROJECT
from tests.support.live import LiveServer
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, SAMPLES, encoded

pytestmark = pytest.mark.long

INSTALL_S = 120
PLUGINS = "landmarks,calculator,age,gender,mask"
"""All that this version of the SDK lets pass."""


class Sdk:
    """The SDK in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], answers: IO[str], calls: IO[str]) -> None:
        self._process, self._answers, self._calls = process, answers, calls

    def __call__(
        self,
        of: str,
        call: str,
        options: dict[str, Any] | None = None,
        defaults: dict[str, Any] | None = None,
        **given: Any,
    ) -> Any:
        images = {
            name: {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)
            for name, value in given.items()
        }
        asked = {"of": of, "call": call, "given": images, "options": options, "defaults": defaults}
        self._calls.write(json.dumps(asked) + "\n")
        self._calls.flush()
        line = self._answers.readline()
        assert line, f"the SDK ended with {self._process.wait()}"
        return json.loads(line)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the SDK and what it needs, from the package index."""
    folder = tmp_path_factory.mktemp("sdk") / "packages"
    wanted = PROJECT / "tests" / "compreface_sdk.txt"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        pytest.skip("needs compreface-sdk 0.6.0, which pip could not install: " + done.stderr.strip()[-200:])
    return folder


@pytest.fixture(scope="module")
def sdk(live_server: LiveServer, environment: Path) -> Iterator[Sdk]:
    """With a key that is bound to one gallery."""
    with live_server.client() as client:
        gallery = f"sdk-{uuid.uuid4().hex}"
        client.post("/v1/galleries", json={"id": gallery}).raise_for_status()
        terms = {"scopes": ["read", "recognize", "enroll", "delete", "templates"], "galleries": [gallery]}
        key = client.post("/v1/keys", json=terms).raise_for_status().json()["secret"]
    driver = PROJECT / "tests" / "support" / "compreface_driver.py"
    process = subprocess.Popen(
        [sys.executable, "-S", str(driver), live_server.url, key],
        env={"PYTHONPATH": str(environment)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    with process:
        yield Sdk(process, process.stdout, process.stdin)
        process.stdin.close()


@pytest.fixture(autouse=True)
def empty(sdk: Sdk) -> None:
    assert "deleted" in sdk("subjects", "delete_all")


def test_every_call_on_subjects(sdk: Sdk) -> None:
    assert sdk("subjects", "add", subject="Eileen Collins") == {"subject": "Eileen Collins"}
    assert sdk("subjects", "add", subject="王芳") == {"subject": "王芳"}
    assert sdk("subjects", "add", subject="王芳") == {"message": "Subject already exists", "code": 43}
    assert sdk("subjects", "list") == {"subjects": ["Eileen Collins", "王芳"]}
    assert sdk("subjects", "update", subject="王芳", new_name="Wang Fang") == {"updated": True}
    assert sdk("subjects", "update", subject="nobody", new_name="x") == {
        "message": "Subject nobody not found",
        "code": 42,
    }
    assert sdk("subjects", "delete", subject="Wang Fang") == {"subject": "Wang Fang"}
    assert sdk("subjects", "delete", subject="Wang Fang")["code"] == 42
    assert sdk("subjects", "delete_all") == {"deleted": 1}
    assert sdk("subjects", "list") == {"subjects": []}


def test_every_call_on_the_face_collection(sdk: Sdk) -> None:
    first = sdk("collection", "add", image_path=SAMPLES / "collins.jpg", subject="Eileen")
    assert first == {"image_id": first["image_id"], "subject": "Eileen"}
    second = sdk("collection", "add", {"det_prob_threshold": 0.5}, image_path=AGAIN, subject="Eileen")
    third = sdk("collection", "add", image_path=HOPPER, subject="Grace")
    assert len({uuid.UUID(one["image_id"]) for one in (first, second, third)}) == 3
    assert sdk("collection", "list") == {
        "faces": [first, second, third],
        "page_number": 0,
        "page_size": 20,
        "total_pages": 1,
        "total_elements": 3,
    }
    assert sdk("collection", "add", image_path=BOTH, subject="x")["code"] == 31
    verified = sdk("collection", "verify", image_path=AGAIN, image_id=first["image_id"])["result"]
    assert [(one["subject"], one["similarity"] > 0.9) for one in verified] == [("Eileen", True)]
    options = {"limit": 1, "status": "true", "face_plugins": PLUGINS, "det_prob_threshold": 0.8}
    full = sdk("collection", "verify", options, image_path=BOTH, image_id=third["image_id"])
    assert len(full["result"]) == 1
    assert full["plugins_versions"]["calculator"].startswith("sface@")
    assert len(full["result"][0]["embedding"]) == 128
    assert len(full["result"][0]["landmarks"]) == 5
    assert sdk("collection", "delete", image_id=first["image_id"]) == first
    assert sdk("collection", "delete", image_id=first["image_id"])["code"] == 44
    assert sdk("collection", "delete_all", subject="Eileen") == {"deleted": 1}
    assert sdk("collection", "list")["faces"] == [third]


def test_recognize(sdk: Sdk) -> None:
    for photo, subject in ((COLLINS, "Eileen"), (HOPPER, "Grace")):
        sdk("collection", "add", image_path=photo, subject=subject)
    plain = sdk("recognition", "recognize", image_path=SAMPLES / "both.jpg")
    assert [[hit["subject"] for hit in face["subjects"]] for face in plain["result"]] == [["Grace"], ["Eileen"]]
    options = {"limit": 0, "det_prob_threshold": 0.5, "prediction_count": 2, "face_plugins": PLUGINS, "status": True}
    for asked in ({"options": options}, {"defaults": options}):
        full = sdk("recognition", "recognize", image_path=BOTH, **asked)
        assert [[hit["subject"] for hit in face["subjects"]] for face in full["result"]] == [
            ["Grace", "Eileen"],
            ["Eileen", "Grace"],
        ]
        for face in full["result"]:
            assert set(face) == {"box", "landmarks", "embedding", "execution_time", "subjects"}
            assert face["subjects"][0]["similarity"] > 0.9 > face["subjects"][1]["similarity"]
        assert set(full["plugins_versions"]) == {"detector", "calculator"}


def test_detect(sdk: Sdk, astronaut: NDArray[np.uint8]) -> None:
    (face,) = sdk("detection", "detect", image_path=encoded(astronaut))["result"]
    assert set(face) == {"box"}
    box = face["box"]
    assert 150 < box["x_min"] < 230 < box["x_max"] < 300, "Eileen Collins' face in the photo"
    options = {"limit": 1, "face_plugins": PLUGINS, "status": True, "det_prob_threshold": 0.7}
    full = sdk("detection", "detect", options, image_path=BOTH)
    assert len(full["result"]) == 1
    assert set(full["result"][0]) == {"box", "landmarks", "embedding", "execution_time"}
    wall = encoded(np.full((300, 300, 3), 90, np.uint8))
    assert sdk("detection", "detect", image_path=wall) == {"message": "No face is found in the given image", "code": 28}


def test_verify(sdk: Sdk) -> None:
    (answer,) = sdk("verification", "verify", source_image_path=COLLINS, target_image_path=SAMPLES / "both.jpg")[
        "result"
    ]
    grace, eileen = answer["face_matches"]
    assert grace["similarity"] < 0.8
    assert eileen["similarity"] > 0.9
    options = {"status": True, "face_plugins": PLUGINS, "limit": 1}
    (full,) = sdk("verification", "verify", options, source_image_path=COLLINS, target_image_path=BOTH)["result"]
    assert set(full) == {"source_image_face", "face_matches", "plugins_versions"}
    assert len(full["face_matches"]) == 1
    assert sdk("verification", "verify", source_image_path=BOTH, target_image_path=COLLINS)["code"] == 31
