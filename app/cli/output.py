"""What commands print, and their exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from likeness_client.errors import ClientError

from app.error_codes import About, about
from app.errors import InvalidInput, InvalidSetting, LikenessError, Unusable

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
    """A photo was rejected or is missing; the others were processed."""
    FAILED = 4
    """No server or data folder, no valid key, or an installation that doesn't work."""
    MISSING = 5
    """The named gallery, person, face, job, key or receipt doesn't exist."""


BY_ABOUT = {
    About.KEY: Exit.FAILED,
    About.REQUEST: Exit.USAGE,
    About.PHOTO: Exit.REFUSED,
    About.MISSING: Exit.MISSING,
    About.STATE: Exit.FAILED,
    About.BUSY: Exit.FAILED,
    About.SERVER: Exit.FAILED,
}
OPTION_NAMES = {"expires_at": ("expires",), "id": ("key_id", "gallery", "subject")}
"""Fields of requests whose option or argument has another name here."""
CODE_FIELDS = {
    "invalid_expiry": ("expires_at",),
    "invalid_key_id": ("id",),
    "invalid_rate": ("rate",),
    "invalid_search": ("search",),
    "package_ambiguous": ("model", "embedder", "package"),
    "package_unknown": ("model", "embedder", "package"),
}
"""The field that a code is about."""
PIPED_WIDTH = 10_000
"""Width of a table that is not shown on a terminal: nothing is cut off."""


Failure: TypeAlias = LikenessError | ClientError
"""An error from here, or from the client."""


def exit_code(error: Failure) -> Exit:
    """Return the exit code for an error from the server or from this process."""
    if isinstance(error, Unusable):
        return Exit.USAGE if isinstance(error, InvalidSetting) else Exit.FAILED
    if kind := about(error.code, getattr(error, "status", None)):
        return BY_ABOUT[kind]
    return Exit.REFUSED if isinstance(error, InvalidInput) else Exit.FAILED


def with_option_names(error: Failure, parameters: Iterable[Any]) -> LikenessError:
    """Name the options of a command (Typer's ``parameters``) in an error about the fields of its request."""
    names = {}
    for parameter in parameters:
        long = [name for name in parameter.opts if name.startswith("--")]
        names[parameter.name] = long[0] if long else (parameter.metavar or parameter.name).upper()

    def option(fields: Iterable[str]) -> str | None:
        """Return the option for the path of a field: ``body``, ``scopes``, ``0`` -> ``--scope``."""
        known = (name for field in fields for name in (field, *OPTION_NAMES.get(field, ())) if name in names)
        return next((names[name] for name in known), None)

    problems = error.details.get("errors")
    details = dict(error.details)
    if isinstance(problems, list):
        told = [(option(problem["where"].split(".")) or problem["where"], problem["what"]) for problem in problems]
        details["errors"] = [{"where": where, "what": what} for where, what in told]
        message = "; ".join(dict.fromkeys(f"{where}: {what}" for where, what in told))
    else:
        about_one = option(CODE_FIELDS.get(error.code, ()))
        message = f"{about_one}: {error.message}" if about_one else error.message
    named = LikenessError(message, code=error.code)
    named.details = details
    return named


def wants_json() -> bool:
    """Return whether the command line asks for JSON, even if the rest of it is wrong."""
    return "--json" in sys.argv[1:]


def complain(error: Failure, path: Path | None = None) -> None:
    """Print an error to standard error: one line for people, or one of JSON."""
    if wants_json():
        sys.stderr.write(_json({**({"path": str(path)} if path else {}), "error": problem(error)}) + "\n")
    else:
        sys.stderr.write(f"{f'{path}: ' if path else ''}{error.message} ({error.code})\n")


def warn(text: str) -> None:
    """Print a remark to standard error: one line for people, or one of JSON."""
    sys.stderr.write((_json({"warning": text}) if wants_json() else text) + "\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def answer(value: BaseModel | dict[str, Any], *lines: str, as_json: bool) -> None:
    """Print an answer as one line of JSON, or as these lines for people."""
    if as_json:
        say_json(value)
    else:
        say("\n".join(lines))


def say_json(value: BaseModel | dict[str, Any]) -> None:
    """Print one line of JSON."""
    say(_json(value if isinstance(value, dict) else value.model_dump(mode="json", exclude_none=True)))


def problem(error: Failure) -> dict[str, Any]:
    """Return an error as it is printed in JSON."""
    return {"code": error.code, "message": error.message, "details": dict(error.details)}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; None is an empty cell."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415 - slow to import

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error, if that is a terminal and there is more than one thing to do.

    Yield the function that changes it, which takes the arguments of rich's `Progress.update`.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal or (total is not None and total < 2)
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        yield partial(bar.update, bar.add_task(label, total=total))
