"""A real Chromium, driven as a person would, watched for what it asks and what it complains about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

from tests.conftest import PROJECT
from tests.live import LiveServer

PICTURES = PROJECT / "build" / "page"
"""Where the tests leave screenshots; no part of the repository."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_MS = 20_000
SERIOUS = {"serious", "critical"}
REFUSED = "Failed to load resource: the server responded with a status of"

Theme = Literal["light", "dark"]


@contextmanager
def browser(*options: str) -> Iterator[Browser]:
    """Skips where there is no Chromium. ``options`` are Chromium's own."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox refuses to run as root
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=[*root, *options])
        try:
            yield started
        finally:
            started.close()


@dataclass
class Visitor:
    """A person with a window of their own, and what it did."""

    server: LiveServer
    context: BrowserContext
    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Answers that the browser itself writes to its console, though the page has words for them."""

    def watch(self) -> None:
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self._hear(message.type, message.text))

    def _hear(self, kind: str, text: str) -> None:
        if text.startswith(REFUSED):
            self.refusals.append(text)
        elif kind in {"error", "warning"}:
            self.complaints.append(text)

    def sign_in(self, key: str | None = None, where: str = "") -> None:
        """By a link with the key in its fragment, then to ``where``."""
        self.page.goto(f"{self.server.url}/#key={key or self.server.key}")
        self.page.get_by_role("main").get_by_role("heading").first.wait_for()
        self.page.locator("header.top").wait_for()
        if where:
            self.go(where)

    def go(self, where: str) -> None:
        self.page.evaluate("where => { location.hash = where }", where)

    def heading(self, words: str) -> Locator:
        return self.page.get_by_role("heading", name=words, exact=True, level=1)

    def picture(self, name: str) -> None:
        """A screenshot, to be looked at."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def barriers(self) -> list[str]:
        """What axe-core finds serious in what is shown now."""
        found: dict[str, Any] = Axe().run(self.page).response
        return [
            f"{one['id']}: {node['html'][:160]} ({node['any'][0]['message'] if node['any'] else ''})"
            for one in found["violations"]
            if one["impact"] in SERIOUS
            for node in one["nodes"]
        ]

    def behaved(self) -> None:
        """Nothing was asked of another host, the key was in no address, and the browser had nothing to complain of."""
        elsewhere = [url for url in self.asked if not url.startswith((f"{self.server.url}/", "blob:", "data:"))]
        assert elsewhere == []
        assert [url for url in self.asked if "lk_" in url.split("#")[0]] == []
        assert self.complaints == []


@contextmanager
def visiting(browser: Browser, server: LiveServer, theme: Theme = "light", **options: Any) -> Iterator[Visitor]:
    """A window of ``browser``; how it behaved is checked in the end."""
    context = browser.new_context(color_scheme=theme, viewport=options.pop("viewport", None), **options)
    context.set_default_timeout(WAIT_MS)
    visitor = Visitor(server, context, context.new_page())
    visitor.watch()
    try:
        yield visitor
        visitor.behaved()
    finally:
        context.close()


def samples() -> Path:
    return PROJECT / "docs" / "samples"
