"""The generated reference lists every setting, error, scope, command, operation and metric: it is held to the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import OFF_BY_DEFAULT, PROJECT
from tests.support.documents import load
from tests.support.service import running


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("reference") / "data", **OFF_BY_DEFAULT) as client:
        yield client


@pytest.fixture(scope="module")
def pages(api: httpx.Client) -> dict[str, str]:
    found: dict[str, str] = load("reference").pages(api)
    return found


@pytest.fixture(scope="module")
def document(api: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/openapi.json").raise_for_status().json()
    return found


@pytest.mark.long
def test_the_committed_pages_are_current(pages: dict[str, str]) -> None:
    """In the long stage, so that one regeneration (`python docs/reference.py`) does for several changes."""
    made = load("reference").MADE
    there = {name: (PROJECT / "docs" / "reference" / name).read_text(encoding="utf-8") for name in pages}
    heads = {name: made if name.endswith(".md") else "" for name in pages}
    assert [name for name, text in pages.items() if there[name] != heads[name] + text.rstrip("\n") + "\n"] == []


def test_every_operation_is_shown_with_its_scope(pages: dict[str, str], document: dict[str, Any]) -> None:
    shown = "".join(text for name, text in pages.items() if name.startswith("rest/"))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            (section,) = re.findall(
                rf"^## {method.upper()} {re.escape(path)}\n(.*?)(?=^## |\Z)", shown, re.MULTILINE | re.DOTALL
            )
            scope = operation.get("x-scope")
            if isinstance(scope, dict):
                assert all(f"{name} `{needed}`" in section for name, needed in scope.items())
            else:
                other = "a sign-in code" if operation["security"] else "no key"
                assert f"Scope: `{scope}`" in section if scope else f"Scope: {other}." in section


def test_a_question_ends_as_one(pages: dict[str, str]) -> None:
    assert "**Is the process alive?** " in pages["rest/server.md"]
    assert [name for name, text in pages.items() if re.search(r"\?\.(?!\w)", text)] == []


def test_every_metric_is_listed(pages: dict[str, str], api: httpx.Client) -> None:
    answer = api.get("/metrics").raise_for_status().text
    names = {
        name for name in re.findall(r"^# TYPE (likeness_\w+)", answer, re.MULTILINE) if not name.endswith("_created")
    }
    assert len(names) > 20
    state = {"likeness_snapshot_age_seconds"}  # there once a snapshot was written
    assert not [name for name in names - state if f"| `{name}` |" not in pages["metrics.md"]]


def test_the_pages_are_those_that_the_site_expects(pages: dict[str, str]) -> None:
    folder = PROJECT / "docs" / "reference"
    by_hand = {"index.md", "losses.md", "words.md"}
    there = {str(page.relative_to(folder)) for kind in ("md", "json") for page in folder.rglob(f"*.{kind}")}
    assert set(pages) == there - by_hand


def site(folder: Path, **pages: str) -> Path:
    """Write a small site whose first page links to all others."""
    links = "".join(f'<a href="{name}.html">{name}</a>' for name in pages)
    (folder / "index.html").write_text(f"<html><body>{links}{pages.pop('index', '')}</body></html>")
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{text}</body></html>")
    return folder


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<h2 id="here"></h2><a href="#here">', None),
        ('<a href="https://example.org">', None),
        ('<a href="nowhere.html">', "which does not exist"),
        ('<img src="nothing.svg">', "which does not exist"),
        ('<a href="#nowhere">', "whose anchor does not exist"),
        ('<script src="https://example.org/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "from another host"),
    ],
)
def test_what_is_wrong_with_a_site_is_found(tmp_path: Path, body: str, said: str | None) -> None:
    found = load("check_site").problems(site(tmp_path, page=body).resolve())
    assert len(found) == (said is not None)
    assert all(said is not None and said in line for line in found)


def test_a_page_that_nothing_links_to_is_found(tmp_path: Path) -> None:
    site(tmp_path, page="")
    (tmp_path / "lost.html").write_text("<html></html>")
    assert load("check_site").problems(tmp_path.resolve()) == ["No page links to lost.html"]
