"""Backup of the whole database into one file while servers run, and restore: from SQLite or PostgreSQL into either.

The file is JSON lines packed by gzip: the version and the schema; for each table its name, columns and rows; last the
numbers of rows, the SHA-256 of all lines before, the last key that each table has given out, and a signature of these
(Ed25519, by the server's signing key). Bytes are base64.

A backup is trusted without being told to if it was signed by the signing key among its own secrets, and this data
folder's keys open that: nobody can put another there without vault.key or the encryption key.

A backup holds the database as of one moment, with everything acknowledged before. Secrets are stored as in the
database: sealed (the server's) or hashed (API keys). The keys of jobs' files are left out, as the files are.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db import signing
from app.db.engine import Database, fresh_database, migrate
from app.db.key_file import FoundRings
from app.db.schema import API_KEYS, GALLERIES, JOBS, METADATA, SECRETS, SIGN_IN_CODES
from app.db.sealed_columns import MARK_PREFIX, Blobs
from app.db.secrets import SIGNING_KEY, purpose_of
from app.db.signing import Signer
from app.errors import FileMissing, InvalidInput, SealedUnreadable, Unusable
from app.files import replacing
from app.timestamps import utc_now

FORMAT, VERSION = "likeness-backup", 1
PURPOSE = b"backup"
ROWS_AT_ONCE = 2_000
MAX_LINE = 64 * 1024 * 1024
LEVEL = 1
"""Of gzip: at any level base64 shrinks by a quarter, and templates don't."""
LEFT_OUT: Mapping[str, Collection[str]] = {"jobs": {JOBS.c.secret.name}}
"""Columns that no backup holds."""
TABLES = tuple(table for table in METADATA.sorted_tables if table is not SIGN_IN_CODES)
"""What a backup holds. Sign-in codes end within a minute."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of ``rows`` by table; ``sealed``: whether it holds secrets that need the data folder's key."""

    created_at: str
    rows: Mapping[str, int]
    sealed: bool


# ---------------------------------------------------------------- backup


def write_backup(database: Database, path: Path, version: str, signer: Signer | None = None) -> Summary:
    """Write a new file that only its owner can read; it appears at `path` when it is complete."""
    try:
        with (
            replacing(path) as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=LEVEL, mtime=0, filename="") as packed,
        ):
            return _write(database, packed, version, signer)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}", code="backup_not_written") from None


def _write(database: Database, file: gzip.GzipFile, version: str, signer: Signer | None) -> Summary:
    digest = hashlib.sha256()

    def put(document: object) -> None:
        line = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        digest.update(line)
        file.write(line)

    created_at = utc_now(precision="seconds")
    counts: dict[str, int] = {}
    with database.read(one_moment=True) as connection:
        revision = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one()
        put({"format": FORMAT, "version": VERSION, "revision": revision, "made_by": version, "created_at": created_at})
        for table in TABLES:
            columns = [column for column in table.c if column.name not in LEFT_OUT.get(table.name, ())]
            binary = [column.name for column in columns if isinstance(column.type, sa.LargeBinary)]
            put({"table": table.name, "columns": [column.name for column in columns], "binary": binary})
            counts[table.name] = 0
            query = sa.select(*columns).order_by(*table.primary_key.columns)
            for row in connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query):
                put([_plain(value) for value in row])
                counts[table.name] += 1
        last = _last_keys(connection)
    end: dict[str, object] = {"rows": counts, "last_keys": last, "sha256": digest.hexdigest()}
    if signer is not None:
        end["public_key"] = signing.encode(signer.public_key)
        end["signature"] = signing.encode(signer.sign(_signed(end), PURPOSE))
    put(end)
    return Summary(created_at, counts, bool(counts[SECRETS.name]))


def _signed(end: Mapping[str, object]) -> bytes:
    return signing.canonical({name: end.get(name) for name in ("rows", "last_keys", "sha256")})


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value


