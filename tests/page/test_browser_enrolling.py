"""Enrolling as people do it, in a real Chromium against a real server process."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import numpy as np
import pillow_heif
import pytest
from PIL import ExifTags, Image, ImageFilter
from playwright.sync_api import Locator, Route, expect

from tests.support.browsing import SAMPLES, Visitor, make_gallery

pytestmark = pytest.mark.long


def poor(path: Path) -> Path:
    """A photo that is found a face in, of too low quality to be enrolled."""
    with Image.open(SAMPLES / "hopper.jpg") as photo:
        photo.resize((36, 36)).resize((480, 480)).save(path)
    return path


def pair(path: Path) -> Path:
    """A photo with two faces, none more prominent than the other."""
    sheet = Image.new("RGB", (640, 320), "grey")
    with Image.open(SAMPLES / "collins.jpg") as photo:
        one = photo.convert("RGB").resize((320, 320))
    sheet.paste(one, (0, 0))
    sheet.paste(one.transpose(Image.Transpose.FLIP_LEFT_RIGHT), (320, 0))
    sheet.save(path)
    return path


def large(path: Path) -> Path:
    """A photo of more bytes than a server takes, which lies on its side but for its EXIF orientation."""
    with Image.open(SAMPLES / "collins.jpg") as photo:
        upright = photo.convert("RGB").resize((2400, 3000), Image.Resampling.BICUBIC)
    grain = np.random.default_rng(0).integers(-24, 25, (3000, 2400, 3))
    grainy = Image.fromarray(np.clip(np.asarray(upright) + grain, 0, 255).astype(np.uint8))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # to be turned clockwise by a quarter
    grainy.transpose(Image.Transpose.ROTATE_90).save(path, quality=100, subsampling=0, exif=exif)
    assert path.stat().st_size > 10 * 1024 * 1024
    return path


def heic(path: Path) -> Path:
    """A photo of a kind that Chromium can't show."""
    with Image.open(SAMPLES / "hopper.jpg") as photo:
        pillow_heif.from_pillow(photo.convert("RGB")).save(path)
    return path


def drop(place: Locator, photo: Path) -> None:
    place.evaluate(
        """(place, bytes) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "anna_1.jpg", { type: "image/jpeg" }));
          place.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }""",
        list(photo.read_bytes()),
    )


def test_photos_dropped_on_a_gallery_are_looked_over_and_enrolled(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "dropped")
    visitor.sign_in(where="#/galleries/dropped")
    page = visitor.page
    expect(page.get_by_role("heading", name="Nobody is enrolled yet")).to_be_visible()
    drop(page.locator(".zone"), SAMPLES / "collins.jpg")
    planned = page.get_by_role("list", name="Who will be enrolled").get_by_role("listitem")
    expect(planned).to_contain_text("anna")
    expect(planned.locator("img")).to_be_visible()
    visitor.picture("planned")
    page.get_by_role("button", name="Enroll 1 photo").click()
    page.get_by_role("link", name="See dropped").click()
    expect(page.get_by_role("list", name="People").get_by_role("link")).to_contain_text("anna")
    drop(page.locator(".people"), SAMPLES / "hopper.jpg")  # where people are already
    visitor.heading("Enroll photos").wait_for()
    expect(page.get_by_text("1 photo of 1 person.")).to_be_visible()


def test_an_empty_area_is_clicked_to_choose_photos(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "clicked")
    visitor.sign_in(where="#/galleries/clicked/enroll")
    with visitor.page.expect_file_chooser():
        visitor.page.get_by_text("Drop photos or folders here").click()
    visitor.see("#/compare", "Compare")
    with visitor.page.expect_file_chooser():
        visitor.page.get_by_text("Drop a photo here").first.click()


