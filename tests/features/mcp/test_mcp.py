"""`likeness mcp` as an assistant uses it: the protocol's own client, over standard input and output."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import PROJECT
from tests.support.live import LiveServer
from tests.support.service import SAMPLES

if TYPE_CHECKING:
    from mcp import Client

READS = {"list_galleries", "list_people", "identify", "verify", "detect"}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("collins.jpg", "collins_again.jpg", "hopper.jpg"):
        shutil.copy(SAMPLES / name, folder)
    (tmp_path / "secret.jpg").write_bytes((SAMPLES / "both.jpg").read_bytes())
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    return folder


@pytest.fixture
def gallery(shared_server: LiveServer) -> Iterator[str]:
    name = f"mcp-{uuid.uuid4().hex}"
    with shared_server.client() as api:
        api.post("/v1/galleries", json={"id": name}).raise_for_status()
        yield name
        api.delete(f"/v1/galleries/{name}").raise_for_status()


@asynccontextmanager
async def assistant(server: LiveServer, photos: Path, *words: str) -> AsyncIterator[Client]:
    """The SDK's client, which starts the command."""
    from mcp import Client, StdioServerParameters  # noqa: PLC0415 - a second of imports, which other tests do without

    command = ["-m", "app", "mcp", "--photos", str(photos), "--server", server.url, "--key", server.key, *words]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT)}
    async with Client(StdioServerParameters(command=sys.executable, args=command, env=environ, cwd=PROJECT)) as client:
        yield client


async def call(client: Client, tool: str, **given: Any) -> Any:
    """Return a tool's answer."""
    result = await client.call_tool(tool, given)
    assert not result.is_error, result.content
    found = result.structured_content
    return found["result"] if found and set(found) == {"result"} else found


async def refused(client: Client, tool: str, **given: Any) -> str:
    result = await client.call_tool(tool, given)
    assert result.is_error, result.structured_content
    return str(result.content)


@pytest.mark.long
@pytest.mark.anyio
async def test_an_assistant_asks_and_changes_only_where_it_may(
    shared_server: LiveServer, gallery: str, photos: Path
) -> None:
    async with assistant(shared_server, photos, "--changes") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READS | {"enroll", "delete_person"}
        read_only = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
        assert read_only == READS
        enrolled = await call(client, "enroll", gallery=gallery, person="eileen", photos=["collins.jpg"])
        assert len(enrolled["enrolled"]) == 1
        found = await call(client, "list_galleries")
        assert {"id": gallery, "people": 1, "faces": 1} in [
            {name: each[name] for name in ("id", "people", "faces")} for each in found
        ]
        people = await call(client, "list_people", gallery=gallery)
        assert people == {"people": [{"id": "eileen", "name": None, "faces": 1}], "next_cursor": None}
        (face,) = (await call(client, "identify", gallery=gallery, photo="collins_again.jpg"))["faces"]
        assert (face["decision"], face["candidates"][0]["subject"]) == ("known", "eileen")
        same = await call(client, "verify", photo1="collins.jpg", photo2="collins_again.jpg")
        other = await call(client, "verify", photo1="collins.jpg", photo2="hopper.jpg")
        assert (same["decision"], other["decision"]) == ("known", "unknown")
        assert await call(client, "delete_person", gallery=gallery, person="eileen") == {"deleted": "eileen"}
        assert (await call(client, "list_people", gallery=gallery))["people"] == []
    async with assistant(shared_server, photos) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READS
        assert len((await call(client, "detect", photo="hopper.jpg"))["faces"]) == 1
        (photos / "loop.jpg").symlink_to("loop.jpg")
        no_files = ("nothing.jpg", ".", "loop.jpg", "a\0b.jpg", "long" * 5_000)
        for path in ("../secret.jpg", str(photos.parent / "secret.jpg"), "link.jpg", *no_files):
            assert "There is no photo" in await refused(client, "detect", photo=path)
        assert "gallery" in await refused(client, "identify", gallery="nobody-has-it", photo="hopper.jpg")
        assert await refused(client, "enroll", gallery=gallery, person="x", photos=["hopper.jpg"])
