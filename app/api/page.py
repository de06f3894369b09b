"""The web page at `/` and the API page at `/docs`.

The web page is the files of `app/page`, as they are, for everyone: they hold no data. The page reads what it shows from
the API, with the key of the person who uses it. A feature adds a folder: its `start.js` runs before the page begins.
The API page is Swagger UI, behind a key.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

import app.page
from app.api import openapi
from app.api.auth import given_key
from app.api.middleware import CSP
from app.api.route import Router, add_operations, operations_of
from app.errors import NotFound

START = "index.html"
MAIN = '    <script type="module" src="/page/main.js"></script>\n'
ADDED = """\
    <link rel="stylesheet" href="/page/{name}/style.css">
    <script type="module" src="/page/{name}/start.js"></script>
"""
"""Inserted before MAIN for each feature that has a part of the page."""
STYLES = "styles.css"
"""All style sheets that START names, in their order, as one file: a browser draws nothing before it has them all."""
_SHEET = re.compile(r' *<link rel="stylesheet" href="/page/(?P<name>[^"]+)">\n')
PAGE_PATH, PAGE_FILES = "/", "/page/"
PAGE_METHODS = ("GET", "HEAD")
DOCS_PATH, ASSETS_PATH = "/docs", "/docs/assets"
SWAGGER_START = "SwaggerUIBundle({"
AUTHORIZE = """
        onComplete: () => {
            const key = document.body.dataset.key || sessionStorage.getItem("likeness.key");
            if (key) ui.preauthorizeApiKey("api_key", key);
            document.body.removeAttribute("data-key");
        },"""
"""Authorizes "Try it out" with the key of the sign-in: on this page, or on the web page in the same tab."""
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "webp": "image/webp",
}
"""Kinds of files that are served, with their content types."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The page's own files and its own server, nothing inline; `blob:` is for photos that the browser already has."""
HEADERS = {"vary": "accept-encoding"}
DOCUMENTS = {
    CSP: POLICY,
    "permissions-policy": "camera=(self), geolocation=(), microphone=()",
}
"""Headers of files that a browser opens alone: in scripts, styles and pictures of a page they have no effect."""
DOCUMENT_KINDS = ("html", "svg")
_IMPORT = re.compile(r"""^(?:import|\} from|import .* from|export .* from) ?"([^"]+\.js)";$""", re.MULTILINE)
"""A module that another one imports at its beginning, as the formatter writes it."""
CACHE_CONTROL = "cache-control"
REVALIDATED = {CACHE_CONTROL: "no-cache"}
"""The start, and files asked for without today's digest: a browser caches them, and revalidates them each time."""
IMMUTABLE = {CACHE_CONTROL: "public, max-age=31536000, immutable"}
"""Files below the digest of them all, by which the start names them: another version's have other addresses."""
DIGEST_CHARACTERS = 16
_NOT_TAKEN = re.compile(r"q=0(\.0{0,3})?")
_VERSIONED = re.compile(rf"([0-9a-f]{{{DIGEST_CHARACTERS}}})/(.+)")


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    packed: bytes
    """The content by gzip."""
    headers: dict[str, str]
    """Content type and ETag, beside those of every file."""


def add_page(server: FastAPI, added: Sequence[Path] = ()) -> None:
    """Make ``server`` serve both pages and the OpenAPI document; ``added`` are features' folders of the web page."""
    _install_api_page(server)
    files = read_files(added)
    digest = digest_of(files)
    start = _start(files, digest)

    async def show_start(request: Request) -> Response:
        return _answer(request, start, REVALIDATED)

    async def show_file(request: Request, name: str) -> Response:
        versioned = _VERSIONED.fullmatch(name)
        file = files.get(versioned[2] if versioned else name)
        if file is None:
            raise NotFound("There is no such file.")
        # Another replica may be of another version: its files are answered by ours, and not kept under its digest.
        return _answer(request, file, IMMUTABLE if versioned and versioned[1] == digest else REVALIDATED)

    server.add_api_route(PAGE_PATH, show_start, methods=[*PAGE_METHODS], include_in_schema=False)
    server.add_api_route(PAGE_FILES + "{name:path}", show_file, methods=[*PAGE_METHODS], include_in_schema=False)


