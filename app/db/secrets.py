"""Keep the server's own secrets, encrypted in SQL, so that all servers of a database share them; load the key rings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.encryption import VAULT_FILE, Sealer, load_or_make, parse_keys, read_keys
from app.db.engine import Database
from app.db.opening import connected, sqlite_file
from app.db.schema import SECRETS
from app.db.sealed_columns import MARK_PREFIX
from app.errors import Unusable

BUSY_MS = 5_000
"""Milliseconds to wait for a busy SQLite database."""
IS_SECRET = ~SECRETS.c.name.startswith(MARK_PREFIX, autoescape=True)
"""SQL for the server's own secrets, since the table also holds marks of keys."""


class SecretStore:
    """Keeps the server's secrets, encrypted. Safe to share between threads. Every call may raise what `Database`
    raises, and Unusable ``sealed_unreadable``."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    def get(self, name: str) -> bytes | None:
        with self._database.read() as connection:
            sealed = connection.execute(sa.select(SECRETS.c.sealed).where(SECRETS.c.name == name)).scalar()
        return None if sealed is None else self._open(name, sealed)

    def check(self) -> None:
        """Raise Unusable ``sealed_unreadable`` if the stored secrets were sealed with another key."""
        query = sa.select(SECRETS.c.name, SECRETS.c.sealed).where(IS_SECRET).order_by(SECRETS.c.name).limit(1)
        for name, sealed in self._database.rows(query):
            self._open(name, sealed)

    def get_or_make(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the secret with this name; if it doesn't exist yet, `make` makes it, once for all servers."""
        stored = self.get(name)
        if stored is not None:
            return stored
        values = {"name": name, "sealed": self._seal(name, make())}
        with self._database.write() as connection:
            connection.execute(self._database.insert(SECRETS).values(values).on_conflict_do_nothing())
            sealed = connection.execute(sa.select(SECRETS.c.sealed).where(SECRETS.c.name == name)).scalar_one()
        return self._open(name, sealed)

    def put(self, connection: Connection, name: str, secret: bytes) -> None:
        """Set the secret with this name, in the caller's transaction."""
        values = {"name": name, "sealed": self._seal(name, secret)}
        insert = self._database.insert(SECRETS).values(values)
        insert = insert.on_conflict_do_update(index_elements=["name"], set_={"sealed": values["sealed"]})
        connection.execute(insert)
        self._database.request_scrub()  # which waits for the transaction

    def remove(self, connection: Connection, name: str) -> None:
        """Delete the secret, if it exists, in the caller's transaction."""
        connection.execute(sa.delete(SECRETS).where(SECRETS.c.name == name))
        self._database.request_scrub()

    def _seal(self, name: str, secret: bytes) -> bytes:
        return self._sealer.seal(secret, purpose_of(name))

    def _open(self, name: str, sealed: bytes) -> bytes:
        return self._sealer.open(bytes(sealed), purpose_of(name))


def purpose_of(name: str) -> bytes:
    """Return the purpose for which a secret with this name is sealed."""
    return b"secret\0" + name.encode()


@dataclass(frozen=True, slots=True)
class FoundRings:
    """The server's rings of keys. ``faces`` is for templates and crops, None if there is none; without ``seals``, it
    only decrypts.

    ``secrets`` is the ring for the server's own secrets, None before the first start.
    """

    faces: Sealer | None
    seals: bool
    secrets: Sealer | None


@dataclass(frozen=True, slots=True)
class Rings(FoundRings):
    secrets: Sealer


def load_rings(data_dir: Path, url: str, file: Path | None, text: str | None, *, seals: bool) -> Rings:
    """Return the rings for these settings: encryption keys from a `file` or `text`, and those of VAULT_FILE.

    VAULT_FILE, in `data_dir`, is made if no encryption key can seal the secrets, and the database at `url` has no
    secrets that only the missing file opens.

    Raises Unusable ``vault_key_unusable``, ``vault_key_missing``.
    """
    vault = data_dir / VAULT_FILE
    if not (seals and (file or text)):
        if not (file or text or vault.exists()) and _has_secrets(url):
            message = (
                f"{vault} is missing and no encryption key is set, and one of them opens the database's secrets: "
                "put that one back, or restore a backup."
            )
            raise Unusable(message, code="vault_key_missing")
        load_or_make(vault)
    rings = find_rings(data_dir, file, text, seals=seals)
    if rings.secrets is None:
        raise Unusable(f"{vault}: doesn't exist any more", code="vault_key_unusable")
    return Rings(rings.faces, rings.seals, rings.secrets)


def find_rings(data_dir: Path, file: Path | None, text: str | None, *, seals: bool) -> FoundRings:
    """Return what `load_rings` returns, without making a file."""
    vault = data_dir / VAULT_FILE
    given = read_keys(file) if file else parse_keys(text, "LIKENESS_ENCRYPTION_KEY") if text else ()
    vault_keys = read_keys(vault) if vault.exists() else ()
    both = list(dict.fromkeys([*given, *vault_keys] if seals else [*vault_keys, *given]))
    return FoundRings(Sealer(given) if given else None, seals, Sealer(both) if both else None)


def _has_secrets(url: str) -> bool:
    """Return whether the database at `url` holds secrets, without making or migrating it."""
    path = sqlite_file(url)
    if path is not None and not path.exists():
        return False
    with connected(url, BUSY_MS) as connection:
        if not sa.inspect(connection).has_table(SECRETS.name):
            return False
        return connection.execute(sa.select(SECRETS.c.name).where(IS_SECRET).limit(1)).first() is not None
