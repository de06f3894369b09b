"""Run commands in this process, when a process of their own would only cost time."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app import cli
from tests.support.live import environment
from tests.support.logged import own_logging


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that `--json` printed."""
        return [json.loads(line) for line in self.stdout.splitlines()]


def run(data: Path, *words: object, **settings: object) -> Done:
    """Run `likeness WORDS` on this data folder, without input and without a terminal."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = None
    with own_logging(), pytest.MonkeyPatch.context() as changed, redirect_stdout(output), redirect_stderr(errors):
        changed.setattr(sys, "argv", ["likeness", *map(str, words)])
        changed.setattr(sys, "stdin", io.StringIO())
        for name in set(os.environ) - set(wanted := environment(data, **settings)):
            changed.delenv(name)
        for name, value in wanted.items():
            changed.setenv(name, value)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    stdout, stderr = (bytes(file.buffer.getvalue()).decode() for file in (output, errors))
    return Done(int(code) if isinstance(code, int) else 0, stdout, stderr)