def test_a_run_that_is_left_goes_on_in_sight(visitor: Visitor, api: httpx.Client, tmp_path: Path) -> None:
    make_gallery(api, "left")
    for name in ("collins", "hopper"):
        shutil.copy(SAMPLES / f"{name}.jpg", tmp_path)
    visitor.sign_in(where="#/galleries/left/enroll")
    page = visitor.page
    held: list[Route] = []
    page.route("**/faces?*", lambda route: held.append(route))  # noqa: PLW0108 - no builtin is taken
    page.locator("input[multiple]").first.set_input_files([tmp_path / "collins.jpg", tmp_path / "hopper.jpg"])
    with page.expect_request("**/faces?*"):
        page.get_by_role("button", name="Enroll 2 photos").click()
    strip = page.get_by_role("complementary", name="Enrolling")
    expect(strip).to_be_hidden()
    visitor.see("#/compare", "Compare")
    expect(strip).to_contain_text("left: 0 of 2")
    visitor.look("underway")
    while len(held) < 2:
        page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    expect(page.get_by_text("Enrolling into left has ended: 2 enrolled, 0 refused.")).to_be_visible()
    assert api.get("/galleries/left").json()["faces"] == 2
    strip.get_by_role("link", name="Enrolled").click()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    expect(strip).to_be_hidden()
    visitor.see("#/compare", "Compare")
    expect(strip, "once it was seen").to_be_hidden()


def test_signing_out_stops_a_run(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "stopped")
    visitor.sign_in(where="#/galleries/stopped/enroll")
    page = visitor.page
    page.route("**/faces?*", lambda _: None)
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "collins.jpg")
    with page.expect_request("**/faces?*"):
        page.get_by_role("button", name="Enroll 1 photo").click()
    with page.expect_event("requestfailed", lambda request: "/faces" in request.url):
        page.get_by_role("button", name="Sign out").click()
    assert api.get("/galleries/stopped").json()["faces"] == 0


def test_a_refused_photo_is_taken_anyway_or_by_the_chosen_face(
    visitor: Visitor, api: httpx.Client, tmp_path: Path
) -> None:
    make_gallery(api, "second-try")
    photos = [poor(tmp_path / "poor.png"), pair(tmp_path / "group.png")]
    visitor.sign_in(where="#/galleries/second-try/enroll")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(photos)
    page.get_by_role("button", name="Enroll 2 photos").click()
    refused = page.get_by_role("list", name="Refused photos").get_by_role("listitem")
    expect(refused).to_have_count(2)
    refused.get_by_role("button", name="Take it anyway: poor.png").click()
    expect(refused.filter(has_text="as poor")).to_contain_text("enrolled")
    refused.get_by_role("button", name="Choose the face: group.png").click()
    dialog = page.get_by_role("dialog", name="Which face is it?")
    dialog.get_by_role("button", name="Face 2 of 2").wait_for()
    visitor.look("which-face")
    dialog.get_by_role("button", name="Face 2 of 2").click()
    expect(refused.filter(has_text="as group")).to_contain_text("enrolled")
    expect(page.get_by_text("2 photos of 2 people enrolled, 0 refused.")).to_be_visible()
    found = api.post("/detect", content=photos[1].read_bytes(), headers={"content-type": "image/png"})
    right = max(face["box"]["x"] for face in found.json()["faces"])
    (kept,) = api.get("/galleries/second-try/subjects/group/faces").json()["faces"]
    assert kept["box"]["x"] == pytest.approx(right, abs=1)


