"""A gallery is reviewed and put right on the page, by mouse and by single keys, in a real Chromium."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.support.browsing import Visitor, add_face, reviewed

pytestmark = pytest.mark.long
CLOSE_AND_PRESS_M = """() => {
  document.activeElement.click();
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "m", bubbles: true}));
}"""
"""A key so soon after a dialog has closed that the focus is still in it."""


def fill(api: httpx.Client, gallery: str, store: str = "crop") -> None:
    """Eileen is there twice, and has a face of Grace."""
    api.post("/galleries", json={"id": gallery, "store": store}).raise_for_status()
    photos = {"eileen": ("collins", "hopper"), "eileen <2>": ("collins_again",), "grace": ("hopper",)}
    for subject, names in photos.items():
        for name in names:
            add_face(api, gallery, subject, name)


def findings(api: httpx.Client, gallery: str, **asked: object) -> list[str]:
    found = api.get(f"/galleries/{gallery}/review", params=asked).raise_for_status().json()["findings"]  # type: ignore[arg-type]
    return [one["kind"] for one in found]


def test_findings_are_worked_off_by_single_keys(visitor: Visitor, api: httpx.Client) -> None:
    fill(api, "keys")
    visitor.sign_in(where="#/galleries/keys")
    page = visitor.page
    page.get_by_role("link", name="Review").click()
    visitor.heading("Review").wait_for()
    expect(page.get_by_text("This gallery was never reviewed.")).to_be_visible()
    page.get_by_role("button", name="Review the gallery").click()
    finding = page.get_by_role("region", name="Finding")
    expect(finding.get_by_role("heading")).to_have_text("Looks like somebody else")
    expect(finding.locator("img")).to_have_count(2)
    expect(finding).to_contain_text("grace")
    visitor.look("review")
    page.keyboard.press("v")
    expect(page.get_by_text("Moved.")).to_be_visible()
    assert api.get("/galleries/keys/subjects/grace").json()["face_count"] == 2
    page.get_by_role("button", name="Review the gallery").click()
    expect(finding.get_by_role("heading")).to_have_text("May be one person")
    expect(finding).to_contain_text("eileen <2>")
    page.keyboard.press("m")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").focus()
    page.evaluate(CLOSE_AND_PRESS_M)
    page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    expect(page.get_by_text("Merged.")).to_be_visible()
    expect(page.get_by_text("Nothing is left to look at.")).to_be_visible()
    subjects = api.get("/galleries/keys/subjects").json()["subjects"]
    assert sorted(one["face_count"] for one in subjects) == [2, 2]


def test_what_is_right_leaves_the_list(visitor: Visitor, api: httpx.Client) -> None:
    fill(api, "right", store="none")
    reviewed(api, "right")
    before = findings(api, "right")
    visitor.sign_in(where="#/galleries/right/review")
    page = visitor.page
    finding = page.get_by_role("region", name="Finding")
    expect(finding).to_be_visible()
    expect(finding.locator("img")).to_have_count(0)
    expect(finding).to_contain_text(re.compile(r"quality \d+"))
    page.keyboard.press("n")
    page.keyboard.press("p")
    for left in reversed(range(len(before))):
        finding.get_by_role("button", name="This is right").click()
        expect(page.get_by_text("It is not asked again.")).to_be_visible()
        if left:
            expect(page.get_by_text(re.compile(rf"^\d+ of {left}$"))).to_be_visible()
    expect(page.get_by_text("Nothing is left to look at.")).to_be_visible()
    assert findings(api, "right") == []
    assert findings(api, "right", dismissed=True) == before


def test_who_may_only_read_is_offered_no_change(visitor: Visitor, api: httpx.Client) -> None:
    fill(api, "looking")
    reviewed(api, "looking")
    secret = api.post("/keys", json={"scopes": ["read"]}).json()["secret"]
    visitor.sign_in(secret, "#/galleries/looking/review")
    finding = visitor.page.get_by_role("region", name="Finding")
    expect(finding).to_be_visible()
    assert [one.inner_text().split()[0] for one in finding.get_by_role("button").all()] == ["Previous", "Next"]
    expect(visitor.page.get_by_role("button", name="Review the gallery")).to_have_count(0)
