"""Count the words of the documentation, without what is written from code or from figures: `make words`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
MOST = 22_000
MADE = "<!-- Written by"
"""Begins a page that docs/reference.py writes."""


def words() -> dict[str, int]:
    """Return the words of each page that git tracks and people write, and of the README."""
    command = ["git", "ls-files", "README.md", "docs/*.md"]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split()
    texts = {name: (PROJECT / name).read_text(encoding="utf-8") for name in names}
    return {name: _count(text) for name, text in texts.items() if not text.startswith(MADE)}


def _count(text: str) -> int:
    """Return how many words have a letter or a digit: the bars of a table are none."""
    return sum(any(sign.isalnum() for sign in word) for word in text.split())


def main() -> int:
    found = words()
    for name, count in found.items():
        sys.stdout.write(f"{count:7,}  {name}\n")
    site = sum(count for name, count in found.items() if name.startswith("docs/"))
    sys.stdout.write(f"{site:7,}  in docs/, at most {MOST:,}\n")
    return 1 if site > MOST else 0


if __name__ == "__main__":
    sys.exit(main())
