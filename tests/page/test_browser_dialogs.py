"""Every dialog of the page by keyboard alone: opened, walked through and left, with the focus back where it was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.conftest import PROJECT
from tests.page.test_browser_enrolling import pair
from tests.page.test_browser_models import package
from tests.support.browsing import DESK, PHONE, SAMPLES, Visitor, add_face, make_gallery, reviewed, visiting
from tests.support.live import LiveServer, serving
from tests.support.service import HOPPER
from tests.support.sighted import told
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended, until

pytestmark = pytest.mark.long
PAGES = (PROJECT / "app" / "page", *sorted((PROJECT / "app" / "features").glob("*/page")))
OPENS = re.compile(r"(?<![\w.])(?:openDialog|confirm|request|showOnce)\(")
MAKERS = {"dom.js", "parts.js"}
"""Modules that declare what opens dialogs; all others call it."""
FOCUSED = """() => {
  const one = document.activeElement;
  const name = (each) => (each.getAttribute("aria-label") ?? each.labels?.[0]?.textContent ?? each.textContent).trim();
  const title = one.closest("dialog")?.querySelector("h2").textContent ?? null;
  return [one.tagName, one === document.body ? "" : name(one), title, one.matches(".danger")];
}"""
LEFT_OUT = """() => {
  const dialog = [...document.querySelectorAll("dialog[open]")].at(-1);
  const all = [...dialog.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")];
  return all
    .filter((one) => !one.disabled && one.tabIndex >= 0 && one.checkVisibility({ visibilityProperty: true }))
    .filter((one) => one.type !== "radio" || one.checked)
    .filter((one) => !window.reached.has(one))
    .map((one) => one.outerHTML.slice(0, 120));
}"""
STEPS = 60
"""More than any dialog has places for Tab: a date and time has nine."""


@pytest.fixture(scope="module")
def peopled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with somebody and something for every dialog."""
    settings = {"WATCHING": "on", "STRANGER_DAYS": 3}
    with serving(tmp_path_factory.mktemp("dialogs") / "data", settings) as server:
        with server.client("/v1") as api:
            make_gallery(api, "home", eileen="collins", ellen="collins_again", grace="hopper")
            make_gallery(api, "hall", eileen="collins")
            make_gallery(api, "spare", eileen="collins", twin="collins_again")
            reviewed(api, "spare")
            api.post("/keys", json={"id": "door", "scopes": ["recognize"]}).raise_for_status()
            api.post("/webhooks", json={"url": "http://93.184.215.14/faces"}).raise_for_status()
        with server.client() as api:
            unpack(api, "/galleries/spare/import", {"nobody/1.jpg": b"no photo"})
            unpack(api, "/models", package("going", "A model that goes"))
            for photos in ([HOPPER], [HOPPER, HOPPER], [HOPPER, HOPPER]):
                told(api, *photos, gallery="hall", ended=True)
        yield server


def unpack(api: httpx.Client, where: str, files: dict[str, bytes]) -> None:
    """Send a tar of the files, and wait until its job has ended."""
    headers = {"content-type": "application/x-tar"}
    sent = api.post(f"/v1{where}", content=tar_of(files), headers=headers).raise_for_status()
    job_ended(api, sent.json()["id"])


@dataclass(frozen=True)
class Case:
    """A dialog: where it is opened in the source, its title, and who presses what.

    ``opener`` brings the page to where Enter on the element that it returns opens the dialog.
    """

    source: str
    title: str
    opener: Callable[[Visitor], Locator]
    held: bool = False
    """Whether only its own button closes it."""
    goes: str = ""
    """What has the focus afterwards, if not what opened it."""


def at(where: str, heading: str, button: str | re.Pattern[str]) -> Callable[[Visitor], Locator]:
    """Return an opener: the first button of that name in a view."""

    def opener(visitor: Visitor) -> Locator:
        view(visitor, where, heading)
        return visitor.page.get_by_role("main").get_by_role("button", name=button, exact=True).first

    return opener


def view(visitor: Visitor, where: str, heading: str) -> None:
    """Go to a view, or to it anew, and wait until it is complete."""
    visitor.see("#/advice", "Good photos")
    visitor.see(where, heading)


def inside(opener: Callable[[Visitor], Locator], button: str | re.Pattern[str]) -> Callable[[Visitor], Locator]:
    """Return an opener: a button of the dialog that another opens."""

    def nested(visitor: Visitor) -> Locator:
        press(opener(visitor))
        return visitor.page.get_by_role("dialog").get_by_role("button", name=button).first

    return nested


def press(target: Locator) -> None:
    target.focus()
    target.press("Enter")


def namesake(visitor: Visitor) -> Locator:
    view(visitor, "#/galleries/home/enroll", "Enroll photos")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(SAMPLES / "collins.jpg")
    page.get_by_label("All of them show one person").check()
    page.get_by_label("Their name").fill("eileen")
    page.keyboard.press("Escape")  # the suggestions
    return page.get_by_role("button", name="Enroll 1 photo")


def two_faces(visitor: Visitor) -> Locator:
    view(visitor, "#/galleries/spare/enroll", "Enroll photos")
    page = visitor.page
    page.locator("input[multiple]").first.set_input_files(PHOTOS / "group.png")
    page.get_by_role("button", name="Enroll 1 photo").click()
    return page.get_by_role("button", name="Choose the face: group.png")


def identified(visitor: Visitor) -> Locator:
    view(visitor, "#/identify?gallery=home", "Identify")
    visitor.page.get_by_label("Gallery").select_option("home")
    visitor.page.locator("main input[type=file]").set_input_files(SAMPLES / "collins.jpg")
    return visitor.page.get_by_role("button", name="Not this person").first


def face_chosen(visitor: Visitor, button: str) -> Locator:
    view(visitor, "#/galleries/home/people/grace", "grace")
    visitor.page.get_by_label("Select face 1 of quality").first.check()
    return visitor.page.get_by_role("button", name=button)


def people_chosen(visitor: Visitor) -> Locator:
    view(visitor, "#/galleries/home", "home")
    visitor.page.get_by_role("button", name="Select", exact=True).click()
    visitor.page.get_by_role("list", name="People").get_by_role("button", name="grace").click()
    return visitor.page.get_by_role("button", name="Delete selected")


def unlike(visitor: Visitor) -> Locator:
    press(at("#/galleries/home/people/eileen", "eileen", "Merge")(visitor))
    into = visitor.page.get_by_role("dialog").get_by_label("Into whom?")
    into.fill("grace")
    visitor.page.get_by_role("option", name="grace").wait_for()
    visitor.page.keyboard.press("ArrowDown")
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.get_by_role("dialog")).to_contain_text("two people")
    return visitor.page.get_by_role("dialog").get_by_role("button", name="Merge", exact=True)


