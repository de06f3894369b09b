"""The `likeness` command: the list of its commands, and how errors become messages and exit codes.

A command's module is imported when that command runs, so that help and short commands start quickly.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from likeness_client.errors import ClientError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from app.cli import output
from app.errors import LikenessError, Unusable
from app.version import DISTRIBUTION, VERSION
from app.wording import found_wrong, meant_rate

COMMANDS = "commands"
"""A module's name for the Typer object of commands without a group."""
FEATURES = "features."


class Entry(NamedTuple):
    """One line of `likeness --help`."""

    where: str
    """Module below `app`, and the name of its Typer object: COMMANDS, or a group's own."""
    help: str
    panel: str
    more: tuple[str, ...] = ()
    """Features' modules, and the names of their Typer objects, whose commands are added to the group."""


def is_installed(module: str) -> bool:
    """Return whether a command's module exists, since a feature's folder may have been removed."""
    try:
        return not module.startswith(FEATURES) or find_spec(f"app.{module.partition(':')[0]}") is not None
    except ModuleNotFoundError:
        return False


_RECOGNITION, _PEOPLE, _TRANSFER, _SERVER = "Recognition", "Galleries and people", "Import and export", "Server"
_NOT_WRITABLE = errno.EROFS, errno.EACCES, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST
UNWRITABLE = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "disk_full") | dict.fromkeys(_NOT_WRITABLE, "not_writable")
"""Error codes for file system errors that one sentence explains."""
ENTRIES = {
    "detect": Entry("cli.recognition:commands", "Find the faces in photos.", _RECOGNITION),
    "verify": Entry("cli.recognition:commands", "Compare two photos: do they show the same person?", _RECOGNITION),
    "enroll": Entry("cli.recognition:commands", "Add people to a gallery.", _RECOGNITION),
    "identify": Entry("cli.recognition:commands", "Find the people of a gallery in photos.", _RECOGNITION),
    "mcp": Entry("features.mcp.command:commands", "Answer an assistant (Model Context Protocol).", _RECOGNITION),
    "watch": Entry(
        "features.watching.command:commands", "Watch cameras or films, and tell who is there.", _RECOGNITION
    ),
    "galleries": Entry(
        "cli.galleries:galleries",
        "List, create, change, delete and check galleries.",
        _PEOPLE,
        (
            "features.review.command:commands",
            "features.calibration.command:commands",
            "features.checks.command:galleries",
        ),
    ),
    "people": Entry(
        "cli.people:people",
        "List, show, rename, merge and delete the people of a gallery.",
        _PEOPLE,
        ("features.moving.command:people",),
    ),
    "sightings": Entry("features.watching.lists:sightings", "List sightings, say who they show, delete them.", _PEOPLE),
    "strangers": Entry("features.watching.lists:strangers", "Name, ignore, join and forget unknown people.", _PEOPLE),
    "faces": Entry(
        "cli.people:faces",
        "List, move and delete the enrolled faces of a person.",
        _PEOPLE,
        ("features.moving.command:faces", "features.checks.command:faces"),
    ),
    "corrections": Entry(
        "features.corrections.command:corrections", "Say who a photo does not show; list and delete that.", _PEOPLE
    ),
    "erase": Entry("features.erasure.command:commands", "Erase a person for good, with a signed receipt.", _PEOPLE),
    "receipts": Entry("features.erasure.command:receipts", "List, show and check receipts of erasures.", _PEOPLE),
    "reembed": Entry(
        "features.reembedding.command:reembed", "Move a gallery to another model package while it is in use.", _PEOPLE
    ),
    "import": Entry("features.bulk.command:commands", "Enroll many people at once.", _TRANSFER),
    "export": Entry("features.bulk.command:commands", "Write a gallery into one signed archive.", _TRANSFER),
    "import-compreface": Entry(
        "features.compreface.command:commands", "Enroll the photos of a CompreFace database.", _TRANSFER
    ),
    "jobs": Entry("cli.jobs:jobs", "List, wait for and cancel work that outlasts a request.", _TRANSFER),
    "backup": Entry(
        "features.bulk.database_command:commands",
        "Write a SQLite database and its keys into one signed file.",
        _TRANSFER,
    ),
    "restore": Entry("features.bulk.database_command:commands", "Replace a SQLite database with a backup.", _TRANSFER),
    "database": Entry(
        "features.bulk.database_command:database", "Copy the database from SQLite to PostgreSQL or back.", _TRANSFER
    ),
    "serve": Entry("cli.server:commands", "Start the server.", _SERVER),
    "status": Entry(
        "features.doctor.status:commands", "Show the server, data folder, models, galleries and health.", _SERVER
    ),
    "doctor": Entry("features.doctor.command:commands", "Check the installation, and say how to repair it.", _SERVER),
    "models": Entry("models.commands:models", "List, fetch and quantize model packages.", _SERVER),
    "events": Entry("features.watching.lists:commands", "Print what happens before cameras.", _SERVER),
    "webhooks": Entry("features.watching.lists:webhooks", "Send events to addresses: add, show, resume.", _SERVER),
    "keys": Entry(
        "features.keys.command:keys",
        "Create, list, rotate and revoke API keys.",
        _SERVER,
        ("features.sign_in.command:commands",),
    ),
    "audit": Entry("features.audit.command:audit", "Export the audit log: who did what, and when.", _SERVER),
    "vault": Entry("features.vault.command:vault", "Encrypt templates, crops and snapshots at rest.", _SERVER),
}
ENTRIES = {name: entry for name, entry in ENTRIES.items() if is_installed(entry.where)}


