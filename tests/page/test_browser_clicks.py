"""How many clicks and fields the five commonest tasks take, from the overview on, as people do them with a mouse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browsing import SAMPLES, Visitor, make_gallery

pytestmark = pytest.mark.long


@dataclass
class Hand:
    """A mouse and a keyboard that count: each click, and each field that is filled or chosen from."""

    page: Page
    clicks: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks.append(str(target))

    def photo(self, target: Locator, photo: Path) -> None:
        """Click what opens the browser's own dialog, and choose a file in that, which is not counted."""
        with self.page.expect_file_chooser() as chooser:
            self.click(target)
        chooser.value.set_files(photo)

    def fill(self, target: Locator, text: str) -> None:
        """Type into a field, which has the focus already or gets it by a click that belongs to it."""
        target.fill(text)
        self.fields.append(str(target))

    @property
    def counted(self) -> tuple[int, int]:
        return len(self.clicks), len(self.fields)


@pytest.fixture
def hand(visitor: Visitor, api: httpx.Client) -> Iterator[Hand]:
    """A person who has signed in, with one gallery, `crew`, that has Grace Hopper under the name of Eileen Collins."""
    for gallery in api.get("/galleries").json()["galleries"]:
        api.delete(f"/galleries/{gallery['id']}").raise_for_status()
    make_gallery(api, "crew", eileen="hopper")
    visitor.sign_in()
    visitor.heading("Overview").wait_for()
    yield Hand(visitor.page)
    api.delete("/galleries/crew").raise_for_status()


def test_somebody_is_enrolled(hand: Hand, api: httpx.Client) -> None:
    page = hand.page
    hand.click(page.get_by_role("link", name="Enroll into crew"))
    hand.photo(page.get_by_text("Choose photos"), SAMPLES / "collins.jpg")
    hand.click(page.get_by_role("button", name="Enroll 1 photo"))
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    assert api.get("/galleries/crew/subjects/collins").json()["face_count"] == 1, "named by the file"
    assert hand.counted == (3, 0)


def test_somebody_is_identified(hand: Hand) -> None:
    page = hand.page
    hand.click(page.get_by_role("main").get_by_role("link", name="Identify"))
    hand.photo(page.get_by_text("Choose a photo"), SAMPLES / "hopper.jpg")
    expect(page.locator(".tag")).to_contain_text("eileen")
    assert hand.counted == (2, 0)


def test_a_wrong_answer_is_put_right(hand: Hand) -> None:
    page = hand.page
    hand.click(page.get_by_role("main").get_by_role("link", name="Identify"))
    hand.photo(page.get_by_text("Choose a photo"), SAMPLES / "hopper.jpg")
    hand.click(page.get_by_role("button", name="Not this person"))
    hand.click(page.get_by_role("button", name="Delete that enrolled face"))
    expect(page.locator(".tag")).to_have_text("unknown")
    hand.fill(page.get_by_label("Who is it?"), "Grace Hopper")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Enrolled as Grace Hopper.")).to_be_visible()
    assert hand.counted == (4, 1)


def test_a_colleague_gets_a_key(hand: Hand) -> None:
    page = hand.page
    hand.click(page.get_by_role("link", name="Keys"))
    hand.click(page.get_by_role("button", name="New key"))
    dialog = page.get_by_role("dialog")
    hand.fill(dialog.get_by_label("Whose is it?"), "Ann")
    hand.click(dialog.get_by_role("button", name="Create"))
    shown = page.get_by_role("dialog", name="The key of Ann")
    hand.click(shown.get_by_role("button", name="Make a link"))
    assert "#code=" in shown.get_by_label("Link", exact=True).input_value()
    hand.click(shown.get_by_role("button", name="I have it"))
    assert hand.counted == (5, 1)


def test_this_device_stays_signed_in(hand: Hand) -> None:
    page = hand.page
    hand.click(page.get_by_role("button", name="Stay signed in"))
    expect(page.get_by_text("You stay signed in on this device.")).to_be_visible()
    second = page.context.new_page()
    second.goto(page.url.split("#", maxsplit=1)[0])
    second.get_by_role("heading", name="Overview").wait_for()
    second.close()
    assert hand.counted == (1, 0)
