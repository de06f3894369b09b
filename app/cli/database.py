"""backup, restore, vault: the database itself. No server is needed; backup and vault work beside running ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import options, output
from app.cli.connect import has_data, missing
from app.config import Settings, load_settings
from app.db.key_file import IRREPLACEABLE, VAULT_FILE, read_keys
from app.errors import Conflict, InvalidSetting, SealedUnreadable, VaultKeyMissing
from app.files import write_new
from app.server import data_folder

if TYPE_CHECKING:
    from app.bulk.backup import Summary
    from app.db.engine import Database
    from app.db.key_file import FoundRings, Rings
    from app.db.signing import Signer
    from app.gallery.store import Store

commands = typer.Typer()
vault = typer.Typer(no_args_is_help=True, epilog="Example: likeness vault status")

SCRUB_S = 60.0
"""How long the write-ahead log may take to be emptied."""


@commands.command(epilog="Example: likeness backup /backups/likeness.backup")
def backup(
    path: Annotated[Path, typer.Argument(help="File to write; an existing one is replaced.")],
    as_json: options.AsJson = False,
) -> None:
    """Write the whole database into one file. Servers may keep running.

    Keep copies of admin.key, vault.key and of encryption keys elsewhere: the file doesn't contain them.
    """
    from app.bulk.backup import write_backup  # noqa: PLC0415 - slow to import
    from app.db import usage  # noqa: PLC0415 - slow to import
    from app.db.engine import Database  # noqa: PLC0415 - slow to import

    settings = load_settings()
    if not has_data(settings):
        raise missing(settings)
    with usage.shared(settings.data_dir, settings.database), closing(Database(settings.database)) as database:
        signer = _signer(settings, database)
        summary = write_backup(database, path, version("likeness"), signer)
    _say(summary, f"{path}: written", as_json=as_json)
    if signer is None:
        output.warn("Not signed, because the keys here don't open the server's secrets: restore it with --trust")
    kept = [settings.data_dir / name for name in IRREPLACEABLE if (settings.data_dir / name).exists()]
    if settings.encryption_key_file is not None:
        kept.append(settings.encryption_key_file)
    output.warn(f"Not in it; keep copies elsewhere: {', '.join(map(str, kept))}")


def _signer(settings: Settings, database: Database) -> Signer | None:
    """Return the server's signer, which is made if there is none; None if the keys here don't open its secrets."""
    from app.db.secrets import SIGNING_KEY, SecretStore  # noqa: PLC0415 - slow to import
    from app.db.signing import Signer  # noqa: PLC0415 - slow to import

    rings = _rings(settings)
    if rings.secrets is None:
        return None
    try:
        return Signer(SecretStore(database, rings.secrets).get_or_make(SIGNING_KEY, Signer.make))
    except SealedUnreadable:
        return None


def _rings(settings: Settings, vault_key: Path | None = None) -> FoundRings:
    """Return the keys of the settings and the data folder; with `vault_key` as vault.key where that is missing."""
    from app.db.key_file import find_rings  # noqa: PLC0415 - slow to import

    own = settings.data_dir / VAULT_FILE
    return find_rings(
        vault_key if vault_key is not None and not own.exists() else own,
        settings.encryption_key_file,
        settings.encryption_keys,
        seals=settings.encryption == "seal",
    )


@commands.command(epilog="Example: likeness restore /backups/likeness.backup --vault-key /backups/vault.key")
def restore(
    path: Annotated[Path, typer.Argument(help="A file that `likeness backup` wrote.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a database that is not empty.")] = False,
    vault_key: Annotated[
        Path | None, typer.Option(help="vault.key of the old data folder; it is copied into this one.")
    ] = None,
    without_secrets: Annotated[
        bool, typer.Option("--without-secrets", help="Leave out what only a lost vault.key can decrypt.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Take a backup that isn't signed, as those of 0.1.0, or that is of elsewhere."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Replace the database with a backup. No server and no other command may use it."""
    from app.bulk.backup import restore as bring_back  # noqa: PLC0415 - slow to import
    from app.db import usage  # noqa: PLC0415 - slow to import

    settings = load_settings()
    if url := data_folder.running_at(settings.data_dir):
        raise Conflict(f"A server runs on {settings.data_dir}, at {url}: stop it first.", code="data_dir_in_use")
    data_folder.prepare_data_dir(settings.data_dir)
    with usage.exclusive(settings.data_dir, settings.database):
        target = settings.data_dir / VAULT_FILE
        if vault_key is not None:
            read_keys(vault_key)
            if target.exists() and target.read_bytes() != vault_key.read_bytes():
                raise Conflict(f"{target} exists already, with another key.", code="vault_key_there")
        elif not target.exists() and not without_secrets:
            message = (
                f"{target} is missing, which decrypts the secrets in the backup: give the old one with --vault-key "
                "FILE, or --without-secrets if it is lost."
            )
            raise VaultKeyMissing(message)
        rings = _rings(settings, vault_key)
        with _kept(target, vault_key):
            summary = bring_back(
                path, settings.database, rings=rings, replace=replace, without_secrets=without_secrets, trust=trust
            )
        usage.remember(settings.data_dir, settings.database)
    _say(summary, f"{path}, of {summary.created_at}: restored", as_json=as_json)


