"""What breaks programs that were written for the last release's OpenAPI document is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.conftest import PROJECT
from tests.support.node import MODULES, node, program

pytestmark = pytest.mark.long

DOCUMENT: dict[str, Any] = json.loads((PROJECT / "docs" / "reference" / "openapi.json").read_text(encoding="utf-8"))
VERIFY = "/v1/verify"
Change: TypeAlias = Callable[[dict[str, Any]], object]


def compared(folder: Path, after: dict[str, Any], code: int) -> str:
    program("api-smart-diff/package.json")
    (folder / "node_modules").symlink_to(MODULES)
    shutil.copy(PROJECT / ".ci" / "openapi" / "changes.mjs", folder)
    (folder / "before.json").write_text(json.dumps(DOCUMENT))
    (folder / "after.json").write_text(json.dumps(after))
    return node("changes.mjs", "before.json", "after.json", cwd=folder, code=code)


def schema(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"][name]
    return found


BREAKING: dict[str, Change] = {
    "an operation goes": lambda after: after["paths"].pop(VERIFY),
    "a field of an answer goes": lambda after: schema(after, "VerifyAnswer")["properties"].pop("score"),
    "a field of an answer has another type": lambda after: schema(after, "VerifyAnswer")["properties"].update(
        match={"type": "string"}
    ),
    "a parameter becomes necessary": lambda after: after["paths"][VERIFY]["post"]["parameters"].append(
        {"name": "reason", "in": "query", "required": True, "schema": {"type": "string"}}
    ),
}
HARMLESS: dict[str, Change] = {
    "an operation comes": lambda after: after["paths"].update({"/v1/new": deepcopy(after["paths"]["/version"])}),
    "a field of an answer comes": lambda after: schema(after, "VerifyAnswer")["properties"].update(
        new={"type": "string"}
    ),
    "words change": lambda after: after["paths"][VERIFY]["post"].update(description="Other words."),
}


def changed(change: Change, version: str | None = None) -> dict[str, Any]:
    after = deepcopy(DOCUMENT)
    change(after)
    after["info"]["version"] = version or DOCUMENT["info"]["version"]
    return after


@pytest.mark.parametrize("what", BREAKING)
def test_what_breaks_programs_is_named_and_fails(tmp_path: Path, what: str) -> None:
    said = compared(tmp_path, changed(BREAKING[what]), code=1)
    assert VERIFY in said


@pytest.mark.parametrize("what", HARMLESS)
def test_what_breaks_nothing_passes(tmp_path: Path, what: str) -> None:
    assert "0 breaking changes" in compared(tmp_path, changed(HARMLESS[what]), code=0)


def test_a_version_that_says_so_may_break(tmp_path: Path) -> None:
    said = compared(tmp_path, changed(BREAKING["an operation goes"], "99.0.0"), code=0)
    assert VERIFY in said
    assert "which the version says" in said
