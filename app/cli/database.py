"""backup, restore, database, vault: the database itself. No server is needed; backup and vault work beside them.

What is slow to import is imported at the top: every command here needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from app.cli import options, output
from app.cli.connect import require_data
from app.config import Settings, load_settings
from app.db import usage
from app.db.copying import copy_database
from app.db.encryption import encode_key, new_key
from app.db.engine import Database
from app.db.sealed_columns import PLAIN, Blobs, census
from app.db.sealed_columns import reseal as reseal_columns
from app.db.secrets import SIGNING_KEY, FoundRings, Rings, SecretStore, find_rings, load_rings
from app.db.signing import Signer
from app.errors import Conflict, InvalidSetting, SealedUnreadable
from app.features.bulk import backup as archive
from app.files import LAST_BACKUP
from app.gallery.store import Store
from app.search.snapshots import Snapshots
from app.server import data_folder
from app.server.storage import SNAPSHOT_FOLDER
from app.version import VERSION

commands = typer.Typer()
database = typer.Typer(no_args_is_help=True, epilog="Example: likeness database copy sqlite:///data/likeness.db")
vault = typer.Typer(no_args_is_help=True, epilog="Example: likeness vault status")

SCRUB_S = 60.0
"""How long the write-ahead log may take to be emptied."""


@commands.command(epilog="Example: likeness backup /backups/likeness.tar")
def backup(
    path: Annotated[Path, typer.Argument(help="File to write; an existing one is replaced.")],
    as_json: options.AsJson = False,
) -> None:
    """Write a SQLite database and the data folder's keys into one signed file. Servers may keep running.

    Whoever has the file has the keys. Keep encryption keys elsewhere: it doesn't contain them.
    """
    settings = load_settings()
    require_data(settings)
    archive.sqlite_only(settings.database)
    with usage.shared(settings.data_dir, settings.database), closing(Database(settings.database)) as database:
        signer = _signer(settings, database)
        summary = archive.write_backup(settings.database, settings.data_dir, path, VERSION, signer)
        (settings.data_dir / LAST_BACKUP).touch(mode=0o600)
    _say(summary, f"{path}: written", as_json=as_json)
    if signer is None:
        output.warn("Not signed, because the keys here don't open the server's secrets: restore it with --trust")
    if settings.encryption_key_file is not None:
        output.warn(f"Not in it; keep a copy elsewhere: {settings.encryption_key_file}")


def _signer(settings: Settings, database: Database) -> Signer | None:
    """Return the server's signer, which is made if there is none; None if the keys here don't open its secrets."""
    rings = _rings(settings)
    if rings.secrets is None:
        return None
    try:
        return Signer(SecretStore(database, rings.secrets).get_or_make(SIGNING_KEY, Signer.make))
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
    """Replace a SQLite database with a backup, and put back the keys that are missing. No server may use it."""
    settings = _stopped()
    with usage.exclusive(settings.data_dir, settings.database):
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
        usage.remember(settings.data_dir, settings.database)
    _say(summary, f"{path}, of {summary.created_at}: restored", as_json=as_json)


def _stopped() -> Settings:
    """Return the settings. Raises Conflict ``data_dir_in_use`` if a server runs on the data folder."""
    settings = load_settings()
    if url := data_folder.running_at(settings.data_dir):
        raise Conflict(f"A server runs on {settings.data_dir}, at {url}: stop it first.", code="data_dir_in_use")
    data_folder.prepare_data_dir(settings.data_dir)
    return settings


def _say(summary: archive.Summary, done: str, *, as_json: bool) -> None:
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

    The data folder's keys belong to the copy, too. Set LIKENESS_DATABASE_URL to it and start the server.
    """
    settings = _stopped()
    require_data(settings)
    with usage.exclusive(settings.data_dir, settings.database, target):
        rows = copy_database(settings.database, target)
    copied = f"Copied: {', '.join(f'{rows[name]} {name}' for name in ('galleries', 'subjects', 'faces'))}"
    output.answer({"rows": rows}, copied, as_json=as_json)


