"""Measure the web page over a gallery of 100,000 people, in a real, running Chromium: the time of each step until its
result is shown, and what a first view fetches.

The first view begins when a sign-in link is opened in a window with an empty cache, and ends with the frame in which
the overview is drawn, with the number of people. It includes page, styles, scripts, the sign-in and the galleries, but
neither the browser's start nor making the link and clicking on it. All steps begin with the effect of a click, and end
with the frame in which their result is drawn. Browser and server share the machine.

Milliseconds need a quiet machine. Requests, bytes, elements and the server's processor time are about the same on a
busy one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from app.errors import Unusable
from bench import galleries
from bench.figures import Figure, Goal
from bench.run import Run
from bench.server import Server
from training.evaluation.speed import Spread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PART, GALLERY = "page", "bench"
MOST_PEOPLE = 100_000
WANTED_MS, WANTED_KB = 200.0, 150.0
"""The goals for each step, and for the page's files in a first view."""
WAIT_MS = 120_000
STARTED_MS = 3_000
"""Time until a new browser has finished its own work."""
CLICKED_MS = 500
"""Time between making and opening a link: a person is not faster, and the window is open then."""
SIZE = {"width": 1280, "height": 860}
CHROMIUM = "chromium", "chromium-browser", "google-chrome"

FIRST_SHOWN = "the first view is shown"
# This script notes when the first view is drawn; nobody waits for what is fetched later. The bench does not poll the
# page, which would give it more work.
_BEGIN = f"""
performance.setResourceTimingBufferSize(100000);
new MutationObserver((_, watching) => {{
  if (!document.querySelector("main ol.steps")) return;
  watching.disconnect();
  requestAnimationFrame(() => {{
    window.firstShown = performance.now();
    console.log("{FIRST_SHOWN}");
  }});
}}).observe(document, {{ childList: true, subtree: true }});
"""
_FIRST = """() => {
  const fetched = performance.getEntriesByType("resource").filter((one) => one.startTime < window.firstShown);
  const own = fetched.filter((one) => new URL(one.name).pathname.startsWith("/page/"));
  const files = [...performance.getEntriesByType("navigation"), ...own];
  return {
    ms: window.firstShown,
    requests: files.length,
    bytes: files.reduce((sum, one) => sum + one.transferSize, 0),
    elements: document.querySelectorAll("*").length,
  };
}"""
# This script does a step, and returns the time until its result was drawn.
_STEP = """async () => {{
  const before = performance.getEntriesByType("resource").length;
  const begin = performance.now();
  {act}
  while (!({shown})) {{
    if (performance.now() - begin > 60000) throw new Error("it was not shown");
    await new Promise(requestAnimationFrame);
  }}
  return {{ ms: performance.now() - begin, before }};
}}"""
# This script waits until nothing has been fetched for a while, and returns what was fetched.
_FETCHED = """async (before) => {
  for (let seen = -1; ; ) {
    const found = performance.getEntriesByType("resource").slice(before);
    if (found.length === seen)
      return {
        requests: found.length,
        bytes: found.reduce((sum, one) => sum + one.transferSize, 0),
        elements: document.querySelectorAll("*").length,
      };
    seen = found.length;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}"""
_SHOWN = """(() => {
  const all = [...document.querySelectorAll(".cell")];
  const seen = all.map((one) => [one, one.getBoundingClientRect()]);
  const sight = seen.filter(([, { top, bottom }]) => bottom > 0 && top < innerHeight);
  return sight.length > 9 && sight.every(([one]) => one.querySelector(".name"));
})()"""
_HEADING = "document.querySelector('main h1')?.textContent === '{}'"


@dataclass(frozen=True, slots=True)
class Step:
    """An action of a person: its script, and the expression that is true when its result is shown."""

    name: str
    act: str
    shown: str


def steps(people: int) -> list[Step]:
    """Return the steps in order, from the overview on."""
    far, near = f"person-{galleries.KNOWN - 1}", f"stranger-{people - galleries.KNOWN - 1}"
    search = (
        "const field = document.querySelector('main input[type=search]'); field.value = '{}'; "
        "field.dispatchEvent(new Event('input', {{ bubbles: true }}));"
    )
    found = (
        "document.querySelectorAll('.cell').length === 1 && document.querySelector('.cell .name')?.textContent === '{}'"
    )
    jump = "scrollTo(0, document.documentElement.scrollHeight * {});"
    moved = "scrollY > document.documentElement.scrollHeight * {} && {}"
    return [
        Step("the list of galleries", "location.hash = '#/galleries'", "document.querySelector('a.card.gallery h2')"),
        Step("a gallery", f"location.hash = '#/galleries/{GALLERY}'", _SHOWN),
        Step("a search that finds the last one", search.format(near), found.format(near)),
        Step("a search that finds an early one", search.format(far), found.format(far)),
        Step("everybody again", search.format(""), _SHOWN),
        Step("a jump to the middle", jump.format(0.5), moved.format(0.4, _SHOWN)),
        Step("a jump to the end", jump.format(0.98), moved.format(0.9, _SHOWN)),
        Step(
            "a person far down",
            "[...document.querySelectorAll('.cell a')].at(-9).click()",
            "location.hash.includes('/people/') && document.querySelector('main h1')?.textContent.startsWith('str')",
        ),
        Step("the way back, far down", "history.back()", moved.format(0.9, _SHOWN)),
        Step("identify", "location.hash = '#/identify'", _HEADING.format("Identify")),
        Step("compare", "location.hash = '#/compare'", _HEADING.format("Compare")),
        Step("the overview", "location.hash = '#/overview'", "document.querySelector('main ol.steps')"),
    ]


