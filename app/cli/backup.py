"""backup, restore: the whole database as one file. They work on the database itself, backup beside running servers."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import options, output
from app.config import load_settings
from app.db.key_file import VAULT_FILE, read_keys
from app.errors import Conflict, VaultKeyMissing
from app.server import data_folder

if TYPE_CHECKING:
    from app.bulk.backup import Summary


def backup(
    path: Annotated[Path, typer.Argument(help="The file to write; one that is there is replaced.")],
    as_json: options.AsJson = False,
) -> None:
    """Write the whole database into one file, while servers go on."""
    from app.bulk.backup import write_backup  # noqa: PLC0415 (slow to import)
    from app.db.engine import Database  # noqa: PLC0415 (the same)

    database = Database(load_settings().database)
    try:
        summary = write_backup(database, path, version("likeness"))
    finally:
        database.close()
    _say(summary, f"{path}: written", as_json=as_json)


def restore(
    path: Annotated[Path, typer.Argument(help="What `backup` wrote.")],
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of a database that is not empty.")] = False,
    vault_key: Annotated[
        Path | None, typer.Option(help="The old data folder's vault.key, to be put into this one.")
    ] = None,
    without_secrets: Annotated[
        bool, typer.Option("--without-secrets", help="Leave out what only the old vault.key opens: it is lost.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Make the database what a backup holds. No server may run on it."""
    from app.bulk.backup import restore as bring_back  # noqa: PLC0415 (slow to import)

    settings = load_settings()
    if url := data_folder.running_at(settings.data_dir):
        raise Conflict(f"A server runs on {settings.data_dir}, at {url}: stop it first.", code="data_dir_in_use")
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = settings.data_dir / VAULT_FILE
    if vault_key is not None:
        read_keys(vault_key)
        if target.exists() and target.read_bytes() != vault_key.read_bytes():
            raise Conflict(f"{target} is there already, and is another one.", code="vault_key_there")
    elif not target.exists() and not without_secrets:
        message = (
            f"{target} is missing, which opens the secrets in the backup: give --vault-key FILE with the old data "
            "folder's, or --without-secrets where it is lost."
        )
        raise VaultKeyMissing(message)
    summary = bring_back(path, settings.database, replace=replace, without_secrets=without_secrets)
    if vault_key is not None and not target.exists():
        shutil.copyfile(vault_key, target)
        target.chmod(0o600)
    _say(summary, f"{path}, of {summary.created_at}: restored", as_json=as_json)


def _say(summary: Summary, done: str, *, as_json: bool) -> None:
    if as_json:
        output.say_json({"created_at": summary.created_at, "rows": dict(summary.rows)})
        return
    counted = ", ".join(f"{summary.rows.get(name, 0)} {name}" for name in ("galleries", "subjects", "faces"))
    output.say(f"{done}: {counted}")
