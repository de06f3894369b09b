"""A challenge in a real browser: somebody who follows the steps is identified, a photo that is held up is not."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from app.features.challenges.judge import FIRST, MOVES
from tests.support import turning
from tests.support.browsing import DESK, PHONE, Theme, Visitor, make_gallery, visiting
from tests.support.live import LiveServer

pytestmark = pytest.mark.long
CAMERA = """async ([frames, width, height]) => {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const pictures = {};
  for (const [step, text] of Object.entries(frames))
    pictures[step] = await createImageBitmap(new Blob([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))]));
  const paint = () => {
    const step = document.querySelector("[data-step]")?.dataset.step ?? "ahead";
    canvas.getContext("2d").drawImage(pictures[step], 0, 0);
  };
  setInterval(paint, 100);
  navigator.mediaDevices.getUserMedia = async () => canvas.captureStream(20);
}"""
"""A camera that sees a drawn head, which does what the page says."""
LATE_CAMERA = """() => {
  const start = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = async (wanted) => {
    await new Promise((go) => window.waiting.push(go));
    window.streams.push(await start(wanted));
    return window.streams.at(-1);
  };
}"""
"""Chromium's own camera, which starts when whoever is in ``waiting`` may go."""
STATES = "(states) => window.streams.map((stream) => stream.getTracks()[0].readyState).sort().join() === states"
"""Which of two streams plays first, and so is kept, is the browser's affair."""


@pytest.fixture(scope="module")
def gallery(live_server: LiveServer) -> str:
    with live_server.client("/v1") as client:
        make_gallery(client, "turning", collins="collins")
        files = {"images": turning.frame("ahead")}
        client.post("/galleries/turning/subjects/drawn/faces", files=files).raise_for_status()
    return "turning"


@pytest.mark.parametrize(("size", "theme"), [(DESK, "light"), (PHONE, "dark")])
def test_whoever_follows_the_steps_is_identified(
    chromium: Browser, live_server: LiveServer, gallery: str, size: ViewportSize, theme: Theme
) -> None:
    with visiting(chromium, live_server, theme, viewport=size) as visitor:
        page = visitor.page
        visitor.sign_in(where=f"identify?gallery={gallery}")
        expect(visitor.heading("Identify")).to_be_focused()
        frames = {step: base64.b64encode(turning.frame(step)).decode() for step in (FIRST, *MOVES)}
        page.evaluate(CAMERA, [frames, turning.WIDTH, turning.HEIGHT])
        page.get_by_role("button", name="Challenge").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("does not stop a film")
        begin = dialog.get_by_role("button", name="Begin")
        expect(begin).to_be_enabled()
        begin.click()
        expect(dialog.locator("[data-step=left]")).to_be_visible()
        visitor.look(f"challenge-step-{theme}")
        result = page.get_by_role("region", name="Faces found")
        expect(result).to_contain_text("Challenge passed")
        expect(result.get_by_role("link", name="drawn", exact=True)).to_be_visible()
        visitor.look(f"challenge-passed-{theme}")
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide


def test_a_photo_before_the_camera_fails(visitor: Visitor, gallery: str) -> None:
    """Chromium's own camera, which shows photos that follow nothing."""
    visitor.sign_in(where=f"identify?gallery={gallery}")
    visitor.page.get_by_role("button", name="Challenge").click()
    dialog = visitor.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Begin").click()
    expect(dialog.locator(".problem")).to_contain_text("Step")
    visitor.picture("challenge-failed")
    expect(dialog.get_by_role("button", name="Try again")).to_be_enabled()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()


def test_a_challenge_before_the_galleries_are_there_waits_for_them(visitor: Visitor, gallery: str) -> None:
    page = visitor.page
    visitor.sign_in()
    answer = visitor.hold_back("**/v1/galleries*", lambda: visitor.go(f"identify?gallery={gallery}"))
    page.get_by_role("button", name="Challenge").click()
    expect(page.get_by_role("button", name="Challenge")).to_be_disabled()
    answer.continue_()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Begin")).to_be_enabled()
    page.go_back()
    expect(dialog, "it belongs to the view that was left").to_be_hidden()
    visitor.heading("Overview").wait_for()


def test_a_dialog_ends_with_the_sign_in(visitor: Visitor, gallery: str) -> None:
    with visitor.server.client("/v1") as client:
        key = client.post("/keys", json={"scopes": ["read", "recognize"]}).raise_for_status().json()
        visitor.sign_in(key["secret"])
        visitor.see(f"identify?gallery={gallery}", "Identify")
        visitor.page.get_by_role("button", name="Challenge").click()
        begin = visitor.page.get_by_role("dialog").get_by_role("button", name="Begin")
        expect(begin).to_be_enabled()
        client.delete(f"/keys/{key['id']}").raise_for_status()
    begin.click()
    visitor.heading("Sign in").wait_for()
    expect(visitor.page.get_by_role("dialog")).to_have_count(0)


def test_a_camera_that_starts_when_it_is_no_longer_wanted_is_let_go_of(visitor: Visitor, gallery: str) -> None:
    """Pressed twice it starts once, and not at all for whoever is elsewhere by then."""
    page = visitor.page
    visitor.sign_in()
    page.evaluate(LATE_CAMERA)
    for elsewhere, states in (None, "ended,live"), ("Galleries", "ended,ended"):
        page.evaluate("window.waiting = [], window.streams = []")
        visitor.see(f"identify?gallery={gallery}", "Identify")
        page.get_by_role("button", name="Live").click(click_count=2)
        if elsewhere:
            visitor.see(elsewhere.lower(), elsewhere)
        page.evaluate("window.waiting.forEach((go) => go())")
        page.wait_for_function(STATES, arg=states)
        visitor.see("models", "Models")
        page.wait_for_function(STATES, arg="ended,ended")
