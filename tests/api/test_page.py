"""The page's files over HTTP: whole, unchanged, closed to everything from elsewhere, and the same in the wheel."""

from __future__ import annotations

import json
import re
import tomllib

import httpx
import pytest

from app.api.middleware import CSP
from app.api.page import POLICY, TYPES, read_files
from app.error_codes import KINDS, javascript
from app.types import Reason
from tests.conftest import PROJECT
from tests.support.service import error_of

FOLDER = PROJECT / "app" / "page"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.suffix[1:] in TYPES)
USED = re.compile(r"""(?:\bfrom |\bimport |\bhref=|\bsrc=)"((?:\.{1,2}/|/page/)[\w./-]+)\"""")


def test_each_file_comes_without_a_key_as_what_it_is(api: httpx.Client) -> None:
    for name in FILES:
        answer = api.get(f"/page/{name}", headers={"x-api-key": ""}).raise_for_status()
        assert answer.content == (FOLDER / name).read_bytes()
        assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
        assert answer.headers[CSP] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"


def test_the_address_itself_is_the_page(api: httpx.Client) -> None:
    answer = api.get("/", headers={"x-api-key": ""})
    assert answer.content == (FOLDER / "index.html").read_bytes()
    assert "camera=(self)" in answer.headers["permissions-policy"]
    head = api.head("/", headers={"x-api-key": ""})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == answer.headers["etag"]


def test_a_browser_that_has_the_file_gets_it_once(api: httpx.Client) -> None:
    tag = api.get("/page/main.js").headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = api.get("/page/main.js", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert api.get("/page/main.js", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/nothing.js", "/page/__init__.py", "/page/../main.py", "/page/%2e%2e/main.py", "/page/views"],
)
def test_nothing_else_of_the_folder_is_served(api: httpx.Client, path: str) -> None:
    assert api.get(path).status_code == 404


def test_only_reading_is_open(api: httpx.Client) -> None:
    assert api.post("/", headers={"x-api-key": ""}).is_client_error
    error_of(api.post("/page/main.js", headers={"x-api-key": ""}), 401, "missing_key")
    error_of(api.delete("/page/main.js", headers={"x-api-key": ""}), 401, "missing_key")


def test_the_policy_lets_nothing_in_from_elsewhere_and_nothing_inline() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_the_files_that_others_name_are_those_that_are_there_and_none_is_of_another_host() -> None:
    used = {"index.html"}
    for name in FILES:
        text = (FOLDER / name).read_text()
        for target in USED.findall(text):
            home = FOLDER if target.startswith("/") else (FOLDER / name).parent
            used.add(str((home / target.removeprefix("/page/")).resolve().relative_to(FOLDER)))
        hosts = set(re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]+[\w./-]*", re.sub(r"^\s*//.*", "", text)))
        assert hosts <= {"http://www.w3.org/2000/svg"}, name
    assert used == set(FILES)


def test_the_wheel_takes_every_file() -> None:
    taken = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["app.page"]
    assert {str(path.relative_to(FOLDER)) for glob in taken for path in FOLDER.glob(glob)} == set(FILES)
    assert sorted(read_files()) == FILES


def test_the_page_has_sentences_of_its_own_for_the_codes_that_people_meet_most() -> None:
    """For the rest it shows what the server says, which is a sentence too."""
    known = set(re.findall(r"^  (\w+): \"", (FOLDER / "words.js").read_text().partition("REASONS")[0], re.MULTILINE))
    photos = {"no_face", "ambiguous_face", "low_quality", "invalid_image", "unsupported_image", "image_too_large"}
    keys = {"wrong_key", "expired_key", "revoked_key", "missing_scope", "rate_limited", "overloaded"}
    assert photos | keys <= known & {kind.code for kind in KINDS}


def test_the_page_knows_what_each_code_is_about() -> None:
    assert (FOLDER / "codes.js").read_text() == javascript(), "write it anew with app.error_codes.javascript()"


def test_the_page_has_words_for_every_reason_of_poor_quality() -> None:
    words = (FOLDER / "words.js").read_text().partition("REASONS")[2].partition("ADVICE")[0]
    assert set(re.findall(r"^  (\w+): \"", words, re.MULTILINE)) == {reason.value for reason in Reason}


def test_no_line_is_longer_than_a_hundred_and_twenty() -> None:
    for name in FILES:
        longest = max(map(len, (FOLDER / name).read_text().splitlines()))
        assert longest <= 120 or name.endswith(".svg"), name


def test_what_checks_the_page_is_pinned_by_hash_and_from_no_host() -> None:
    lock = json.loads((PROJECT / ".ci" / "page" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert {"node_modules/@biomejs/biome", "node_modules/typescript"} <= set(packages)
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())
