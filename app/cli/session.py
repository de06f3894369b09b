"""The options of a command that works with a server: which one, with which key, and how answers are printed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from likeness_client import Client
from pydantic import BaseModel

from app.cli import options, output
from app.cli.connect import Data, connect

Arguments = ParamSpec("Arguments")
Row = TypeVar("Row", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Session:
    """The options that every command with a server takes (`with_session`)."""

    server: str | None
    key: str | None
    as_json: bool

    def connect(self, data: Data = Data.EXISTING) -> AbstractContextManager[Client]:
        return connect(self.server, self.key, data)

    def say(self, answer: BaseModel | dict[str, Any], text: str) -> None:
        """Print an answer as JSON, or ``text`` for people."""
        if self.as_json:
            output.say_json(answer)
        else:
            output.say(text)

    def say_done(self, what: str, done: str) -> None:
        """Print what was done to ``what``, for example `staff: deleted`."""
        self.say({"id": what, "done": done}, f"{what}: {done}")

    def say_list(self, columns: Sequence[str], found: Iterable[Row], cells: Callable[[Row], Sequence[str]]) -> None:
        """Print a line of JSON for each row, or all as a table."""
        if not self.as_json:
            output.say_table(columns, map(cells, found))
            return
        for row in found:
            output.say_json(row)


def _session_options(
    server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False
) -> Session:
    return Session(server, key, as_json)


def with_session(command: Callable[Concatenate[Session, Arguments], None]) -> Callable[..., None]:
    """Give a command the options `--server`, `--key` and `--json`, which reach it as a Session."""
    shared = inspect.signature(_session_options, eval_str=True).parameters
    signature = inspect.signature(command, eval_str=True)

    @wraps(command)
    def run(*args: Arguments.args, **given: Arguments.kwargs) -> None:
        chosen: dict[str, Any] = {name: given.pop(name) for name in shared}
        command(_session_options(**chosen), *args, **given)

    own = list(signature.parameters.values())[1:]
    run.__signature__ = signature.replace(parameters=[*own, *shared.values()])  # type: ignore[attr-defined]
    return run