def receipt(visitor: Visitor) -> Locator:
    with visitor.server.client("/v1") as api:
        add_face(api, "spare", "gone", "hopper")
    press(at("#/galleries/spare/people/gone", "gone", "Erase, with a receipt")(visitor))
    visitor.page.get_by_role("dialog").get_by_label("Type gone to go on").fill("gone")
    return visitor.page.get_by_role("dialog").get_by_role("button", name="Erase the person")


def key_made(visitor: Visitor) -> Locator:
    press(at("#/keys", "Keys", "New key")(visitor))
    visitor.page.get_by_role("dialog").get_by_label("Whose is it?").fill("Ann")
    return visitor.page.get_by_role("dialog").get_by_role("button", name="Create")


def webhook_made(visitor: Visitor) -> Locator:
    press(at("#/webhooks", "Webhooks", "New webhook")(visitor))
    visitor.page.get_by_role("dialog").get_by_label("Address").fill("http://93.184.215.14/doors")
    return visitor.page.get_by_role("dialog").get_by_role("button", name="Make it")


def running_job(visitor: Visitor) -> Locator:
    """Show the server's jobs as they are while the newest is under way."""

    def answer(route: Route) -> None:
        page = route.fetch().json()
        page["jobs"][0] |= {"state": "running", "finished_at": None}
        route.fulfill(json=page)

    visitor.page.route("**/v1/jobs?*", answer)
    return at("#/jobs", "Jobs", re.compile("^Cancel"))(visitor)


def other_model(visitor: Visitor) -> Locator:
    view(visitor, "#/galleries/home/settings", "Settings")
    visitor.page.get_by_label("Other model").select_option(index=1)
    return visitor.page.get_by_role("button", name="Move the gallery to it")


def pulled(visitor: Visitor) -> Locator:
    view(visitor, "#/models", "Models")
    visitor.page.get_by_text("Add a model", exact=True).click()
    return visitor.page.get_by_role("button", name="Pull lvface-t")


