"""A telephone: photos are taken and sent over a poor network; the way back, a reload and a new sign-in lose nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import ExifTags, Image
from playwright.sync_api import Browser, Dialog, Page, expect

from tests.support.browsing import PHONE, SAMPLES, Visitor, make_gallery, visiting
from tests.support.live import LiveServer

pytestmark = pytest.mark.long
SLOW_3G = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
"""What Chromium's developer tools call "Slow 3G": ms, and bytes a second."""


@pytest.fixture
def phone(chromium: Browser, live_server: LiveServer) -> Iterator[Visitor]:
    """Somebody with a telephone, held upright."""
    with visiting(
        chromium, live_server, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=3
    ) as visitor:
        yield visitor


def taken(path: Path, sample: str) -> Path:
    """A photo as a telephone that is held upright stores it: on its side, with how it was held."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # to be turned clockwise by a quarter
    path.parent.mkdir()
    with Image.open(SAMPLES / f"{sample}.jpg") as photo:
        photo.transpose(Image.Transpose.ROTATE_90).save(path, quality=95, exif=exif)
    return path


def assert_fits(page: Page) -> None:
    """Assert that nothing is wider than the telephone, whose `innerWidth` grows with the page."""
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_photos_are_taken_over_a_slow_network_and_their_person_is_seen(
    phone: Visitor, api: httpx.Client, tmp_path: Path
) -> None:
    make_gallery(api, "family", grace="hopper")
    phone.sign_in()
    phone.see("#/galleries/family/enroll", "Enroll photos")
    page = phone.page
    phone.context.new_cdp_session(page).send("Network.emulateNetworkConditions", SLOW_3G)
    for number, sample in enumerate(("collins", "collins_again"), 1):
        with page.expect_file_chooser() as chooser:
            page.get_by_text("Take a photo").tap()
        assert chooser.value.element.get_attribute("capture") == "environment"
        chooser.value.set_files(taken(tmp_path / sample / "image.jpg", sample))  # all have this name on some
        if number == 1:
            page.get_by_label("Their name").fill("Eileen")
        expect(page.get_by_role("button", name=f"Enroll {number} photo")).to_be_enabled()
    assert page.get_by_label("Their name").input_value() == "Eileen"
    phone.picture("phone-plan")
    assert_fits(page)
    page.get_by_role("button", name="Enroll 2 photos").tap()
    expect(page.get_by_text("2 photos of 1 person enrolled, 0 refused.")).to_be_visible()
    phone.picture("phone-done")
    page.get_by_role("link", name="See family").tap()
    page.get_by_role("list", name="People").get_by_role("link", name="Eileen").tap()
    expect(phone.heading("Eileen")).to_be_focused()
    faces = page.get_by_role("button", name="Enlarge face")
    expect(faces).to_have_count(2)
    expect(faces.locator("img")).to_have_count(2)
    phone.look("phone-person")
    assert_fits(page)


def test_a_run_that_loses_its_network_goes_on_later(phone: Visitor, api: httpx.Client, tmp_path: Path) -> None:
    make_gallery(api, "lost")
    names = [f"eileen_{number}.jpg" for number in range(8)]
    for name in names:
        shutil.copy(SAMPLES / "collins.jpg", tmp_path / name)
    api.patch("/galleries/lost", json={"on_conflict": "allow"}).raise_for_status()
    phone.sign_in()
    phone.see("#/galleries/lost/enroll", "Enroll photos")
    page = phone.page
    page.locator("input[multiple]").first.set_input_files([tmp_path / name for name in names])
    with page.expect_response("**/faces?*"):
        page.get_by_role("button", name="Enroll 8 photos").tap()
    phone.context.set_offline(True)
    expect(page.get_by_role("alert").filter(has_text="can't be reached")).to_be_visible()
    expect(page.get_by_role("heading", name="Stopped")).to_be_visible()
    phone.picture("phone-offline")
    sent = api.get("/galleries/lost").json()["faces"]
    assert 0 < sent < 8
    phone.context.set_offline(False)
    page.get_by_role("button", name="Go on").tap()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="can't be reached")).to_have_count(0)
    expect(page.get_by_text("8 photos of 1 person enrolled, 0 refused.")).to_be_visible()
    assert api.get("/galleries/lost").json()["faces"] >= 8
    phone.complaints[:] = [one for one in phone.complaints if "ERR_INTERNET_DISCONNECTED" not in one]


def test_a_reload_in_the_middle_asks_and_the_way_back_keeps_what_was_chosen(phone: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "back")
    phone.sign_in()
    phone.see("#/galleries/back/enroll", "Enroll photos")
    page = phone.page
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "collins.jpg")
    page.get_by_label("All of them show one person").check()
    page.get_by_label("Their name").fill("Eileen")
    phone.see("#/advice", "Good photos")
    page.go_back()
    expect(page.get_by_role("button", name="Enroll 1 photo")).to_be_enabled()
    assert page.get_by_label("Their name").input_value() == "Eileen"
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    page.evaluate("location.reload()")
    expect(page.get_by_role("button", name="Enroll 1 photo")).to_be_enabled()
    assert asked == ["beforeunload"]
    page.get_by_role("button", name="Enroll 1 photo").tap()
    expect(page.get_by_text("1 photo of 1 person enrolled")).to_be_visible()
    page.reload()
    expect(phone.heading("Enroll photos")).to_be_focused()
    assert asked == ["beforeunload"], "nothing is lost any more"


@pytest.fixture
def family(api: httpx.Client) -> Iterator[None]:
    make_gallery(api, "typed", eileen="collins")
    yield
    api.delete("/galleries/typed").raise_for_status()


def paste(visitor: Visitor, key: str) -> None:
    visitor.heading("Sign in").wait_for()
    visitor.page.get_by_label("Key", exact=True).fill(key)
    visitor.page.keyboard.press("Enter")


def staying(visitor: Visitor, where: str, heading: str) -> None:
    """Sign in for as long as the device's session lasts, which ends when its cookie goes."""
    visitor.page.goto(visitor.server.url)
    visitor.page.get_by_label("Stay signed in on this device").check()
    paste(visitor, visitor.server.key)
    visitor.heading("Overview").wait_for()
    visitor.see(where, heading)


