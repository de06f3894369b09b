"""Every view at three widths, light and dark: pictures to be looked at, and nothing that axe-core finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.support.browsing import SAMPLES, Theme, Visitor, add_face, make_gallery, reviewed, visiting
from tests.support.live import LiveServer, serving
from tests.support.service import AGAIN, HOPPER
from tests.support.sighted import told

pytestmark = pytest.mark.long
WIDTHS = (390, 768, 1280)


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that has something to show in every view."""
    with serving(tmp_path_factory.mktemp("views") / "data", {"WATCHING": "on", "STRANGER_DAYS": 3}) as server:
        with server.client("/v1") as client:
            make_gallery(client, "home", eileen="collins", grace="hopper")
            add_face(client, "home", "eileen", "collins_again")
            client.patch("/galleries/home/subjects/eileen", json={"name": "Eileen Collins", "metadata": {"team": "A"}})
            reviewed(client, "home")
            client.post("/keys", json={"id": "door", "scopes": ["recognize"]}).raise_for_status()
        with server.client() as client:
            camera(client)
            told(client, AGAIN, ended=True)
            told(client, HOPPER, HOPPER, camera="garden", ended=True)
        yield server


def camera(client: httpx.Client) -> None:
    """What a watcher tells of its cameras."""
    known = {"name": "door", "faces": 12, "usable": 1, "reasons": {"small_face": 11}, "width": 14.0}
    client.put("/v1/galleries/home/cameras", json={"cameras": [known]}).raise_for_status()


def identified(visitor: Visitor) -> None:
    visitor.identify("home", SAMPLES / "both.jpg")
    expect(visitor.page.get_by_role("region", name="Faces found")).to_contain_text("Collins")


def compared(visitor: Visitor) -> None:
    for name, photo in (("First", "collins"), ("Second", "collins_again")):
        place = visitor.page.get_by_role("region", name=f"{name} photo").locator("input[type=file]")
        place.set_input_files(SAMPLES / f"{photo}.jpg")
    expect(visitor.page.get_by_role("region", name="Answer").get_by_role("heading")).to_be_visible()


def planned(visitor: Visitor) -> None:
    visitor.page.locator("input[multiple]").first.set_input_files([SAMPLES / "collins.jpg", SAMPLES / "hopper.jpg"])
    expect(visitor.page.get_by_role("button", name="Enroll 2 photos")).to_be_visible()


def grouped(visitor: Visitor) -> None:
    planned(visitor)
    visitor.page.get_by_label("Several people, unsorted").check()
    visitor.page.get_by_role("button", name="Group 2 photos").click()
    expect(visitor.page.get_by_label("Name of person 2")).to_be_visible()
    expect(visitor.page.locator(".grouped canvas")).to_have_count(2)


def addable(visitor: Visitor) -> None:
    visitor.page.get_by_text("Add a model", exact=True).click()
    expect(visitor.page.get_by_role("button", name="Pull best")).to_be_visible()


def nothing(_visitor: Visitor) -> None:
    pass


VIEWS: dict[str, tuple[str, str, Callable[[Visitor], None]]] = {
    "today": ("#/today", "Today", nothing),
    "cameras": ("#/cameras", "Cameras", nothing),
    "overview": ("#/overview", "Overview", nothing),
    "compare": ("#/compare", "Compare", compared),
    "identify": ("#/identify", "Identify", identified),
    "galleries": ("#/galleries", "Galleries", nothing),
    "people": ("#/galleries/home", "home", nothing),
    "person": ("#/galleries/home/people/eileen", "Eileen Collins", nothing),
    "enroll": ("#/galleries/home/enroll", "Enroll photos", planned),
    "grouping": ("#/galleries/home/enroll", "Enroll photos", grouped),
    "settings": ("#/galleries/home/settings", "Settings", nothing),
    "calibration": ("#/galleries/home/calibration", "Calibration", nothing),
    "review": ("#/galleries/home/review", "Review", nothing),
    "jobs": ("#/jobs", "Jobs", nothing),
    "check": ("#/check", "Gallery check", nothing),
    "keys": ("#/keys", "Keys", nothing),
    "audit": ("#/audit", "Audit log", nothing),
    "models": ("#/models", "Models", addable),
    "advice": ("#/advice", "Good photos", nothing),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_in_any_view(chromium: Browser, lived_in: LiveServer, width: int, theme: Theme) -> None:
    found = []
    with visiting(chromium, lived_in, theme, viewport={"width": width, "height": 900}) as visitor:
        visitor.page.goto(lived_in.url)
        visitor.page.get_by_role("button", name="Sign in").wait_for()
        found += barriers(visitor, f"sign-in-{width}-{theme}")
        visitor.page.goto("about:blank")
        visitor.page.goto(visitor.link())
        visitor.heading("Today").wait_for()
        for name, (where, heading, prepare) in VIEWS.items():
            visitor.go("#/nowhere")  # a view that is open already would not be shown anew
            visitor.heading("Not found").wait_for()
            visitor.go(where)
            visitor.heading(heading).wait_for()
            expect(visitor.page.locator("main .waiting", has_text="…")).to_have_count(0)
            prepare(visitor)
            found += barriers(visitor, f"{name}-{width}-{theme}")
    assert found == []


def barriers(visitor: Visitor, name: str) -> list[str]:
    """Everything that axe-core finds in what is shown now, of which a picture is taken."""
    visitor.picture(f"views/{name}")
    violations = Axe().run(visitor.page).response["violations"]
    wide = visitor.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return [f"{name}: {one['id']}: {node['html'][:160]}" for one in violations for node in one["nodes"]] + (
        [f"{name}: wider than the window"] if wide else []
    )
