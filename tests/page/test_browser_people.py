"""Galleries, people and identification as people do them, in a real Chromium against a real server process."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tarfile
from itertools import combinations, pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image
from playwright.sync_api import Browser, ViewportSize, expect

from app.db.engine import MARK_BITS
from app.db.schema import GALLERIES, SUBJECTS
from app.gallery.text import fold
from tests.support.browsing import DESK, PHONE, SAMPLES, Visitor, make_gallery, visiting
from tests.support.live import LiveServer
from tests.support.tarred import tar_of

pytestmark = pytest.mark.long

MANY = 100_000


def test_a_link_to_an_id_that_urls_lose_shows_nobody(visitor: Visitor, api: httpx.Client) -> None:
    """The person's path would be the gallery's, and *Delete* would delete the gallery."""
    api.post("/galleries", json={"id": "lost"}).raise_for_status()
    visitor.sign_in(where="#/galleries/lost/people/..")
    main = visitor.page.get_by_role("main")
    expect(main.get_by_text("neither . nor ..")).to_be_visible()
    expect(main.get_by_role("button", name="Delete")).to_have_count(0)


def test_a_gallery_is_made_filled_from_a_folder_and_deleted(visitor: Visitor, tmp_path: Path) -> None:
    folder = tmp_path / "people"
    for subject, photos in {"eileen": ("collins", "collins_again"), "grace": ("hopper",), "both": ("both",)}.items():
        (folder / subject).mkdir(parents=True)
        for photo in photos:
            shutil.copy(SAMPLES / f"{photo}.jpg", folder / subject)
    Image.fromarray(np.full((200, 200, 3), 128, np.uint8)).save(folder / "grace" / "grey.png")
    (folder / "grace" / "broken.jpg").write_bytes((SAMPLES / "hopper.jpg").read_bytes()[:5000])
    (folder / "notes.txt").write_text("no photo")
    visitor.sign_in(where="#/galleries")
    page = visitor.page
    page.get_by_role("button", name="New gallery").click()
    page.get_by_role("dialog").get_by_label("Id").fill("folder é/1")
    page.keyboard.press("Enter")
    visitor.heading("folder é/1").wait_for()
    expect(page.get_by_text("Nobody is enrolled yet")).to_be_visible()
    page.get_by_role("link", name="Enroll photos").click()
    page.get_by_text("Choose a folder").wait_for()
    page.locator("input[webkitdirectory]").set_input_files(folder)
    expect(page.get_by_text("6 photos of 3 people. 1 other file left out.")).to_be_visible()
    assert page.get_by_label("Each folder is one person").is_checked()
    page.get_by_role("button", name="Enroll 6 photos").click()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    refused = page.get_by_role("list", name="Refused photos").get_by_role("listitem")
    said = {item.get_by_role("heading").inner_text(): item.inner_text() for item in refused.all()}
    assert {name.split("/")[-1] for name in said} >= {"grey.png", "broken.jpg"}
    assert "No face was found" in next(text for name, text in said.items() if name.endswith("grey.png"))
    assert "damaged or was cut short" in next(text for name, text in said.items() if name.endswith("broken.jpg"))
    assert refused.first.locator("img").evaluate("image => image.src").startswith("blob:")
    visitor.picture("enrolled")
    page.get_by_role("link", name="See folder é/1").click()
    people = page.get_by_role("list", name="People").get_by_role("link")
    expect(people.filter(has_text="eileen")).to_contain_text("2 faces")
    expect(people.filter(has_text="eileen").locator("img")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    sure = page.get_by_role("dialog").get_by_role("button", name="Delete the gallery")
    expect(sure).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("folder é/1")
    sure.click()
    expect(page.get_by_text("folder é/1 is deleted.")).to_be_visible()  # for a few seconds
    visitor.heading("Galleries").wait_for()


def test_a_person_is_named_described_and_deleted(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "crew", eileen="collins", grace="hopper")
    metadata = {"flights": 4, "crew": ["Noguchi", "Kelly"], "retired": True, "old": "x"}
    api.patch("/galleries/crew/subjects/eileen", json={"metadata": metadata}).raise_for_status()
    visitor.sign_in(where="#/galleries/crew/people/eileen")
    page = visitor.page
    visitor.heading("eileen").wait_for()
    page.get_by_label("Name", exact=True).fill("Eileen Collins <b>")
    page.get_by_role("button", name="Add a field").click()
    page.get_by_label("Value", exact=True).fill("STS-114")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").filter(has_text="its field has no name")).to_be_visible()
    page.get_by_label("Field", exact=True).fill("flight")
    page.get_by_label("Value of flights").fill("5")
    page.get_by_label("Value of crew").fill("{no json")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").filter(has_text="brackets")).to_be_visible()
    page.get_by_label("Value of crew").fill('["Kelly"]')
    page.get_by_role("button", name="Remove old").click()
    page.get_by_role("button", name="Save").click()
    visitor.heading("Eileen Collins <b>").wait_for()
    kept = api.get("/galleries/crew/subjects/eileen").json()
    assert kept["name"] == "Eileen Collins <b>"
    assert kept["metadata"] == {"flights": 5, "crew": ["Kelly"], "retired": True, "flight": "STS-114"}
    page.locator("main input[type=file]").set_input_files(str(SAMPLES / "collins_again.jpg"))
    page.get_by_role("button", name="Enroll 1 photo").click()
    faces = page.locator(".faces li")
    expect(faces).to_have_count(2)
    expect(faces.first).to_contain_text(re.compile(r"Quality \d+"))
    expect(faces.first.locator("img")).to_be_visible()
    visitor.picture("person")
    faces.first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Delete selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the face").click()
    expect(faces).to_have_count(1)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the person").click()
    visitor.heading("crew").wait_for()
    assert api.get("/galleries/crew/subjects/eileen").status_code == 404


def test_a_person_is_erased_and_the_receipt_kept(visitor: Visitor, api: httpx.Client, tmp_path: Path) -> None:
    make_gallery(api, "left", eileen="collins", grace="hopper")
    visitor.sign_in(where="#/galleries/left/people/eileen")
    page = visitor.page
    page.get_by_role("button", name="Erase, with a receipt").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("eileen")
    page.get_by_role("button", name="Erase the person").click()
    receipt = page.get_by_role("dialog", name="Erased")
    expect(receipt).to_contain_text("1 face, 1 template, 1 crop")
    with page.expect_download() as saving:
        receipt.get_by_role("button", name="Save the receipt").click()
    saving.value.save_as(tmp_path / "receipt.json")
    document = json.loads((tmp_path / "receipt.json").read_text())
    kept = api.get("/receipts").json()["receipts"]
    assert document in kept
    receipt.get_by_role("button", name="Done").click()
    visitor.heading("left").wait_for()
    expect(page.get_by_role("list", name="People").get_by_role("link")).to_have_text(re.compile("grace"))


def test_who_may_only_read_is_offered_nothing_else(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "seen", eileen="collins")
    make_gallery(api, "unseen")
    key = api.post("/keys", json={"scopes": ["read"], "galleries": ["seen"]}).json()["secret"]
    visitor.sign_in(key, where="#/galleries")
    page = visitor.page
    expect(page.locator(".cards li")).to_have_count(1)
    page.get_by_role("link", name="seen").click()
    page.get_by_role("link", name="eileen").click()
    visitor.heading("eileen").wait_for()
    expect(page.locator(".faces li img")).to_be_visible()
    assert set(page.locator("main button").evaluate_all("all => all.map((one) => one.className)")) == {"enlarge"}
    assert page.locator("main input").count() == 0
    visitor.go("#/galleries/unseen")
    expect(page.get_by_role("alert")).to_contain_text("This gallery doesn't exist, or your key has no access to it")


def test_a_tar_is_imported_and_a_gallery_exported_by_jobs(visitor: Visitor, api: httpx.Client, tmp_path: Path) -> None:
    make_gallery(api, "moved")
    photos = {f"{who}/1.jpg": (SAMPLES / f"{who}.jpg").read_bytes() for who in ("collins", "hopper")}
    tar = tmp_path / "people.tar"
    tar.write_bytes(tar_of(photos | {"nobody/1.jpg": b"no photo"}))
    visitor.sign_in(where="#/galleries/moved/enroll")
    page = visitor.page
    page.get_by_text("Import a tar instead").click()
    page.get_by_label("File").set_input_files(tar)
    page.get_by_role("button", name="Import").click()
    visitor.heading("Jobs").wait_for()
    job = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=re.compile("import.*moved")))
    expect(job.get_by_text("done", exact=True)).to_be_visible()
    expect(job).to_contain_text("3 of 3")
    job.get_by_role("button", name="What was refused").click()
    expect(page.get_by_role("dialog")).to_contain_text("This file is not a photo that can be read")
    visitor.picture("job-report")
    page.get_by_role("button", name="Close").click()
    visitor.go("#/galleries/moved")
    expect(page.get_by_role("list", name="People").get_by_role("link")).to_have_count(2)
    page.get_by_role("button", name="Export").click()
    visitor.heading("Jobs").wait_for()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save its file").click()
    saving.value.save_as(tmp_path / "moved.tar")
    assert tarfile.is_tarfile(tmp_path / "moved.tar")


@pytest.fixture(scope="module")
def crowd(live_server: LiveServer, api: httpx.Client) -> str:
    """A gallery of MANY people without faces, written straight into the database."""
    api.post("/galleries", json={"id": "crowd", "store": "none"}).raise_for_status()
    engine = sa.create_engine(f"sqlite:///{live_server.data_dir / 'likeness.db'}", connect_args={"timeout": 30})
    at = "2026-01-31T12:00:00.000000Z"
    with engine.begin() as connection:
        # marked as a server's own commits are: another page may have asked for the gallery since it was made
        connection.exec_driver_sql(f"PRAGMA user_version = {secrets.randbits(MARK_BITS)}")
        home = connection.execute(sa.select(GALLERIES.c.key).where(GALLERIES.c.id == "crowd")).scalar_one()
        rows = [
            {
                "gallery_key": home,
                "id": (number := f"p{index:06}"),
                "name": (name := f"Person {index}"),
                "folded": fold(number, name),
                "metadata": "{}",
                "created_at": at,
                "updated_at": at,
            }
            for index in range(MANY)
        ]
        connection.execute(sa.insert(SUBJECTS), rows)
    engine.dispose()
    return "crowd"


def test_a_hundred_thousand_people_are_paged_and_searched(visitor: Visitor, crowd: str) -> None:
    visitor.sign_in(where=f"#/galleries/{crowd}")
    page = visitor.page
    people = page.get_by_role("list", name="People").get_by_role("link")
    expect(people.first).to_contain_text("Person 0")
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable")

    def layouts() -> float:
        metrics = browser.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "LayoutCount"))

    before, laid_out = len(visitor.asked), layouts()
    page.evaluate("() => scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.get_by_role("link", name=f"Person {MANY - 1} ")).to_be_visible()
    assert len([url for url in visitor.asked[before:] if "/subjects?" in url]) <= 2, "what is passed by is not read"
    assert layouts() - laid_out < 100, "not once for each cell"
    assert people.count() < 150, "only what is in sight exists"
    assert page.get_by_role("listitem").last.get_attribute("aria-setsize") == str(MANY)
    page.evaluate("() => scrollTo(0, 0)")
    page.get_by_role("searchbox").fill("person 4321")
    expect(page.get_by_text("11 found")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    expect(page.get_by_role("link", name="Person 0 ")).to_be_visible()
    page.get_by_role("searchbox").fill("person 4321")
    expect(page.get_by_text("11 found")).to_be_visible()
    first = page.get_by_role("list", name="People found for person 4321").get_by_role("link").first
    first.focus()
    page.keyboard.press("ArrowRight")
    expect(first).not_to_be_focused()
    assert "4321" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name=re.compile("Person 4321")).wait_for()


def test_the_way_back_from_a_person_leads_to_the_same_people(visitor: Visitor, crowd: str) -> None:
    visitor.sign_in(where=f"#/galleries/{crowd}")
    page = visitor.page
    page.get_by_role("searchbox").fill("person 1")
    page.get_by_text("100 or more found").wait_for()
    page.evaluate("() => scrollTo(0, 2500)")
    page.wait_for_function("() => scrollY === 2500")
    seen = page.get_by_role("list", name="People found for person 1").get_by_role("link")
    middle = seen.nth(seen.count() // 2)
    name = middle.locator(".name").inner_text()

    def back_where_it_was() -> None:
        expect(page.get_by_role("searchbox")).to_have_value("person 1")
        page.wait_for_function("() => Math.abs(scrollY - 2500) < 2")
        expect(page.get_by_role("link", name=f"{name} ")).to_be_in_viewport()

    middle.click()
    visitor.heading(name).wait_for()
    page.get_by_role("link", name=crowd, exact=True).click()  # the view's own way back
    back_where_it_was()
    page.get_by_role("link", name=f"{name} ").click()
    visitor.heading(name).wait_for()
    page.get_by_text("Change the id").click()
    page.get_by_label("Id", exact=True).fill("one/of many")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/people/one%2Fof%20many")
    visitor.heading(name).wait_for()
    page.get_by_role("link", name=crowd, exact=True).click()  # by another way than the one here
    back_where_it_was()
    page.get_by_role("link", name=f"{name} ").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete the person").click()
    visitor.heading(crowd).wait_for()
    expect(page.get_by_role("searchbox")).to_have_value("person 1")
    page.wait_for_function("() => Math.abs(scrollY - 2500) < 2")
    expect(page.get_by_role("link", name=f"{name} ")).to_have_count(0)


def test_the_way_back_shows_nobody_who_was_changed_here_before_the_server_has(
    visitor: Visitor, api: httpx.Client
) -> None:
    """Everybody else is there at once; who was deleted is not, nor anybody of a gallery that is gone."""
    listed = re.compile(r"/galleries/waiting/subjects\?")
    make_gallery(api, "waiting")
    for subject in ("lovelace", "bell", "curie"):
        api.post("/galleries/waiting/subjects", json={"id": subject}).raise_for_status()
    visitor.sign_in(where="#/galleries/waiting")
    page = visitor.page
    people = page.get_by_role("list", name="People").get_by_role("link")
    expect(people).to_have_count(3)
    people.filter(has_text="bell").click()
    visitor.heading("bell").wait_for()
    page.get_by_role("button", name="Delete", exact=True).click()
    answer = visitor.hold_back(listed, page.get_by_role("button", name="Delete the person").click)
    expect(people.filter(has_text="lovelace")).to_be_visible()
    assert not people.filter(has_text="bell").count()
    answer.continue_()
    expect(people).to_have_count(2)
    visitor.see("#/galleries", "Galleries")
    api.delete("/galleries/waiting").raise_for_status()
    make_gallery(api, "waiting")
    api.post("/galleries/waiting/subjects", json={"id": "noether"}).raise_for_status()
    answer = visitor.hold_back(listed, lambda: visitor.go("#/galleries/waiting"))
    page.get_by_text("1 person, 0 faces").wait_for()
    assert not visitor.shows("lovelace")
    answer.continue_()
    people.filter(has_text="noether").wait_for()


@pytest.mark.parametrize("link", [True, False], ids=["by a link", "signed out before"])
def test_the_way_back_shows_nobody_whom_another_key_has_seen(visitor: Visitor, api: httpx.Client, link: bool) -> None:
    gallery = f"theirs-{link}"
    make_gallery(api, gallery)
    api.post(f"/galleries/{gallery}/subjects", json={"id": "secret-guest"}).raise_for_status()
    key = api.post("/keys", json={"scopes": ["read"], "galleries": ["others"]}).raise_for_status().json()
    visitor.sign_in(where=f"#/galleries/{gallery}")
    page = visitor.page
    page.get_by_role("link", name="secret-guest").wait_for()
    visitor.see("#/galleries", "Galleries")
    if link:
        page.evaluate("link => { location.href = link }", visitor.link(key["secret"]))
        page.get_by_role("dialog").get_by_role("button", name="Sign in as").click()
    else:
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Key", exact=True).fill(key["secret"])
        page.keyboard.press("Enter")
    expect(page.locator(".foot")).to_contain_text(f"Signed in as {key['id']}")
    visitor.go(f"#/galleries/{gallery}")
    expect(page.get_by_role("alert").filter(has_text="This gallery doesn't exist")).to_be_visible()
    assert not visitor.shows("secret-guest")


def test_photos_are_there_again_until_they_are_removed_or_somebody_signs_out(
    visitor: Visitor, api: httpx.Client
) -> None:
    make_gallery(api, "aside")
    make_gallery(api, "kept", eileen="collins")
    visitor.sign_in(where="#/galleries/kept")
    visitor.heading("kept").wait_for()
    visitor.see("#/identify", "Identify")
    page = visitor.page
    expect(page.get_by_label("Gallery"), "the last one looked at").to_have_value("kept")
    page.get_by_label("Strictness").select_option("1 in 1,000")
    page.locator("main input[type=file]").set_input_files(SAMPLES / "collins_again.jpg")
    page.get_by_role("link", name="eileen").click()
    visitor.heading("eileen").wait_for()
    page.go_back()
    expect(page.locator(".tag")).to_contain_text("eileen")
    expect(page.get_by_label("Strictness")).to_have_value("0.001")
    visitor.see("#/compare", "Compare")
    for label in ("First photo", "Second photo"):
        page.get_by_role("region", name=label).locator("input[type=file]").set_input_files(SAMPLES / "collins.jpg")
    page.get_by_role("heading", name="The same person").wait_for()
    visitor.see("#/identify", "Identify")
    expect(page.locator(".tag")).to_contain_text("eileen")
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".tag")).to_have_count(0)
    visitor.see("#/compare", "Compare")
    page.get_by_role("heading", name="The same person").wait_for()
    visitor.see("#/identify", "Identify")
    expect(page.get_by_text("Drop a photo here")).to_be_visible()
    page.locator("main input[type=file]").set_input_files(SAMPLES / "collins.jpg")
    expect(page.locator(".tag")).to_contain_text("eileen")
    page.get_by_role("button", name="Sign out").click()
    visitor.heading("Sign in").wait_for()
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
    page.get_by_label("Key", exact=True).fill(visitor.server.key)
    page.keyboard.press("Enter")
    expect(visitor.heading("Identify")).to_be_focused()
    for where, name in (("#/identify", "Identify"), ("#/compare", "Compare")):
        visitor.see(where, name)
        expect(page.get_by_text("Drop a photo here").first).to_be_visible()
        expect(page.locator("main img")).to_have_count(0)


def test_a_photo_is_identified_and_an_unknown_face_enrolled(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "door", eileen="collins")
    visitor.sign_in(where="#/identify")
    page = visitor.page
    visitor.identify("door", SAMPLES / "both.jpg")
    tags = page.locator(".tag")
    expect(tags).to_have_count(2)
    assert sorted(re.sub(r"^\d | [\d.]+$", "", text) for text in tags.all_inner_texts()) == ["eileen", "unknown"]
    unknown = page.locator(".card.face").filter(has_text="Unknown")
    unknown.get_by_label("Who is it?").fill("Grace Hopper")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Enrolled as Grace Hopper.")).to_be_visible()
    expect(tags.filter(has_text="Grace Hopper")).to_be_visible()
    (made,) = api.get("/galleries/door/subjects", params={"search": "Grace Hopper"}).json()["subjects"]
    assert (made["name"], made["face_count"]) == ("Grace Hopper", 1)
    visitor.picture("identify")


def group(path: Path) -> Path:
    """Two rows of small faces, the upper one shifted to the right and not quite level."""
    sheet = Image.new("RGB", (900, 560), "grey")
    with Image.open(SAMPLES / "collins.jpg") as one, Image.open(SAMPLES / "hopper.jpg") as other:
        for place in range(6):
            photo = (one, other)[place % 2].convert("RGB").resize((150, 150))
            sheet.paste(photo, (145 * place + (20 if place < 3 else 0), 12 * (place % 3) + (280 if place >= 3 else 0)))
    sheet.save(path)
    return path


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_found_faces_are_read_in_order_and_linked_with_their_boxes(
    chromium: Browser, live_server: LiveServer, api: httpx.Client, tmp_path: Path, size: ViewportSize
) -> None:
    name = f"row-{size['width']}"
    make_gallery(api, name, eileen="collins")
    api.patch(f"/galleries/{name}/subjects/eileen", json={"name": "Eileen Marie Collins"}).raise_for_status()
    with visiting(chromium, live_server, viewport=size) as visitor:
        visitor.sign_in(where=f"#/identify?gallery={name}")
        page = visitor.page
        expect(page.get_by_label("Gallery")).to_have_value(name)
        page.locator("main input[type=file]").set_input_files(group(tmp_path / "group.png"))
        cards = page.locator(".card.face")
        cards.first.wait_for()
        number = cards.count()
        assert number >= 4
        assert [card.locator(".place").inner_text() for card in cards.all()] == [str(n + 1) for n in range(number)]
        spots = [box for spot in page.locator(".spot").all() if (box := spot.bounding_box())]
        rows = [round(box["y"] / 120) for box in spots]
        assert rows == sorted(rows)
        assert all(a["x"] < b["x"] for a, b in pairwise(spots) if abs(a["y"] - b["y"]) < 40)
        tags = [box for tag in page.locator(".tag").all() if (box := tag.bounding_box())]
        for a, b in combinations(tags, 2):
            apart = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert apart or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"], "labels overlap"
        cards.nth(number - 1).get_by_role("button").last.focus()
        expect(page.locator(".boxes path").nth(number - 1)).to_have_class(re.compile("lit"))
        expect(page.locator(".stage")).to_be_in_viewport(ratio=0.5)
        visitor.picture(f"identify-group-{size['width']}")
        if size is DESK:
            page.locator(".spot").first.hover()
            expect(cards.first).to_have_class(re.compile("lit"))


def test_not_this_person_removes_what_was_enrolled_wrongly(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "mixed", eileen="hopper")
    visitor.sign_in(where="#/identify")
    page = visitor.page
    visitor.identify("mixed", SAMPLES / "hopper.jpg")
    page.get_by_role("button", name="Not this person").click()
    dialog = page.get_by_role("dialog", name="Not eileen?")
    expect(dialog.get_by_role("img", name="The face enrolled as eileen")).to_be_visible()
    visitor.picture("not-this-person")
    dialog.get_by_role("button", name="Delete that enrolled face").click()
    expect(page.locator(".tag")).to_have_text("unknown")
    assert api.get("/galleries/mixed/subjects/eileen").json()["face_count"] == 0


def test_not_this_person_is_remembered_and_forgotten(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "alike", eileen="collins")
    visitor.sign_in(where="#/identify")
    page = visitor.page
    visitor.identify("alike", SAMPLES / "collins_again.jpg")
    page.get_by_role("button", name="Not this person").click()
    page.get_by_role("dialog", name="Not eileen?").get_by_role("button", name="Remember that").click()
    doubt = page.get_by_role("dialog", name="Surely not eileen?")
    expect(doubt).to_be_visible()  # the photo matches her beyond doubt
    assert api.get("/galleries/alike/subjects/eileen/corrections").json()["corrections"] == []
    doubt.get_by_role("button", name="Remember it all the same").click()
    expect(page.get_by_text("no longer taken for eileen")).to_be_visible()
    expect(page.locator(".tag")).to_have_text("unknown")
    assert len(api.get("/galleries/alike/subjects/eileen/corrections").json()["corrections"]) == 1
    visitor.go("#/galleries/alike/people/eileen")
    visitor.picture("person-corrected")
    page.get_by_role("region", name="Photos of others").get_by_role("button", name="Forget").click()
    expect(page.get_by_role("heading", name="Not this person")).to_be_hidden()
    assert api.get("/galleries/alike/subjects/eileen/corrections").json()["corrections"] == []


def test_the_camera_is_watched_one_question_at_a_time(visitor: Visitor, api: httpx.Client) -> None:
    make_gallery(api, "lobby", eileen="collins")
    visitor.sign_in(where="#/identify")
    page = visitor.page
    page.get_by_label("Gallery").select_option("lobby")
    page.evaluate(
        """() => {
          const plain = window.fetch;
          window.open = window.most = 0;
          window.fetch = async (...given) => {
            if (!given[0].includes("/identify")) return plain(...given);
            window.most = Math.max(window.most, ++window.open);
            try {
              return await plain(...given);
            } finally {
              window.open--;
            }
          };
        }"""
    )
    page.get_by_role("button", name="Live").click()
    expect(page.locator(".tag").filter(has_text="eileen")).to_be_visible()
    expect(page.get_by_text("pictures a second")).to_be_visible()
    expect(page.locator(".tag").filter(has_text="unknown").first).to_be_visible()
    unknown = page.locator(".card.face").filter(has=page.get_by_label("Who is it?")).first
    unknown.get_by_label("Who is it?").focus()  # what is being used stays as it is
    page.keyboard.type("somebody")
    visitor.picture("live")
    assert page.evaluate("window.most") == 1
    page.keyboard.press("Enter")
    expect(page.get_by_text("Enrolled as somebody.")).to_be_visible()
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "false")
    (made,) = api.get("/galleries/lobby/subjects", params={"search": "somebody"}).json()["subjects"]
    assert made["face_count"] == 1
    assert page.locator("video").count() == 0


def test_everything_is_reached_by_the_keyboard(visitor: Visitor, api: httpx.Client) -> None:
    """From signing in to a new person in a new gallery, without a mouse."""
    page = visitor.page

    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate(
                """() => {
                  const one = document.activeElement;
                  return one.ariaLabel || one.labels?.[0]?.textContent || one.textContent;
                }"""
            )
            if focused.strip() == name:
                outlined = page.evaluate(
                    "getComputedStyle(document.activeElement.matches('input.hidden') ? "
                    "document.activeElement.nextElementSibling : document.activeElement).outlineStyle"
                )
                assert outlined != "none", name
                return
        raise AssertionError(f"Tab never reached {name!r}")

    page.goto(visitor.server.url)
    expect(page.get_by_label("Key")).to_be_focused()
    page.keyboard.type(visitor.server.key)
    page.keyboard.press("Enter")
    expect(visitor.heading("Overview")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    tab_to("Galleries")
    page.keyboard.press("Enter")
    expect(visitor.heading("Galleries")).to_be_focused()
    tab_to("New gallery")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("textbox").first).to_be_focused()
    page.keyboard.type("keys-only")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="New gallery"), "where one was before the dialog").to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("textbox").first).to_be_focused()
    page.keyboard.type("keys-only")
    page.keyboard.press("Enter")
    expect(visitor.heading("keys-only")).to_be_focused()
    tab_to("Enroll photos")
    page.keyboard.press("Enter")
    expect(visitor.heading("Enroll photos")).to_be_focused()
    with page.expect_file_chooser() as chooser:
        tab_to("Choose photos")  # in here: by the browser's answers to it, choosers are known to be caught
        page.keyboard.press("Enter")
    chooser.value.set_files([str(SAMPLES / "hopper.jpg")])
    tab_to("Enroll 1 photo")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    expect(page.get_by_role("heading", name="Done")).to_be_focused()
    assert api.get("/galleries/keys-only/subjects/hopper").json()["face_count"] == 1