@pytest.mark.usefixtures("family")
def test_a_session_that_ends_in_the_middle_of_a_form_loses_nothing_that_was_typed(
    visitor: Visitor, api: httpx.Client
) -> None:
    staying(visitor, "#/galleries/typed/people/eileen", "eileen")
    page = visitor.page
    page.get_by_label("Name", exact=True).fill("Eileen Collins")
    visitor.context.clear_cookies()
    page.keyboard.press("Enter")  # or some other request of the view is the first to be refused
    visitor.heading("Sign in").wait_for()
    assert not visitor.shows("Eileen Collins"), "whoever passes by sees nothing"
    paste(visitor, "lk_wrong")
    expect(page.get_by_role("alert")).to_contain_text("does not know that key")
    paste(visitor, visitor.server.key)
    expect(visitor.heading("eileen")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("Eileen Collins")
    page.get_by_role("button", name="Save").click()
    expect(visitor.heading("Eileen Collins")).to_be_visible()
    assert api.get("/galleries/typed/subjects/eileen").json()["name"] == "Eileen Collins"


def test_a_key_is_made_on_a_device_that_stays_signed_in_though_its_session_ends(visitor: Visitor) -> None:
    staying(visitor, "#/keys", "Keys")
    page = visitor.page
    page.get_by_role("button", name="New key").click()
    page.get_by_role("dialog").get_by_label("Whose is it?").fill("Ann")
    visitor.context.clear_cookies()
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    visitor.heading("Sign in").wait_for()
    assert not visitor.shows("Ann")
    paste(visitor, visitor.server.key)
    page.get_by_role("dialog", name="New key").get_by_role("button", name="Create").click()
    page.get_by_role("dialog", name="The key of Ann").get_by_role("button", name="I have it").click()
    expect(page.locator("dialog")).to_have_count(0)


@pytest.mark.usefixtures("family")
def test_chosen_photos_outlast_the_session(visitor: Visitor, api: httpx.Client) -> None:
    staying(visitor, "#/galleries/typed/enroll", "Enroll photos")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "hopper.jpg")
    visitor.context.clear_cookies()
    page.get_by_role("button", name="Enroll 1 photo").click()
    paste(visitor, visitor.server.key)
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("1 photo of 1 person enrolled, 0 refused.")).to_be_visible()
    assert api.get("/galleries/typed/subjects/hopper").json()["face_count"] == 1


@pytest.mark.usefixtures("family")
def test_what_was_typed_is_not_the_next_ones(visitor: Visitor, api: httpx.Client) -> None:
    other = api.post("/keys", json={"id": "other", "scopes": ["read", "enroll"]}).raise_for_status().json()["secret"]
    staying(visitor, "#/galleries/typed/people/eileen", "eileen")
    page = visitor.page
    page.get_by_label("Name", exact=True).fill("Eileen Collins")
    visitor.context.clear_cookies()
    page.keyboard.press("Enter")  # or some other request of the view is the first to be refused
    paste(visitor, other)
    expect(visitor.heading("eileen")).to_be_focused()
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    assert not visitor.shows("Eileen Collins")
