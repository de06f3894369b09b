"""`likeness vault`: change what is encrypted in the database. This needs no server, and servers may keep running.

Modules that are slow to import are imported at the top, since every command here needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import typer

from app.cli import options, output
from app.cli.connect import require_data
from app.config import Settings, load_settings
from app.db import usage
from app.db.encryption import encode_key, new_key
from app.db.engine import Database
from app.db.schema import SECRETS
from app.db.sealed_columns import SEALED_COLUMNS, Blobs
from app.db.secrets import Rings, load_rings
from app.errors import InvalidSetting
from app.features.vault.reseal import PLAIN, census, reseal_secrets
from app.features.vault.reseal import reseal as reseal_columns
from app.gallery.store import Store
from app.search.snapshots import Snapshots
from app.server.storage import SNAPSHOT_FOLDER

vault = typer.Typer(no_args_is_help=True, epilog="Example: likeness vault status")

SCRUB_S = 60.0
"""Maximum seconds to empty the write-ahead log."""


@vault.command(epilog="Example: likeness vault status")
def status(as_json: options.AsJson = False) -> None:
    """Count templates, crops and keys of jobs' files by encryption key.

    Exit code 1: some of them are not encrypted as the settings require.
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
        secrets = reseal_secrets(database, rings.secrets)
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
            tables = sorted({str(column.blob.table) for column in SEALED_COLUMNS.values()} | {SECRETS.name})
            output.say(f"PostgreSQL keeps the old rows until they are vacuumed: VACUUM FULL {', '.join(tables)}")
        elif not scrubbed:
            output.say(
                "the write-ahead log still holds old rows, because others are reading; it is emptied when they end"
            )


@contextmanager
def _opened() -> Iterator[tuple[Settings, Database, Rings]]:
    """Open the database and its keys. Raises Unusable ``no_data_folder``, or if the keys are not the database's."""
    settings = load_settings()
    seals = settings.encryption == "seal"
    require_data(settings)
    with usage.lock_shared(settings.data_dir, settings.database):
        keys = settings.encryption_key_file, settings.encryption_keys
        rings = load_rings(settings.data_dir, settings.database, *keys, seals=seals)
        with closing(Store(settings.database, blobs=Blobs(rings.faces, seals=seals))) as store:
            yield settings, store.database, rings
