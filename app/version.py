"""The name of this distribution and its version, in one place."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "likeness-server"
"""The name for pip; on PyPI `likeness` is another project."""
_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def _version() -> str:
    """Return the installed distribution's version, or that of pyproject.toml if it was never installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])


VERSION = _version()
