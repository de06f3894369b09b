"""Drive a real Chromium as a person would, and record its requests and complaints."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image, ImageOps
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, ViewportSize, expect, sync_playwright

from tests.conftest import PROJECT
from tests.support.live import LiveServer
from tests.support.waiting import until

PICTURES = PROJECT / "build" / "page"
"""Where the tests save screenshots; not part of the repository."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SAMPLES = PROJECT / "docs" / "samples"
DESK: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
STRANGERS = ("Aaron_Eckhart", "AJ_Cook")
WAIT_MS = 60_000
"""Generous, since machines are slow while many tests run side by side."""
FILM_SIZE = (640, 480)
SCENE_FRAMES = 45
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
SERIOUS = {"serious", "critical"}
REFUSED = "Failed to load resource: the server responded with a status of"

Theme = Literal["light", "dark"]


@contextmanager
def browser(*options: str) -> Iterator[Browser]:
    """Start Chromium with its ``options``; skip the test if there is none."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=[*_root(), *options])
        try:
            yield started
        finally:
            started.close()


@contextmanager
def lasting(browser: Browser, folder: Path) -> Iterator[Page]:
    """Yield a page of another such browser, which keeps its history in ``folder``, as people's browsers do."""
    started = browser.browser_type.launch_persistent_context(folder, executable_path=CHROMIUM, args=_root())
    started.set_default_timeout(WAIT_MS)
    try:
        yield started.pages[0]
    finally:
        started.close()


def _root() -> list[str]:
    """Return the option that root needs: Chromium's sandbox refuses to run as root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []


@dataclass
class Visitor:
    """A person with a browser window, and a record of what the window did."""

    server: LiveServer
    context: BrowserContext
    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Error answers that the browser writes to its console, although the page handles them."""
    interruptions: int = 0
    """How often the machine's network interfaces changed, which makes Chromium abort every open request."""

    def watch(self) -> None:
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self._hear(message.type, message.text))

    def _hear(self, kind: str, text: str) -> None:
        if text.startswith(REFUSED):
            self.refusals.append(text)
        elif text.endswith(NETWORK_CHANGED):
            self.interruptions += 1
        elif kind in {"error", "warning"}:
            self.complaints.append(text)

    def sign_in(self, key: str | None = None, where: str = "") -> None:
        """Sign in by a link, then go to ``where``."""
        before = -1
        while before != self.interruptions:  # most often once
            before = self.interruptions
            self.page.goto("about:blank")
            self.page.goto(self.link(key))
            self.page.wait_for_load_state("networkidle")
        expect(self.page.get_by_role("main").get_by_role("heading", level=1)).to_be_focused()  # the view is complete
        self.page.locator("header.top").wait_for()
        if where:
            self.go(where)

    def link(self, key: str | None = None) -> str:
        """Return a new link that signs in with the key."""
        with self.server.client(headers={"x-api-key": key or self.server.key}) as client:
            made = client.post("/v1/sign-in-codes").raise_for_status().json()
        return f"{self.server.url}/#code={made['code']}"

    def go(self, where: str) -> None:
        self.page.evaluate("where => { location.hash = where }", where)

    def see(self, where: str, heading: str) -> None:
        """Go to ``where`` and wait until the view is complete: the page then focuses its heading."""
        self.go(where)
        expect(self.heading(heading)).to_be_focused()

    def identify(self, gallery: str, photo: Path) -> None:
        """Choose the gallery and the photo in the view Identify."""
        self.page.get_by_label("Gallery").select_option(gallery)
        self.page.locator("main input[type=file]").set_input_files(photo)

    def hold_back(self, where: str | re.Pattern[str], act: Callable[[], object]) -> Route:
        """Call ``act`` and return the first request to ``where`` that follows. It waits for its ``continue_``."""
        held: list[Route] = []
        self.page.route(where, lambda route: held.append(route), times=1)  # noqa: PLW0108 - no builtin is taken
        with self.page.expect_request(where):
            act()
        while not held:  # the route's handler is called after the request event
            self.page.wait_for_timeout(20)
        return held.pop()

    def heading(self, words: str) -> Locator:
        return self.page.get_by_role("heading", name=words, exact=True, level=1)

    def shows(self, words: str) -> bool:
        """Return whether the page shows the words now, in its elements or in its fields."""
        found: bool = self.page.evaluate(
            """words => {
              const filled = Array.from(document.querySelectorAll("input, textarea"), (one) => one.value);
              return [document.title, document.body.outerHTML, ...filled].some((text) => text.includes(words));
            }""",
            words,
        )
        return found

    def picture(self, name: str) -> None:
        """Take a screenshot, for people to look at."""
        path = PICTURES / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=True)

    def look(self, name: str) -> None:
        """Check that axe-core finds nothing serious in the page as it is now, and take a screenshot."""
        self.picture(name)
        assert self.barriers() == []

    def barriers(self) -> list[str]:
        """Return what axe-core finds serious in the page as it is now."""
        found: dict[str, Any] = Axe().run(self.page).response
        return [
            f"{violation['id']}: {node['html'][:160]} ({node['any'][0]['message'] if node['any'] else ''})"
            for violation in found["violations"]
            if violation["impact"] in SERIOUS
            for node in violation["nodes"]
        ]

    def behaved(self) -> None:
        """Check that no request went to another host, no address held a key, and the browser had no complaints."""
        elsewhere = [url for url in self.asked if not url.startswith((f"{self.server.url}/", "blob:", "data:"))]
        assert not elsewhere, elsewhere
        assert not any("lk_" in url.split("#")[0] for url in self.asked), "a key is in an address"
        assert not self.complaints, self.complaints


