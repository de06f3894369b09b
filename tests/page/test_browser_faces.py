"""Putting faces and people right, in a real Chromium against a real server process."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from tests.support.browsing import SAMPLES, Visitor, make_gallery

pytestmark = pytest.mark.long


def add_face(api: httpx.Client, gallery: str, subject: str, photo: str) -> None:
    files = {"images": (SAMPLES / f"{photo}.jpg").read_bytes()}
    api.post(f"/galleries/{gallery}/subjects/{subject}/faces", files=files).raise_for_status()


def faces_of(api: httpx.Client, gallery: str, subject: str) -> int:
    count: int = api.get(f"/galleries/{gallery}/subjects/{subject}").json()["face_count"]
    return count


def test_faces_are_enlarged_selected_and_moved(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "mixed", Tony_Blair="hopper", grace="hopper")
    for photo in ("collins", "collins_again"):
        add_face(api, "mixed", "grace", photo)
    visitor.sign_in(where="#/galleries/mixed/people/grace")
    page = visitor.page
    visitor.heading("grace").wait_for()
    faces = page.locator(".faces li")
    expect(faces).to_have_count(3)
    faces.first.get_by_role("button", name="Enlarge").click()
    large = page.get_by_role("dialog", name="Enrolled face")
    expect(large.get_by_role("img", name="The enrolled face")).to_be_visible()
    expect(large).to_contain_text("In its photo")
    visitor.picture("enlarged")
    page.keyboard.press("Escape")
    faces.nth(1).get_by_role("button", name="Enlarge").click()
    large.get_by_role("button", name="Use as cover").click()
    expect(page.get_by_text("This is the cover now.")).to_be_visible()
    expect(page.locator("dialog")).to_have_count(0)
    listed = api.get("/galleries/mixed/subjects/grace/faces").json()["faces"]
    assert api.get("/galleries/mixed/subjects/grace").json()["cover"] == listed[1]["face_id"]
    expect(page.get_by_role("button", name="Move selected")).to_be_disabled()
    faces.nth(1).get_by_role("checkbox").check()
    faces.nth(2).get_by_role("checkbox").check()
    expect(page.get_by_text("2 faces selected")).to_be_visible()
    assert visitor.barriers() == []
    visitor.picture("selected")
    page.get_by_role("button", name="Move selected").click()
    who = page.get_by_role("dialog").get_by_label("To whom?")
    who.fill("tony blair")
    expect(page.get_by_role("option", name="Tony_Blair")).to_be_visible()
    assert visitor.barriers() == []
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(who).to_have_value("Tony_Blair")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Moved to Tony_Blair.")).to_be_visible()
    expect(faces).to_have_count(1)
    assert (faces_of(api, "mixed", "grace"), faces_of(api, "mixed", "Tony_Blair")) == (1, 3)
    page.get_by_label("All", exact=True).check()
    page.get_by_role("button", name="Move selected").click()
    page.get_by_role("dialog").get_by_label("To whom?").fill("somebody new")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No face is enrolled")).to_be_visible()
    assert faces_of(api, "mixed", "somebody new") == 1


def test_people_are_merged_from_their_page_and_from_the_gallery(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "twice", eileen="collins", eileen_2="collins_again", eileen_3="collins", grace="hopper")
    visitor.sign_in(where="#/galleries/twice/people/eileen_2")
    page = visitor.page
    page.get_by_role("button", name="Merge").click()
    page.get_by_role("dialog").get_by_label("Into whom?").fill("eileen")
    page.get_by_role("option", name="eileen 1 face").click()
    page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    visitor.heading("eileen").wait_for()
    expect(page.locator(".faces li")).to_have_count(2)
    visitor.go("#/galleries/twice")
    page.get_by_role("button", name="Select", exact=True).click()
    people = page.get_by_role("list", name="People").get_by_role("button")
    expect(people).to_have_count(3)
    people.filter(has_text="eileen_3").click()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 people selected")).to_be_visible()
    assert visitor.barriers() == []
    visitor.picture("people-selected")
    page.get_by_role("button", name="Merge").click()
    page.get_by_role("dialog").get_by_label("Who stays?").select_option("eileen")
    page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    expect(page.get_by_role("list", name="People").get_by_role("link")).to_have_count(2)
    assert faces_of(api, "twice", "eileen") == 3
    page.get_by_role("button", name="Select", exact=True).click()
    people.filter(has_text="grace").click()
    page.get_by_role("button", name="Delete selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete them").click()
    expect(page.get_by_role("list", name="People").get_by_role("link")).to_have_count(1)
    assert api.get("/galleries/twice/subjects/grace").status_code == 404
