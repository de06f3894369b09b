"""keys, audit: who may do what, and who did what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from app.access.grants import Scope
from app.api import schemas
from app.cli import options, output
from app.cli.connect import connect

keys = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke API keys.")
audit = typer.Typer(no_args_is_help=True, help="Who did what, when.")

KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.")]
EXPORT_PAGE = 1000


@keys.command("list")
def list_keys(server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """Every key with what it allows; never its secret."""
    with connect(server, key) as client:
        found = list(client.all_keys())
    if as_json:
        for one in found:
            output.say_json(one)
        return
    columns = ["key", "name", "scopes", "galleries", "rate", "expires", "revoked"]
    output.say_table(columns, [_row(one) for one in found])


@keys.command()
def create(
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", help="read, recognize, enroll or admin; may be repeated. With --aws: admin by default."
        ),
    ] = None,
    key_id: Annotated[str | None, typer.Option("--id", help="Its id; made by the server by default.")] = None,
    name: Annotated[str | None, typer.Option(help="Whose key it is.")] = None,
    galleries: Annotated[
        list[str] | None, typer.Option("--gallery", help="The only gallery it may see; may be repeated.")
    ] = None,
    expires: Annotated[datetime | None, typer.Option(help="When it stops working, in UTC.")] = None,
    rate: Annotated[str | None, typer.Option(help="How often it may ask: 10/s, 600/m, 600/m:20, unlimited.")] = None,
    aws: Annotated[bool, typer.Option("--aws", help="For AWS's clients: print what they sign requests with.")] = False,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a key. It is printed this one time."""
    if not scopes and not aws:
        raise typer.BadParameter("say what the key may do", param_hint="--scope")
    with connect(server, key) as client:
        made = client.create_key(
            scopes or [Scope.ADMIN],  # what Rekognition's clients do includes making collections
            key_id=key_id,
            name=name,
            galleries=galleries or None,
            expires_at=_utc(expires),
            rate=rate,
            aws=aws,
        )
    _say_secret(made, as_json=as_json, aws=aws)


@keys.command()
def rotate(
    key_id: KeyId,
    grace: Annotated[int, typer.Option(min=0, help="Seconds that the last secret goes on working.")] = 0,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a key a new secret. It is printed this one time."""
    with connect(server, key) as client:
        made = client.rotate_key(key_id, grace_seconds=grace)
    _say_secret(made, as_json=as_json, aws=made.aws_access_key_id is not None)


@keys.command()
def revoke(key_id: KeyId, server: options.Server = None, key: options.Key = None) -> None:
    """End a key for good."""
    with connect(server, key) as client:
        client.revoke_key(key_id)
    output.say(f"{key_id}: revoked")


@audit.command()
def export(
    by: Annotated[str | None, typer.Option(help="Only what this key did.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only this operation, e.g. enroll.")] = None,
    gallery: Annotated[str | None, typer.Option(help="Only about this gallery.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only about this subject.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only from this time (UTC) on.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this time (UTC).")] = None,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """The audit log, oldest first, an entry a line."""
    with connect(server, key) as client:
        for entry in client.all_audit(
            key=by,
            operation=operation,
            gallery=gallery,
            subject=subject,
            since=_utc(since),
            until=_utc(until),
            order="oldest",
            limit=EXPORT_PAGE,
        ):
            if as_json:
                output.say_json(entry.model_dump(mode="json"))
            else:
                output.say(_line(entry))


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def _say_secret(made: schemas.NewKey, *, as_json: bool, aws: bool = False) -> None:
    signing = made.model_dump(include={"aws_access_key_id", "aws_secret_access_key"})
    if aws and as_json:
        output.say_json(signing)
    elif aws:
        output.say("\n".join(f"{name} = {value}" for name, value in signing.items()))
    elif as_json:
        output.say_json(made)
    else:
        output.say(made.secret)


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