@vault.command(epilog="Example: likeness vault status")
def status(as_json: options.AsJson = False) -> None:
    """Count templates, crops and keys of jobs' files by encryption key.

    Exit code 1: some are not encrypted as the settings say.
    """
    with _opened() as (_, database, rings):
        counts = census(database)
    ring = rings.faces
    due = ring.key_ids[0] if ring and rings.seals else PLAIN
    for name in dict.fromkeys([due, *counts]):
        kinds = Counter(counts.get(name))
        counted = {
            "templates": kinds["template"] + kinds["second"] + kinds["sighting"],
            "crops": kinds["crop"] + kinds["sighting_crop"],
            "job_keys": kinds["job"],
            "corrections": kinds["correction"],
        }
        if as_json:
            output.say_json({"key": name} | counted | {"due": name == due})
            continue
        state = "new ones too" if name == due else "to be changed: likeness vault " + ("seal" if ring else "unseal")
        said = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counted.items())
        output.say(f"{name:8}  {said} ({state})")
    if set(counts) - {due}:
        raise typer.Exit(output.Exit.NO)


@vault.command(epilog="Example: likeness vault seal")
def seal() -> None:
    """Encrypt everything with the first encryption key. Then the other keys can be removed from the key file.

    Servers keep running; the command can be run again.
    """
    _reseal(sealed=True)


@vault.command(epilog="Example: LIKENESS_ENCRYPTION=open likeness vault unseal")
def unseal() -> None:
    """Decrypt everything. First set LIKENESS_ENCRYPTION=open for the servers and for this command."""
    _reseal(sealed=False)


@vault.command("new-key", epilog="Example: likeness vault new-key > encryption.key")
def make_key() -> None:
    """Print a new key for LIKENESS_ENCRYPTION_KEY_FILE."""
    output.say(encode_key(new_key()))


def _reseal(*, sealed: bool) -> None:
    with _opened() as (settings, database, rings):
        will_seal = rings.faces is not None and rings.seals
        if sealed and not will_seal:
            raise InvalidSetting("set LIKENESS_ENCRYPTION_KEY_FILE to an encryption key, and LIKENESS_ENCRYPTION=seal")
        if not sealed and will_seal:
            raise InvalidSetting(
                "servers with these settings would encrypt what is new: set LIKENESS_ENCRYPTION=open and restart them"
            )
        count = sum(reseal_columns(database, Blobs(rings.faces, seals=rings.seals)))
        secrets = SecretStore(database, rings.secrets).reseal()
        database.request_scrub()
        scrubbed = database.scrub(SCRUB_S)
        folder = settings.data_dir / SNAPSHOT_FOLDER
        sealer = rings.faces if rings.seals else None
        snapshots = Snapshots(folder, sealer=sealer).discard_others() if folder.exists() else 0
        form = f"under key {sealer.key_ids[0]}" if sealer else "plain"
        output.say(
            f"{count} templates, crops and job keys and {secrets} secrets are now {form}; {snapshots} snapshots removed"
        )
        if not database.is_sqlite:
            output.say("PostgreSQL keeps the old rows until they are vacuumed: VACUUM FULL faces, crops, jobs, secrets")
        elif not scrubbed:
            output.say(
                "the write-ahead log still holds old rows, because others are reading; it is emptied when they end"
            )


@contextmanager
def _opened() -> Iterator[tuple[Settings, Database, Rings]]:
    """Open the database with its keys. Raises Unusable (``no_data_folder``, or where the keys are others)."""
    settings = load_settings()
    seals = settings.encryption == "seal"
    require_data(settings)
    with usage.shared(settings.data_dir, settings.database):
        keys = settings.encryption_key_file, settings.encryption_keys
        rings = load_rings(settings.data_dir, settings.database, *keys, seals=seals)
        with closing(Store(settings.database, blobs=Blobs(rings.faces, seals=seals))) as store:
            yield settings, store.database, rings
