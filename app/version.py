"""The name of this distribution and its version, in one place."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "likeness-server"
"""What pip calls it; on PyPI `likeness` is another's."""
_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def _version() -> str:
    """Return the installed distribution's version; in a folder that was never installed, that of pyproject.toml."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])


VERSION = _version()
