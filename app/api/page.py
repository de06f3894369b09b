"""The web page at `/` and the API page at `/docs`.

The web page is the files of `app/page`, for everyone: they hold no data. The page reads what it shows from
the API, with the key of the person who uses it. A feature adds a folder: its `start.js` runs before the page begins.
The API page is Swagger UI, behind a key.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from app.api import openapi
from app.api.middleware import CSP
from app.api.page_files import DIGEST_CHARACTERS, PAGE_FILES, START, PageFile, files_digest, served_files
from app.api.route import Router, add_operations, operations_of
from app.api.wire import given_key
from app.errors import NotFound

PAGE_PATH = "/"
PAGE_METHODS = ("GET", "HEAD")
DOCS_PATH, ASSETS_PATH = "/docs", "/docs/assets"
SWAGGER_START = "SwaggerUIBundle({"
AUTHORIZE = """
        onComplete: () => {
            const key = document.body.dataset.key || sessionStorage.getItem("likeness.key");
            if (key) ui.preauthorizeApiKey("api_key", key);
            document.body.removeAttribute("data-key");
        },"""
"""Authorizes "Try it out" with the key that signed in, on this page or on the web page in the same tab."""
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
CACHE_CONTROL = "cache-control"
REVALIDATED = {CACHE_CONTROL: "no-cache"}
"""Headers of the start page, and of files requested without the current digest: a browser caches them, but revalidates
each time."""
IMMUTABLE = {CACHE_CONTROL: "public, max-age=31536000, immutable"}
"""Headers of files whose address contains the digest of all files, as in the start page: other versions have other
addresses."""
_NOT_TAKEN = re.compile(r"q=0(\.0{0,3})?")
_VERSIONED = re.compile(rf"([0-9a-f]{{{DIGEST_CHARACTERS}}})/(.+)")


def add_page(server: FastAPI, added: Sequence[Path] = ()) -> None:
    """Make ``server`` serve both pages and the OpenAPI document; ``added`` are features' folders of the web page."""
    _install_api_page(server)
    files = served_files(added)
    digest = files_digest(files)

    async def show_start(request: Request) -> Response:
        return _answer(request, files[START], REVALIDATED)

    async def show_file(request: Request, name: str) -> Response:
        versioned = _VERSIONED.fullmatch(name)
        file = files.get(versioned[2] if versioned else name)
        if file is None:
            raise NotFound("There is no such file.")
        # The digest may be that of a replica with another version: send our file, but don't let browsers keep it.
        return _answer(request, file, IMMUTABLE if versioned and versioned[1] == digest else REVALIDATED)

    server.add_api_route(PAGE_PATH, show_start, methods=[*PAGE_METHODS], include_in_schema=False)
    server.add_api_route(PAGE_FILES + "{name:path}", show_file, methods=[*PAGE_METHODS], include_in_schema=False)


def _answer(request: Request, file: PageFile, cached: dict[str, str]) -> Response:
    """Return the file, gzipped if the client accepts that; only its headers if the client has it already."""
    headers = file.headers | cached
    given = request.headers.get("if-none-match", "").split(",")  # weak ones compare as strong (RFC 9110, 13.1.2)
    if file.headers["etag"] in {tag.strip().removeprefix("W/") for tag in given}:
        return Response(status_code=304, headers=headers)
    if takes_gzip(",".join(request.headers.getlist("accept-encoding"))):
        return Response(file.packed, headers=headers | {"content-encoding": "gzip"})
    return Response(file.content, headers=headers)


def takes_gzip(accepted: str) -> bool:
    """Return whether a client accepts gzip, by its header `accept-encoding`; weight 0 means no (RFC 9110, 12.5.3)."""
    weights = {}
    for coding in accepted.lower().split(","):
        name, _, weight = coding.partition(";")
        weights[name.strip()] = "".join(weight.split())
    weight = next((weights[name] for name in ("gzip", "x-gzip", "*") if name in weights), "q=0")
    return _NOT_TAKEN.fullmatch(weight) is None


def _install_api_page(server: FastAPI) -> None:
    """Serve Swagger UI and the document to clients with a key."""
    router = Router("server")
    declare = partial(router.operation, "GET", scope=None, monitoring=True, in_document=False)
    files = StaticFiles(directory=Path(fastapi_offline.__file__).parent / "static")
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=server.title,
        swagger_js_url=f"{ASSETS_PATH}/swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS_PATH}/swagger-ui.css",
        swagger_favicon_url=f"{ASSETS_PATH}/favicon.png",
    )
    html = bytes(page.body).decode().replace(SWAGGER_START, SWAGGER_START + AUTHORIZE)
    headers = {CSP: _api_page_policy(html)}

    @declare(DOCS_PATH)
    async def show(request: Request) -> Response:
        key = escape(given_key(request.headers, DOCS_PATH) or "")
        return HTMLResponse(html.replace("<body>", f'<body data-key="{key}">'), headers=headers)

    @declare(ASSETS_PATH + "/{name}")
    async def asset(request: Request, name: str) -> Response:
        return await files.get_response(name, request.scope)

    @declare("/openapi.json")
    async def document() -> JSONResponse:
        return JSONResponse(server.openapi())

    def openapi_document() -> dict[str, Any]:
        if not server.openapi_schema:
            server.openapi_schema = openapi.document(
                server, operations_of(server), server.state.wires, server.state.webhooks
            )
        return server.openapi_schema

    server.openapi = openapi_document  # type: ignore[method-assign]  # FastAPI's documented way
    add_operations(server, [router])


def _api_page_policy(html: str) -> str:
    """Allow the page's own files, its inline script by its hash, and Swagger UI's inline styles."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in _SCRIPT.findall(html)]
    scripts = "".join(f" 'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