def removed(visitor: Visitor) -> Locator:
    view(visitor, "#/models", "Models")
    card = visitor.page.get_by_role("region", name="A model that goes")
    card.get_by_role("heading", name="A model that goes").click()
    return card.get_by_role("button", name=re.compile("^Remove"))


def seen(button: str) -> Callable[[Visitor], Locator]:
    """Return an opener: a button of Today, once its pictures are there."""

    def opener(visitor: Visitor) -> Locator:
        visitor.go("#/advice")
        visitor.heading("Good photos").wait_for()
        visitor.go("#/today?gallery=hall")
        main = visitor.page.get_by_role("main")
        expect(main.locator("button.sighting img")).to_have_count(3)
        return main.get_by_role("button", name=button).first

    return opener


def alike(visitor: Visitor) -> Locator:
    seen("Sort out")(visitor).wait_for()
    field = visitor.page.get_by_label("Who is it?").first
    field.fill("nobody")
    return field


def other_key(visitor: Visitor) -> Locator:
    """A link that signs somebody else in: here it is opened by a link of the page."""
    view(visitor, "#/galleries", "Galleries")
    with visitor.server.client("/v1") as api:
        secret = api.post("/keys", json={"scopes": ["read"]}).json()["secret"]
    link = visitor.page.get_by_role("link", name="home").first
    link.evaluate("(link, address) => { link.href = address }", visitor.link(secret))
    return link


PHOTOS = PROJECT / "build" / "dialogs"
MERGE, SIGHTING = at("#/galleries/home/people/eileen", "eileen", "Merge"), seen("Unknown door")
CASES = [
    Case("camera.js", "Take a photo", at("#/identify", "Identify", "Camera")),
    Case("challenge.js", "Identify with a challenge", at("#/identify?gallery=home", "Identify", "Challenge")),
    Case("main.js", "Sign in as ", other_key),
    Case("suggest.js", "Is it the same eileen?", namesake),
    Case("views/settings.js", "Move home to", other_model),
    Case("views/review.js", "Merge", at("#/galleries/spare/review", "Review", re.compile("^Merge into"))),
    Case("views/person.js", "Delete eileen?", at("#/galleries/home/people/eileen", "eileen", "Delete")),
    Case("views/jobs.js", "Cancel this job?", running_job),
    Case("views/jobs.js", "What was refused", at("#/jobs", "Jobs", re.compile("^What was refused"))),
    Case("views/remedies.js", "Which face is it?", two_faces),
    Case("views/erasing.js", "Erase", at("#/galleries/home/people/eileen", "eileen", "Erase, with a receipt")),
    Case("views/erasing.js", "Erased", receipt, goes="spare"),
    Case("views/found.js", "Not eileen?", identified),
    Case("views/found.js", "Surely not eileen?", inside(identified, "Remember that")),
    Case("views/merging.js", "Merge eileen", MERGE),
    Case("views/merging.js", "Surely the same person as grace?", unlike),
    Case("views/faces.js", "Enrolled face", at("#/galleries/home/people/grace", "grace", re.compile("^Enlarge"))),
    Case("views/faces.js", "Delete 1 face?", lambda visitor: face_chosen(visitor, "Delete selected")),
    Case("views/faces.js", "Move 1 face", lambda visitor: face_chosen(visitor, "Move selected")),
    Case("views/newgallery.js", "New gallery", at("#/galleries", "Galleries", "New gallery")),
    Case("views/keys.js", "New key", at("#/keys", "Keys", "New key")),
    Case("views/keys.js", "The key of Ann", key_made, held=True, goes="New key"),
    Case("views/keys.js", "A new secret for door?", at("#/keys", "Keys", "New secret for door")),
    Case("views/keys.js", "Revoke door?", at("#/keys", "Keys", "Revoke door")),
    Case("views/people.js", "Delete home?", at("#/galleries/home", "home", "Delete")),
    Case("views/people.js", "Delete 1 person?", people_chosen),
    Case("models/adding.js", "Pull lvface-t for non-commercial use?", pulled),
    Case("models/removing.js", "Remove going@", removed),
    Case("watching/waiting.js", "Is this nobody too?", alike),
    Case("watching/waiting.js", "One person?", seen("Sort out")),
    Case("watching/waiting.js", "Forget this person?", inside(seen("Sort out"), "Forget")),
    Case("watching/sighting.js", "Unknown", SIGHTING),
    Case("watching/sighting.js", "Delete this sighting?", inside(SIGHTING, "Delete")),
    Case("webhook_form/webhooks.js", "New webhook", at("#/webhooks", "Webhooks", "New webhook")),
    Case("webhook_form/webhooks.js", "The webhook's secret", webhook_made, held=True, goes="New webhook"),
    Case("webhook_form/webhooks.js", "Delete this webhook?", at("#/webhooks", "Webhooks", re.compile("^Delete"))),
]