def _last_keys(connection: Connection) -> dict[str, int]:
    """Return the last key of each table that numbers its rows: a restored database must not use keys again."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(sa.text("SELECT name, seq FROM sqlite_sequence")).all()
        return {name: seq for name, seq in found if name in METADATA.tables}
    last: dict[str, int] = {}
    for table in _numbered():
        sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence(table, "key"))).scalar_one()
        value, called = connection.execute(sa.text(f"SELECT last_value, is_called FROM {sequence}")).one()  # noqa: S608 (the database's own name)
        if called:
            last[table] = value
    return last


def _numbered() -> list[str]:
    return [
        table.name
        for table in METADATA.sorted_tables
        if "key" in table.c and table.c.key.primary_key and table.c.key.autoincrement is not False
    ]


# ---------------------------------------------------------------- restore


def restore(
    path: Path,
    url: str,
    *,
    rings: FoundRings,
    replace: bool = False,
    without_secrets: bool = False,
    trust: bool = False,
) -> Summary:
    """Replace the database at `url` with the backup and migrate it to the present schema, all of it or nothing.

    Nobody else may use it: hold `app.db.usage.exclusive`. `rings` must open every secret of the backup.
    `without_secrets` leaves out what only the old data folder's key opens: the server's signing key, which is then
    made anew, and the keys that AWS clients sign with. `trust` takes a backup that isn't signed, or by another server.
    Raises Conflict ``database_not_empty`` without `replace`; InvalidInput ``invalid_backup``, ``signature_wrong``,
    ``unknown_signer``; Unusable ``sealed_unreadable``, and as `Database` does.
    """
    with _opened(path) as file:
        lines = _Lines(file)
        head = lines.next()
        if head.get("format") != FORMAT or head.get("version") != VERSION:
            raise _invalid("it is not a backup of Likeness, or of a later version")
        with fresh_database(url, replace=replace, is_empty=_is_empty) as connection:
            migrate(connection, str(head.get("revision")))
            try:
                counts, signer = _fill(connection, lines)
            except (sa.exc.StatementError, KeyError, TypeError) as error:
                raise _invalid("its rows don't fit together") from error
            migrate(connection, "head")
            _check_signer(connection, signer, rings, trust=trust)
            _check_secrets(connection, rings, without_secrets=without_secrets)
    Database(url).close()
    return Summary(str(head.get("created_at")), counts, bool(counts.get(SECRETS.name)))


def _check_signer(connection: Connection, signer: bytes | None, rings: FoundRings, *, trust: bool) -> None:
    """Check that the signer, a public key, belongs to the signing key in the backup.

    Raises InvalidInput ``unknown_signer``.
    """
    if trust or (signer is not None and signer == _own_key(connection, rings)):
        return
    if signer is None:
        found = "isn't signed, so it may have been altered (those of Likeness 0.1.0 never are)"
    else:
        known_as = signing.fingerprint(signer)
        found = f"was signed by a server that the keys here don't know (SHA-256 of its public key: {known_as})"
    message = f"This backup {found}. If you know where it comes from, restore it with --trust."
    raise InvalidInput(message, code="unknown_signer")


def _own_key(connection: Connection, rings: FoundRings) -> bytes | None:
    """Return the public key of the signing key in the backup, if the keys here open it."""
    query = sa.select(SECRETS.c.sealed).where(SECRETS.c.name == SIGNING_KEY)
    sealed = connection.execute(query).scalar()
    secret = None if sealed is None else _secret(rings, SIGNING_KEY, bytes(sealed))
    return None if secret is None else signing.Signer(secret).public_key


def _check_secrets(connection: Connection, rings: FoundRings, *, without_secrets: bool) -> None:
    """Check that the keys here open all secrets, or delete those that are not keys' marks. Raises SealedUnreadable."""
    Blobs(rings.faces, seals=rings.seals).check(connection)
    mine = ~SECRETS.c.name.startswith(MARK_PREFIX, autoescape=True)
    if without_secrets:
        connection.execute(sa.delete(SECRETS).where(mine))
        return
    for row in connection.execute(sa.select(SECRETS).where(mine)):
        if _secret(rings, row.name, bytes(row.sealed)) is None:
            message = (
                "The keys here don't open the secrets in this backup: put the vault.key there that belongs to it, or "
                "use --without-secrets if it is lost. Nothing was changed."
            )
            raise SealedUnreadable(message)


def _secret(rings: FoundRings, name: str, sealed: bytes) -> bytes | None:
    """Return a secret; None if the keys here don't open it."""
    try:
        return None if rings.secrets is None else rings.secrets.open(sealed, purpose_of(name))
    except SealedUnreadable:
        return None


