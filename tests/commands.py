"""Commands run in this process, where a process of their own would only cost time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app import cli
from app.cli.output import exit_code
from app.errors import LikenessError
from tests.live import environment


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(data: Path, *words: object, **settings: object) -> Done:
    """What `likeness WORDS` does on this data folder, errors as `app.cli.main` tells them."""
    with pytest.MonkeyPatch.context() as changed:
        for name in set(os.environ) - set(wanted := environment(data, **settings)):
            changed.delenv(name)
        for name, value in wanted.items():
            changed.setenv(name, value)
        result = CliRunner().invoke(cli.app, [str(word) for word in words])
    if isinstance(result.exception, LikenessError):
        return Done(exit_code(result.exception), result.stdout, result.exception.message)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)