def test_people_are_suggested_and_others_get_an_id_made_unless_given(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "named", Tony_Blair="hopper")
    visitor.sign_in(where="#/galleries/named/enroll")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "collins.jpg")
    page.get_by_label("All of them show one person").check()
    page.get_by_label("Their name").fill("tony blair")
    expect(page.get_by_role("option", name="Tony_Blair")).to_be_visible()
    visitor.picture("suggested")
    page.get_by_label("Their name").fill("Eileen Collins")
    expect(page.get_by_role("listbox", name="Suggestions")).to_have_count(0)
    page.get_by_role("button", name="Enroll 1 photo").click()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    (made,) = api.get("/galleries/named/subjects", params={"search": "Eileen"}).json()["subjects"]
    assert (made["name"], made["face_count"]) == ("Eileen Collins", 1)
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "collins_again.jpg")
    page.get_by_label("All of them show one person").check()
    page.get_by_label("Their name").fill("Eileen Collins")
    page.get_by_role("button", name="Enroll 1 photo").click()
    asked = page.get_by_role("dialog", name="Is it the same Eileen Collins?")
    visitor.look("namesake")
    asked.get_by_role("button", name="The same").click()
    expect(page.get_by_text("1 photo of 1 person enrolled")).to_be_visible()
    assert api.get(f"/galleries/named/subjects/{made['id']}").json()["face_count"] == 2
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "hopper.jpg")
    page.get_by_label("All of them show one person").check()
    page.get_by_label("Their name").fill("Grace Hopper")
    page.get_by_label("Id (made unless you give one)").fill("grace")
    page.get_by_role("button", name="Enroll 1 photo").click()
    expect(page.get_by_text("1 photo of 1 person enrolled")).to_be_visible()
    assert api.get("/galleries/named/subjects/grace").json()["name"] == "Grace Hopper"
    visitor.go("#/galleries/named")
    page.get_by_role("searchbox").fill("TONY blair")
    expect(page.get_by_role("list", name="People found for TONY blair").get_by_role("link")).to_contain_text(
        "Tony_Blair"
    )


def test_faces_that_match_somebody_else_are_put_right(visitor: Visitor, api: httpx.Client, tmp_path: Path) -> None:
    """Both pictures side by side, and a choice: for a gallery that warns, and for one that refuses."""
    make_gallery(api, "doubts", eileen="collins", anna="hopper")
    shutil.copy(SAMPLES / "collins_again.jpg", tmp_path / "mistaken.jpg")
    shutil.copy(SAMPLES / "hopper.jpg", tmp_path / "anna_2.jpg")
    visitor.sign_in(where="#/galleries/doubts/enroll")
    page = visitor.page

    def enroll() -> None:
        page.locator("input[multiple]").first.set_input_files([tmp_path / "mistaken.jpg", tmp_path / "anna_2.jpg"])
        page.get_by_role("button", name="Enroll 2 photos").click()
        expect(page.get_by_role("heading", name="Done")).to_be_visible()

    def people() -> dict[str, int]:
        return {one["id"]: one["face_count"] for one in api.get("/galleries/doubts/subjects").json()["subjects"]}

    enroll()
    doubts = page.get_by_role("list", name="Faces that resemble enrolled ones").get_by_role("listitem")
    expect(doubts).to_have_count(2)
    mistaken = doubts.filter(has_text="mistaken.jpg")
    expect(mistaken).to_contain_text("This face matches eileen")
    expect(mistaken.get_by_role("img", name="The face enrolled as eileen")).to_be_visible()
    expect(doubts.filter(has_text="anna_2.jpg")).to_contain_text("The same photo is enrolled for this person already.")
    visitor.look("doubts")
    mistaken.get_by_role("button", name="Take it as eileen").click()
    expect(doubts.filter(has_text="Enrolled as eileen.")).to_be_visible()
    doubts.filter(has_text="anna_2.jpg").get_by_role("button", name="Don't take it").click()
    expect(doubts.filter(has_text="Not taken.")).to_be_visible()
    assert people() == {"eileen": 2, "anna": 1, "mistaken": 0}
    api.patch("/galleries/doubts", json={"on_conflict": "reject"}).raise_for_status()
    enroll()
    refused = page.get_by_role("list", name="Refused photos").get_by_role("listitem")
    expect(refused).to_have_count(2)
    expect(refused.filter(has_text="mistaken.jpg").get_by_role("img", name="enrolled as eileen")).to_be_visible()
    visitor.picture("refused-doubts")
    refused.get_by_role("button", name="Take it as eileen: mistaken.jpg").click()
    expect(refused.locator(".pill")).to_have_count(1)
    refused.get_by_role("button", name="Take it anyway: anna_2.jpg").click()
    expect(refused.locator(".pill")).to_have_count(2)
    assert people() == {"eileen": 3, "anna": 2, "mistaken": 0}


