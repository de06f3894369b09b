"""A gallery's kind of search: kept in SQL, changed while it is in use, followed by all, never in an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import httpx
import pytest
from likeness_client import ApiError, AsyncClient, Client

from app.choices import IndexKind
from app.errors import NotFound
from app.gallery.service import Galleries
from app.gallery.subjects import delete_subject
from app.search.follower import LocalIndex
from app.search.snapshots import Snapshots
from tests.support.changing import changed
from tests.support.commands import run as likeness
from tests.support.following import found, quiet
from tests.support.galleries import DIMENSION, PACKAGE, enroll
from tests.support.live import LiveServer
from tests.support.service import BOTH, COLLINS, HOPPER, error_of

KINDS: tuple[IndexKind, ...] = get_args(IndexKind)


def kind_here(galleries: Galleries, gallery: str = "staff") -> str | None:
    """By which kind this process's index is searched; None where it isn't made."""
    index = galleries.indexes.index(galleries.store.gallery(gallery).index_spec)
    assert isinstance(index, LocalIndex)
    return index._searchable.kind if index._searchable else None


def test_every_process_follows_a_change_of_kind(database_url: str, tmp_path: Path) -> None:
    here = quiet(database_url)
    here.create_gallery("staff", PACKAGE, DIMENSION)
    enroll(here, "eileen", 1)
    other = quiet(database_url, Snapshots(tmp_path / "snapshots", min_faces=1))
    other.indexes.load()
    for kind in ("int8", "int8", "fp32", "int8"):
        assert here.update_gallery(here.store.gallery("staff"), search=kind).search == kind
        assert here.update_gallery(here.store.gallery("staff")).search == kind
        assert kind_here(here) == kind
        other.indexes.follow()
        assert kind_here(other) == kind
        enroll(here, kind, 2)
        other.indexes.follow()
        assert found(other, 2) == [kind]
        changed(here, "staff", delete_subject, kind)
    other.close()
    third = quiet(database_url, Snapshots(tmp_path / "snapshots", min_faces=1))
    third.indexes.load()
    assert kind_here(third) == "int8", "also where the index is read from a snapshot"
    assert found(third, 1) == ["eileen"]
    third.close()
    here.delete_gallery(here.store.gallery("staff"))
    with pytest.raises(NotFound, match="no gallery"):
        here.update_gallery(here.store.gallery("staff"), search="int8")
    here.close()


def test_the_kind_by_api(api: httpx.Client, gallery: str) -> None:
    def patched(**body: object) -> httpx.Response:
        return api.patch(gallery, json=body)

    assert api.get(gallery).json()["search"] == "fp32"
    for subject, photo in (("eileen", COLLINS), ("grace", HOPPER)):
        api.post(f"{gallery}/subjects/{subject}/faces", files={"images": photo}).raise_for_status()
    answers = []
    for kind in ("int8", *KINDS):
        shown = patched(search=kind).raise_for_status().json()
        assert shown == api.get(gallery).json()
        assert (shown["search"], shown["faces"]) == (kind, 2)
        identified = api.post(f"{gallery}/identify", files={"image": BOTH}).raise_for_status().json()
        answers.append([[(c["subject"], c["score"]) for c in face["candidates"]] for face in identified["faces"]])
    assert all(answer == answers[0] for answer in answers)
    assert patched().json()["search"] == KINDS[-1]
    for body in ({"search": "hnsw"}, {"search": 8}, {"store": "none"}):
        error_of(patched(**body), 422, "invalid_request")
    error_of(api.post("/v1/galleries", json={"id": "third", "search": "int4"}), 422, "invalid_request")
    for removed in ("fp16", "approximate"):
        refused = api.post("/v1/galleries", json={"id": "third", "search": removed})
        error_of(refused, 422, "invalid_request")
        assert "use 'int8'" in refused.text
        assert "docs/how-to/milvus.md" in refused.text
        error_of(patched(search=removed), 422, "invalid_request")
    error_of(api.patch("/v1/galleries/nobody", json={"search": "int8"}), 404, "gallery_not_found")


@pytest.mark.long
def test_the_kind_by_client_and_command(shared_server: LiveServer, tmp_path: Path) -> None:
    at = ("--server", shared_server.url, "--key", shared_server.key)
    with Client(shared_server.url, shared_server.key) as client:
        assert client.create_gallery("kinds", search="int8").search == "int8"
        assert client.update_gallery("kinds", {"search": "fp32"}).search == "fp32"
        with pytest.raises(ApiError) as caught:
            client.update_gallery("nobody", {"search": "int8"})
        assert caught.value.code == "gallery_not_found"
        done = likeness(tmp_path, "galleries", "update", "kinds", "--search", "int8", *at)
        assert (done.returncode, done.stdout) == (0, "kinds: searched by int8, on conflict warn, liveness off\n")
        assert client.gallery("kinds").search == "int8"
        assert likeness(tmp_path, "galleries", "update", "kinds", "--search", "int5", *at).returncode == 2
        made = likeness(tmp_path, "galleries", "create", "kinds 2", "--search", "int8", *at)
        assert made.returncode == 0
        assert client.gallery("kinds 2").search == "int8"

    async def change() -> str:
        async with AsyncClient(shared_server.url, shared_server.key) as later:
            return (await later.update_gallery("kinds", {"search": "fp32"})).search

    assert asyncio.run(change()) == "fp32"
