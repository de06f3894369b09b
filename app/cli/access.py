"""keys, audit: who may do what, and who did what."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from app.access.grants import Scope
from app.api import schemas
from app.api.endpoints import SIGN_IN_LINK
from app.cli import options, output
from app.cli.connect import Data, answering, find_server, has_data, missing, own_key, takes_key
from app.cli.erasure import read_public_key
from app.cli.session import Session, with_session
from app.client import Unreachable
from app.config import load_settings
from app.errors import Conflict, FileMissing
from app.files import PRIVATE, sync_folder
from app.server import data_folder

if TYPE_CHECKING:
    from app.access.audit_chain import Reader
    from app.client import Client

keys = typer.Typer(no_args_is_help=True, epilog="Example: likeness keys create --scope recognize --gallery staff")
audit = typer.Typer(no_args_is_help=True, epilog="Example: likeness audit export --since 2026-01-01")

KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.")]
EXPORT_PAGE = 1000


@keys.command("list", epilog="Example: likeness keys list")
@with_session
def list_keys(session: Session) -> None:
    """List the keys and what each one allows. Secrets are never shown."""
    with session.connect() as client:
        found = list(client.all_keys())
    session.say_list(["key", "name", "scopes", "galleries", "rate", "expires", "revoked"], found, _row)


@keys.command(
    epilog="Examples: likeness keys create --id door --scope recognize --gallery staff --rate 10/s\n\n"
    "likeness keys create --aws --json"
)
@with_session
def create(
    session: Session,
    scopes: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What the key allows; may be repeated. With --aws, the default is admin."),
    ] = None,
    key_id: Annotated[str | None, typer.Option("--id", help="Id of the key. Default: the server chooses one.")] = None,
    name: Annotated[str | None, typer.Option(help="Whose key it is.")] = None,
    galleries: options.InGalleries = None,
    expires: Annotated[datetime | None, typer.Option(help="When it stops working, in UTC.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests allowed: 10/s, 600/m, 600/m:20 or unlimited.")] = None,
    aws: Annotated[bool, typer.Option("--aws", help="Print credentials for AWS clients.")] = False,
) -> None:
    """Create a key. The secret is printed only this once."""
    if not scopes and not aws:
        raise typer.BadParameter("say what the key allows", param_hint="--scope")
    with session.connect(Data.CREATED) as client:
        made = client.create_key(
            [scope.value for scope in scopes or [Scope.ADMIN]],  # Rekognition's clients create collections, too
            key_id=key_id,
            name=name,
            galleries=galleries or None,
            expires_at=_utc(expires),
            rate=rate,
            aws=aws,
        )
    _say_secret(session, made, aws=aws)


@keys.command(epilog="Example: likeness keys rotate door --grace 3600")
@with_session
def rotate(
    session: Session,
    key_id: KeyId,
    grace: Annotated[int, typer.Option(min=0, help="Seconds for which the previous secret keeps working.")] = 0,
) -> None:
    """Give a key a new secret, which is printed only this once."""
    with session.connect() as client:
        made = client.rotate_key(key_id, grace_seconds=grace)
    _say_secret(session, made, aws=made.aws_access_key_id is not None)


@keys.command(epilog="Example: likeness keys revoke door")
@with_session
def revoke(session: Session, key_id: KeyId) -> None:
    """Revoke a key for good."""
    with session.connect() as client:
        client.revoke_key(key_id)
    session.say_done(key_id, "revoked")


@keys.command(
    epilog="Example: likeness keys link\n\nExample: likeness keys link --server https://faces.example.org --key lk_…"
)
@with_session
def link(session: Session) -> None:
    """Print a link that signs a browser in to the page of a running server: once, within a minute."""
    found = find_server(session.server, session.key)
    if found is None:
        settings = load_settings()
        if not has_data(settings):
            raise missing(settings)
        raise Unreachable("No server runs on the data folder. Start one with `likeness serve`, or name one: --server.")
    with answering(found) as client:
        made = client.create_sign_in_code()
        text = SIGN_IN_LINK.format(url=client.url.rstrip("/"), code=made.code)
    session.say({"link": text, "expires_at": made.expires_at.isoformat()}, text)


@keys.command("admin", epilog="Example: export LIKENESS_KEY=$(likeness keys admin)")
def show_admin_key(
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Create a new admin key. Running servers take it within a second.")
    ] = False,
) -> None:
    """Print the admin key of the data folder, which the first start of the server creates."""
    settings = load_settings()
    if not rotate:
        output.say(own_key(settings))
        return
    from app import main  # noqa: PLC0415 - slow to import

    new = main.rotate_admin_key(settings.data_dir)
    output.say(new)
    for url in data_folder.all_running_at(settings.data_dir):
        if not takes_key(settings, url, new):
            output.warn(f"The server at {url} doesn't follow the file of the key: restart it, it takes the old key")
            raise typer.Exit(output.Exit.NO)


@audit.command(
    epilog="Examples: likeness audit export --since 2026-01-01 --json\n\nlikeness audit export --to audit.jsonl"
)
@with_session
def export(
    session: Session,
    to: Annotated[
        Path | None, typer.Option(help="Append what is new to this file, chained and signed by the server.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Only what this key did.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only this operation, for example enroll.")] = None,
    gallery: options.InGallery = None,
    subject: Annotated[str | None, typer.Option(help="Only about this person.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only from this time on, in UTC.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this time, in UTC.")] = None,
) -> None:
    """Print the audit log, oldest first, one entry per line; or append it to a signed file."""
    wanted = {"key": by, "operation": operation, "gallery": gallery, "subject": subject}
    if to is not None:
        if any([*wanted.values(), since, until]):
            raise typer.BadParameter("a signed export holds every entry: leave the filters out", param_hint="--to")
        with session.connect() as client, _appending(to) as file:
            _say_export(to, _append(client, file, to), as_json=session.as_json)
        return
    with session.connect() as client:
        for entry in client.all_audit(
            **wanted, since=_utc(since), until=_utc(until), order="oldest", limit=EXPORT_PAGE
        ):
            session.say(entry.model_dump(mode="json"), _line(entry))


@audit.command(epilog="Example: likeness audit verify audit.jsonl --signer server-key.json")
def verify(
    file: Annotated[Path, typer.Argument(help="A file that `likeness audit export --to` wrote.")],
    signer: Annotated[
        str | None,
        typer.Option(help="The server's public key: a file, base64, or the SHA-256 that this command prints."),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="A head that was printed earlier: check that the file still leads up to it.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that an export is whole. No server is needed. Exit code 1: it is not, and where it breaks."""
    from app.access.audit_chain import Broken, Reader  # noqa: PLC0415 - slow to import
    from app.db import signing  # noqa: PLC0415 - slow to import

    reader = Reader()
    try:
        with file.open("rb") as lines:
            reader.read(lines)
        fault = reader.fault(head)
    except OSError as error:
        raise FileMissing(f"{file}: {error.strerror}") from None
    except Broken as error:
        fault = error.message
    if fault is None and signer is not None and reader.public_key is not None:
        path = Path(signer)
        named = signing.encode(read_public_key(path)) if path.is_file() else signer
        if not signing.is_named(reader.public_key, named):
            fault = f"It was signed with another key, {signing.fingerprint(reader.public_key)}."
    if fault is not None:
        if as_json:
            output.say_json({"whole": False, "fault": fault})
        else:
            output.say(f"NOT whole: {fault}")
        raise typer.Exit(output.Exit.NO)
    _say_export(file, reader, as_json=as_json, whole=True)