def _answer(request: Request, file: File, cached: dict[str, str]) -> Response:
    """Return the file, by gzip to those who take it; only its headers to those who have it."""
    headers = file.headers | cached
    given = request.headers.get("if-none-match", "").split(",")  # weak ones compare as strong (RFC 9110, 13.1.2)
    if file.headers["etag"] in {tag.strip().removeprefix("W/") for tag in given}:
        return Response(status_code=304, headers=headers)
    if takes_gzip(",".join(request.headers.getlist("accept-encoding"))):
        return Response(file.packed, headers=headers | {"content-encoding": "gzip"})
    return Response(file.content, headers=headers)


def takes_gzip(accepted: str) -> bool:
    """Return whether a client takes gzip, by its header `accept-encoding`: a coding of weight 0 is not taken (RFC 9110,
    12.5.3)."""
    weights = {}
    for coding in accepted.lower().split(","):
        name, _, weight = coding.partition(";")
        weights[name.strip()] = "".join(weight.split())
    weight = next((weights[name] for name in ("gzip", "x-gzip", "*") if name in weights), "q=0")
    return _NOT_TAKEN.fullmatch(weight) is None


def digest_of(files: dict[str, File]) -> str:
    """Return what stands for the names and contents of all files."""
    tags = "".join(f"{name} {file.headers['etag']}\n" for name, file in sorted(files.items()))
    return hashlib.sha256(tags.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _start(files: dict[str, File], digest: str) -> File:
    """Return the start, which names each file below ``digest``.

    It has the browser ask for all modules at once that the page begins with. Those of other views are in a template,
    which the page has fetched once its first view is there: a module whose request breaks off when it is imported would
    be missing until the page is loaded again.
    """
    html = files[START].content.decode()
    begun = [path.removeprefix(PAGE_FILES) for path in re.findall(r'src="([^"]+\.js)"', html)]
    first = _imported(files, begun)
    later = sorted(name for name in files if name.endswith(".js") and name not in {*begun, *first})
    at_once = "".join(f'    <link rel="modulepreload" href="{PAGE_FILES}{name}">\n' for name in first)
    rest = "".join(f'<link rel="prefetch" href="{PAGE_FILES}{name}">' for name in later)
    html = html.replace("  </head>", f'{at_once}    <template id="later">{rest}</template>\n  </head>')
    return _file(START, html.replace(f'"{PAGE_FILES}', f'"{PAGE_FILES}{digest}/').encode())


def _imported(files: dict[str, File], names: Sequence[str]) -> list[str]:
    """Return the modules that these import, over however many others."""
    found, waiting = set(names), list(names)
    while waiting:
        name = waiting.pop()
        for target in _IMPORT.findall(files[name].content.decode()):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            if path in files and path not in found:
                found.add(path)
                waiting.append(path)
    return sorted(found - set(names))


def _install_api_page(server: FastAPI) -> None:
    """Serve Swagger UI and the document to those with a key."""
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


def read_files(added: Sequence[Path] = ()) -> dict[str, File]:
    """Return the web page's files by their path below its folder, and those of ``added`` by their path below the name
    of their feature."""
    files = _files_of(Path(app.page.__file__).parent)
    for folder in added:
        name = folder.parent.name
        files |= {f"{name}/{path}": file for path, file in _files_of(folder).items()}
        start = files[START].content.decode().replace(MAIN, ADDED.format(name=name) + MAIN)
        files[START] = _file(START, start.encode())
    return files | _joined_styles(files)


def _joined_styles(files: dict[str, File]) -> dict[str, File]:
    """Return STYLES, and the start that names it in place of the style sheets."""
    html = files[START].content.decode()
    names = _SHEET.findall(html)
    link = f'    <link rel="stylesheet" href="{PAGE_FILES}{STYLES}">\n'
    html = _SHEET.sub(lambda sheet: link if sheet["name"] == names[0] else "", html)
    return {
        STYLES: _file(STYLES, b"\n".join(files[name].content for name in names)),
        START: _file(START, html.encode()),
    }


def _files_of(folder: Path) -> dict[str, File]:
    kept = [path for path in folder.rglob("*") if path.suffix.removeprefix(".") in TYPES]
    return {path.relative_to(folder).as_posix(): _file(path.name, path.read_bytes()) for path in kept}


def _file(name: str, content: bytes) -> File:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    suffix = name.rpartition(".")[2]
    headers = HEADERS | (DOCUMENTS if suffix in DOCUMENT_KINDS else {}) | {"content-type": TYPES[suffix], "etag": tag}
    return File(content, gzip.compress(content, mtime=0), headers)
