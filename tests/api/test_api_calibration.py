"""A gallery's own operating points over REST: measured, shown, switched on, and named by every answer."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.calibrating import add_random_people, ended
from tests.support.service import AGAIN, COLLINS


def identified(api: httpx.Client, gallery: str, **asked: str) -> dict[str, Any]:
    answer = api.post(f"{gallery}/identify", params=asked, files={"image": AGAIN})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert [face["decision"] for face in found["faces"]] == ["known"]
    return found


def test_a_gallery_is_calibrated_and_every_answer_says_what_decided(api: httpx.Client, gallery: str) -> None:
    name, package = gallery.rpartition("/")[2], api.get(gallery).json()
    assert (package["calibration"], package["allow_laxer"]) == ("package", False)
    api.post(f"{gallery}/subjects/collins/faces", files={"images": COLLINS}).raise_for_status()
    before = identified(api, gallery)
    assert before["calibration"] == {"source": "package", "name": "train112", "fallback": None}
    add_random_people(api, name)

    switched = api.patch(gallery, json={"calibration": "gallery", "allow_laxer": True}).json()
    assert (switched["calibration"], switched["allow_laxer"]) == ("gallery", True)
    state = api.get(f"{gallery}/calibration").json()
    job = ended(api, state["job"]["id"])
    assert (job["kind"], job["gallery"], job["key"]) == ("calibrate", name, "admin.key")

    found = api.get(f"{gallery}/calibration").json()
    assert found["decides"] == {"source": "gallery", "name": "gallery", "fallback": None}
    measured = found["measured"]
    assert (measured["subjects"], measured["faces"], measured["suspicious"]) == (202, 401, 1)
    assert sum(measured["scores"]["nonmated"]) == measured["comparisons"] + measured["left_out"]
    [pair] = found["pairs"]
    assert {pair["first"]["subject"], pair["second"]["subject"]} == {"twice", "p199"}
    assert (pair["first"]["name"], pair["second"]["name"]) == (None, None)
    points = {point["fmr"]: point for point in found["points"]}
    assert points[1e-3]["threshold"] < points[1e-3]["package"], "random vectors are less alike than faces"
    assert points[1e-3]["decides"] >= max(points[1e-3]["threshold"], points[1e-2]["package"])
    assert points[1e-3]["found_low"] <= points[1e-3]["found"] < 1e-3
    assert points[1e-6]["threshold"] is None
    assert points[1e-6]["decides"] < points[1e-6]["package"], "by the ratio at the lowest rate of its own"

    lax = identified(api, gallery, fmr="0.001")
    assert lax["faces"][0]["threshold"] == points[1e-3]["decides"]
    assert lax["calibration"]["source"] == "gallery"
    strict = identified(api, gallery, fmr="0.000001")
    assert strict["faces"][0]["threshold"] == points[1e-6]["decides"]
    assert strict["calibration"]["fallback"] == "rate_not_supported"
    assert strict["calibration"]["ratio"] < 1
    assert strict["limited"] is False
    subject_answer = api.post(f"{gallery}/subjects/collins/verify", params={"fmr": 1e-3}, files={"image": AGAIN})
    assert subject_answer.json()["calibration"]["source"] == "gallery"
    pair_answer = api.post("/v1/verify", files={"image1": COLLINS, "image2": AGAIN}).json()
    assert pair_answer["calibration"] == {"source": "package", "name": "train112", "fallback": None}

    held = api.patch(gallery, json={"allow_laxer": False}).json()
    assert (held["calibration"], held["allow_laxer"]) == ("gallery", False)
    floor = identified(api, gallery, fmr="0.001")["faces"][0]["threshold"]
    assert points[1e-3]["decides"] < floor < points[1e-3]["package"]
    held_down = identified(api, gallery, fmr="0.000001")
    assert points[1e-6]["decides"] < held_down["faces"][0]["threshold"] < points[1e-6]["package"]
    assert held_down["calibration"]["ratio"] == pytest.approx(10**-0.5, rel=0.01)
    api.patch(gallery, json={"calibration": "package"}).raise_for_status()
    assert identified(api, gallery)["calibration"] == before["calibration"]
    entries = api.get("/v1/audit", params={"gallery": name}).json()["entries"]
    assert {"update_gallery", "show_calibration"} <= {entry["operation"] for entry in entries}
