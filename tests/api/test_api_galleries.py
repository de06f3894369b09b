"""Galleries, subjects and faces over HTTP: made, listed, changed, deleted, by ids of any script."""

from __future__ import annotations

import io
import unicodedata
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from app.api import schemas
from app.api.routes.galleries import Gallery
from app.errors import InvalidInput
from app.features.checks.routes import GalleryCheck
from app.gallery.text import check_visible
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled, error_of

IDS = ["a/b", "/", "%2F", "%", "ключ 🔑", "?q=1#x", "..a", "a//b/", "漢字", "\u0627\u0644", "+ &=", "'\"\\;--"]


def test_a_gallery_is_made_shown_listed_and_deleted(api: httpx.Client) -> None:
    made = Gallery.model_validate(api.post("/v1/galleries", json={"id": "g1", "metadata": {"a": 1}}).json())
    assert (made.id, made.store, made.subjects, made.faces, made.metadata) == ("g1", "crop", 0, 0, {"a": 1})
    assert made.embedder.startswith("sface@")
    assert Gallery.model_validate(api.get("/v1/galleries/g1").json()) == made
    assert "g1" in [gallery["id"] for gallery in api.get("/v1/galleries").json()["galleries"]]
    error_of(api.post("/v1/galleries", json={"id": "g1"}), 409, "gallery_exists")
    gone = api.delete("/v1/galleries/g1")
    assert (gone.status_code, gone.content) == (204, b"")
    error_of(api.get("/v1/galleries/g1"), 404, "gallery_not_found")


def test_a_gallery_takes_an_installed_embedder_by_id_or_name_and_nothing_else(api: httpx.Client) -> None:
    installed = [model for model in api.get("/v1/models").json()["models"] if model["task"] == "embed"]
    loaded = next(model for model in installed if model["loaded"])
    for index, name in enumerate((loaded["id"], loaded["name"])):
        made = api.post("/v1/galleries", json={"id": f"by-name-{index}", "embedder": name}).json()
        assert made["embedder"] == loaded["id"]
        api.delete(f"/v1/galleries/by-name-{index}")
    for name in ("other", "yunet"):
        details = error_of(api.post("/v1/galleries", json={"id": "x", "embedder": name}), 422, "package_unknown")
        assert details == {"package": name, "known": sorted(model["id"] for model in installed)}


@pytest.mark.parametrize("name", IDS)
def test_ids_may_hold_anything_when_percent_encoded(api: httpx.Client, name: str) -> None:
    segment = quote(name, safe="")
    path = f"/v1/galleries/{segment}"
    assert api.post("/v1/galleries", json={"id": name}).json()["id"] == name
    try:
        subject = f"{path}/subjects/{segment}"
        assert api.post(f"{path}/subjects", json={"id": name, "name": name}).json()["id"] == name
        assert api.get(path).json()["subjects"] == 1
        assert api.get(subject).json()["name"] == name
        assert api.get(f"{subject}/faces").json() == {"faces": [], "next_cursor": None}
        assert api.patch(subject, json={"name": None}).json()["name"] is None
        assert api.delete(subject).status_code == 204
    finally:
        assert api.delete(path).status_code == 204


def is_visible(name: str) -> bool:
    try:
        check_visible(name, "gallery")
    except InvalidInput:
        return False
    return True


@settings(max_examples=30)
@given(name=st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=40))
def test_any_id_comes_back_as_it_went_in(api: httpx.Client, name: str) -> None:
    if name not in {".", ".."}:  # generated requests share this server, and may have left one of that id
        api.delete(f"/v1/galleries/{quote(unicodedata.normalize('NFC', name), safe='')}")
    made = api.post("/v1/galleries", json={"id": name})
    if name in {".", ".."} or not is_visible(unicodedata.normalize("NFC", name)):
        error_of(made, 422, "invalid_id")
        return
    path = f"/v1/galleries/{quote(made.json()['id'], safe='')}"
    assert api.get(path).json() == made.json()
    assert api.delete(path).status_code == 204


@pytest.mark.parametrize("name", [".", "..", "a\x00b", "a\nb", "\u2028"])
def test_ids_that_no_url_or_database_holds_are_refused(api: httpx.Client, name: str) -> None:
    error_of(api.post("/v1/galleries", json={"id": name}), 422, "invalid_id")


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_ids_have_1_to_255_characters(api: httpx.Client, name: str) -> None:
    error_of(api.post("/v1/galleries", json={"id": name}), 422, "invalid_request")


def test_subjects_are_made_changed_and_deleted(api: httpx.Client, gallery: str) -> None:
    path = f"{gallery}/subjects/eileen"
    asked = {"id": "eileen", "name": "Eileen Collins", "metadata": {"missions": ["STS-63", "STS-84"], "pilot": True}}
    made = schemas.Subject.model_validate(api.post(f"{gallery}/subjects", json=asked).json())
    assert made.model_dump(include=set(asked)) == asked
    assert made.face_count == 0
    error_of(api.post(f"{gallery}/subjects", json={"id": "eileen"}), 409, "subject_exists")

    assert api.patch(path, json={"name": "E. C."}).json()["metadata"] == asked["metadata"], "what is absent stays"
    changed = schemas.Subject.model_validate(api.patch(path, json={"metadata": {"pilot": False}}).json())
    assert (changed.name, changed.metadata) == ("E. C.", {"pilot": False}), "metadata is replaced as a whole"
    assert changed.updated_at >= made.updated_at
    assert api.patch(path, json={}).json()["name"] == "E. C."
    assert api.delete(path).status_code == 204
    for response in (api.get(path), api.delete(path), api.patch(path, json={"name": "x"})):
        error_of(response, 404, "subject_not_found")


