"""vault: what the database holds under which key, and bringing it under another. Works on the database itself, beside
running servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from app.cli import options, output
from app.config import Settings, load_settings
from app.errors import InvalidSetting
from app.server.data_folder import prepare_data_dir

if TYPE_CHECKING:
    from app.db.key_file import Rings
    from app.gallery.store import Store

vault = typer.Typer(no_args_is_help=True, help="Encryption of templates, crops and snapshots at rest.")

SCRUB_S = 60.0


@dataclass(frozen=True, slots=True)
class _Opened:
    settings: Settings
    store: Store
    rings: Rings


@vault.command()
def status(as_json: options.AsJson = False) -> None:
    """How many templates and crops lie under which key. Exit code 1: not all as the settings would store them now."""
    from app.db.key_rotation import PLAIN, census  # noqa: PLC0415 (slow to import)

    with _opened() as found:
        counts = census(found.store.database)
    ring = found.rings.faces
    due = ring.key_ids[0] if ring and found.rings.seals else PLAIN
    for name in dict.fromkeys([due, *counts]):
        kinds = counts.get(name, {"template": 0, "second": 0, "crop": 0})
        templates, crops = kinds["template"] + kinds["second"], kinds["crop"]
        state = "new ones too" if name == due else "to be changed: likeness vault " + ("seal" if ring else "unseal")
        if as_json:
            output.say_json({"key": name, "templates": templates, "crops": crops, "due": name == due})
        else:
            output.say(f"{name:8}  {templates} templates, {crops} crops ({state})")
    if set(counts) - {due}:
        raise typer.Exit(output.Exit.NO)


@vault.command()
def seal() -> None:
    """Seal what is plain with the first encryption key. May be stopped and run again; servers go on meanwhile."""
    _reseal(sealed=True)


@vault.command()
def rotate() -> None:
    """Seal everything with the first encryption key; then the others can leave the key file."""
    _reseal(sealed=True)


@vault.command()
def unseal() -> None:
    """Store everything plain again. Set LIKENESS_ENCRYPTION=open for the servers and for this command first."""
    _reseal(sealed=False)


@vault.command("new-key")
def make_key() -> None:
    """Print a new key for LIKENESS_ENCRYPTION_KEY_FILE."""
    from app.db import encryption, key_file  # noqa: PLC0415 (the other commands need less)

    output.say(key_file.encode_key(encryption.new_key()))


def _reseal(*, sealed: bool) -> None:
    from app.db.key_rotation import reseal  # noqa: PLC0415 (the same)
    from app.db.sealed_columns import Blobs  # noqa: PLC0415 (slow to import)
    from app.db.secrets import SecretStore  # noqa: PLC0415 (the same)
    from app.main import SNAPSHOT_FOLDER  # noqa: PLC0415 (the same)
    from app.search.snapshots import Snapshots  # noqa: PLC0415 (the same)

    with _opened() as found:
        rings, database = found.rings, found.store.database
        if sealed and not (rings.faces and rings.seals):
            message = "give an encryption key (LIKENESS_ENCRYPTION_KEY_FILE), and LIKENESS_ENCRYPTION=seal"
            raise InvalidSetting(message)
        if not sealed and rings.faces and rings.seals:
            message = (
                "servers with these settings would seal what is new: set LIKENESS_ENCRYPTION=open, start them anew"
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
        output.say(f"{count} templates and crops and {secrets} secrets are now {form}; {snapshots} snapshots removed")
        if not database.is_sqlite:
            output.say("PostgreSQL keeps the old rows until they are vacuumed: VACUUM FULL faces, crops, secrets")
        elif not scrubbed:
            output.say(
                "the write-ahead log still holds old rows: others are reading; it is emptied as soon as they end"
            )


@contextmanager
def _opened() -> Iterator[_Opened]:
    """Raises Unusable where the keys are not those of the database."""
    from app.db.key_file import load_rings  # noqa: PLC0415 (the same)
    from app.db.sealed_columns import Blobs  # noqa: PLC0415 (the same)
    from app.gallery.store import Store  # noqa: PLC0415 (the same)

    settings = load_settings()
    seals = settings.encryption == "seal"
    prepare_data_dir(settings.data_dir)
    rings = load_rings(settings.data_dir, settings.encryption_key_file, settings.encryption_keys, seals=seals)
    store = Store(settings.database, blobs=Blobs(rings.faces, seals=seals))
    try:
        yield _Opened(settings, store, rings)
    finally:
        store.close()