def add_face(api: httpx.Client, gallery: str, subject: str, photo: str) -> None:
    """Enroll the named photo of docs/samples; ids are percent-encoded, as in a path."""
    files = {"images": (SAMPLES / f"{photo}.jpg").read_bytes()}
    api.post(f"/galleries/{gallery}/subjects/{subject}/faces", files=files).raise_for_status()


def reviewed(api: httpx.Client, gallery: str) -> None:
    job = api.post(f"/galleries/{gallery}/review").raise_for_status().json()["id"]
    until(lambda: api.get(f"/jobs/{job}").json()["state"] == "done")


def make_gallery(api: httpx.Client, gallery: str, **people: str) -> None:
    """Create a gallery with subjects, each with the named photo of docs/samples."""
    api.post("/galleries", json={"id": gallery}).raise_for_status()
    for subject, photo in people.items():
        add_face(api, gallery, subject, photo)


@contextmanager
def visiting(browser: Browser, server: LiveServer, theme: Theme = "light", **options: Any) -> Iterator[Visitor]:
    """Yield a window of ``browser``, and check at the end that it behaved."""
    wanted: dict[str, Any] = {"viewport": None, "reduced_motion": "reduce"} | options  # no colour is in transition
    context = browser.new_context(color_scheme=theme, **wanted)
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    visitor = Visitor(server, context, context.new_page())
    visitor.watch()
    try:
        yield visitor
        visitor.behaved()
    finally:
        context.close()


def film(path: Path, scenes: Sequence[Path]) -> Path:
    """Return a Motion JPEG film for Chromium's fake camera, in a loop: each photo for SCENE_FRAMES, 30 a second."""
    frames = []
    for scene in scenes:
        with Image.open(scene) as photo:
            file = io.BytesIO()
            ImageOps.pad(photo.convert("RGB"), FILM_SIZE).save(file, "JPEG", quality=92)
            frames.append(file.getvalue())
    path.write_bytes(b"".join(frame * SCENE_FRAMES for frame in frames))
    return path


def scenes(folder: Path) -> list[Path]:
    """Return photos for a film. Writes one with two strangers side by side into ``folder``."""
    archive = PROJECT.parent / "shared" / "data" / "lfw" / "lfw-deepfunneled.tar"
    found = [SAMPLES / "both.jpg"]
    if not archive.is_file():
        return found
    sheet = Image.new("RGB", (500, 250))
    with tarfile.open(archive) as photos:
        for place, name in enumerate(STRANGERS):
            member = photos.extractfile(f"lfw-deepfunneled/{name}/{name}_0001.jpg")
            assert member is not None
            with member, Image.open(member) as photo:
                sheet.paste(photo, (250 * place, 0))
    sheet.save(folder / "strangers.png")
    return [*found, folder / "strangers.png"]


def camera(path: Path) -> tuple[str, ...]:
    """Return Chromium's options for a camera that shows this film and needs no permission."""
    return (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-video-capture={path}",
    )
