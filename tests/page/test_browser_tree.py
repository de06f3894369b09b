"""What a screen reader is told of each view: the browser's accessibility tree, by rules that hold for all of them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, expect

from tests.page.test_browser_views import VIEWS, lived_in
from tests.support.browsing import DESK, visiting
from tests.support.live import LiveServer

__all__ = ["lived_in"]
pytestmark = pytest.mark.long

CONTROLS = {
    *("button", "link", "textbox", "searchbox", "combobox", "listbox", "option", "checkbox", "radio", "switch"),
    *("slider", "spinbutton", "tab", "menuitem", "DisclosureTriangle", "Date", "DateTime", "InputTime"),
}
MADE_UP = {"Date", "DateTime", "InputTime"}
"""Controls whose parts are the browser's own."""
NAMED = CONTROLS | {"image", "progressbar", "region", "dialog", "navigation", "complementary", "table"}
"""Roles that mean nothing without a name."""
VAGUE = {"here", "click here", "more", "link", "button", "copy", "ok", "yes", "no", "go", "image", "photo"}
"""Names that say nothing to somebody who hears the list of all links or buttons."""


def text(node: dict[str, Any], key: str) -> str:
    return str(node.get(key, {}).get("value", "")).strip()


def tree(session: CDPSession) -> list[dict[str, Any]]:
    """Return the nodes that assistive technology sees, in the document's order."""
    nodes = {one["nodeId"]: one for one in session.send("Accessibility.getFullAXTree")["nodes"]}
    found: list[dict[str, Any]] = []

    def visit(node: dict[str, Any]) -> None:
        if not node["ignored"]:
            found.append(node)
            if text(node, "role") in MADE_UP:
                return
        for child in node.get("childIds", []):
            if child in nodes:
                visit(nodes[child])

    visit(next(one for one in nodes.values() if "parentId" not in one))
    return found


def properties(node: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["value"].get("value") for one in node.get("properties", [])}


def faults(nodes: list[dict[str, Any]]) -> list[str]:
    """Return what breaks a rule: nameless, vague or ambiguous controls, headings out of order."""
    wrong = [
        f"no name: {text(one, 'role')} {properties(one)}"
        for one in nodes
        if text(one, "role") in NAMED and not text(one, "name")
    ]
    controls = [one for one in nodes if text(one, "role") in CONTROLS]
    wrong += [
        f"vague: {text(one, 'role')} “{text(one, 'name')}”" for one in controls if text(one, "name").lower() in VAGUE
    ]
    acting = Counter(
        (text(one, "role"), text(one, "name"))
        for one in controls
        if text(one, "role") not in {"option", "link", "radio"}
    )
    wrong += [f"{number} times {role} “{name}”" for (role, name), number in acting.items() if number > 1]
    targets: dict[str, set[str]] = {}
    for one in controls:
        if text(one, "role") == "link":
            targets.setdefault(text(one, "name"), set()).add(str(properties(one).get("url")))
    wrong += [f"link “{name}” leads to {sorted(urls)}" for name, urls in targets.items() if len(urls) > 1]
    levels = [(int(properties(one)["level"]), text(one, "name")) for one in nodes if text(one, "role") == "heading"]
    if [level for level, _ in levels].count(1) != 1:
        wrong.append(f"not one heading of level 1: {levels}")
    main = levels[[level for level, _ in levels].index(1) :]
    wrong += [
        f"“{after[1]}” skips a level after “{before[1]}”"
        for before, after in pairwise(main)
        if after[0] > before[0] + 1
    ]
    return wrong


def test_every_view_makes_sense_to_a_screen_reader(chromium: Browser, lived_in: LiveServer) -> None:
    wrong: list[str] = []
    with visiting(chromium, lived_in, viewport=DESK) as visitor:
        visitor.page.goto(visitor.link())
        visitor.page.locator("header.top").wait_for()
        session = visitor.context.new_cdp_session(visitor.page)
        session.send("Accessibility.enable")
        for name, (where, heading, prepare) in VIEWS.items():
            visitor.go("#/advice" if name != "advice" else "#/overview")
            visitor.see(where, heading)
            expect(visitor.page.locator("main .waiting", has_text="…")).to_have_count(0)
            prepare(visitor)
            visitor.page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true })")
            wrong += [f"{name}: {one}" for one in faults(tree(session))]
            assert visitor.page.evaluate("document.documentElement.lang") == "en"
            assert heading.lower() in visitor.page.title().lower()
    assert wrong == [], "\n".join(wrong)