def _is_empty(connection: Connection) -> bool:
    tables = sa.inspect(connection).get_table_names()
    return not any(
        table.name in tables and connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        for table in (GALLERIES, API_KEYS)
    )


def _fill(connection: Connection, lines: _Lines) -> tuple[dict[str, int], bytes | None]:
    """Write all rows. Return their numbers by table, and the public key of who signed the backup, if anybody did."""
    there = sa.MetaData()
    there.reflect(connection)
    filling: _Filling | None = None
    counts: dict[str, int] = {}
    while True:
        digest = lines.sha256
        line = lines.next_any()
        if isinstance(line, list):
            if filling is None:
                raise _invalid("a row belongs to no table")
            filling.add(line)
            continue
        if filling is not None:
            filling.flush()
            counts[filling.table.name] = filling.count
        if "table" not in line:
            break
        filling = _Filling(connection, there, line)
    if line.get("sha256") != digest or line.get("rows") != counts or not lines.ended:
        raise _invalid("it was altered or truncated")
    _number(connection, line.get("last_keys", {}))
    return counts, _signer_of(line)


def _signer_of(end: Mapping[str, Any]) -> bytes | None:
    """Return the public key of the signature, if there is one. Raises InvalidInput ``signature_wrong``."""
    if "signature" not in end:
        return None
    try:
        public_key = signing.decode(str(end.get("public_key")))
        signing.verify(public_key, signing.decode(str(end["signature"])), _signed(end), PURPOSE)
    except Unusable as error:
        raise InvalidInput("The backup's signature is wrong: it was altered.", code=error.code) from None
    return public_key


class _Filling:
    """Writes the rows of one table."""

    def __init__(self, connection: Connection, there: sa.MetaData, line: Mapping[str, Any]) -> None:
        table = there.tables.get(str(line["table"]))
        self._columns: list[str] = list(line["columns"])
        self._binary = frozenset(line["binary"])
        if table is None or table.name == "alembic_version" or not set(self._columns) <= set(table.c.keys()):
            raise _invalid("it holds a table or a column that is not in its schema")
        self._connection = connection
        self._waiting: list[dict[str, Any]] = []
        self.table = table
        self.count = 0

    def add(self, values: list[Any]) -> None:
        if len(values) != len(self._columns):
            raise _invalid("a row does not have as many values as its table has columns")
        self.count += 1
        row = dict(zip(self._columns, values, strict=True))
        row |= {name: _bytes(row[name]) for name in self._binary}
        self._waiting.append(row)
        if len(self._waiting) == ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._connection.execute(sa.insert(self.table), self._waiting)
        self._waiting = []


def _number(connection: Connection, last_keys: Mapping[str, int]) -> None:
    """Make the tables number new rows after their last keys."""
    for table, last in last_keys.items():
        if table not in METADATA.tables:
            continue
        if connection.dialect.name == "sqlite":
            connection.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table})
            values = {"name": table, "seq": int(last)}
            connection.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), values)
        else:
            connection.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table, "key"), int(last))))


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(str(value), validate=True)
    except binascii.Error:
        raise _invalid("some bytes are not base64") from None


class _Lines:
    """Reads the lines of a backup, and computes the SHA-256 of those read."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def ended(self) -> bool:
        return not self._read()

    def next(self) -> dict[str, Any]:
        line = self.next_any()
        if isinstance(line, list):
            raise _invalid("a row stands where a description should")
        return line

    def next_any(self) -> dict[str, Any] | list[Any]:
        line = self._read()
        self._digest.update(line)
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict | list):
            raise _invalid("it was altered or truncated")
        return value

    def _read(self) -> bytes:
        try:
            return self._file.readline(MAX_LINE)
        except (OSError, EOFError, zlib.error) as error:
            raise _invalid("it is damaged, truncated, or not a backup") from error


def _opened(path: Path) -> gzip.GzipFile:
    try:
        return gzip.GzipFile(path, "rb")
    except OSError as error:
        raise FileMissing(f"{path}: {error.strerror}") from None


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(f"This backup can't be restored: {why}.", code="invalid_backup")