MEANT = {
    "help": "--help", "version": "--version", "start": "serve", "run": "serve", "up": "serve",
    "add": "enroll", "register": "enroll", "recognize": "identify", "recognise": "identify", "search": "identify",
    "compare": "verify", "match": "verify", "login": "keys link", "url": "keys link",
    "cameras": "watch", "camera": "watch", "calibrate": "galleries calibrate", "review": "galleries review",
    "list": "galleries list", "create": "galleries create", "delete": "people delete", "pull": "models pull",
    "person": "people", "subjects": "people", "remove": "people delete", "people create": "enroll", "check": "doctor",
}  # fmt: skip
"""Other programs' names for commands."""
MEANT_IN_GROUPS = {
    "remove": ("delete", "revoke"), "rm": ("delete", "revoke", "remove"), "delete": ("revoke", "remove"),
    "add": ("create",), "new": ("create",), "make": ("create",), "ls": ("list",), "get": ("show",), "info": ("show",),
    "change": ("update", "rename"), "install": ("pull",), "download": ("pull",),
}  # fmt: skip
"""The same in groups such as `people`: the first that the group has is meant."""
ENGINES = {"faiss", "onnxruntime"}
"""Modules that the extra `cpu` or `gpu` installs."""
_NO_COMMAND = re.compile("No such command '(.*?)'\\.")


class _Commands(TyperGroup):
    """The commands of ENTRIES. Lists show their one-line help; a command is loaded when it is called."""

    def __init__(self, **attributes: Any) -> None:
        attributes["commands"] = {
            name: TyperCommand(name, help=entry.help, rich_help_panel=entry.panel) for name, entry in ENTRIES.items()
        }
        super().__init__(**attributes)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if command and name else None, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            error.message = _said(error)
            raise
        except ModuleNotFoundError as error:
            if error.name not in ENGINES:
                raise
            wanted = f"pip install '{DISTRIBUTION}[cpu]', or [gpu] for an NVIDIA card"
            raise typer.TyperException(f"{error.name} is not installed: {wanted}.") from None


def _said(error: Any) -> str:
    """Return what is wrong with the command line, and a guess at what was meant."""
    name = getattr(getattr(error, "param", None), "name", None)
    message = found_wrong({"msg": error.message, "loc": [name]})  # Typer checks values by pydantic
    command = error.ctx.command if getattr(error, "ctx", None) else None
    if (found := _NO_COMMAND.match(message)) and isinstance(command, TyperGroup):
        known = [name for name, subcommand in command.commands.items() if not subcommand.hidden]
        if meant := _meant(found[1], error.ctx.info_name if error.ctx.parent else None, known):
            return f"{found[0]} Did you mean {meant!r}?"
        return message if message != found[0] else f"{message} There are {', '.join(known)}."
    if (option := getattr(error, "option_name", None)) and command:
        options = [name for parameter in command.params for name in parameter.opts]
        if by_rate := meant_rate(option, options):
            return f"No such option: {option}: {by_rate}"
    return message


def _meant(name: str, group: str | None, known: Sequence[str]) -> str | None:
    """Return the command that ``name`` probably means, in a ``group`` of the ``known`` commands or in none."""
    if group is None:
        return MEANT.get(name)
    inner = next((f"{group} {word}" for word in MEANT_IN_GROUPS.get(name, ()) if word in known), None)
    meant = inner or MEANT.get(f"{group} {name}") or (name if name in ENTRIES else MEANT.get(name))
    return f"likeness {meant}" if meant and (inner or " " not in meant) else None


app = typer.Typer(
    name="likeness",
    cls=_Commands,
    help="Face recognition: detect, verify, enroll, identify.",
    epilog="Example: likeness status\n\nEvery command has examples: likeness enroll --help",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def load(name: str) -> TyperCommand | TyperGroup:
    """Import a command of ENTRIES, or a group of commands."""
    entry = ENTRIES[name]
    group = _group(entry.where)
    for more in filter(is_installed, entry.more):
        group.commands.update(_group(more).commands)
    command = group.commands[name] if entry.where.endswith(f":{COMMANDS}") else group
    assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101 - Typer makes no others
    command.help = command.help or entry.help
    return command


def _group(where: str) -> TyperGroup:
    module, _, name = where.partition(":")
    return get_group(getattr(import_module(f"app.{module}"), name))


def _print_version(wanted: bool) -> None:
    if wanted:
        output.say(f"likeness {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    as_json = output.wants_json()
    try:
        sys.exit(app(standalone_mode=not as_json) or output.Exit.DONE)
    except (LikenessError, ClientError) as error:
        output.complain(output.with_option_names(error, _called().params))
        sys.exit(output.exit_code(error))
    except typer.TyperException as error:  # raised here with --json only; otherwise Typer prints it
        output.complain(LikenessError(error.format_message(), code="usage"))
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(output.Exit.NO)
    except BrokenPipeError:  # `likeness ... | head`
        sys.exit(output.Exit.DONE)
    except OSError as error:
        code = UNWRITABLE.get(error.errno or 0)
        if code is None:
            raise
        refusal = Unusable(f"{error.filename or 'A file'} can't be written: {error.strerror}.", code=code)
        output.complain(refusal)
        sys.exit(output.exit_code(refusal))


def _called() -> TyperCommand | TyperGroup:
    """Return the command that the arguments name, or the group if they name only that."""
    words = sys.argv[1:]
    command: Any = load(words[0]) if words[:1] and words[0] in ENTRIES else TyperGroup(name="likeness")
    for word in words[1:]:
        if not isinstance(command, TyperGroup) or word not in command.commands:
            break
        command = command.commands[word]
    return command  # type: ignore[no-any-return]  # Typer's groups hold commands and groups