def measure(run: Run) -> None:
    people = min(run.effort.faces, MOST_PEOPLE)
    with run.server() as server:
        run.say(f"{people} people are enrolled")
        _fill(run, server, people)
        taken: dict[str, list[dict[str, float]]] = {}
        with _browser() as browser:
            for number in range(run.effort.rounds):
                run.say(f"round {number + 1}")
                with _tab(browser) as page:
                    _walk(server, page, people, taken)
    for name, rounds in taken.items():
        run.add(_figure(f"{name}, of {people}", rounds))
    _tell_first(run, taken["the first view"])


def _fill(run: Run, server: Server, people: int) -> None:
    photos = run.stages.photos[: galleries.KNOWN]
    with server.client() as client:
        galleries.create(client, GALLERY, store="crop")
        galleries.enroll_photos(client, GALLERY, [photos[place % len(photos)] for place in range(galleries.KNOWN)])
        package = client.get(f"/v1/galleries/{GALLERY}").raise_for_status().json()
        templates = galleries.people(people - galleries.KNOWN, run.stages.dimension)
        galleries.enroll_strangers(client, GALLERY, package["embedder"], templates)


@contextmanager
def _browser() -> Iterator[Browser]:
    """Yield a browser that has shown a page before. Raises Unusable ``bench_failed`` if there is none."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - of the environment for tests
    except ImportError:
        path = None
    if path is None:
        raise Unusable("needs Chromium and Playwright: make test, and Debian's `chromium`", code="bench_failed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            with _tab(browser) as page:
                page.goto("data:text/html,<p>So it has started.</p>")
                page.wait_for_timeout(STARTED_MS)
            yield browser
        finally:
            browser.close()


@contextmanager
def _tab(browser: Browser) -> Iterator[Page]:
    """Yield a tab with an empty cache."""
    context = browser.new_context(viewport=SIZE, reduced_motion="reduce")  # type: ignore[arg-type]  # a TypedDict
    context.set_default_timeout(WAIT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def _walk(server: Server, page: Page, people: int, taken: dict[str, list[dict[str, float]]]) -> None:
    with server.client() as client:
        code = client.post("/v1/sign-in-codes").raise_for_status().json()["code"]
    page.add_init_script(_BEGIN)
    page.wait_for_timeout(CLICKED_MS)
    with page.expect_console_message(lambda message: message.text == FIRST_SHOWN):
        page.goto(f"{server.url}/#code={code}")
    taken.setdefault("the first view", []).append(page.evaluate(_FIRST))
    page.evaluate(_FETCHED, 0)  # the other views' files, which are fetched after the first view is drawn
    for step in steps(people):
        before = server.processor_s()
        done: dict[str, Any] = page.evaluate(_STEP.format(act=step.act + ";", shown=step.shown))
        fetched = page.evaluate(_FETCHED, done["before"])
        spent = 1000 * (server.processor_s() - before)
        taken.setdefault(step.name, []).append({"ms": done["ms"], **fetched, "processor_ms": spent})


def _figure(work: str, rounds: list[dict[str, float]]) -> Figure:
    middle = {name: float(np.median([round_[name] for round_ in rounds])) for name in rounds[0]}
    words = f"{middle['requests']:.0f} requests, {middle['bytes'] / 1000:.0f} kB, {middle['elements']:.0f} elements"
    if "processor_ms" in middle:
        words += f", server {middle['processor_ms']:.0f} ms"
    taken = np.array([round_["ms"] for round_ in rounds])
    goal = Goal(1.0, at_most=True)
    against = f"{WANTED_MS:g} ms"
    return Figure(
        PART, f"{work} ({words})", middle["ms"], "ms", against, Spread.of(taken / WANTED_MS), goal, {"rounds": rounds}
    )


def _tell_first(run: Run, rounds: list[dict[str, float]]) -> None:
    kilobytes = np.array([round_["bytes"] for round_ in rounds]) / 1000
    goal = Goal(1.0, at_most=True)
    against = f"{WANTED_KB:g} kB"
    share = Spread.of(kilobytes / WANTED_KB)
    run.add(Figure(PART, "a first view's files", float(np.median(kilobytes)), "kB", against, share, goal))
