"""What commands print: JSON lines for programs, short lines and tables for people; and their exit codes."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from app.errors import FileMissing, InvalidInput, InvalidSetting, InvalidSource, LikenessError, VaultKeyMissing


class Exit(IntEnum):
    """What a script learns without reading a word."""

    DONE = 0
    """Also: the photos match, somebody was known, the gallery is in order."""
    NO = 1
    """It went well and the answer is no: no match, nobody known, the gallery is not in order."""
    USAGE = 2
    """The command line or a setting is wrong."""
    REFUSED = 3
    """A photo was refused: no face, poor quality, unreadable. Others in the same command were done."""
    FAILED = 4
    """No server, no key, or an installation that does not work."""


REFUSALS = frozenset({400, 413, 415, 422})
MISUSE = (InvalidSetting, FileMissing, InvalidSource, VaultKeyMissing)


def exit_code(error: LikenessError) -> Exit:
    if isinstance(error, MISUSE):
        return Exit.USAGE
    if isinstance(error, InvalidInput) or getattr(error, "status", None) in REFUSALS:
        return Exit.REFUSED
    return Exit.FAILED


def complain(error: LikenessError, path: Path | None = None) -> None:
    where = f"{path}: " if path else ""
    sys.stderr.write(f"{where}{error.message} ({error.code})\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def say_json(value: BaseModel | dict[str, Any]) -> None:
    """One line of JSON."""
    plain = value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
    say(json.dumps(plain, ensure_ascii=False, allow_nan=False))


def error_json(path: Path, error: LikenessError) -> dict[str, Any]:
    problem = {"code": error.code, "message": error.message, "details": dict(error.details)}
    return {"path": str(path), "error": problem}


def say_table(columns: list[str], rows: list[list[str]]) -> None:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
