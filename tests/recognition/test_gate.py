"""What a request asks of liveness, in a service that has no models for it: with the feature or without."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.choices import LivenessMode
from app.errors import LivenessUnavailable
from app.recognition.gate import OFF, Gates
from app.recognition.operations import Operations
from tests.support.liveness import asked_everywhere
from tests.support.service import COLLINS, error_of, running


def test_gates_that_judge_nothing_open_only_for_what_asks_nothing() -> None:
    gates = Gates()
    unused: Any = SimpleNamespace(store=None)
    operations = Operations(unused, unused, unused, gates=gates, fmr=1e-4, fpir=0.01)
    assert operations.open_gate(None) is operations.open_gate("off") is operations.open_gate("off", "report") is OFF
    refused: list[tuple[LivenessMode | None, LivenessMode]] = [("report", "off"), (None, "report"), ("require", "off")]
    for asked, default in (*refused, ("off", "require")):
        with pytest.raises(LivenessUnavailable) as caught:
            operations.open_gate(asked, default)
        assert caught.value.details["reason"] == "none_installed"
    gates.close()


def test_without_a_package_liveness_is_an_error_and_never_a_silent_pass(tmp_path: Path) -> None:
    faces = "/v1/galleries/staff/subjects/collins/faces"
    with running(tmp_path) as client:
        client.post("/v1/galleries", json={"id": "staff", "liveness": "require"}).raise_for_status()
        for mode in ("report", "require"):
            for response in asked_everywhere(client, mode):
                assert error_of(response, 503, "liveness_unavailable")["reason"] == "none_installed"
        error_of(client.post(faces, files={"images": COLLINS}), 503, "liveness_unavailable")
        assert client.get("/readyz").status_code == 200
        both = {"image1": COLLINS, "image2": COLLINS}
        assert client.post("/v1/verify", files=both).status_code == 200
