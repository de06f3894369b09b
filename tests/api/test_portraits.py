"""A subject's answer names the face whose crop shows it, so that a list takes one request a picture."""

from __future__ import annotations

import httpx
import pytest

from tests.support.service import AGAIN, COLLINS, enrolled


@pytest.mark.parametrize("store", ["crop", "none"])
def test_the_portrait_is_the_cover_or_the_first_face_with_a_crop(api: httpx.Client, store: str) -> None:
    where = f"/v1/galleries/portraits-{store}"
    api.post("/v1/galleries", json={"id": f"portraits-{store}", "store": store}).raise_for_status()
    made = api.post(f"{where}/subjects", json={"id": "eileen"}).raise_for_status().json()
    assert made["portrait"] is None
    (first,) = enrolled(api, where, "eileen", COLLINS)
    (second,) = enrolled(api, where, "eileen", AGAIN, on_conflict="allow")

    def portrait() -> str | None:
        (listed,) = api.get(f"{where}/subjects").raise_for_status().json()["subjects"]
        assert listed == api.get(f"{where}/subjects/eileen").raise_for_status().json()
        found: str | None = listed["portrait"]
        return found

    if store == "none":
        assert portrait() is None
        return
    assert portrait() == first["face_id"]
    api.get(f"{where}/subjects/eileen/faces/{portrait()}/crop").raise_for_status()
    api.patch(f"{where}/subjects/eileen", json={"cover": second["face_id"]}).raise_for_status()
    assert portrait() == second["face_id"]
    api.delete(f"{where}/subjects/eileen/faces/{second['face_id']}").raise_for_status()
    assert portrait() == first["face_id"]
