"""Today, the cameras and where a person was seen, in a real Chromium; nothing of it where watching is off."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.browsing import DESK, PHONE, Visitor, visiting
from tests.support.live import LiveServer, serving
from tests.support.service import AGAIN, COLLINS, HOPPER
from tests.support.sighted import HOME, make_home, told

pytestmark = pytest.mark.long
TABLET = {"width": 768, "height": 1024}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("watched") / "data", {"WATCHING": "on", "STRANGER_DAYS": 3}) as server:
        yield server


@pytest.fixture
def api(watched: LiveServer) -> Iterator[httpx.Client]:
    """A client of a service whose gallery `home` is new: Eileen Collins is enrolled in it."""
    with watched.client() as client:
        make_home(client, eileen=COLLINS)
        yield client
        client.delete(HOME).raise_for_status()


@pytest.fixture
def guard(chromium: Browser, watched: LiveServer, api: httpx.Client) -> Iterator[Visitor]:  # noqa: ARG001 - first
    with visiting(chromium, watched, viewport=DESK) as found:
        yield found


def open_page(guard: Visitor, where: str = "", heading: str = "Today") -> None:
    """Signs in by a link, then goes ``where``; the page listens on, so that the network is never idle."""
    guard.page.goto(guard.link())
    guard.heading("Today").wait_for()
    if where:
        guard.go(where)
    guard.heading(heading).wait_for()


def test_today_is_first_and_shows_people_as_they_come(guard: Visitor, api: httpx.Client) -> None:
    open_page(guard)
    page = guard.page
    expect(page.get_by_role("heading", name="Nobody was seen yet")).to_be_visible()
    expect(page.get_by_text("likeness keys create --id hall --scope watch --gallery home")).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    guard.look("today-empty")
    page.get_by_role("button", name="Stay signed in").click()  # the browser's session listens, without a key
    expect(page.get_by_text("You stay signed in on this device.")).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    told(api, AGAIN)
    seen = page.get_by_role("button", name="eileen door")
    expect(seen).to_be_visible()
    expect(page.get_by_text(re.compile("^Live. eileen, door"))).to_be_visible()
    told(api, HOPPER, HOPPER, camera="garden")
    expect(page.get_by_role("button", name="Unknown garden")).to_be_visible()
    page.get_by_label("Camera", exact=True).select_option("garden")
    expect(seen).to_have_count(0)
    assert "camera=garden" in page.url
    page.get_by_label("Camera", exact=True).select_option("")
    seen.press("ArrowRight")
    seen.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("is enough")
    assert guard.barriers() == []
    dialog.get_by_role("button", name="Not eileen").click()
    expect(page.get_by_role("button", name="Unknown door")).to_be_visible()
    assert api.get(f"{HOME}/subjects/eileen/corrections").json()["corrections"]


def test_a_person_has_their_name_in_the_filter_and_beside_a_sighting(guard: Visitor, api: httpx.Client) -> None:
    api.patch(f"{HOME}/subjects/eileen", json={"name": "Eileen Collins"}).raise_for_status()
    told(api, AGAIN, ended=True)
    open_page(guard, "#/galleries/home/people/eileen", "Eileen Collins")
    page = guard.page
    guard.go("#/today?gallery=home&subject=eileen")
    expect(page.get_by_label("Person")).to_have_value("Eileen Collins")
    page.get_by_role("button", name="Eileen Collins door").click()
    expect(page.get_by_role("dialog").get_by_role("link", name="Eileen Collins")).to_be_visible()


def test_an_unknown_person_gets_a_name_with_all_that_is_alike(guard: Visitor, api: httpx.Client) -> None:
    told(api, HOPPER, ended=True)
    told(api, HOPPER, HOPPER, ended=True)
    open_page(guard)
    page = guard.page
    waiting = page.get_by_role("region", name="Unknown people")
    expect(waiting.locator(".unnamed img")).to_have_count(2)
    guard.look("today-waiting")
    field = waiting.get_by_label("Who is it?").first
    field.fill("eil")
    expect(waiting.get_by_role("option")).to_contain_text("eileen")
    field.fill("grace")
    field.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("checkbox")).to_be_checked()
    guard.look("today-alike")
    dialog.get_by_role("button", name="Name grace").click()
    expect(page.get_by_text("2 sightings of grace.")).to_be_visible()
    expect(page.get_by_role("button", name="grace door")).to_have_count(2)
    expect(waiting).to_be_hidden()
    page.get_by_role("button", name="grace door").first.click()
    expect(dialog).to_contain_text("by a person")
    expect(dialog).not_to_contain_text("is enough")
    page.keyboard.press("Escape")
    guard.go("#/galleries/home/people/grace")
    expect(page.get_by_role("region", name="Seen").get_by_role("button", name="grace door")).to_have_count(2)
    guard.look("person-seen")


def test_two_who_were_joined_come_apart_with_two_clicks(guard: Visitor, api: httpx.Client) -> None:
    api.delete(f"{HOME}/subjects/eileen").raise_for_status()
    first = [told(api, HOPPER, HOPPER, ended=True) for _ in range(2)]
    other = [told(api, AGAIN, AGAIN, ended=True) for _ in range(2)]
    into = {"into": first[0]["stranger"]}
    api.post(f"{HOME}/strangers/{other[0]['stranger']}/merge", json=into).raise_for_status()
    open_page(guard)
    page = guard.page
    page.get_by_role("button", name="Sort out").click()
    pictures = page.get_by_role("dialog").get_by_role("button", name="Somebody else")
    expect(pictures).to_have_count(4)
    guard.look("today-sorting")
    pictures.last.click()
    expect(page.get_by_role("heading", name="Seen 2 times")).to_have_count(2)
    listed = api.get(f"{HOME}/sightings").json()["sightings"]
    strangers = {one["id"]: one["stranger"] for one in listed}
    apart = [{strangers[one["id"]] for one in group} for group in (first, other)]
    assert [len(group) for group in apart] == [1, 1]
    assert apart[0] != apart[1]
    page.get_by_role("button", name="Ignore").first.click()
    expect(page.get_by_role("heading", name="Seen 2 times")).to_have_count(1)
    page.get_by_role("button", name="Not a face").click()
    page.get_by_text("Ignored: 2").click()
    expect(page.get_by_text("not a face")).to_be_visible()
    page.get_by_role("button", name="Ask again").first.click()
    expect(page.get_by_role("heading", name="Seen 2 times")).to_have_count(1)


def test_a_camera_says_why_nobody_is_recognised(guard: Visitor, api: httpx.Client) -> None:
    told(api, AGAIN)
    told(api, AGAIN, camera="gate")
    told(api, AGAIN, camera="film.mp4")  # of which no watcher reports
    reports = [
        {"name": "door", "frames": 900, "faces": 40, "usable": 2, "width": 14.2, "reasons": {"small_face": 38}},
        {"name": "hall", "problem": "TimeoutError"},
        {"name": "gate", "frames": 2},
        {"name": "yard", "frames": 900},
    ]
    api.put(f"{HOME}/cameras", json={"cameras": reports}).raise_for_status()
    open_page(guard, "#/cameras", "Cameras")
    page = guard.page
    door = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="door"))
    expect(door).to_contain_text("Faces are 14 px wide: move the camera or use the main stream.")
    expect(door).to_contain_text("1 visit, 1 by known people")
    expect(door.locator("img")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="film.mp4")).to_contain_text("Nobody reports how it is: a film")
    expect(page.get_by_text("No pictures come (TimeoutError)")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="No face was seen")).to_contain_text("yard")
    guard.look("cameras")


@pytest.mark.parametrize("width", ["phone", "tablet", "dark"])
def test_today_fits_every_width_and_both_themes(
    chromium: Browser, watched: LiveServer, api: httpx.Client, width: str
) -> None:
    told(api, AGAIN)
    told(api, HOPPER, HOPPER, ended=True)
    size = {"phone": PHONE, "tablet": TABLET, "dark": DESK}[width]
    with visiting(chromium, watched, "dark" if width == "dark" else "light", viewport=size) as guard:
        open_page(guard)
        expect(guard.page.locator("main img")).to_have_count(3)
        guard.look(f"today-{width}")
        widest = guard.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert widest <= 0, "the page is wider than the window"


def test_pictures_are_shown_however_late_the_rest_of_the_view_is(guard: Visitor, api: httpx.Client) -> None:
    told(api, AGAIN)
    told(api, HOPPER, HOPPER, ended=True)
    page = guard.page
    with page.expect_response(re.compile(r"/sightings\?decision=uncertain")):  # the last that unknown people ask for
        timeline = guard.hold_back(re.compile(r"/sightings\?limit="), lambda: page.goto(guard.link()))
    page.wait_for_timeout(1000)  # their cards are made, and belong to no page yet
    timeline.continue_()
    expect(page.locator("main img")).to_have_count(3)


def test_a_key_that_may_only_read_is_asked_nothing(guard: Visitor, api: httpx.Client) -> None:
    told(api, HOPPER, HOPPER)
    secret = api.post("/v1/keys", json={"scopes": ["read"], "galleries": ["home"]}).json()["secret"]
    guard.page.goto(guard.link(secret))
    expect(guard.page.get_by_role("heading", name="Who is this?")).to_be_visible()
    expect(guard.page.get_by_label("Who is it?")).to_have_count(0)
    expect(guard.page.get_by_role("button", name="Ignore")).to_have_count(0)


def test_where_watching_is_off_nothing_of_it_is_loaded(visitor: Visitor) -> None:
    visitor.sign_in()
    expect(visitor.heading("Overview")).to_be_visible()
    expect(visitor.page.get_by_role("link", name="Today")).to_have_count(0)
    assert not [url for url in visitor.asked if "watching" in url or "/cameras" in url or "/events" in url]


def test_webhooks_are_made_read_resumed_and_deleted(guard: Visitor, api: httpx.Client) -> None:
    api.patch(f"{HOME}/subjects/eileen", json={"name": "Eileen Collins"}).raise_for_status()
    open_page(guard, "#/webhooks", "Webhooks")
    page = guard.page
    expect(page.get_by_text("No webhook yet")).to_be_visible()
    page.get_by_role("button", name="New webhook").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Address").fill("http://127.0.0.1:9/faces")
    form.get_by_role("button", name="Make it").click()
    expect(form.get_by_role("alert")).to_contain_text("LIKENESS_WEBHOOK_NETWORKS")
    form.get_by_label("Address").fill("http://93.184.215.14/faces")
    form.get_by_label("Somebody unknown was seen").uncheck()
    form.get_by_label("Only about these people").fill("eil")
    form.get_by_role("option", name="Eileen Collins").click()
    form.get_by_label("Only of these cameras").fill("door, garden")
    expect(form.get_by_role("button", name="Without Eileen Collins")).to_be_visible()
    assert guard.barriers() == []
    form.get_by_role("button", name="Make it").click()
    secret = page.get_by_role("dialog", name="The webhook's secret")
    shown = secret.get_by_label("Secret", exact=True).input_value()
    assert shown.startswith("whsec_")
    secret.get_by_role("button", name="I have it").click()
    card = page.get_by_role("listitem").filter(has_text="93.184.215.14")
    for words in ("Somebody known was seen and a name was put right", "door and garden", "Eileen Collins", "active"):
        expect(card).to_contain_text(words)
    assert not guard.shows(shown), "it is shown only once"
    (made,) = api.get("/v1/webhooks").json()["webhooks"]
    assert made["kinds"] == ["person_seen", "name_changed"]
    assert made["subjects"] == [{"gallery": "home", "subject": "eileen"}]
    guard.look("webhooks")
    failing = made | {
        "state": "set_aside",
        "attempts": 9,
        "last_error": "status 500",
        "failing_since": made["created_at"],
    }
    page.route("**/v1/webhooks", lambda route: route.fulfill(json={"webhooks": [failing]}), times=1)
    guard.go("#/cameras")
    guard.see("#/webhooks", "Webhooks")
    expect(card).to_contain_text("set aside: it failed for a day")
    expect(card).to_contain_text("status 500")
    expect(card).to_contain_text("Failing since")
    card.get_by_role("button", name="Resume").click()
    expect(card).to_contain_text("active")
    card.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("No webhook yet")).to_be_visible()
    assert api.get("/v1/webhooks").json()["webhooks"] == []


def test_webhooks_are_for_keys_that_may_do_everything(guard: Visitor, api: httpx.Client) -> None:
    asked = {"id": "guard", "scopes": ["admin"], "galleries": ["home"]}
    key = api.post("/v1/keys", json=asked).raise_for_status().json()["secret"]
    guard.page.goto(guard.link(key))
    guard.heading("Today").wait_for()
    expect(guard.page.get_by_role("link", name="Webhooks")).to_have_count(0)
