"""`likeness backup`, `restore`, `database`: work on the whole database while no server runs; `backup` also while one
does.

Modules that are slow to import are imported at the top, since every command here needs them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from app.cli import options, output
from app.cli.connect import require_data
from app.config import Settings, load_settings
from app.db import usage
from app.db.engine import Database
from app.db.secrets import FoundRings, SecretStore, find_rings
from app.errors import Conflict, SealedUnreadable
from app.features.bulk import backup as archive
from app.features.bulk.copying import copy_database
from app.features.signatures import Signer
from app.files import LAST_BACKUP
from app.server import data_folder
from app.version import VERSION

commands = typer.Typer()
database = typer.Typer(no_args_is_help=True, epilog="Example: likeness database copy sqlite:///data/likeness.db")


@commands.command(epilog="Example: likeness backup /backups/likeness.tar")
def backup(
    path: Annotated[Path, typer.Argument(help="File to write; an existing one is replaced.", dir_okay=False)],
    as_json: options.AsJson = False,
) -> None:
    """Write a SQLite database and the data folder's keys into one signed file. Servers may keep running.

    Whoever has the file has these keys. It doesn't contain encryption keys: keep them elsewhere.
    """
    settings = load_settings()
    require_data(settings)
    archive.sqlite_only(settings.database)
    with usage.lock_shared(settings.data_dir, settings.database), closing(Database(settings.database)) as database:
        signer = _signer(settings, database)
        summary = archive.write_backup(settings.database, settings.data_dir, path, VERSION, signer)
        (settings.data_dir / LAST_BACKUP).touch(mode=0o600)
    _say(summary, f"{path}: written", as_json=as_json)
    if signer is None:
        output.warn("Not signed, because the keys here don't open the server's secrets: restore it with --trust")
    if settings.encryption_key_file is not None:
        output.warn(f"Not in it; keep a copy elsewhere: {settings.encryption_key_file}")


def _signer(settings: Settings, database: Database) -> Signer | None:
    """Return the server's signer; it is made if there is none. None if the keys here don't open the server's
    secrets."""
    rings = _rings(settings)
    if rings.secrets is None:
        return None
    try:
        return Signer.of(SecretStore(database, rings.secrets))
    except SealedUnreadable:
        return None


def _rings(settings: Settings) -> FoundRings:
    """Return the keys of the settings and the data folder."""
    keys = settings.encryption_key_file, settings.encryption_keys
    return find_rings(settings.data_dir, *keys, seals=settings.encryption == "seal")


@commands.command(epilog="Example: likeness restore /backups/likeness.tar")
def restore(
    path: Annotated[Path, typer.Argument(help="A file that `likeness backup` wrote.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a database that is not empty.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Take a backup that isn't signed.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Replace a SQLite database with a backup, and restore the keys that are missing. No server may use the
    database."""
    settings = _stopped()
    with usage.lock_exclusively(settings.data_dir, settings.database):
        try:
            summary = archive.restore(
                path,
                settings.database,
                settings.data_dir,
                find_rings=lambda: _rings(settings),
                replace=replace,
                trust=trust,
            )
        except Conflict as error:
            if error.code != "database_not_empty" or "table" in error.details:
                raise
            raise Conflict(f"{error.message} With --replace the backup takes its place.", code=error.code) from None
        usage.note_tables(settings.data_dir, settings.database)
    _say(summary, f"{path}, of {summary.created_at}: restored", as_json=as_json)


def _stopped() -> Settings:
    """Return the settings if no server runs on the data folder. Raises Conflict ``data_dir_in_use``."""
    settings = load_settings()
    if url := data_folder.running_at(settings.data_dir):
        raise Conflict(f"A server runs on {settings.data_dir}, at {url}: stop it first.", code="data_dir_in_use")
    data_folder.prepare_data_dir(settings.data_dir)
    return settings


def _say(summary: archive.BackupSummary, done: str, *, as_json: bool) -> None:
    output.answer(
        {"created_at": summary.created_at, "rows": dict(summary.rows), "signer": summary.signer},
        f"{done}: {', '.join(f'{number} {name}' for name, number in summary.rows.items())}",
        *([f"Signed with the key {summary.signer}"] if summary.signer else []),
        as_json=as_json,
    )


@database.command(epilog="Example: likeness database copy postgresql://likeness@localhost/likeness")
def copy(
    target: Annotated[str, typer.Argument(metavar="URL", help="URL of an empty database.")],
    as_json: options.AsJson = False,
) -> None:
    """Copy the database into an empty one, from SQLite to PostgreSQL or back. No server may use either.

    The copy needs the same data folder, for its keys. Set LIKENESS_DATABASE_URL to the copy and start the server.
    """
    settings = _stopped()
    require_data(settings)
    with usage.lock_exclusively(settings.data_dir, settings.database, target):
        rows = copy_database(settings.database, target)
    copied = f"Copied: {', '.join(f'{rows[name]} {name}' for name in ('galleries', 'subjects', 'faces'))}"
    output.answer({"rows": rows}, copied, as_json=as_json)
