"""The page as people use it, in a real Chromium against a real server process."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Route, ViewportSize, expect

from tests.support.browsing import DESK, PHONE, SAMPLES, Theme, Visitor, lasting, make_gallery, reviewed, visiting
from tests.support.calibrating import add_random_people, calibrate
from tests.support.live import LiveServer

pytestmark = pytest.mark.long

COLLINS, AGAIN, HOPPER, BOTH = (
    str(SAMPLES / name) for name in ("collins.jpg", "collins_again.jpg", "hopper.jpg", "both.jpg")
)


def make_key(server: LiveServer, *scopes: str, galleries: list[str] | None = None) -> str:
    asked = {"scopes": scopes} | ({"galleries": galleries} if galleries else {})
    with server.client() as client:
        secret: str = client.post("/v1/keys", json=asked).raise_for_status().json()["secret"]
    return secret


def choose(visitor: Visitor, first: str, second: str) -> None:
    visitor.see("#/compare", "Compare")
    for label, photo in (("First photo", first), ("Second photo", second)):
        visitor.page.get_by_role("region", name=label).locator("input[type=file]").set_input_files(photo)


def test_a_key_is_pasted_and_forgotten_with_the_tab(visitor: Visitor) -> None:
    page = visitor.page
    page.goto(visitor.server.url)
    page.get_by_label("Key").fill("lk_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("does not know that key")
    page.get_by_label("Key").fill(f"  {visitor.server.key} ")
    page.keyboard.press("Enter")
    visitor.heading("Overview").wait_for()
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    visitor.heading("Overview").wait_for()
    page.get_by_role("button", name="Sign out").click()
    visitor.heading("Sign in").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    assert len(visitor.refusals) == 1


def test_a_device_stays_signed_in_until_somebody_signs_out(visitor: Visitor) -> None:
    page = visitor.page
    page.goto(visitor.server.url)
    page.get_by_label("Stay signed in on this device").check()
    visitor.picture("sign-in")
    page.get_by_label("Key", exact=True).fill(visitor.server.key)
    page.keyboard.press("Enter")
    visitor.heading("Overview").wait_for()
    assert page.evaluate("[sessionStorage.length, document.cookie]") == [0, ""], "no script can read what signs in"
    cookies = visitor.context.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies] == [(True, "Strict")]
    second = visitor.context.new_page()
    second.goto(f"{visitor.server.url}/#/galleries")
    second.get_by_role("heading", name="Galleries", level=1).wait_for()
    page.get_by_role("button", name="Sign out").click()
    visitor.heading("Sign in").wait_for()
    second.get_by_role("heading", name="Sign in", level=1).wait_for()  # nobody has touched this tab
    second.reload()
    second.get_by_role("heading", name="Sign in", level=1).wait_for()
    second.close()
    page.reload()
    visitor.heading("Sign in").wait_for()


TRIPS = """() => {
  const asked = (path) => performance.getEntriesByType("resource").filter((one) => new URL(one.name).pathname === path);
  const [key, ...again] = asked("/v1/key");
  return [again.length, asked("/v1/galleries").map((one) => one.startTime < key.responseStart)];
}"""


@pytest.mark.parametrize("stay", [False, True])
def test_who_was_signed_in_waits_for_one_trip(visitor: Visitor, stay: bool) -> None:
    """The galleries are asked for beside what the key may do."""
    page = visitor.page
    visitor.sign_in()
    if stay:
        page.get_by_role("button", name="Stay signed in").click()
        expect(page.get_by_role("button", name="Stay signed in")).to_have_count(0)
    page.reload()
    expect(page.locator("main ol.steps")).to_be_visible()
    assert page.evaluate(TRIPS) == [0, [True]]


def test_a_key_that_may_not_read_asks_for_no_galleries(visitor: Visitor) -> None:
    page = visitor.page
    page.goto(visitor.link(make_key(visitor.server, "recognize")))
    visitor.heading("Overview").wait_for()
    page.reload()
    expect(page.locator("main ol.steps")).to_be_visible()
    assert page.evaluate(TRIPS) == [0, []]


def test_a_tab_follows_who_stays_signed_in_on_this_device(visitor: Visitor, api: httpx.Client) -> None:
    """Its session is another's now, who may see less: nothing is left of what it showed."""
    make_gallery(api, "first-tab", eileen="collins")
    page, foot = visitor.page, visitor.page.locator(".foot")
    visitor.sign_in()
    page.get_by_role("button", name="Stay signed in").click()
    expect(page.get_by_role("button", name="Stay signed in")).to_have_count(0)
    visitor.go("#/galleries/first-tab")
    page.get_by_role("link", name="eileen").wait_for()
    second = visitor.context.new_page()
    door = make_key(visitor.server, "recognize")
    second.goto(visitor.link(door))
    second.get_by_role("dialog").get_by_role("button", name="Sign in as").click()
    second.get_by_role("button", name="Stay signed in").wait_for()
    expect(foot, "the other tab goes by a key of its own").to_contain_text("Signed in as admin.key")
    second.get_by_role("button", name="Stay signed in").click()
    expect(foot).to_contain_text(f"Signed in as {door.split('_')[1]}")
    expect(page.get_by_role("link", name="eileen")).to_have_count(0)
    assert not visitor.shows("eileen")
    second.close()
    page.get_by_role("button", name="Sign out").click()
    visitor.heading("Sign in").wait_for()


