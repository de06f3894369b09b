"""The first minutes with a new server, in a real Chromium against a real server process."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.browsing import PHONE, SAMPLES, Visitor, visiting
from tests.support.live import ANSWER_S, LiveServer

pytestmark = pytest.mark.long


def test_the_first_view_leads_from_a_gallery_to_people_to_trying(visitor: Visitor, api: httpx.Client) -> None:
    visitor.sign_in()
    page = visitor.page
    expect(visitor.heading("Overview")).to_be_visible()
    server = page.get_by_role("region", name="Server")
    expect(server).to_contain_text("ready")
    expect(server).to_contain_text(httpx.get(f"{visitor.server.url}/version", timeout=ANSWER_S).json()["version"])
    expect(page.get_by_role("link", name="The REST interface")).to_have_attribute("href", "/docs")
    visitor.look("overview-new")
    page.get_by_role("button", name="New gallery").click()
    page.get_by_role("dialog").get_by_label("Id").fill("staff")
    page.keyboard.press("Enter")
    visitor.heading("staff").wait_for()
    page.get_by_role("link", name="Likeness").click()
    page.get_by_role("link", name="Enroll into staff").click()
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "collins.jpg")
    page.get_by_role("button", name="Enroll 1 photo").click()
    page.get_by_role("heading", name="Done").wait_for()
    visitor.see("#/", "Overview")
    expect(page.get_by_text("1 person can be recognised.")).to_be_visible()
    visitor.picture("overview")
    visitor.see("#/galleries/staff", "staff")
    page.get_by_role("link", name="Identify here").click()
    expect(page.get_by_label("Gallery")).to_have_value("staff")
    expect(page.get_by_label("Strictness").locator("option").first).to_have_text("default (1 in 100)")
    assert api.get("/galleries/staff").json()["subjects"] == 1
    api.post("/galleries", json={"id": "emptier"}).raise_for_status()
    page.reload()
    visitor.see("#/", "Overview")
    expect(page.get_by_role("link", name="Enroll into staff"), "the gallery last looked at").to_be_visible()


def test_a_sign_in_brings_the_first_view_and_later_ones_are_asked_for(visitor: Visitor, api: httpx.Client) -> None:
    """The document and the sign-in are all that the first view waits for."""
    page, server = visitor.page, visitor.server.url
    api.post("/galleries", json={"id": "brought"}).raise_for_status()
    there = len(api.get("/galleries").json()["galleries"])
    page.route("**/v1/galleries*", lambda route: route.abort())
    page.goto("about:blank")
    visitor.asked.clear()
    page.goto(visitor.link())
    expect(
        page.get_by_text(f"There are {there} galleries.").or_(page.get_by_text("There is 1 gallery."))
    ).to_be_visible()
    asked = [url.split("#")[0] for url in visitor.asked if not url.endswith(".svg")]
    assert asked[:2] == [f"{server}/", f"{server}/v1/sign-in"]
    page.unroute("**/v1/galleries*")
    visitor.see("#/galleries", "Galleries")
    api.post("/galleries", json={"id": "brought-later"}).raise_for_status()
    visitor.see("#/overview", "Overview")
    expect(page.get_by_text(f"There are {there + 1} galleries.")).to_be_visible()


def test_what_could_not_be_loaded_is_not_said_to_be_loading(visitor: Visitor, api: httpx.Client) -> None:
    api.post("/galleries", json={"id": "reached"}).raise_for_status()
    visitor.sign_in()
    page = visitor.page
    page.route("**/v1/galleries*", lambda route: route.abort())
    visitor.go("#/galleries")
    expect(page.get_by_role("alert").filter(has_text="can't be reached")).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)
    page.unroute("**/v1/galleries*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("link", name="reached")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="can't be reached")).to_have_count(0)
    visitor.complaints = [one for one in visitor.complaints if "net::ERR_FAILED" not in one]


def test_a_gallery_has_its_settings(visitor: Visitor, api: httpx.Client) -> None:
    api.post("/galleries", json={"id": "set"}).raise_for_status()
    visitor.sign_in(where="#/galleries/set")
    page = visitor.page
    page.get_by_role("link", name="Settings").click()
    expect(visitor.heading("Settings")).to_be_focused()
    visitor.look("settings")
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.get_by_label("matches somebody else").select_option("Refuse it")
    expect(page.get_by_text("Saved.")).to_be_visible()
    assert api.get("/galleries/set").json()["on_conflict"] == "reject"
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.get_by_label("How the vectors are searched").select_option("int8")
    assert api.get("/galleries/set").json()["search"] == "int8"
    expect(page.get_by_role("region", name="Model")).to_contain_text("sface")


def test_a_phone_has_its_rear_camera_and_targets_for_fingers(chromium: Browser, live_server: LiveServer) -> None:
    with visiting(chromium, live_server, viewport=PHONE, has_touch=True, is_mobile=True) as visitor:
        visitor.context.add_init_script(
            """window.asked = [];
            const devices = navigator.mediaDevices;  // which about:blank lacks
            const plain = devices?.getUserMedia.bind(devices);
            if (devices) devices.getUserMedia = (wanted) => {
              window.asked.push(wanted.video.facingMode);
              return plain(wanted);
            };
            """
        )
        visitor.sign_in()
        page = visitor.page
        visitor.see("#/compare", "Compare")
        page.get_by_role("region", name="First photo").get_by_role("button", name="Camera").click()
        page.get_by_role("button", name="Take the photo").click()
        first = page.get_by_role("region", name="First photo").get_by_role("img", name="First photo, as chosen")
        expect(first).to_be_visible()
        assert page.evaluate("window.asked") == ["environment"]
        heights = page.locator("main button:visible, main .button:visible, main select:visible").evaluate_all(
            "all => all.filter((one) => !one.matches('.spot')).map((one) => one.getBoundingClientRect().height)"
        )
        assert min(heights) >= 40
        page.get_by_role("region", name="Second photo").locator("input[type=file]").set_input_files(
            SAMPLES / "collins.jpg"
        )
        verdict = page.get_by_role("region", name="Answer").get_by_role("heading")
        expect(verdict).to_be_in_viewport()
        visitor.picture("verdict-phone")
