"""`likeness keys`: manage who may do what."""

from __future__ import annotations

import time
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from likeness_client import ApiError, Unreachable, answers

from app.access.grants import Scope
from app.cli import options, output
from app.cli.connect import Data, own_admin_key, own_client
from app.cli.options import CliSession, command, gallery_ids
from app.config import Settings, load_settings
from app.db.encryption import ADMIN_KEY_FILE
from app.files import replacing
from app.server import data_folder

keys = typer.Typer(no_args_is_help=True, epilog="Example: likeness keys create --scope recognize --gallery staff")

InGalleries: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--gallery", help="Restrict the key to this gallery; may be repeated.", autocompletion=gallery_ids),
]
KEY_ATTEMPTS, KEY_PAUSE_S = 4, 0.6
"""Number of attempts to use a new admin key, until the server has read it from its file; and seconds before each
attempt."""
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.")]


@command(keys, "list", epilog="Example: likeness keys list")
def list_keys(session: CliSession) -> None:
    """List the keys and what each may do. Secrets are never shown."""
    session.say_list(
        ["key", "name", "scopes", "galleries", "rate", "expires", "revoked"],
        list(session.client().all_keys()),
        lambda row: [
            row.id,
            row.name,
            " ".join(row.scopes),
            "all" if row.galleries is None else " ".join(row.galleries),
            row.rate,
            row.expires_at and row.expires_at.isoformat(),
            row.revoked_at and row.revoked_at.isoformat(),
        ],
    )


@command(
    keys,
    epilog="Examples: likeness keys create --id door --scope recognize --gallery staff --rate 10/s\n\n"
    "likeness keys create --aws --json",
)
def create(
    session: CliSession,
    scopes: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What the key may do; may be repeated. With --aws, the default is admin."),
    ] = None,
    key_id: Annotated[str | None, typer.Option("--id", help="Id of the key. Default: the server chooses one.")] = None,
    name: Annotated[str | None, typer.Option(help="Whose key it is.")] = None,
    galleries: InGalleries = None,
    expires: Annotated[datetime | None, typer.Option(help="When it stops working, in UTC.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests allowed: 10/s, 600/m, 600/m:20 or unlimited.")] = None,
    aws: Annotated[bool, typer.Option("--aws", help="Print credentials for AWS clients.")] = False,
) -> None:
    """Create a key. The secret is printed only this once."""
    if not scopes and not aws:
        raise typer.BadParameter(f"say what the key allows: {', '.join(Scope)}", param_hint="--scope")
    made = session.client(Data.CREATED).create_key(
        # Rekognition's clients also create collections, which needs admin
        [scope.value for scope in scopes or [Scope.ADMIN]],
        key_id=key_id,
        name=name,
        galleries=galleries or None,
        expires_at=options.utc(expires),
        rate=rate,
        aws=aws,
    )
    _say_secret(session, made, aws=aws)


@command(keys, epilog="Example: likeness keys rotate door --grace 3600")
def rotate(
    session: CliSession,
    key_id: KeyId,
    grace: Annotated[int, typer.Option(min=0, help="Seconds for which the previous secret keeps working.")] = 0,
) -> None:
    """Give a key a new secret, which is printed only this once."""
    made = session.client().rotate_key(key_id, grace_seconds=grace)
    _say_secret(session, made, aws=made.aws_access_key_id is not None)


@command(keys, epilog="Example: likeness keys revoke door")
def revoke(session: CliSession, key_id: KeyId) -> None:
    """Revoke a key for good."""
    session.client().revoke_key(key_id)
    session.say_done(key_id, "revoked")


@keys.command("admin", epilog="Example: export LIKENESS_KEY=$(likeness keys admin)")
def show_admin_key(
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Create a new admin key. Running servers accept it within a second.")
    ] = False,
) -> None:
    """Print the admin key of the data folder, which the first start of the server creates."""
    settings = load_settings()
    if not rotate:
        output.say(own_admin_key(settings))
        return
    new = replace_key(settings.data_dir)
    output.say(new)
    for url in data_folder.all_running_at(settings.data_dir):
        if not _takes_key(settings, url, new):
            output.warn(f"The server at {url} doesn't follow the file of the key: restart it, it takes the old key")
            raise typer.Exit(output.Exit.NO)


def replace_key(folder: Path) -> str:
    """Replace the admin key's file in one step, and return the new key, which running servers then accept."""
    data_folder.prepare_data_dir(folder)
    key = data_folder.new_admin_key()
    with replacing(folder / ADMIN_KEY_FILE) as file:
        file.write(key.encode() + b"\n")
    return key


def _say_secret(session: CliSession, made: answers.NewKey, *, aws: bool) -> None:
    if aws:
        signing = made.model_dump(include={"aws_access_key_id", "aws_secret_access_key"})
        session.say(signing, *(f"{name} = {value}" for name, value in signing.items()))
    else:
        session.say(made, made.secret)


def _takes_key(settings: Settings, url: str, key: str) -> bool:
    """Return whether the server accepts the key within KEY_ATTEMPTS; True if no server runs, or it can't answer yet."""
    with own_client(settings, url, key) as client:
        for _ in range(KEY_ATTEMPTS):
            time.sleep(KEY_PAUSE_S)
            try:
                client.server_key()
            except ApiError as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    continue
            except Unreachable:
                pass
            return True
    return False