def test_a_tab_that_is_signed_in_by_a_link_can_stay_so(visitor: Visitor) -> None:
    page = visitor.page
    page.goto(visitor.link())
    visitor.heading("Overview").wait_for()
    page.get_by_role("button", name="Stay signed in").click()
    expect(page.get_by_role("button", name="Stay signed in")).to_have_count(0)
    assert page.evaluate("sessionStorage.length") == 0
    page.reload()
    visitor.heading("Overview").wait_for()


def test_answers_that_arrive_after_signing_out_are_nobodys(visitor: Visitor, api: httpx.Client) -> None:
    page = visitor.page

    def held_back(act: Callable[[], object]) -> Route:
        answer = visitor.hold_back("**/v1/models", act)
        page.get_by_role("button", name="Sign out").click()
        return answer

    def sign_in(secret: str) -> None:
        page.get_by_label("Key").fill(secret)
        page.keyboard.press("Enter")

    visitor.sign_in()
    leaver = api.post("/keys", json={"scopes": ["read"]}).raise_for_status().json()
    answer = held_back(page.reload)
    with page.expect_response("**/v1/models"):
        answer.continue_()
    refusal = held_back(lambda: sign_in(leaver["secret"]))
    sign_in(visitor.server.key)
    expect(visitor.heading("Overview")).to_be_focused()
    api.delete(f"/keys/{leaver['id']}").raise_for_status()
    with page.expect_response("**/v1/models"):
        refusal.continue_()
    visitor.see("#/galleries", "Galleries")  # whoever has signed in since stays so
    assert len(visitor.refusals) == 1


def test_a_link_signs_in_once_and_keeps_the_key_out_of_sight(visitor: Visitor) -> None:
    link = visitor.link()
    visitor.page.goto(link)
    visitor.heading("Overview").wait_for()
    assert visitor.page.url == f"{visitor.server.url}/"
    assert visitor.page.evaluate("Object.keys(sessionStorage).sort()") == ["likeness.key", "likeness.reads"]
    visitor.page.get_by_role("button", name="Sign out").click()
    visitor.page.goto("about:blank")
    visitor.page.goto(link)
    expect(visitor.page.get_by_role("alert")).to_contain_text("used already")
    assert len(visitor.refusals) == 1
    logged = visitor.server.log.read_text()
    assert visitor.server.key not in logged
    assert link.partition("=")[2] not in logged


def test_the_history_of_the_browser_holds_a_spent_code_and_no_key(
    chromium: Browser, live_server: LiveServer, api: httpx.Client, tmp_path: Path
) -> None:
    code = api.post("/sign-in-codes").raise_for_status().json()["code"]
    with lasting(chromium, tmp_path) as page:
        page.goto(f"{live_server.url}/#code={code}")
        page.get_by_role("heading", name="Overview", level=1).wait_for()
    with closing(sqlite3.connect(tmp_path / "Default" / "History")) as history:
        visited = [url for (url,) in history.execute("SELECT url FROM urls")]
    assert any(code in url for url in visited), "the browser keeps what was opened"
    assert not any("lk_" in url for url in visited)
    with live_server.client(headers={"x-api-key": code}) as client:
        refused = client.post("/v1/sign-in")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "wrong_sign_in_code")


