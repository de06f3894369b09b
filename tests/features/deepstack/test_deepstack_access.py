"""Who may do what through DeepStack's and Immich's interfaces: every call, with every scope and every way to have no
right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.features.deepstack import FEATURE as DEEPSTACK
from app.features.immich import FEATURE as IMMICH
from tests.support.access import OTHER, OWN, REFUSED, keys, state, token, with_keys
from tests.support.service import COLLINS, enrolled

FACE = "/v1/vision/face"
NEEDS: dict[str, str] = {
    FACE: "recognize",
    f"{FACE}/recognize": "recognize",
    f"{FACE}/match": "recognize",
    f"{FACE}/register": "enroll",
    f"{FACE}/list": "read",
    f"{FACE}/delete": "delete",
    "/predict": "recognize",
}
"""What was decided, written down apart from the code that decides."""
OWN_PATH = f"/v1/galleries/{OWN}"
ENTRIES = '{"facial-recognition": {"detection": {"modelName": "buffalo_l"}, "recognition": {"modelName": "buffalo_l"}}}'


@dataclass
class Ground:
    """A service with a key of each kind."""

    client: httpx.Client
    data_dir: Path

    def ask(self, path: str, key: str) -> httpx.Response:
        files: dict[str, Any] = {
            FACE: {"image": COLLINS},
            f"{FACE}/recognize": {"image": COLLINS},
            f"{FACE}/match": {"image1": COLLINS, "image2": COLLINS},
            f"{FACE}/register": {"image": COLLINS},
            "/predict": {"image": COLLINS},
        }.get(path, {})
        needs_enroll = NEEDS[path] == "enroll"
        fields = {"entries": ENTRIES} if path == "/predict" else {"userid": "new" if needs_enroll else "eileen"}
        return self.client.post(path, data=fields, files=files, headers={"x-api-key": key})

    def people(self) -> Any:
        """Return Eileen's faces; she is enrolled again if a key that may has deleted her."""
        faces = self.client.get(f"{OWN_PATH}/subjects/eileen/faces")
        return faces.json()["faces"] if faces.is_success else enrolled(self.client, OWN_PATH, "eileen", COLLINS)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("access")
    with with_keys(folder, "default", OWN, OTHER, "default", deepstack="on", immich="on") as client:
        yield Ground(client, folder / "data")


def test_the_table_names_every_call() -> None:
    routers = [*DEEPSTACK.routers, *IMMICH.routers]
    calls = [call for router in routers for call in router.operations if not call.public]
    assert {call.path: str(call.scope) for call in calls} == NEEDS


@pytest.mark.parametrize(("scope", "way"), keys("default"))
def test_every_call_with_every_key(ground: Ground, scope: str, way: str) -> None:
    ground.people()
    people = ground.people()
    for path, needed in NEEDS.items():
        before = state(ground.data_dir)
        answer = ground.ask(path, token(scope, way))
        may = way not in REFUSED and scope in {needed, "admin"}
        assert answer.status_code == (200 if may else 401 if way in REFUSED else 403), (path, answer.text)
        if not may:
            assert state(ground.data_dir) == before, f"{path} was refused and has changed something"
        elif way != "own gallery":
            assert "eileen" not in answer.text, "it is another gallery's"
    if way != "own gallery":
        assert ground.people() == people, "no key reaches into another gallery"