@contextmanager
def _appending(path: Path) -> Iterator[BinaryIO]:
    """Open the file, which is created if it is missing, for this process alone. Raises Conflict, FileMissing."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as error:
        raise FileMissing(f"{path}: {error.strerror}") from None
    with os.fdopen(handle, "r+b") as file:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"{path}: another export writes to it.", code="audit_export_in_use") from None
        yield file


def _append(client: Client, file: BinaryIO, path: Path) -> Reader:
    """Check the file, drop lines that no checkpoint signs (of an export that was killed), and append what is new.

    Raises Broken, and as the client does.
    """
    from app.access.audit_chain import Broken, Reader  # noqa: PLC0415 - slow to import

    reader = Reader()
    reader.read(file)
    if reader.unsigned and not reader.checkpoint:
        raise Broken(f"{path} is not an export of the audit log: name another file.")
    if reader.unsigned:
        output.warn(f"{path}: the last {reader.unsigned} lines are not signed, and are read again")
        file.truncate(reader.size)
        file.seek(0)
        reader = Reader()
        reader.read(file)
    while True:
        lines = client.audit_export(reader.checkpoint.decode() or None)
        for line in lines.splitlines():
            reader.add(line)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
        if reader.complete:
            sync_folder(path.absolute().parent)
            return reader


def _say_export(path: Path, reader: Reader, *, as_json: bool, whole: bool = False) -> None:
    from app.db import signing  # noqa: PLC0415 - slow to import

    signer = signing.fingerprint(reader.public_key or b"")
    last = reader.last or {"at": None}
    if as_json:
        found = {"entries": reader.entries, "first_at": reader.first_at, "last_at": last["at"], "signer": signer}
        counts = {"open": len(reader.open), "lost": reader.lost, "missing": reader.missing}
        head = {"head": reader.head, "signed_at": reader.head_at}
        output.say_json({**({"whole": True} if whole else {}), **found, **counts, **head})
        return
    period = f", {reader.first_at} to {last['at']}" if reader.entries else ""
    output.say(f"{path}: {'whole, ' if whole else ''}{reader.entries} entries{period}")
    output.say(f"open {len(reader.open)}, without outcome {reader.lost}, rows missing between others {reader.missing}")
    output.say(f"signed at {reader.head_at} with the key {signer}")
    output.say(f"head {reader.head}")


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def _say_secret(session: Session, made: schemas.NewKey, *, aws: bool) -> None:
    if aws:
        signing = made.model_dump(include={"aws_access_key_id", "aws_secret_access_key"})
        session.say(signing, "\n".join(f"{name} = {value}" for name, value in signing.items()))
    else:
        session.say(made, made.secret)


def _row(key: schemas.Key) -> list[str]:
    return [
        key.id,
        key.name or "",
        " ".join(key.scopes),
        "all" if key.galleries is None else " ".join(key.galleries),
        key.rate or "",
        key.expires_at.isoformat() if key.expires_at else "",
        key.revoked_at.isoformat() if key.revoked_at else "",
    ]


def _line(entry: schemas.AuditEntry) -> str:
    words = (entry.key, entry.operation, entry.gallery, entry.subject, entry.target, entry.status, entry.request_id)
    return " ".join([entry.at.isoformat(), *("-" if word is None else str(word) for word in words)])