def test_a_link_changes_no_session_without_asking(visitor: Visitor) -> None:
    door = make_key(visitor.server, "recognize", galleries=["crew"])
    name = door.split("_")[1]
    visitor.sign_in(where="#/keys")
    page, foot = visitor.page, visitor.page.locator(".foot")
    for agree in (False, True):
        visitor.heading("Keys").wait_for()
        page.evaluate("link => { location.href = link }", visitor.link(door))
        asked = page.get_by_role("dialog", name=f"Sign in as {name}?")
        expect(asked).to_contain_text("signed in as admin.key (admin)")
        expect(asked).to_contain_text(f"signed in as {name} (recognize, in crew only)")
        expect(foot, "until it is answered").to_contain_text("Signed in as admin.key")
        asked.get_by_role("button", name=f"Sign in as {name}" if agree else "Cancel").click()
        expect(asked).to_have_count(0)
        assert page.evaluate("sessionStorage['likeness.key']") == (door if agree else visitor.server.key)
        assert "code=" not in page.url
        if not agree:
            assert page.url.endswith("#/keys")
            page.reload()
    expect(foot).to_contain_text(f"Signed in as {name} for crew")


def test_a_link_for_the_same_key_changes_nothing(visitor: Visitor) -> None:
    visitor.sign_in()
    visitor.page.goto(visitor.link())
    expect(visitor.page.locator("#told")).to_contain_text("signed in as admin.key already")
    visitor.heading("Overview").wait_for()


def test_a_key_that_is_revoked_meanwhile_is_asked_for_again(visitor: Visitor, api: httpx.Client) -> None:
    key = make_key(visitor.server, "recognize")
    visitor.sign_in(key)
    visitor.see("#/compare", "Compare")
    api.delete(f"/keys/{key.split('_')[1]}").raise_for_status()
    # One photo: its faces are asked for at once, and the answer may take the second place away before a photo is in it.
    visitor.page.get_by_role("region", name="First photo").locator("input[type=file]").set_input_files(COLLINS)
    visitor.heading("Sign in").wait_for()
    expect(visitor.page.get_by_role("alert")).to_contain_text("was revoked")


def test_two_photos_are_compared(visitor: Visitor) -> None:
    visitor.sign_in(make_key(visitor.server, "recognize"))
    choose(visitor, COLLINS, AGAIN)
    page, answer = visitor.page, visitor.page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("heading")).to_have_text("The same person")
    expect(answer).to_contain_text("1 in 10,000 pairs of different people")
    assert answer.locator("canvas").count() == 2
    assert page.locator(".boxes path").count() == 2
    labels = answer.locator(".tick").all_text_contents()
    assert labels == ["1 in 100", "1 in 1,000", "1 in 10,000", "1 in 100,000", "1 in 1,000,000"]
    places = answer.locator(".tick").evaluate_all("ticks => ticks.map((tick) => parseFloat(tick.style.left))")
    assert places == sorted(places)
    page.get_by_role("region", name="Second photo").locator("input[type=file]").set_input_files(BOTH)
    expect(answer).to_contain_text("in the best pair, of 2 faces")
    expect(answer.get_by_role("heading")).to_have_text("The same person")
    expect(answer).to_contain_text("The best of 2 pairs of faces")
    faces = page.get_by_role("region", name="Second photo").get_by_role("button", name=re.compile(r"Face \d of 2"))
    expect(faces).to_have_count(2)
    faces.and_(page.locator("[aria-pressed=false]")).focus()
    page.keyboard.press("Enter")
    expect(answer.get_by_role("heading")).to_have_text("Not the same person")
    expect(answer).to_contain_text("chosen, of 2 faces")
    expect(faces.and_(page.locator("[aria-pressed=true]"))).to_be_focused()
    expect(page.get_by_label("Strictness").locator("option").first).to_have_text("default (1 in 10,000)")
    page.get_by_label("Strictness").select_option("1 in 1,000,000")
    expect(answer).to_contain_text("which about 1 in 1,000,000 pairs")