def test_every_dialog_of_the_source_is_walked() -> None:
    found: Counter[str] = Counter()
    for folder in PAGES:
        for module in folder.rglob("*.js"):
            prefix = "" if folder.name == "page" and folder.parent.name == "app" else f"{folder.parent.name}/"
            if module.name not in MAKERS:
                found[f"{prefix}{module.relative_to(folder)}"] += len(OPENS.findall(module.read_text()))
    assert +found == Counter(case.source for case in CASES)


@pytest.fixture(scope="module")
def walker(chromium: Browser, peopled: LiveServer) -> Iterator[Visitor]:
    PHOTOS.mkdir(parents=True, exist_ok=True)
    pair(PHOTOS / "group.png")
    with visiting(chromium, peopled, viewport=DESK) as visitor:
        visitor.page.goto(visitor.link())
        visitor.heading("Today").wait_for()
        yield visitor


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source}: {case.title}")
def test_a_dialog_is_opened_walked_and_left_by_keyboard(walker: Visitor, case: Case) -> None:
    page = walker.page
    page.unroute_all()
    if page.locator("dialog").count():  # an earlier case failed
        page.reload()
    opener = case.opener(walker)
    opener.focus()
    before = page.evaluate(FOCUSED)
    page.keyboard.press("Enter")
    title = re.compile("^" + re.escape(case.title))
    dialog = page.get_by_role("dialog", name=title)  # the name, as the browser computes it
    dialog.wait_for()
    _, _, within, dangerous = page.evaluate(FOCUSED)
    assert within is not None, "the focus goes in"
    assert title.match(within)
    assert not dangerous, "Enter once more would do what can't be undone"
    walk(walker, title)
    page.keyboard.press("Escape")
    if case.held:
        page.keyboard.press("Escape")
        expect(dialog, "it is shown only once").to_be_visible()
        press(dialog.get_by_role("button", name="I have it"))
    expect(dialog).to_have_count(0)
    wanted = case.goes or before[1]
    try:
        until(lambda: page.evaluate(FOCUSED)[1] == wanted)
    except AssertionError:
        raise AssertionError(f"{page.evaluate(FOCUSED)} has the focus, not {wanted}") from None
    for _ in range(page.locator("dialog[open]").count()):  # those that it was opened from
        page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def walk(walker: Visitor, title: re.Pattern[str]) -> None:
    """Tab through the open dialog: nothing outside is reached, and everything inside is."""
    page = walker.page
    page.locator("dialog[open] .waiting, dialog[open] .hint:has-text('…')").last.wait_for(state="detached")
    page.evaluate("() => { window.reached = new Set() }")
    for _ in range(STEPS):
        page.keyboard.press("Tab")
        tag, _, within, _ = page.evaluate(FOCUSED)
        page.evaluate("() => window.reached.add(document.activeElement)")
        assert tag == "BODY" or (within is not None and title.match(within)), f"outside of the dialog: {tag}"
        if not page.evaluate(LEFT_OUT):
            break
    assert page.evaluate(LEFT_OUT) == []
    page.keyboard.press("Shift+Tab")
    tag, _, within, _ = page.evaluate(FOCUSED)
    assert tag == "BODY" or within is not None


def test_the_menu_of_a_narrow_window_opens_and_closes_by_keyboard(chromium: Browser, peopled: LiveServer) -> None:
    with visiting(chromium, peopled, viewport=PHONE) as visitor:
        page = visitor.page
        page.goto(visitor.link())
        expect(visitor.heading("Today")).to_be_focused()  # which the page does once the view is complete
        menu = page.get_by_role("button", name="Menu")
        press(menu)
        expect(menu).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("Tab")
        expect(page.get_by_role("navigation", name="Main").get_by_role("link").first).to_be_focused()
        page.keyboard.press("Escape")
        expect(menu).to_have_attribute("aria-expanded", "false")
        expect(menu).to_be_focused()
        expect(page.get_by_role("navigation", name="Main")).to_be_hidden()
