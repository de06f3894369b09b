"""Take the pictures of the page that the README and the site show: `make pictures`.

Uses a real server, a real Chromium (Debian: apt install chromium), and the photos of docs/samples.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from training.service import becomes_ready, environment, reserved_port, spawned

PROJECT = Path(__file__).resolve().parent.parent
SAMPLES = PROJECT / "docs" / "samples"
PICTURES = PROJECT / "docs" / "pictures"
PEOPLE = (("eileen", "Eileen Collins", "collins.jpg"), ("grace", "Grace Hopper", "hopper.jpg"))
VISITS = {"eileen": (("hall", "collins_again.jpg"), ("door", "hopper.jpg"), ("door", "collins.jpg"))}
"""Visits (camera, photo) reported after this subject is enrolled and before the next one is."""
WINDOW: ViewportSize = {"width": 1120, "height": 860}
WEBP_QUALITY = 85
START_S = 120.0
STOP_S = 30.0
WAIT_MS = 60_000
SETTLED_MS = 1_500


def main() -> int:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.stderr.write("Chromium is not installed (Debian: apt install chromium).\n")
        return 4
    PICTURES.mkdir(exist_ok=True)
    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses to run as root
    with _server() as (url, key), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=root)
        for theme in ("light", "dark"):
            _take(browser, url, key, theme)
        browser.close()
    return 0


@contextmanager
def _server() -> Iterator[tuple[str, str]]:
    """Yield the address and the key of a server whose gallery `crew` holds the people of the samples."""
    with tempfile.TemporaryDirectory() as scratch, reserved_port() as port:
        data, log = Path(scratch) / "data", Path(scratch) / "log"
        url = f"http://127.0.0.1:{port}"
        environ = environment(DATA_DIR=data, PORT=port, WATCHING="on", STRANGER_DAYS=3)
        with spawned(environ, log, stop_s=STOP_S) as process:
            if not becomes_ready(process, url, patience_s=START_S):
                raise RuntimeError(f"The server did not start:\n{log.read_text()}")
            key = (data / "admin.key").read_text().strip()
            with httpx.Client(base_url=f"{url}/v1", headers={"x-api-key": key}, timeout=START_S) as client:
                client.post("/galleries", json={"id": "crew"}).raise_for_status()
                for subject, name, photo in PEOPLE:
                    client.post("/galleries/crew/subjects", json={"id": subject, "name": name}).raise_for_status()
                    files = {"images": (SAMPLES / photo).read_bytes()}
                    client.post(f"/galleries/crew/subjects/{subject}/faces", files=files).raise_for_status()
                    for camera, seen in VISITS.get(subject, ()):
                        path = f"/galleries/crew/sightings/{uuid.uuid4().hex}"
                        twice = [("images", (SAMPLES / seen).read_bytes())] * 2
                        client.put(path, files=twice, data={"camera": camera}).raise_for_status()
            yield url, key


def _take(browser: Browser, url: str, key: str, theme: str) -> None:
    context = browser.new_context(color_scheme=theme, viewport=WINDOW, reduced_motion="reduce")  # type: ignore[arg-type]  # one of its words
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    made = httpx.post(f"{url}/v1/sign-in-codes", headers={"x-api-key": key}, timeout=START_S).raise_for_status().json()
    page.goto(f"{url}/#code={made['code']}")
    page.get_by_role("heading", name="Today", level=1).wait_for()
    page.get_by_role("button", name="Eileen Collins").first.wait_for()
    page.locator("main .portrait img").nth(len(VISITS["eileen"])).wait_for()
    _shoot(page, f"today-{theme}")
    page.evaluate("location.hash = '#/compare'")
    page.get_by_role("heading", name="Compare", level=1).wait_for()
    for place, photo in (("First photo", "collins.jpg"), ("Second photo", "collins_again.jpg")):
        page.get_by_role("region", name=place).locator("input[type=file]").set_input_files(str(SAMPLES / photo))
    page.get_by_role("region", name="Answer").get_by_role("heading").wait_for()
    _shoot(page, f"compare-{theme}")
    page.evaluate("location.hash = '#/identify'")
    page.get_by_role("heading", name="Identify", level=1).wait_for()
    page.get_by_role("region", name="Photo").locator("input[type=file]").set_input_files(str(SAMPLES / "both.jpg"))
    page.get_by_text("Grace Hopper").first.wait_for()
    _shoot(page, f"identify-{theme}")
    context.close()


def _shoot(page: Page, name: str) -> None:
    page.wait_for_timeout(SETTLED_MS)  # the view Today listens for events, so the network never becomes idle
    page.evaluate("document.activeElement?.blur()")
    path = PICTURES / f"{name}.webp"
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").save(path, quality=WEBP_QUALITY, method=6)
    sys.stdout.write(f"{path.relative_to(PROJECT)}\n")


if __name__ == "__main__":
    sys.exit(main())