def test_lists_come_page_by_page(api: httpx.Client, gallery: str) -> None:
    names = [f"person {index}" for index in range(7)]
    for name in names:
        api.post(f"{gallery}/subjects", json={"id": name})
    found: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = schemas.SubjectPage.model_validate(api.get(f"{gallery}/subjects", params=params).json())
        assert len(page.subjects) <= 3
        found += [subject.id for subject in page.subjects]
        if (cursor := page.next_cursor) is None:
            break
    assert found == names


def test_subjects_are_searched_by_id_and_name(api: httpx.Client, gallery: str) -> None:
    api.post(f"{gallery}/subjects", json={"id": "1", "name": "Grace Hopper"})
    api.post(f"{gallery}/subjects", json={"id": "hop", "name": None})
    api.post(f"{gallery}/subjects", json={"id": "2", "name": "Eileen Collins"})
    found = api.get(f"{gallery}/subjects", params={"search": "HOP"}).json()["subjects"]
    assert [subject["id"] for subject in found] == ["1", "hop"]


def test_a_cursor_of_another_list_is_refused(api: httpx.Client, gallery: str) -> None:
    for index in range(2):
        api.post(f"{gallery}/subjects", json={"id": str(index)})
    cursor = api.get(f"{gallery}/subjects", params={"limit": 1}).json()["next_cursor"]
    error_of(api.get("/v1/galleries", params={"cursor": cursor}), 422, "invalid_cursor")
    error_of(api.get(f"{gallery}/subjects", params={"cursor": "nonsense"}), 422, "invalid_cursor")


def test_faces_are_listed_shown_and_deleted_with_their_crop(api: httpx.Client, gallery: str) -> None:
    subject = f"{gallery}/subjects/eileen"
    first, second = enrolled(api, gallery, "eileen", COLLINS, AGAIN)
    page = schemas.FacePage.model_validate(api.get(f"{subject}/faces").json())
    assert [face.face_id for face in page.faces] == [first["face_id"], second["face_id"]]
    assert page.faces[0].box.model_dump() == first["box"]
    assert page.faces[0].has_crop

    path = f"{subject}/faces/{first['face_id']}"
    assert schemas.StoredFace.model_validate(api.get(path).json()) == page.faces[0]
    crop = api.get(f"{path}/crop")
    assert crop.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(crop.content)).size == (112, 112)

    assert api.delete(path).status_code == 204
    for response in (api.get(path), api.get(f"{path}/crop"), api.delete(path)):
        error_of(response, 404, "face_not_found")
    assert api.get(subject).json()["face_count"] == 1
    assert api.get(f"{gallery}/check").json()["ok"] is True


def test_a_gallery_without_crops_keeps_none(api: httpx.Client) -> None:
    api.post("/v1/galleries", json={"id": "bare", "store": "none"})
    try:
        (face,) = enrolled(api, "/v1/galleries/bare", "eileen", COLLINS)
        path = f"/v1/galleries/bare/subjects/eileen/faces/{face['face_id']}"
        assert api.get(path).json()["has_crop"] is False
        error_of(api.get(f"{path}/crop"), 404, "crop_not_stored")
    finally:
        api.delete("/v1/galleries/bare")


def test_a_deleted_subject_is_not_found_any_more(api: httpx.Client, gallery: str) -> None:
    enrolled(api, gallery, "eileen", COLLINS)
    enrolled(api, gallery, "grace", HOPPER)
    api.delete(f"{gallery}/subjects/eileen")
    (face,) = api.post(f"{gallery}/identify", files={"image": COLLINS}).json()["faces"]
    assert [candidate["subject"] for candidate in face["candidates"]] == ["grace"]
    report = GalleryCheck.model_validate(api.get(f"{gallery}/check").json())
    assert (report.ok, report.subjects, report.faces, report.indexed) == (True, 1, 1, 1)


def test_what_is_not_there_is_named(api: httpx.Client, gallery: str) -> None:
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/check"),
        ("GET", "/subjects"),
        ("GET", "/subjects/x"),
        ("GET", "/subjects/x/faces"),
        ("GET", "/subjects/x/faces/y/crop"),
    ):
        error_of(api.request(method, f"/v1/galleries/none{path}"), 404, "gallery_not_found")
    for photos, field in (("identify", "image"), ("subjects/x/verify", "image"), ("subjects/x/faces", "images")):
        error_of(api.post(f"/v1/galleries/none/{photos}", files={field: COLLINS}), 404, "gallery_not_found")
    error_of(api.post("/v1/galleries/none/subjects", json={"id": "x"}), 404, "gallery_not_found")
    error_of(api.get(f"{gallery}/subjects/none/faces"), 404, "subject_not_found")
