"""Read the commands of docs/how-to/docker.md for the trial, and copy the project to run them in.

An HTML comment before a block says why the trial leaves it out (`not run: …`) or what it needs (`needs many people`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "how-to" / "docker.md"
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]+) -->\n)?^```sh\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "not run: "
NEEDS_PEOPLE = "needs many people"


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of shell, and the comment before them."""

    code: str
    mark: str | None

    @property
    def is_run(self) -> bool:
        return self.mark is None or not self.mark.startswith(LEFT_OUT)


def blocks(text: str) -> Iterator[Block]:
    """Yield the page's blocks of shell, in order. Raises ValueError for a comment that this module does not know."""
    for found in BLOCK.finditer(text):
        mark = found["mark"]
        if mark is not None and not mark.startswith(LEFT_OUT) and mark != NEEDS_PEOPLE:
            raise ValueError(f"unknown comment before a block: {mark}")
        yield Block(found["code"], mark)


def copy_project(folder: Path) -> None:
    """Copy the files that git tracks, as a reader has them."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        source = PROJECT / name
        if source.is_file() and not name.startswith(("tests/", "bench/", "training/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)


def with_ports(code: str, ports: Mapping[str, str]) -> str:
    """Return the commands with the page's ports replaced by others."""
    return re.sub(r"\b(?:127\.0\.0\.1|localhost):(\d+)\b", lambda found: _other(found, ports), code)


def _other(found: re.Match[str], ports: Mapping[str, str]) -> str:
    return found[0].replace(found[1], ports.get(found[1], found[1]))
