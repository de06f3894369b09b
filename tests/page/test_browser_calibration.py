"""A gallery's calibration on the page, in a real Chromium against a real server process."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.browsing import Visitor
from tests.support.calibrating import PEOPLE, add_random_people
from tests.support.live import LiveServer

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def api(live_server: LiveServer) -> Iterator[httpx.Client]:
    with live_server.client() as client:
        yield client


@pytest.fixture
def crew(api: httpx.Client) -> str:
    """A gallery of enough people, one of them twice."""
    name = f"crew-{uuid.uuid4().hex[:6]}"
    api.post("/v1/galleries", json={"id": name, "store": "none"}).raise_for_status()
    add_random_people(api, name)
    api.patch(f"/v1/galleries/{name}/subjects/twice", json={"name": "Ada Lovelace"}).raise_for_status()
    return name


def decides(page: Page) -> str:
    return page.get_by_role("region", name="What decides").inner_text()


def test_a_gallery_is_measured_shown_and_switched(visitor: Visitor, api: httpx.Client, crew: str) -> None:
    visitor.sign_in(where=f"#/galleries/{crew}/settings")
    page = visitor.page
    page.get_by_role("link", name="Calibration").click()
    visitor.heading("Calibration").wait_for()
    expect(page.get_by_text("Not measured yet.")).to_be_visible()
    page.get_by_role("button", name="Measure", exact=True).click()
    rows = page.get_by_role("region", name="Operating points of this gallery").locator("tbody tr")
    expect(rows).to_have_count(9)
    point = next(one for one in api.get(f"/v1/galleries/{crew}/calibration").json()["points"] if one["fmr"] == 1e-3)
    for name in ("threshold", "package", "decides"):
        expect(rows.nth(2)).to_contain_text(f"{point[name]:.3f}")
    expect(rows.last).to_contain_text("–")
    expect(page.get_by_text(re.compile(f"people of {PEOPLE + 1}"))).to_be_visible()
    assert "the model's thresholds (train112)" in decides(page)
    page.get_by_label("Thresholds that decide").select_option("gallery")
    expect(page.get_by_text("Now: the gallery's own thresholds")).to_be_visible()
    assert api.get(f"/v1/galleries/{crew}").json()["calibration"] == "gallery"
    page.get_by_label(re.compile("Allow thresholds far laxer")).check()
    expect(page.get_by_text("The floor is changed.")).to_be_visible()
    assert api.get(f"/v1/galleries/{crew}").json()["allow_laxer"] is True
    twice = page.get_by_role("region", name="Perhaps one person twice")
    expect(twice.get_by_role("listitem")).to_have_count(1)
    twice.get_by_role("link", name="Ada Lovelace").click()
    visitor.heading("Ada Lovelace").wait_for()
