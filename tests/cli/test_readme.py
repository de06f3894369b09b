"""The README is held to the code: what it lists exists, what exists is listed, and its pasted lines work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from app import cli, config
from app.api import endpoints, problems
from tests.conftest import PROJECT
from tests.support.live import LiveServer

README = (PROJECT / "README.md").read_text()


def block(language: str, containing: str) -> str:
    """The fenced block of ``language`` that holds ``containing``."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(found for found in blocks if containing in found)


def test_every_setting_is_listed_with_its_default_and_meaning() -> None:
    assert config.settings_table() in README


def test_every_error_code_is_listed() -> None:
    assert problems.problems_table() in README


def test_every_scope_is_listed_with_its_operations() -> None:
    assert endpoints.scopes_table() in README


def test_every_command_is_shown() -> None:
    missing = [name for name, _ in cli.every_command() if f"likeness {name}" not in README]
    assert not missing


def test_every_version_is_pinned() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in (PROJECT / "constraints.txt").read_text().splitlines()
    }
    missing = sorted(name for name in wanted if re.split(r"[\[>=<~]", name)[0].lower().replace("_", "-") not in pinned)
    assert not missing


def test_changelog_and_version_agree() -> None:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)


def shell(script: str, server: LiveServer) -> list[str]:
    """Runs pasted lines as a person would, but against the test's own server; the answers, line by line."""
    script = script.replace("http://127.0.0.1:8000", server.url).replace(
        "data/admin.key", str(server.data_dir / "admin.key")
    )
    environ = os.environ | {"LIKENESS_DATA_DIR": str(server.data_dir)}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=PROJECT, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.replace("}{", "}\n{").splitlines()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's lines use curl, which is not on this machine")
def test_the_first_real_use_works_as_pasted(live_server: LiveServer) -> None:
    answers = [json.loads(line) for line in shell(block("sh", "identify?explain=true"), live_server)]
    gallery, first, second, verified, identified = answers
    assert gallery["id"] == "crew"
    assert len(first["enrolled"]) == len(second["enrolled"]) == 1
    assert verified["match"] is True
    decided = [(face["decision"], face["candidates"][0]["subject"]) for face in identified["faces"]]
    assert sorted(decided) == [("known", "eileen"), ("known", "grace")]

    python = block("python", "from app.client import Client").replace("http://127.0.0.1:8000", live_server.url)
    python = python.replace("data/admin.key", str(live_server.data_dir / "admin.key"))
    printed: list[str] = []
    exec(python, {"print": lambda *words: printed.append(" ".join(map(str, words)))})  # noqa: S102 (the README's own)
    assert sorted(line.split()[1] for line in printed) == ["eileen", "grace"]

    lines = shell(block("sh", "galleries check").replace(".venv/bin/likeness", f"{sys.executable} -m app"), live_server)
    assert lines[0].startswith("same person")
    assert any("eileen" in line for line in lines)
    assert lines[-1].startswith("crew: in order")


def test_nothing_of_the_research_data_is_here() -> None:
    images = [path for path in PROJECT.rglob("*.jp*g") if not {".venv", ".git"} & set(path.relative_to(PROJECT).parts)]
    samples = {"collins.jpg", "collins_again.jpg", "hopper.jpg", "both.jpg"}
    tracked = subprocess.run(
        ["git", "ls-files", "*.jpg", "*.jpeg"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    names = {Path(line).name for line in tracked.stdout.splitlines()} or {path.name for path in images}
    assert names <= samples
