"""Options that several commands share, their completion in a shell, and the options of commands that work with a
server: which one, with which key, and how to print answers (`CliSession`)."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import update_wrapper
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from likeness_client import Client
from likeness_client.errors import ClientError
from pydantic import BaseModel

from app import choices
from app.cli import output
from app.cli.connect import Data, connect, find_server
from app.errors import GalleryNotFound, LikenessError

NAMED = 5
"""Maximum galleries that a message names."""
COMPLETED = 100
"""Maximum galleries that a shell gets as completions."""


def gallery_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the matching galleries of a running server; none if no server runs."""
    try:
        running = find_server(context.params.get("server"), context.params.get("key"))
        if running is None:
            return []
        with running as client:
            galleries = client.galleries(limit=COMPLETED).galleries
    except LikenessError:
        return []
    return [gallery.id for gallery in galleries if gallery.id.startswith(incomplete)]


def model_ids(incomplete: str) -> Iterator[str]:
    """Yield the matching packages here, read as plain JSON: the module that checks manifests is slow to import."""
    from app.config import load_settings  # noqa: PLC0415 - only completion needs it here

    try:
        settings = load_settings()
    except LikenessError:
        return
    for path in (*settings.models_dir.glob("*/manifest.json"), *settings.data_dir.glob("packages/*/manifest.json")):
        try:
            manifest = json.loads(path.read_bytes())
            package = f"{manifest['name']}@{manifest['version']}"
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if package.startswith(incomplete):
            yield package


Server: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="URL of a running server. Default: the server that runs on the data folder; "
        "without one, the command does the work itself.",
        envvar="LIKENESS_SERVER",
    ),
]
Key: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="API key. Default: the admin key in the data folder; with --server, the one in LIKENESS_KEY_FILE.",
        envvar="LIKENESS_KEY",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one line of JSON per answer, errors too.")]
Jobs: TypeAlias = Annotated[int, typer.Option(min=1, max=64, help="Photos sent at the same time.")]
Fmr: TypeAlias = Annotated[
    float | None, typer.Option(help="False match rate that sets the threshold, for example 1e-4.")
]
Quality: TypeAlias = Annotated[choices.QualityName | None, typer.Option(help="Lowest quality that is accepted.")]
LeastQuality: TypeAlias = Annotated[
    choices.QualityName | None, typer.Option("--quality", help="Lowest quality of a face to be more than uncertain.")
]
Liveness: TypeAlias = Annotated[
    choices.LivenessMode | None,
    typer.Option(help="Whether faces are live: report a verdict, or require it (docs/how-to/liveness.md)."),
]
Search: TypeAlias = Annotated[
    choices.IndexKind | None,
    typer.Option(help="How vectors are searched (docs/explanation/search.md)."),
]
OnConflict: TypeAlias = Annotated[
    choices.OnConflict | None,
    typer.Option(help="Faces that are enrolled already or match somebody else: say so, refuse them, or don't look."),
]
Population: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Group of people in the photo, as `likeness models show` lists them. Default: the gallery's."),
]
Populations: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--population", help="Group of people that it is for, as `likeness models show` lists them; may be repeated."
    ),
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]
Create: TypeAlias = Annotated[bool, typer.Option("--create", help="Create the gallery if it doesn't exist.")]
Paths: TypeAlias = Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")]
Gallery: TypeAlias = Annotated[str, typer.Argument(help="The gallery's id.", autocompletion=gallery_ids)]
InGallery: TypeAlias = Annotated[
    str | None, typer.Option("--gallery", help="Only this gallery.", autocompletion=gallery_ids)
]
Subject: TypeAlias = Annotated[str, typer.Argument(help="The person's id.")]
Package: TypeAlias = Annotated[
    str, typer.Argument(help="The model package: `name` or `name@version`.", autocompletion=model_ids)
]
Embedder: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Model package. Default: the server's embedder.", autocompletion=model_ids),
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Take a package without operating points.")]
AcceptNonCommercial: TypeAlias = Annotated[
    bool, typer.Option("--accept-non-commercial", help="Take weights whose licence forbids commercial use.")
]


RowT = TypeVar("RowT", bound=BaseModel)


@dataclass(slots=True)
class CliSession:
    """The options of a command that works with a server: which one, with which key, and how answers are printed."""

    server: str | None
    key: str | None
    as_json: bool
    ending: ExitStack
    _client: Client | None = None

    def client(self, data: Data = Data.EXISTING) -> Client:
        """Connect as `connect` does, once; the connection is closed when the command ends."""
        if self._client is None:
            self._client = self.ending.enter_context(connect(self.server, self.key, data))
        return self._client

    def say(self, answer: BaseModel | dict[str, Any], *lines: str) -> None:
        """Print an answer as JSON, or as these lines for people."""
        output.answer(answer, *lines, as_json=self.as_json)

    def say_done(self, what: str, done: str) -> None:
        """Print what was done to ``what``, for example `staff: deleted`."""
        self.say({"id": what, "done": done}, f"{what}: {done}")

    def say_list(self, columns: Sequence[str], rows: Iterable[RowT], cells: Callable[[RowT], Sequence[object]]) -> None:
        """Print a line of JSON for each row, or all as a table."""
        if not self.as_json:
            output.say_table(columns, map(cells, rows))
            return
        for row in rows:
            output.say_json(row)


def command(
    group: typer.Typer, name: str | None = None, *, epilog: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command that works with a server: `--server`, `--key` and `--json` reach it as a `CliSession`."""

    def add(work: Callable[..., None]) -> Callable[..., None]:
        def run(server: Server = None, key: Key = None, as_json: AsJson = False, **given: Any) -> None:
            with ExitStack() as ending:
                session = CliSession(server, key, as_json, ending)
                try:
                    work(session, **given)
                except (LikenessError, ClientError) as error:
                    if error.code == GalleryNotFound.code:
                        error.message = " ".join((error.message, *_hints(session, error, creates="create" in given)))
                    raise

        parameters = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
        shared = list(inspect.signature(run, eval_str=True).parameters.values())[:-1]
        update_wrapper(run, work)
        run.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
        return group.command(name, epilog=epilog)(run)

    return add


def _hints(session: CliSession, error: LikenessError | ClientError, *, creates: bool) -> Iterator[str]:
    """Yield hints about a missing gallery, besides the server's suggestion."""
    try:
        known = [gallery.id for gallery in session.client().galleries(limit=COMPLETED).galleries]
    except (LikenessError, ClientError):  # the key may lack the right to list galleries
        known = []
    if known and "nearest" not in error.details:
        yield f"There {'are' if len(known) > 1 else 'is'} {', '.join(known[:NAMED])}{', ...' * (len(known) > NAMED)}."
    if creates:
        yield "With --create it is made."


def confirm(question: str, yes: Yes) -> None:
    """Ask, unless ``yes``. Raises Abort if the answer is no, BadParameter without a terminal."""
    if yes:
        return
    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise typer.BadParameter("nobody is there to answer: give it to go on unasked", param_hint="--yes") from None
    if not agreed:
        raise typer.Abort


def utc(time: datetime | None) -> datetime | None:
    """Return the time of an option, which is in UTC unless it names another zone."""
    return time.replace(tzinfo=UTC) if time and time.tzinfo is None else time
