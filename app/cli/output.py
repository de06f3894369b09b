"""What commands print, and their exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import InvalidInput, LikenessError

if TYPE_CHECKING:
    from pydantic import BaseModel


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    """Done; also: the photos match, somebody was identified, the gallery is consistent."""
    NO = 1
    """The answer is no: no match, nobody identified, the gallery is inconsistent."""
    USAGE = 2
    """An argument, an option or a setting is wrong."""
    REFUSED = 3
    """A photo was refused or is missing; the others were processed."""
    FAILED = 4
    """No server or data folder, no valid key, or an installation that doesn't work."""
    MISSING = 5
    """The gallery doesn't exist, or the person, face, job, key or receipt that was named."""


IMAGE_CODES = frozenset(
    {
        "ambiguous_face",
        "empty_image",
        "empty_upload",
        "image_too_large",
        "image_too_small",
        "invalid_base64",
        "invalid_image",
        "low_quality",
        "missing_image",
        "no_face",
        "nothing_enrolled",
        "payload_too_large",
        "too_many_images",
        "unsupported_image",
        "unsupported_media_type",
    }
)
"""What a server says against a photo or an upload."""
USAGE_CODES = frozenset(
    {"unknown_setting", "invalid_setting", "file_not_found", "invalid_source", "vault_key_missing", "search_unavailable"}
)
MISSING_CODES = frozenset(
    {"gallery_not_found", "subject_not_found", "face_not_found", "job_not_found", "key_not_found", "receipt_not_found"}
)
OPTION_NAMES = {"expires_at": ("expires",), "id": ("key_id", "gallery", "subject")}
"""Fields of a request whose parameter has another name here."""
REQUEST_STATUS = frozenset({400, 422})


def exit_code(error: LikenessError) -> Exit:
    """Return the exit code for an error, from the server or from here."""
    if error.code in USAGE_CODES:
        return Exit.USAGE
    if error.code in MISSING_CODES:
        return Exit.MISSING
    if error.code in IMAGE_CODES:
        return Exit.REFUSED
    if getattr(error, "status", None) in REQUEST_STATUS:
        return Exit.USAGE
    return Exit.REFUSED if isinstance(error, InvalidInput) else Exit.FAILED


def with_option_names(error: LikenessError, parameters: Iterable[Any]) -> LikenessError:
    """Replace the fields that a validation error names by the options of the command (Typer's ``parameters``)."""
    problems = error.details.get("errors")
    if error.code != "invalid_request" or not isinstance(problems, list):
        return error
    names = {one.name: _shown_name(one) for one in parameters}
    told = [(_option(str(one.get("where")), names), str(one.get("what"))) for one in problems if isinstance(one, dict)]
    message = "; ".join(dict.fromkeys(f"{option}: {what}" for option, what in told))
    details = {**error.details, "errors": [{"where": option, "what": what} for option, what in told]}
    return LikenessError(message or error.message, code=error.code, **details)


def _shown_name(parameter: Any) -> str:
    long = [name for name in parameter.opts if name.startswith("--")]
    return str(long[0] if long else (parameter.metavar or parameter.name).upper())


def _option(where: str, names: dict[str, str]) -> str:
    """``body.scopes.0`` -> ``--scope``; a field that no option sets keeps its name."""
    for field in where.split("."):
        for name in (field, *OPTION_NAMES.get(field, ())):
            if name in names:
                return names[name]
    return where


def wants_json() -> bool:
    """Return whether the command line asks for JSON; also true where the rest of it is wrong."""
    return "--json" in sys.argv[1:]


def complain(error: LikenessError, path: Path | None = None) -> None:
    """Print an error to standard error: one line for people, or one of JSON."""
    if wants_json():
        sys.stderr.write(_json({**({"path": str(path)} if path else {}), "error": _problem(error)}) + "\n")
    else:
        sys.stderr.write(f"{f'{path}: ' if path else ''}{error.message} ({error.code})\n")


def warn(text: str) -> None:
    sys.stderr.write(text + "\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def say_json(value: BaseModel | dict[str, Any]) -> None:
    """Print one line of JSON."""
    say(_json(value if isinstance(value, dict) else value.model_dump(mode="json", exclude_none=True)))


def say_done(what: str, done: str, *, as_json: bool) -> None:
    """Print what was done to ``what``, for example `staff: deleted`."""
    if as_json:
        say_json({"id": what, "done": done})
    else:
        say(f"{what}: {done}")


def error_json(path: Path, error: LikenessError) -> dict[str, Any]:
    return {"path": str(path), "error": _problem(error)}


def _problem(error: LikenessError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "details": dict(error.details)}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)


def say_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415 - slow to import

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
