"""Steps of a release that no other program does: `python .ci/release.py check|notes TAG`, or `wheels FOLDER`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
VERSIONED = ("pyproject.toml", "clients/python/pyproject.toml")


def check(tag: str) -> None:
    """Exit with a message unless the tag is the version of every part, and the changelog has its date."""
    version = tag.removeprefix("v")
    projects = {name: tomllib.loads((PROJECT / name).read_text())["project"]["version"] for name in VERSIONED}
    package = (PROJECT / "clients" / "typescript" / "package.json").read_text()
    found = projects | {"clients/typescript/package.json": re.findall(r'"version": "([^"]+)"', package)[0]}
    wrong = [f"{name} says {told}" for name, told in found.items() if told != version]
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", _changelog(), re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no `## {version} (YYYY-MM-DD)`")
    if wrong:
        sys.exit(f"{tag}: {'; '.join(wrong)}.")


def notes(tag: str) -> str:
    """Return the version's part of the changelog. Exits if there is none."""
    version = re.escape(tag.removeprefix("v"))
    found = re.search(rf"^## {version}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", _changelog(), re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else sys.exit(f"CHANGELOG.md has no part about {tag}.")


def wheels(folder: Path) -> None:
    """Build the wheels of the server and of its client, with the installed setuptools and without a download."""
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    projects = [PROJECT, PROJECT / "clients" / "python"]
    _clear(projects)  # otherwise a file that was deleted from the project would come back from an earlier build
    try:
        command = [sys.executable, "-m", "pip", "wheel", *options, *map(str, projects)]
        subprocess.run(command, check=True)  # noqa: S603 - our own words
    finally:
        _clear(projects)  # mypy would stop at the second copy of each module


def _clear(projects: Sequence[Path]) -> None:
    """Remove what setuptools leaves of earlier builds."""
    for project in projects:
        shutil.rmtree(project / "build", ignore_errors=True)


def _changelog() -> str:
    return (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    what, argument = sys.argv[1:]
    if what == "notes":
        sys.stdout.write(notes(argument) + "\n")
    elif what == "check":
        check(argument)
    else:
        wheels(Path(argument))
