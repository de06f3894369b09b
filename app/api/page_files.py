"""The files of the web page: as they lie in `app/page` and in features' folders, and as they are served."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import app.page
from app.api.middleware import CSP
from app.api.page_modules import join_modules

START = "index.html"
MAIN = "main.js"
STYLES = "styles.css"
"""All style sheets that START names, in their order, as one file: a browser draws nothing before it has them all."""
PAGE_FILES = "/page/"
BEGIN = f'    <script type="module" blocking="render" src="{PAGE_FILES}{MAIN}"></script>\n'
"""It runs before the browser lays anything out, so that the server is asked first: a first layout waits for fonts."""
ADDED = """\
    <link rel="stylesheet" href="/page/{name}/style.css">
    <script type="module" blocking="render" src="/page/{name}/start.js"></script>
"""
"""Inserted before BEGIN for each feature that has a part of the page."""
_SHEET = re.compile(r' *<link rel="stylesheet" href="/page/(?P<name>[^"]+)">\n')
_SCRIPT = re.compile(r' *<script type="module" blocking="render" src="/page/(?P<name>[^"]+)"></script>\n')
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
"""Content-Security-Policy of the page: only files and calls of its own server, nothing inline; `blob:` is for photos
that the browser already has."""
HEADERS = {"vary": "accept-encoding"}
DOCUMENTS = {
    CSP: POLICY,
    "permissions-policy": "camera=(self), geolocation=(), microphone=()",
}
"""Headers of files that a browser opens alone: in scripts, styles and pictures of a page they have no effect."""
DOCUMENT_KINDS = ("html", "svg")
DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    packed: bytes
    """The content by gzip."""
    headers: dict[str, str]
    """Content type and ETag, beside those of every file."""


def read_files(added: Sequence[Path] = ()) -> dict[str, File]:
    """Return the web page's files by their path below its folder, and those of ``added`` by their path below the name
    of their feature; START names these, too."""
    files = _files_of(Path(app.page.__file__).parent)
    for folder in added:
        name = folder.parent.name
        files |= {f"{name}/{path}": file for path, file in _files_of(folder).items()}
        start = files[START].content.decode().replace(BEGIN, ADDED.format(name=name) + BEGIN)
        files[START] = _file(START, start.encode())
    return files


def served_files(added: Sequence[Path] = ()) -> dict[str, File]:
    """Return the files as they are served: all style sheets as STYLES, the modules of the first view as MAIN, and
    START, which names each file below the digest of them all.

    The other views' modules are in a template, which the page has fetched once its first view is there: a module whose
    request breaks off when it is imported would be missing until the page is loaded again.

    Raises ValueError as `join_modules` does.
    """
    files = read_files(added)
    html = files.pop(START).content.decode()
    sheets, begun = _SHEET.findall(html), _SCRIPT.findall(html)
    styles = b"\n".join(files[name].content for name in sheets)
    modules = {name: files.pop(name).content.decode() for name in sorted(files) if name.endswith(".js")}
    joined = join_modules(modules, begun, MAIN)
    files = {name: file for name, file in files.items() if name not in sheets}
    files[STYLES] = _file(STYLES, styles)
    files |= {name: _file(name, text.encode()) for name, text in joined.items()}
    files[START] = _file(START, _start(html, [name for name in joined if name != MAIN], digest_of(files)).encode())
    return files


def digest_of(files: Mapping[str, File]) -> str:
    """Return what stands for the names and contents of all files but START, which names it."""
    tags = "".join(f"{name} {file.headers['etag']}\n" for name, file in sorted(files.items()) if name != START)
    return hashlib.sha256(tags.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _start(html: str, later: Sequence[str], digest: str) -> str:
    link = f'    <link rel="stylesheet" href="{PAGE_FILES}{STYLES}">\n'
    html = _SCRIPT.sub("", _SHEET.sub("", html))
    rest = "".join(f'<link rel="prefetch" href="{PAGE_FILES}{name}">' for name in later)
    html = html.replace("  </head>", f'{link}{BEGIN}    <template id="later">{rest}</template>\n  </head>')
    return html.replace(f'"{PAGE_FILES}', f'"{PAGE_FILES}{digest}/')


def _files_of(folder: Path) -> dict[str, File]:
    kept = [path for path in folder.rglob("*") if path.suffix.removeprefix(".") in TYPES]
    return {path.relative_to(folder).as_posix(): _file(path.name, path.read_bytes()) for path in kept}


def _file(name: str, content: bytes) -> File:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    suffix = name.rpartition(".")[2]
    headers = HEADERS | (DOCUMENTS if suffix in DOCUMENT_KINDS else {}) | {"content-type": TYPES[suffix], "etag": tag}
    return File(content, gzip.compress(content, mtime=0), headers)
