"""Models are added on the page and put into use, in a real Chromium against a real server process."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.conftest import PROJECT
from tests.support.browsing import Visitor, make_gallery
from tests.support.tarred import tar_of
from tests.support.waiting import until

pytestmark = pytest.mark.long
SLIM = PROJECT / "models" / "sface-slim"


def package(name: str, title: str) -> dict[str, bytes]:
    licence = {"name": "Apache-2.0", "non_commercial": False}
    manifest = json.loads((SLIM / "manifest.json").read_bytes()) | {"name": name, "title": title, "licence": licence}
    model = (SLIM / "model.onnx").read_bytes()
    return {f"{name}/manifest.json": json.dumps(manifest).encode(), f"{name}/model.onnx": model}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The tar of a package called `mine`."""
    path = tmp_path / "mine.tar"
    path.write_bytes(tar_of(package("mine", "A model of mine")))
    return path


def test_a_model_is_added_and_a_gallery_moves_to_it(visitor: Visitor, api: httpx.Client, archive: Path) -> None:
    make_gallery(api, "crew", eileen="collins")
    visitor.sign_in(where="#/models")
    page = visitor.page
    page.get_by_text("Add a model", exact=True).click()
    pullable = page.get_by_role("region", name="Models that can be pulled")
    expect(pullable.get_by_role("row").filter(has_text="best")).to_contain_text("FNMR")
    visitor.look("models-add")
    broken = archive.with_name("broken.tar.gz")
    broken.write_bytes(b"\x1f\x8b" + bytes(2000))
    page.get_by_label("A file of your own").set_input_files(broken)
    page.get_by_role("button", name="Add the file").click()
    expect(page.get_by_text("not a tar archive, or it is damaged")).to_be_visible()
    page.get_by_label("A file of your own").set_input_files(archive)
    expect(page.get_by_label("Licence", exact=True)).to_be_hidden()
    page.get_by_role("button", name="Add the file").click()
    card = page.get_by_role("region", name="A model of mine")
    card.get_by_role("heading", name="A model of mine").click()
    expect(card).to_contain_text("No gallery uses it.")
    card.get_by_label("Gallery to move").select_option("crew")
    card.get_by_role("button", name="Move it here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 face gets a new template")
    dialog.get_by_role("button", name="Move it").click()
    expect(visitor.heading("Settings")).to_be_focused()
    expect(page.get_by_role("region", name="Model")).to_contain_text("mine@")


def test_a_new_gallery_is_made_with_a_model(visitor: Visitor, api: httpx.Client) -> None:
    visitor.sign_in(where="#/models")
    page = visitor.page
    card = (
        page.get_by_role("region")
        .filter(has=page.get_by_role("heading", name="sface", exact=False))
        .filter(has_text="not loaded")
    )
    card.get_by_role("heading").first.click()
    card.get_by_role("button", name="New gallery with it").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its templates will be of")
    dialog.get_by_label("Id").fill("slim")
    dialog.get_by_role("button", name="Create").click()
    expect(visitor.heading("slim")).to_be_focused()
    assert api.get("/galleries/slim").json()["embedder"].startswith("sface-slim@")


def test_an_onnx_file_asks_for_what_it_does_not_say(visitor: Visitor, api: httpx.Client) -> None:
    visitor.sign_in(where="#/models")
    page = visitor.page
    page.get_by_text("Add a model", exact=True).click()
    page.get_by_label("A file of your own").set_input_files(SLIM / "model.onnx")
    page.get_by_label("Name", exact=True).fill("plain")
    page.get_by_label("Licence", exact=True).fill("MIT")
    page.get_by_label("Its input is like that of").select_option("sface")
    page.get_by_role("button", name="Add the file").click()
    expect(page.get_by_role("region", name="plain, 128 dimensions")).to_be_visible()
    assert "plain@1" in {model["id"] for model in api.get("/models").json()["models"]}


def test_a_model_is_removed_unless_a_gallery_needs_it(visitor: Visitor, api: httpx.Client) -> None:
    tar = tar_of(package("going", "A model that goes"))
    job = api.post("/models", content=tar, headers={"content-type": "application/x-tar"}).raise_for_status().json()
    until(lambda: api.get(f"/jobs/{job['id']}").json()["state"] == "done", 120)
    (going,) = (model["id"] for model in api.get("/models").json()["models"] if model["name"] == "going")
    api.post("/galleries", json={"id": "user", "embedder": going}).raise_for_status()
    visitor.sign_in(where="#/models")
    page = visitor.page
    card = page.get_by_role("region", name="A model that goes")
    card.locator("details").first.evaluate("details => { details.open = true }")  # as it is where the model runs
    remove = card.get_by_role("button", name=f"Remove {going}")
    remove.click()
    page.get_by_role("dialog").get_by_role("button", name="Remove the model").click()
    expect(card).to_contain_text("galleries have templates of it: user")
    visitor.look("models-remove")
    api.delete("/galleries/user").raise_for_status()
    remove.click()
    page.get_by_role("dialog").get_by_role("button", name="Remove the model").click()
    expect(card).to_have_count(0)
    assert going not in {model["id"] for model in api.get("/models").json()["models"]}
