"""The web page at `/`: the files of `app/page`, as they are, for whoever asks.

They hold nothing of anybody: what the page shows it asks the API for, with the key of the person who uses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from app.api.headers import CSP

PATH = "/"
FILES_PATH = "/page/"
START = "index.html"
METHODS = ("GET", "HEAD")
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""What the folder holds besides Python; nothing else of it is served."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Its own files and its own server, nothing inline or made of text; `blob:` is for photos that are here already."""
HEADERS = {
    CSP: POLICY,
    "cache-control": "no-cache",
    "permissions-policy": "camera=(self), geolocation=(), microphone=()",
}
"""A browser keeps the files, and asks each time whether they are still the same."""


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    headers: dict[str, str]
    """With the content's type and its ETag."""


def install(app: FastAPI) -> None:
    """Makes ``app`` serve the page."""
    files = read_files()

    async def show(request: Request) -> Response:
        name = request.scope["path"].removeprefix(FILES_PATH) if request.scope["path"] != PATH else START
        found = files.get(name)
        if found is None:
            raise HTTPException(404)
        if found.headers["etag"] in _tags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=found.headers)
        return Response(found.content, headers=found.headers)

    app.add_api_route(PATH, show, methods=[*METHODS], include_in_schema=False)
    app.add_api_route(FILES_PATH + "{name:path}", show, methods=[*METHODS], include_in_schema=False)


def is_page(method: str, path: str) -> bool:
    """Whether this asks for the page, which needs no key."""
    return method in METHODS and (path == PATH or path.startswith(FILES_PATH))


def read_files() -> dict[str, File]:
    """The page's files by their path below its folder."""
    return {name: _file(name, file.read_bytes()) for name, file in _walk(resources.files("app.page"), "")}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        elif name.rpartition(".")[2] in TYPES:
            yield name, entry


def _file(name: str, content: bytes) -> File:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return File(content, HEADERS | {"content-type": TYPES[name.rpartition(".")[2]], "etag": tag})


def _tags(text: str) -> set[str]:
    """Of an `If-None-Match`; weak ones count as their strong selves (RFC 9110, 13.1.2)."""
    return {tag.strip().removeprefix("W/") for tag in text.split(",")}