@contextmanager
def _kept(target: Path, vault_key: Path | None) -> Iterator[None]:
    """Copy the vault key before the database is replaced, which needs it; remove the copy if the block fails."""
    made = vault_key is not None and write_new(target, vault_key.read_bytes())
    try:
        yield
    except BaseException:
        if made:
            target.unlink(missing_ok=True)
        raise


def _say(summary: Summary, done: str, *, as_json: bool) -> None:
    if as_json:
        output.say_json({"created_at": summary.created_at, "rows": dict(summary.rows)})
        return
    counted = ", ".join(f"{summary.rows.get(name, 0)} {name}" for name in ("galleries", "subjects", "faces"))
    output.say(f"{done}: {counted}")


@dataclass(frozen=True, slots=True)
class _Opened:
    settings: Settings
    store: Store
    rings: Rings


@vault.command(epilog="Example: likeness vault status")
def status(as_json: options.AsJson = False) -> None:
    """Count templates, crops and keys of jobs' files by encryption key.

    Exit code 1: some are not encrypted as the settings say.
    """
    from app.db.key_rotation import PLAIN, census  # noqa: PLC0415 - slow to import

    with _opened() as found:
        counts = census(found.store.database)
    ring = found.rings.faces
    due = ring.key_ids[0] if ring and found.rings.seals else PLAIN
    for name in dict.fromkeys([due, *counts]):
        kinds = Counter(counts.get(name))
        templates, crops, jobs = kinds["template"] + kinds["second"], kinds["crop"], kinds["job"]
        corrections = kinds["correction"]
        state = "new ones too" if name == due else "to be changed: likeness vault " + ("seal" if ring else "unseal")
        if as_json:
            counted = {"templates": templates, "crops": crops, "job_keys": jobs, "corrections": corrections}
            output.say_json({"key": name} | counted | {"due": name == due})
        else:
            counts_said = f"{templates} templates, {crops} crops, {jobs} job keys, {corrections} corrections"
            output.say(f"{name:8}  {counts_said} ({state})")
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
    from app.db import encryption, key_file  # noqa: PLC0415 - slow to import

    output.say(key_file.encode_key(encryption.new_key()))


def _reseal(*, sealed: bool) -> None:
    from app.db.key_rotation import reseal  # noqa: PLC0415 - slow to import
    from app.db.sealed_columns import Blobs  # noqa: PLC0415 - slow to import
    from app.db.secrets import SecretStore  # noqa: PLC0415 - slow to import
    from app.search.snapshots import Snapshots  # noqa: PLC0415 - slow to import
    from app.server.storage import SNAPSHOT_FOLDER  # noqa: PLC0415 - slow to import

    with _opened() as found:
        rings, database = found.rings, found.store.database
        if sealed and not (rings.faces and rings.seals):
            message = "set LIKENESS_ENCRYPTION_KEY_FILE to an encryption key, and LIKENESS_ENCRYPTION=seal"
            raise InvalidSetting(message)
        if not sealed and rings.faces and rings.seals:
            message = (
                "servers with these settings would encrypt what is new: set LIKENESS_ENCRYPTION=open and restart them"
            )
            raise InvalidSetting(message)
        count = sum(reseal(database, Blobs(rings.faces, seals=rings.seals)))
        secrets = SecretStore(database, rings.secrets).reseal()
        database.request_scrub()
        scrubbed = database.scrub(SCRUB_S)
        folder = found.settings.data_dir / SNAPSHOT_FOLDER
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
def _opened() -> Iterator[_Opened]:
    """Open the database with its keys. Raises Unusable (``no_data_folder``, or where the keys are others)."""
    from app.db import usage  # noqa: PLC0415 - slow to import
    from app.db.key_file import load_rings  # noqa: PLC0415 - slow to import
    from app.db.sealed_columns import Blobs  # noqa: PLC0415 - slow to import
    from app.gallery.store import Store  # noqa: PLC0415 - slow to import

    settings = load_settings()
    seals = settings.encryption == "seal"
    if not has_data(settings):
        raise missing(settings)
    with usage.shared(settings.data_dir, settings.database):
        rings = load_rings(settings.data_dir, settings.encryption_key_file, settings.encryption_keys, seals=seals)
        with closing(Store(settings.database, blobs=Blobs(rings.faces, seals=seals))) as store:
            yield _Opened(settings, store, rings)