def test_a_photo_larger_than_the_server_takes_is_made_smaller_and_stays_upright(
    visitor: Visitor, api: httpx.Client, tmp_path: Path
) -> None:
    make_gallery(api, "large")
    photo = large(tmp_path / "eileen_1.jpg")
    refused = api.post("/detect", content=photo.read_bytes(), headers={"content-type": "image/jpeg"})
    assert refused.json()["error"]["code"] == "payload_too_large"
    visitor.sign_in(where="#/galleries/large/enroll")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(photo)
    page.get_by_role("button", name="Enroll 1 photo").click()
    expect(page.get_by_text("1 photo of 1 person enrolled, 0 refused.")).to_be_visible()
    (face,) = api.get("/galleries/large/subjects/eileen/faces").json()["faces"]
    whole = (SAMPLES / "collins.jpg").read_bytes()
    (found,) = api.post("/detect", content=whole, headers={"content-type": "image/jpeg"}).json()["faces"]
    with Image.open(SAMPLES / "collins.jpg") as sample:
        assert face["box"]["x"] / 2400 == pytest.approx(found["box"]["x"] / sample.width, abs=0.03)
        assert face["box"]["y"] / 3000 == pytest.approx(found["box"]["y"] / sample.height, abs=0.03)
    visitor.see("#/identify?gallery=large", "Identify")
    page.locator("main input[type=file]").set_input_files(photo)
    expect(page.locator(".tag")).to_contain_text("eileen")
    visitor.see("#/compare", "Compare")
    for label in ("First photo", "Second photo"):
        page.get_by_role("region", name=label).locator("input[type=file]").set_input_files(photo)
    expect(page.get_by_role("heading", name="The same person")).to_be_visible()
    visitor.picture("large-compared")


def test_a_photo_that_the_browser_cannot_show_is_named_and_not_broken(
    visitor: Visitor, api: httpx.Client, tmp_path: Path
) -> None:
    make_gallery(api, "heic", grace="hopper")
    photo = heic(tmp_path / "anna_1.heic")
    visitor.sign_in(where="#/galleries/heic/enroll")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(photo)
    planned = page.get_by_role("list", name="Who will be enrolled").get_by_role("listitem")
    expect(planned.locator(".thumbs")).to_have_text("HEIC")
    page.get_by_role("button", name="Enroll 1 photo").click()
    doubts = page.get_by_role("list", name="Faces that resemble enrolled ones").get_by_role("listitem")
    expect(doubts.get_by_role("img", name="The new photo")).to_have_text("HEIC")
    visitor.picture("heic-doubt")
    visitor.see("#/identify?gallery=heic", "Identify")
    page.locator("main input[type=file]").set_input_files(photo)
    expect(page.locator(".tag")).to_be_visible()
    stage = page.locator(".stage")
    expect(stage).to_contain_text("This browser can't show this kind of photo")
    with Image.open(SAMPLES / "hopper.jpg") as sample:
        shape = sample.width / sample.height
    assert (shown := stage.locator(".sheet").bounding_box())
    assert shown["width"] / shown["height"] == pytest.approx(shape, abs=0.05), "the box lies where the face is"
    visitor.picture("heic-identified")
    assert page.evaluate("() => [...document.images].every((one) => !one.complete || one.naturalWidth > 0)")
    visitor.see("#/galleries/heic/enroll", "Enroll photos")
    page.locator("input[multiple]").first.set_input_files(photo)
    page.get_by_label("Several people, unsorted").check()
    page.get_by_role("button", name="Group 1 photo").click()
    expect(page.get_by_role("group", name="Faces of person 1").get_by_role("button")).to_have_text("HEIC")


