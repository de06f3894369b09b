"""Putting faces and people right, in a real Chromium against a real server process."""

from __future__ import annotations

import io
import re

import httpx
import pytest
from PIL import Image, ImageStat
from playwright.sync_api import Page, expect

from tests.support.browsing import Visitor, add_face, make_gallery
from tests.support.waiting import until

pytestmark = pytest.mark.long

MEAN_COLOUR = """async (image) => {
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const sums = [0, 0, 0];
  data.forEach((value, index) => index % 4 < 3 && (sums[index % 4] += value));
  return sums.map((sum) => sum / (data.length / 4));
}"""
"""The mean red, green and blue of an image element."""


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
    visitor.look("selected")
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
    (made,) = api.get("/galleries/mixed/subjects", params={"search": "somebody new"}).json()["subjects"]
    assert (made["name"], made["face_count"]) == ("somebody new", 1)


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
    visitor.look("people-selected")
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


def test_merging_shows_both_and_asks_where_the_two_are_unlike(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "unlike", eileen="collins", eileen_2="collins_again", grace="hopper")
    visitor.sign_in(where="#/galleries/unlike/people/grace")
    page = visitor.page
    page.get_by_role("button", name="Merge").click()
    dialog = page.get_by_role("dialog", name="Merge grace")
    dialog.get_by_label("Into whom?").fill("eileen")
    page.get_by_role("option", name="eileen 1 face").click()
    expect(dialog.locator(".sides img")).to_have_count(2)
    expect(dialog).to_contain_text(re.compile(r"The score −?0\.\d+ stays below the threshold 0\.\d+: two people"))
    visitor.look("merging-unlike")
    dialog.get_by_role("button", name="Merge").click()
    doubt = page.get_by_role("dialog", name="Surely the same person as eileen?")
    expect(doubt).to_contain_text("By their faces, grace and eileen are different people.")
    doubt.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_visible()
    assert faces_of(api, "unlike", "grace") == 1
    dialog.get_by_label("Into whom?").fill("eileen_2")
    dialog.get_by_role("button", name="Merge").click()
    page.get_by_role("dialog", name="Surely").get_by_role("button", name="Merge all the same").click()
    visitor.heading("eileen_2").wait_for()
    assert faces_of(api, "unlike", "eileen_2") == 2


def test_a_picture_is_never_that_of_somebody_else(visitor: Visitor, api: httpx.Client) -> None:
    """Neither of the one who had the id before, nor of one whose gallery and id read alike when joined."""
    make_gallery(api, "again", eileen="collins")
    make_gallery(api, "a")
    make_gallery(api, "a/b")
    add_face(api, "a", "b%2Fc", "collins")
    add_face(api, "a%2Fb", "c", "hopper")
    visitor.sign_in(where="#/galleries/again")
    former = _crop(api, "again", "eileen")
    assert _shown(visitor.page, "eileen") == former
    api.post("/galleries/again/subjects/eileen/erase").raise_for_status()
    add_face(api, "again", "eileen", "hopper")
    visitor.see("#/galleries", "Galleries")
    visitor.go("#/galleries/again")
    # The way back shows who was there until the server has answered who is.
    until(lambda: _shown(visitor.page, "eileen") == _crop(api, "again", "eileen"))
    assert _shown(visitor.page, "eileen") != former
    visitor.see("#/galleries/a", "a")
    assert _shown(visitor.page, "b/c") == _crop(api, "a", "b%2Fc")
    visitor.see("#/galleries/a%2Fb", "a/b")
    assert _shown(visitor.page, "c") == _crop(api, "a%2Fb", "c")


def _crop(api: httpx.Client, gallery: str, subject: str) -> list[float]:
    """The mean colour of the crop of a subject's only face, in RGB."""
    where = f"/galleries/{gallery}/subjects/{subject}/faces"
    (face,) = api.get(where).json()["faces"]
    with Image.open(io.BytesIO(api.get(f"{where}/{face['face_id']}/crop").content)) as crop:
        return [float(value) for value in ImageStat.Stat(crop).mean]


def _shown(page: Page, person: str) -> object:
    """The mean colour of the picture that the page shows of a person, to be compared with others."""
    picture = page.get_by_role("list", name="People").get_by_role("link", name=person).locator("img")
    picture.wait_for()
    return pytest.approx(picture.evaluate(MEAN_COLOUR), abs=3)


def test_back_from_a_person_leads_to_where_one_was(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "many")
    for index in range(300):
        api.post("/galleries/many/subjects", json={"id": f"p{index:03}", "name": f"Person {index}"}).raise_for_status()
    visitor.sign_in(where="#/galleries/many")
    page = visitor.page
    people = page.get_by_role("list", name="People").get_by_role("link")
    expect(people.first).to_contain_text("Person 0")
    page.evaluate("() => scrollTo(0, 2500)")
    page.get_by_role("link", name="Person 90 ").evaluate("(link) => link.click()")  # without scrolling to it
    visitor.heading("Person 90").wait_for()
    page.wait_for_function("() => scrollY === 0")
    page.go_back()
    page.wait_for_function("() => scrollY === 2500")
    page.get_by_role("link", name="Person 90 ").evaluate("(link) => link.click()")  # without scrolling to it
    visitor.heading("Person 90").wait_for()
    page.locator("a.back").click()
    page.wait_for_function("() => scrollY === 2500")
    page.get_by_role("searchbox").fill("person 1")

    expect(page.get_by_text(re.compile(r"^(100 or more|111) found$"))).to_be_visible()  # what is in sight is read
    page.evaluate("() => scrollTo(0, 900)")
    page.get_by_role("link", name="Person 140 ").evaluate("(link) => link.click()")
    visitor.heading("Person 140").wait_for()
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("person 1")
    page.wait_for_function("() => scrollY === 900")
    visitor.see("#/galleries", "Galleries")
    page.get_by_role("link", name="many").click()
    expect(people.first).to_contain_text("Person 0")
    expect(page.get_by_role("searchbox"), "a new way there begins anew").to_have_value("")


def test_people_are_as_large_while_they_are_selected(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "sized", jo="collins")
    visitor.sign_in(where="#/galleries/sized")
    portrait = visitor.page.locator(".person .portrait")
    before = portrait.bounding_box()
    visitor.page.get_by_role("button", name="Select", exact=True).click()
    visitor.page.locator("button.person").wait_for()
    assert portrait.bounding_box() == before
