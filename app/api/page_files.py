"""Read the web page's files from `app/page` and features' folders, and make them into the files to serve."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import app.page
from app.api.middleware import CSP
from app.api.page_modules import join_modules

START = "index.html"
HEAD_END = "  </head>\n"
PAGE_FILES = "/page/"
BEGIN = f'    <script type="module" src="{PAGE_FILES}main.js"></script>\n'
ADDED = """\
    <link rel="stylesheet" href="/page/{name}/style.css">
    <script type="module" src="/page/{name}/start.js"></script>
"""
"""Inserted before BEGIN for each feature with a part of the page."""
_SHEET = re.compile(r' *<link rel="stylesheet" href="/page/(?P<name>[^"]+)">\n')
_SCRIPT = re.compile(r' *<script type="module" src="/page/(?P<name>[^"]+)"></script>\n')
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "webp": "image/webp",
}
"""Extensions of files to serve, with their content types."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content-Security-Policy of the page's files: only files and calls of its own server, nothing inline; `blob:` is for
photos that the browser already has. START's also has the hashes of its script and styles."""
HEADERS = {"vary": "accept-encoding"}
DOCUMENTS = {"permissions-policy": "camera=(self), geolocation=(), microphone=()"}
"""Headers, besides the policy, of files that a browser opens as documents; they have no effect on scripts, styles and
pictures."""
DOCUMENT_KINDS = ("html", "svg")
DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    packed: bytes
    """The content by gzip."""
    headers: dict[str, str]
    """Content type and ETag, besides the headers of every file."""


def read_files(added: Sequence[Path] = ()) -> dict[str, PageFile]:
    """Return the web page's files by their path below its folder, and those of ``added`` by their path below the name
    of their feature; START names these, too."""
    files = _files_of(Path(app.page.__file__).parent)
    for folder in added:
        name = folder.parent.name
        files |= {f"{name}/{path}": file for path, file in _files_of(folder).items()}
        start = files[START].content.decode().replace(BEGIN, ADDED.format(name=name) + BEGIN)
        files[START] = _file(START, start.encode())
    return files


def served_files(added: Sequence[Path] = ()) -> dict[str, PageFile]:
    """Return the files to serve: START, which contains all style sheets and the first view's modules, so that a first
    view needs one file; and the others, which START names below the digest of all files.

    The other views' modules are in a template, which the page has fetched when its first view is shown: a module whose
    request fails during an import would be missing until the page is reloaded.

    Raises what `join_modules` raises.
    """
    files = read_files(added)
    html = files.pop(START).content.decode()
    styles = "\n".join(files.pop(name).content.decode() for name in _SHEET.findall(html))
    modules = {name: files.pop(name).content.decode() for name in sorted(files) if name.endswith(".js")}
    script, later = join_modules(modules, _SCRIPT.findall(html), PAGE_FILES)
    files |= {name: _file(name, text.encode()) for name, text in later.items()}
    rest = "".join(f'<link rel="prefetch" href="{PAGE_FILES}{name}">' for name in later)
    html = _SCRIPT.sub("", _SHEET.sub("", html)).replace(
        HEAD_END, f'    <template id="later">{rest}</template>\n{HEAD_END}'
    )
    below = f"{PAGE_FILES}{files_digest(files)}/"
    html, script, styles = (text.replace(f'"{PAGE_FILES}', f'"{below}') for text in (html, script, styles))
    html = html.replace(HEAD_END, _inline("style", styles) + _inline("script", script) + HEAD_END)
    files[START] = _file(START, html.encode(), _policy(script, styles))
    return files


def files_digest(files: Mapping[str, PageFile]) -> str:
    """Return a digest of the names and contents of all files except START, which contains it."""
    tags = "".join(f"{name} {file.headers['etag']}\n" for name, file in sorted(files.items()) if name != START)
    return hashlib.sha256(tags.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _inline(tag: Literal["script", "style"], text: str) -> str:
    """Return the element with the text in it. Raises ValueError if the text would end the element."""
    if found := re.search(rf"</{tag}|<!--", text, re.IGNORECASE):
        raise ValueError(f"The page's {tag} has {found[0]} in it, which can't stand in HTML.")
    kind = ' type="module"' if tag == "script" else ""
    return f"    <{tag}{kind}>{text}</{tag}>\n"


def _policy(script: str, styles: str) -> str:
    """Return POLICY with these two allowed, by their hashes."""
    policy = POLICY
    for kind, text in (("script", script), ("style", styles)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        policy = policy.replace(f"{kind}-src 'self'", f"{kind}-src 'self' 'sha256-{digest}'")
    return policy


def _files_of(folder: Path) -> dict[str, PageFile]:
    kept = [path for path in folder.rglob("*") if path.suffix.removeprefix(".") in TYPES]
    return {path.relative_to(folder).as_posix(): _file(path.name, path.read_bytes()) for path in kept}


def _file(name: str, content: bytes, policy: str = POLICY) -> PageFile:
    suffix = name.rpartition(".")[2]
    headers = HEADERS | {"content-type": TYPES[suffix], "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    if suffix in DOCUMENT_KINDS:
        headers |= DOCUMENTS | {CSP: policy}
    return PageFile(content, gzip.compress(content, mtime=0), headers)
