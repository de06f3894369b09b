"""Looking after a server by its page, in a real Chromium against a real server process."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, HttpCredentials, expect

from app.access.grants import Scope
from tests.conftest import PROJECT
from tests.support.browsing import DESK, PICTURES, WAIT_MS, Visitor, make_gallery, visiting
from tests.support.live import LiveServer, serving

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def api(live_server: LiveServer) -> Iterator[httpx.Client]:
    """With a gallery of one face."""
    with live_server.client("/v1") as client:
        make_gallery(client, "crew", eileen="collins")
        yield client


def test_a_key_is_made_shown_once_used_and_revoked(visitor: Visitor, api: httpx.Client) -> None:
    visitor.sign_in(where="#/keys")
    page = visitor.page
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Something else, for a program").check()
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Tick at least one thing")
    dialog.get_by_label("Compare photos").check()
    dialog.get_by_label("crew").check()
    dialog.get_by_text("Id, rate and expiry").click()
    dialog.get_by_label("Id", exact=True).fill("door")
    dialog.get_by_label("Rate").fill("often")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("A rate is like 10/s")
    dialog.get_by_label("Rate").fill("10/s")
    dialog.get_by_label("Expires").fill("9999-12-31T00:00")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("give a year from 1970 to 9998")
    dialog.get_by_label("Expires").fill("")
    visitor.picture("new-key")
    dialog.get_by_role("button", name="Create").click()
    shown = page.get_by_role("dialog", name="The key door").get_by_label("Key", exact=True)
    secret = shown.input_value()
    assert secret.startswith("lk_door_")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")  # a browser may let a page refuse it once only
    visitor.go("galleries")
    visitor.heading("Galleries").wait_for()
    expect(shown).to_have_value(secret)
    assert visitor.shows(secret)
    visitor.go("keys")
    page.get_by_role("button", name="I have it").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert not visitor.shows(secret)
    own = api.get("/key", headers={"x-api-key": secret}).raise_for_status().json()
    assert own == {"id": "door", "scopes": ["recognize"], "galleries": ["crew"]}
    card = page.get_by_role("listitem").filter(has_text="door")
    expect(card).to_contain_text("10/s")
    page.get_by_role("button", name="New secret for door").click()
    page.get_by_role("dialog").get_by_role("button", name="Make a new secret").click()
    newer = page.get_by_role("dialog", name="The key door").get_by_label("Key", exact=True).input_value()
    page.get_by_role("button", name="I have it").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert newer != secret
    assert not visitor.shows(newer)
    page.get_by_role("button", name="Revoke door").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke the key").click()
    expect(card).to_contain_text("revoked")
    assert api.get("/key", headers={"x-api-key": newer}).status_code == 401
    visitor.picture("keys")


def test_the_audit_log_is_filtered_and_paged(visitor: Visitor, api: httpx.Client) -> None:
    for _ in range(120):
        api.get("/galleries/crew")
    looked_at: dict[str, str | int] = {"operation": "show_gallery", "limit": 1000}
    end = time.monotonic() + WAIT_MS / 1000
    while (
        number := len(api.get("/audit", params=looked_at).json()["entries"])
    ) < 120:  # what only reads is noted later
        assert time.monotonic() < end
        time.sleep(0.05)
    visitor.sign_in(where="#/audit")
    page = visitor.page
    rows = page.locator("table.audit tbody tr")
    expect(rows.filter(has_text="enroll").first).to_contain_text("done")
    expect(rows.filter(has_text=re.compile("show_gallery|read_audit"))).to_have_count(0)
    page.get_by_label("Also what only reads").check()
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(100)
    expect(rows.filter(has_text="read_audit").first).to_be_attached()
    page.get_by_label("Operation").fill("show_gallery")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_text(f"{number} entries shown")).to_be_visible()
    assert set(rows.locator("td:nth-child(3)").all_inner_texts()) == {"show_gallery"}
    page.get_by_role("button", name="Show").click()
    page.route("**/audit?*cursor=*", lambda _: None)  # which is not answered before the next question
    with page.expect_request("**/audit?*cursor=*"):
        page.get_by_role("button", name="Older").click()
    page.get_by_label("Operation").fill("enroll")
    page.get_by_label("Person").fill("eileen")
    with page.expect_event("requestfailed", lambda request: "cursor=" in request.url):
        page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name="eileen").click()
    visitor.heading("eileen").wait_for()


@pytest.mark.parametrize("width", [390, 768])
def test_the_audit_log_is_readable_on_narrow_screens(
    chromium: Browser, live_server: LiveServer, api: httpx.Client, width: int
) -> None:
    """Each entry is a few lines with all that it says, and its time has seconds."""
    api.post("/galleries", json={"id": f"the-{width}-employees-of-the-northern-branch"}).raise_for_status()
    where = f"/galleries/the-{width}-employees-of-the-northern-branch/subjects"
    api.post(where, json={"id": "0f8fad5b-d9cb-469f-a165-708677289501"}).raise_for_status()
    with visiting(chromium, live_server, viewport={"width": width, "height": 844}) as visitor:
        visitor.sign_in()
        visitor.see("#/audit", "Audit log")
        visitor.picture(f"audit-{width}")
        row = visitor.page.locator("table.audit tbody tr").filter(has_text="0f8fad5b").first
        assert (size := row.bounding_box())
        assert size["height"] < 844 / 6
        for cell in row.locator("td:not(:empty)").all():
            assert (box := cell.bounding_box())
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width, cell.inner_text()
        assert re.search(r"\d:\d\d:\d\d", row.locator("time").inner_text())
        assert visitor.barriers() == []


def test_a_key_may_get_every_scope_that_the_server_knows(visitor: Visitor, api: httpx.Client) -> None:
    visitor.sign_in(where="#/keys")
    visitor.page.get_by_role("button", name="New key").click()
    dialog = visitor.page.get_by_role("dialog")
    dialog.get_by_label("Something else, for a program").check()
    dialog.get_by_text("Id, rate and expiry").click()
    boxes = dialog.get_by_role("group", name="It may").get_by_role("checkbox")
    expect(boxes).to_have_count(len(Scope))
    for box in boxes.all():
        box.check()
    dialog.get_by_label("Id", exact=True).fill("all")
    dialog.get_by_role("button", name="Create").click()
    visitor.page.get_by_role("button", name="I have it").click()
    assert set(api.get("/keys/all").json()["scopes"]) == set(Scope)


def test_a_person_gets_a_key_and_is_signed_in_by_a_link(
    chromium: Browser, visitor: Visitor, live_server: LiveServer, api: httpx.Client
) -> None:
    visitor.sign_in(where="#/keys")
    page = visitor.page
    page.get_by_role("button", name="New key").click()
    page.get_by_role("dialog").get_by_label("Whose is it?").fill("Ann")
    page.get_by_role("dialog").get_by_label("That, and enroll people").check()
    visitor.look("key-for-ann")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    shown = page.get_by_role("dialog", name="The key of Ann")
    shown.get_by_role("button", name="Make a link").click()
    link = shown.get_by_label("Link", exact=True).input_value()
    visitor.look("link-for-ann")
    shown.get_by_role("button", name="I have it").click()
    with visiting(chromium, live_server) as other:
        other.page.goto(link)
        other.heading("Overview").wait_for()
        expect(other.page.get_by_role("region", name="Server")).to_contain_text("enroll, read, recognize")
        other.page.get_by_role("button", name="Sign out").click()
        other.page.goto("about:blank")
        other.page.goto(link)
        expect(other.page.get_by_role("alert")).to_contain_text("used already")
    (made,) = [key for key in api.get("/keys").json()["keys"] if key["name"] == "Ann"]
    assert made["scopes"] == ["enroll", "read", "recognize"]


def test_galleries_are_checked(visitor: Visitor, api: httpx.Client) -> None:
    assert api.get("/galleries/crew").is_success
    visitor.sign_in()
    answer = visitor.hold_back("**/galleries?*", lambda: visitor.go("#/check"))
    visitor.heading("Gallery check").wait_for()
    every = visitor.page.get_by_role("button", name="Check all")
    expect(every, "before it is known what there is").to_have_count(0)
    answer.continue_()
    every.click()
    crew = visitor.page.get_by_role("listitem").filter(has_text="crew")
    expect(crew).to_contain_text("in order")
    expect(crew).to_contain_text("1 face of 1 person")


def test_model_cards_show_what_was_measured(visitor: Visitor, api: httpx.Client) -> None:
    key = api.post("/keys", json={"scopes": ["enroll"]}).json()["secret"]
    visitor.sign_in(key, where="#/models")
    card = visitor.page.get_by_role("region", name=re.compile("SFace, 128"))
    expect(card.get_by_role("img", name=re.compile("DET curve"))).to_be_visible()
    deciding = next(
        one
        for model in api.get("/models").json()["models"]
        if model["name"] == "sface"
        for one in model["calibrations"]
        if one["default"]
    )
    expect(card.get_by_text("FNMR: the same person refused")).to_be_visible()
    card.get_by_text(f"{deciding['name']}, which decides").click()
    rows = card.get_by_role("region", name=f"Operating points of {deciding['name']}").locator("tbody tr")
    assert rows.count() == len(deciding["points"])
    assert f"{deciding['points'][0]['threshold']:.3f}" in rows.first.inner_text()
    groups = card.get_by_role("region", name="Groups", exact=True)
    expect(groups.get_by_role("row", name=re.compile("^Children 0–3"))).to_contain_text("above the stated rate")
    expect(card).to_contain_text(f"Scores of {deciding['name']}")
    expect(card).to_contain_text("different people")
    marks = card.locator("path.marks").first.get_attribute("d") or ""
    assert marks.count("M") == len(deciding["points"])


def test_a_folder_with_a_bad_manifest_is_shown(chromium: Browser, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models", models)
    (models / "arcface").mkdir()
    (models / "arcface" / "manifest.json").write_text("{")
    with (
        serving(tmp_path / "data", {"MODELS_DIR": models}) as server,
        visiting(chromium, server, viewport=DESK) as visitor,
    ):
        visitor.sign_in(where="#/models")
        skipped = visitor.page.get_by_role("alert", name="Skipped: arcface")
        expect(skipped).to_contain_text("arcface/manifest.json is no valid manifest")
        expect(visitor.page.get_by_role("region", name=re.compile("SFace, 128"))).to_be_visible()


def test_signing_in_to_the_api_page_authorizes_try_it_out(chromium: Browser, live_server: LiveServer) -> None:
    credentials: HttpCredentials = {"username": "me", "password": live_server.key}
    with chromium.new_context(http_credentials=credentials, viewport=DESK) as context:
        page = context.new_page()
        page.goto(f"{live_server.url}/docs")
        for group in ("recognition", "CompreFace", "Amazon Rekognition"):
            expect(page.get_by_role("link", name=group, exact=True)).to_be_visible(timeout=WAIT_MS)
        operation = page.locator(".opblock", has_text="/v1/key").filter(has_text="Show what this key may do")
        operation.locator(".opblock-summary-control").click()
        operation.get_by_role("button", name="Try it out").click()
        operation.get_by_role("button", name="Execute").click()
        expect(operation.locator(".live-responses-table .response-col_status").last).to_contain_text(
            "200", timeout=WAIT_MS
        )
        expect(operation.locator(".live-responses-table")).to_contain_text("admin.key")
        assert page.locator("body").get_attribute("data-key") is None
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / "api-page.png")


def test_a_view_that_is_left_while_it_reads_reads_no_more(visitor: Visitor) -> None:
    view, read = "jobs", "**/v1/jobs?*"
    page = visitor.page
    visitor.sign_in()
    page.clock.install()
    answer = visitor.hold_back(read, lambda: visitor.go(view))
    visitor.see("galleries", "Galleries")
    with page.expect_response(read):
        answer.continue_()
    visitor.see("models", "Models")
    asked = len(visitor.asked)
    page.clock.fast_forward("01:00")
    visitor.see("galleries", "Galleries")
    assert not [url for url in visitor.asked[asked:] if url.partition("?")[0].endswith(view)]
