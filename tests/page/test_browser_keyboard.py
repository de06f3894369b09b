"""Every view by Tab alone: all that can be used is reached, from top to bottom, and shows that it has the focus."""

from __future__ import annotations

from itertools import pairwise
from typing import TypedDict

import pytest
from playwright.sync_api import Browser

from tests.page.test_browser_views import VIEWS, lived_in
from tests.support.browsing import Visitor, visiting
from tests.support.live import LiveServer

__all__ = ["lived_in"]
pytestmark = pytest.mark.long

LIST = """() => {
  const group = (one) => (one.type === "radio" ? `radio ${one.name}` : one);
  const groups = new Set();
  const visible = (one) =>
    one.checkVisibility({ visibilityProperty: true }) && !one.closest("[inert]") && !one.disabled && one.tabIndex >= 0;
  window.reachable = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
    .filter(visible)
    .filter((one) => !groups.has(group(one)) && groups.add(group(one)));
  return window.reachable.map((one) => one.outerHTML.slice(0, 120));
}"""
FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const shown = one.matches("input.hidden") ? one.nextElementSibling : one;
  const style = getComputedStyle(shown), box = shown.getBoundingClientRect();
  const place = window.reachable.findIndex(
    (each) => each === one || (one.type === "radio" && each.type === "radio" && each.name === one.name),
  );
  return {
    place, name: one.outerHTML.slice(0, 120), fixed: Boolean(one.closest("header, nav, dialog")),
    seen: style.outlineStyle !== "none" || style.boxShadow !== "none",
    left: box.left, right: box.right, top: box.top + scrollY, bottom: box.bottom + scrollY,
  };
}"""


STOPS = 9
"""Places within one field at most: a date with its time has a day, a month and so on, and the calendar's button."""


class Focused(TypedDict):
    """What has the focus, and where it is on the page, in pixels."""

    place: int
    name: str
    fixed: bool
    seen: bool
    left: float
    right: float
    top: float
    bottom: float


def walked(visitor: Visitor) -> tuple[list[str], list[Focused]]:
    """Return what can be reached, and what Tab reaches, from the top until the document ends."""
    page = visitor.page
    page.evaluate("() => { document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0); }")
    page.evaluate(
        "() => { document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex') }"
    )
    reachable: list[str] = page.evaluate(LIST)
    steps: list[Focused] = []
    for _ in range(STOPS * len(reachable)):
        page.keyboard.press("Tab")
        focused: Focused | None = page.evaluate(FOCUSED)
        if focused is None or (
            len({each["place"] for each in steps}) > 1 and focused["place"] == steps[0]["place"]
        ):  # the document ends, or begins again
            break
        steps.append(focused)
    return reachable, steps


@pytest.mark.parametrize("width", [390, 1280])
def test_tab_reaches_everything_in_order_and_is_seen(chromium: Browser, lived_in: LiveServer, width: int) -> None:
    wrong: list[str] = []
    with visiting(chromium, lived_in, "light", viewport={"width": width, "height": 900}) as visitor:
        visitor.page.goto(visitor.link())
        visitor.page.locator("header.top").wait_for()
        for name, (where, heading, prepare) in VIEWS.items():
            visitor.go("#/advice" if name != "advice" else "#/overview")
            visitor.see(where, heading)
            prepare(visitor)
            reachable, steps = walked(visitor)
            reached = {step["place"] for step in steps}
            wrong += [f"{name}: never reached: {one}" for place, one in enumerate(reachable) if place not in reached]
            seen = {step["place"] for step in steps if step["seen"]}  # the calendar's button has an outline of its own
            wrong += [f"{name}: not seen: {reachable[place]}" for place in sorted(reached - seen)]
            for before, after in pairwise(steps):
                beside = after["left"] < before["right"] and before["left"] < after["right"]
                if beside and after["bottom"] <= before["top"] + 1 and before["fixed"] == after["fixed"]:
                    wrong.append(f"{name}: up from {before['name']} to {after['name']}")
        assert visitor.complaints == []
    assert wrong == [], "\n".join(wrong)