def test_what_is_uncertain_is_said_to_be(visitor: Visitor) -> None:
    visitor.sign_in(make_key(visitor.server, "recognize"))
    visitor.page.evaluate(
        """() => {
          const plain = window.fetch;
          window.fetch = async (...given) => {
            const answer = await plain(...given);
            if (!given[0].includes("/v1/verify")) return answer;
            const doubted = { ...(await answer.json()), decision: "uncertain", match: false, score: 0.4 };
            return new Response(JSON.stringify(doubted), { headers: { "content-type": "application/json" } });
          };
        }"""
    )
    choose(visitor, COLLINS, AGAIN)
    answer = visitor.page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("heading")).to_have_text("Uncertain: perhaps the same person")
    expect(answer).to_contain_text("Many pairs of one person's photos stay below it too.")
    visitor.look("uncertain")


def test_the_crop_is_the_one_that_the_server_makes(visitor: Visitor, api: httpx.Client) -> None:
    """The page aligns by itself; what it draws is held against the crop that enrolling keeps."""
    make_gallery(api, "crops", a="collins")
    (face,) = api.get("/galleries/crops/subjects/a/faces").json()["faces"]
    visitor.sign_in()
    choose(visitor, COLLINS, AGAIN)
    visitor.page.locator(".answer canvas").first.wait_for()
    difference = visitor.page.evaluate(
        """async ([where, key]) => {
          const answer = await fetch(where, { headers: { "x-api-key": key } });
          const theirs = await createImageBitmap(await answer.blob());
          const read = (picture) => {
            const canvas = new OffscreenCanvas(112, 112);
            const context = canvas.getContext("2d");
            context.drawImage(picture, 0, 0, 112, 112);
            return context.getImageData(0, 0, 112, 112).data;
          };
          const [a, b] = [read(theirs), read(document.querySelector(".answer canvas"))];
          return a.reduce((sum, value, i) => sum + Math.abs(value - b[i]), 0) / a.length;
        }""",
        [f"/v1/galleries/crops/subjects/a/faces/{face['face_id']}/crop", visitor.server.key],
    )
    assert difference < 4, "mean difference in grey levels; a shift by two pixels makes it more than 8"


def test_photos_are_dropped_and_pasted(visitor: Visitor) -> None:
    visitor.sign_in()
    visitor.see("#/compare", "Compare")
    given = list(Path(COLLINS).read_bytes())
    visitor.page.evaluate(
        """(bytes) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "photo.jpg", { type: "image/jpeg" }));
          const drop = new DragEvent("drop", { dataTransfer: transfer, bubbles: true });
          document.querySelector(".photo").dispatchEvent(drop);
          dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
        }""",
        given,
    )
    expect(visitor.page.get_by_role("region", name="Answer").get_by_role("heading")).to_have_text("The same person")


def test_what_is_no_photo_and_who_is_nobody_are_said_in_words(visitor: Visitor) -> None:
    visitor.sign_in()
    visitor.see("#/compare", "Compare")
    first = visitor.page.get_by_role("region", name="First photo")
    first.locator("input[type=file]").set_input_files(
        {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"no photo at all"}
    )
    expect(first).to_contain_text("This file is not a photo that can be read")
    page = visitor.page
    page.evaluate("() => { const c = document.createElement('canvas'); c.id = 'grey'; document.body.append(c); }")
    grey = page.locator("#grey").screenshot()
    page.route("**/embed", lambda _: None, times=1)  # which is not answered before there is another photo
    with page.expect_request("**/embed"):
        first.locator("input[type=file]").set_input_files(COLLINS)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/embed")):
        first.locator("input[type=file]").set_input_files({"name": "b.png", "mimeType": "image/png", "buffer": grey})
    expect(first).to_contain_text("No face was found in this photo")


VIEWS = {
    "compare": ("compare", "Compare"),
    "galleries": ("galleries", "Galleries"),
    "people": ("galleries/{gallery}", "{gallery}"),
    "enroll": ("galleries/{gallery}/enroll", "Enroll photos"),
    "person": ("galleries/{gallery}/people/eileen", "eileen"),
    "review": ("galleries/{gallery}/review", "Review"),
    "calibration": ("galleries/measured/calibration", "Calibration"),
    "identify": ("identify", "Identify"),
    "keys": ("keys", "Keys"),
    "audit": ("audit", "Audit log"),
    "check": ("check", "Gallery check"),
    "jobs": ("jobs", "Jobs"),
    "models": ("models", "Models"),
    "advice": ("advice", "Good photos"),
}
"""Where each view is, and its heading."""