def test_names_that_cameras_and_messengers_give_are_nobodys(
    visitor: Visitor, api: httpx.Client, tmp_path: Path
) -> None:
    make_gallery(api, "cameras")
    names = ("IMG_E1234.jpg", "photo_2026-11-28_10-11-12.jpg", "image (1).jpg", "20261128_101112.jpg")
    photos = [shutil.copy(SAMPLES / "collins.jpg", tmp_path / name) for name in names]
    visitor.sign_in(where="#/galleries/cameras/enroll")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(photos)
    expect(page.get_by_label("All of them show one person")).to_be_checked()
    expect(page.get_by_text("4 photos.", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Enroll 4 photos")).to_be_disabled()


def test_a_face_that_was_not_compared_says_so(visitor: Visitor, api: httpx.Client, tmp_path: Path) -> None:
    make_gallery(api, "blurred", eileen="collins")
    with Image.open(SAMPLES / "hopper.jpg") as sample:
        sample.filter(ImageFilter.GaussianBlur(18)).save(tmp_path / "blurred.jpg")
    visitor.sign_in(where="#/identify?gallery=blurred")
    visitor.page.locator("main input[type=file]").set_input_files(tmp_path / "blurred.jpg")
    card = visitor.page.locator("li.face")
    expect(card).to_contain_text("its eyes, nose and mouth can't be told")
    expect(card).to_contain_text("It was compared with nobody")


def test_photos_that_show_no_usable_face_are_named_as_many_as_fit(
    visitor: Visitor, api: httpx.Client, tmp_path: Path
) -> None:
    api.post("/galleries", json={"id": "walls"}).raise_for_status()
    walls = [tmp_path / f"wall {number:02}.png" for number in range(10)]
    for wall in walls:
        Image.new("RGB", (320, 320), "grey").save(wall)
    status = visitor.page.get_by_role("region", name="Faces by person").get_by_role("status")
    for shown, said in (
        (walls, ", ".join(wall.name for wall in walls[:8]) + " and 2 more."),
        (walls[:1], "1 photo without a usable face: wall 00.png."),
    ):
        visitor.sign_in(where="#/galleries/walls/enroll")
        visitor.page.reload()
        visitor.page.locator("input[multiple]").first.set_input_files([SAMPLES / "collins.jpg", *shown])
        visitor.page.get_by_label("Several people, unsorted").check()
        visitor.page.get_by_role("button", name=f"Group {len(shown) + 1} photos").click()
        expect(status).to_contain_text(said)


def test_photos_without_names_are_grouped_named_merged_and_skipped(visitor: Visitor, api: httpx.Client) -> None:
    api.post("/galleries", json={"id": "roll"}).raise_for_status()
    visitor.sign_in(where="#/galleries/roll/enroll")
    page = visitor.page
    names = ("collins", "collins_again", "hopper", "both")
    page.locator("input[multiple]").first.set_input_files([SAMPLES / f"{name}.jpg" for name in names])
    page.get_by_label("Several people, unsorted").check()
    page.get_by_role("button", name="Group 4 photos").click()
    groups = page.get_by_role("region", name="Faces by person")
    expect(groups.get_by_role("status")).to_contain_text("5 faces of 2 people")
    expect(groups.locator("canvas")).to_have_count(5)
    visitor.look("grouping")
    assert api.get("/galleries/roll").json()["subjects"] == 0
    first, second = (groups.get_by_label(f"Name of person {number}") for number in (1, 2))
    first.fill("Eileen Collins")
    left_out = groups.get_by_role("group", name="Faces of person 1").get_by_role("button").last
    left_out.click()
    expect(left_out).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="Enroll those who have a name").click()
    page.get_by_role("heading", name="Done").wait_for()
    (made,) = api.get("/galleries/roll/subjects").json()["subjects"]
    assert (made["name"], made["face_count"]) == ("Eileen Collins", 2)
    page.locator("input[multiple]").first.set_input_files([SAMPLES / f"{name}.jpg" for name in ("collins", "hopper")])
    page.get_by_label("Several people, unsorted").check()
    page.get_by_role("button", name="Group 2 photos").click()
    groups.get_by_label("Person 1 is").select_option(label="Person 2")
    expect(groups.get_by_role("heading", name="Person 2: 2 faces")).to_be_visible()
    expect(second).to_be_focused()
    expect(first).to_have_count(0)