@pytest.fixture(scope="module")
def _measured(live_server: LiveServer) -> None:
    """A gallery with operating points of its own, `measured`."""
    with live_server.client() as api:
        api.post("/v1/galleries", json={"id": "measured", "store": "none"}).raise_for_status()
        add_random_people(api, "measured")
        calibrate(api, "measured")


@pytest.mark.usefixtures("_measured")
@pytest.mark.parametrize(("size", "theme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_every_view_is_no_wider_than_the_screen_and_axe_finds_nothing_serious(
    chromium: Browser, live_server: LiveServer, api: httpx.Client, size: ViewportSize, theme: Theme
) -> None:
    gallery = f"seen-{theme}-{size['width']}"
    make_gallery(api, gallery, eileen="collins", again="collins_again")
    reviewed(api, gallery)
    with visiting(chromium, live_server, theme, viewport=size) as visitor:
        page, shown = visitor.page, {"review": "Finding", "calibration": "Perhaps one person twice"}

        def look(name: str) -> None:
            visitor.look(f"{name}-{theme}-{size['width']}")
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], name

        page.goto(live_server.url)
        visitor.heading("Sign in").wait_for()
        look("sign-in")
        visitor.sign_in()
        for name, (where, heading) in VIEWS.items():
            visitor.see(f"#/{where.format(gallery=gallery)}", heading.format(gallery=gallery))
            if name in {"people", "person"}:
                page.locator("main .portrait img").first.wait_for()
            if name in shown:
                page.get_by_role("region", name=shown[name]).wait_for()
            if name == "identify":
                visitor.identify(gallery, SAMPLES / "both.jpg")
                page.locator(".card.face").first.wait_for()
            if name == "compare":
                choose(visitor, COLLINS, BOTH)
                page.locator(".answer summary").click()
            look(name)
        visitor.see("#/keys", "Keys")
        page.get_by_role("button", name="New key").click()
        page.get_by_role("dialog").wait_for()
        look("dialog")
        page.keyboard.press("Escape")
        if size is PHONE:
            page.get_by_role("button", name="Menu").click()
            expect(page.get_by_role("link", name="Compare")).to_be_visible()


def test_the_theme_can_be_chosen_and_is_kept(visitor: Visitor) -> None:
    visitor.sign_in()
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = visitor.page.evaluate(ground)
    visitor.page.get_by_label("Colours").select_option("Dark")
    dark = visitor.page.evaluate(ground)
    visitor.page.reload()
    visitor.heading("Overview").wait_for()
    assert (visitor.page.evaluate(ground), dark == light) == (dark, False)


def test_what_a_key_may_not_do_is_not_shown(visitor: Visitor) -> None:
    visitor.sign_in(make_key(visitor.server, "recognize"))
    links = visitor.page.get_by_role("navigation", name="Main").get_by_role("link")
    assert set(links.all_inner_texts()) <= {"Overview", "Compare", "Identify", "Models"}
    visitor.page.evaluate("sessionStorage.clear()")
    visitor.sign_in(make_key(visitor.server, "enroll"))
    names = visitor.page.get_by_role("navigation", name="Main").get_by_role("link").all_inner_texts()
    assert not re.search("Compare|Keys|Audit", " ".join(names))


@pytest.mark.parametrize("where", ["#/galleries/50%", "#/%E0%A4%A", "#/nothing"])
def test_an_address_of_nothing_is_not_found(visitor: Visitor, where: str) -> None:
    visitor.sign_in()
    visitor.see(where, "Not found")
    assert visitor.page.title() == "Not found · Likeness"
    visitor.page.get_by_role("link", name="To the overview").click()
    visitor.heading("Overview").wait_for()


def test_the_live_camera_stops_asking_about_what_the_key_may_not_see(visitor: Visitor) -> None:
    visitor.sign_in(make_key(visitor.server, "recognize", galleries=["others"]), where="#/identify")
    page = visitor.page
    expect(page.get_by_label("Gallery")).to_have_value("others")
    page.get_by_role("button", name="Live").click()
    expect(page.get_by_role("alert")).to_contain_text("This gallery doesn't exist, or your key has no access to it")
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
    page.wait_for_timeout(2_500)
    assert len([url for url in visitor.asked if "/others/identify" in url]) == 1
