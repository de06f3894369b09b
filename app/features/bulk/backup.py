"""Back up a SQLite database and the files that belong to it into one signed tar, and restore them.

`backup.json`: the version that made it, when, row counts, and the SHA-256 of the files that follow; signed (Ed25519).
`vault.key`, `admin.key`, `packages/…`, `calibrations/…`: copied from the data folder, if they exist. `likeness.db`: the
database as of one moment (SQLite's online backup), with every change acknowledged before that.

A restore checks the signature with the signing key in the database. That key is encrypted with `vault.key` or an
encryption key: the data folder's, or the backup's if the folder has none. So nobody without these keys can make a
backup that a restore accepts. Sign-in codes, jobs' files and the keys of these files are left out. For PostgreSQL, use
`pg_dump`.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app.db.encryption import IRREPLACEABLE
from app.db.engine import Database
from app.db.opening import sqlite_file
from app.db.schema import SECRETS
from app.db.sealed_columns import Blobs
from app.db.secrets import IS_SECRET, FoundRings, purpose_of
from app.db.usage import MOVING, REPLACED, RESTORING, move_back
from app.errors import FileMissing, InvalidInput, SealedUnreadable, Unusable
from app.features import signatures
from app.features.bulk.copying import replacing_sqlite
from app.features.locked_folder import locked_folder
from app.features.signatures import SIGNING_KEY, Signer
from app.features.tar_stream import GZIP_MAGIC, READ_AT_ONCE, entries
from app.files import PRIVATE, PUBLIC, replacing, sqlite_url, write_new
from app.package.folders import CALIBRATIONS, OWN_FOLDER
from app.types import utc_now

FORMAT, VERSION = "likeness-backup", 2
UNUSABLE_NAMES = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG}
"""File system errors that the names of a backup's files may cause: two names collide, or one is too long."""
HEAD, DATABASE = "backup.json", "likeness.db"
PURPOSE = b"backup"
OWN = OWN_FOLDER, CALIBRATIONS
"""Folders in the data folder, with the model packages added here and the operating points measured here."""
MAX_SMALL = 64 * 1024
"""Maximum bytes of a key file, and of `backup.json`."""
COUNTED = "galleries", "subjects", "faces"
UNFINISHED = ".likeness-backup-"
"""Begins the name of the folder, beside the backup, in which it is made."""
LEFT_OUT = "DELETE FROM sign_ins", "UPDATE jobs SET secret = NULL"


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """The row counts by table, and the SHA-256 of the signer's public key, None if the backup is unsigned."""

    created_at: str
    rows: Mapping[str, int]
    signer: str | None


def sqlite_only(url: str) -> Path:
    """Return the database's file. Raises Unusable ``backup_by_pg_dump`` for PostgreSQL."""
    path = sqlite_file(url)
    if path is None:
        message = (
            "PostgreSQL is backed up with pg_dump and restored with pg_restore: beside the dump, keep vault.key, "
            "packages and calibrations of the data folder."
        )
        raise Unusable(message, code="backup_by_pg_dump")
    return path


# ---------------------------------------------------------------- backup


def write_backup(url: str, data_dir: Path, path: Path, version: str, signer: Signer | None = None) -> BackupSummary:
    """Write a backup to `path`, where the file appears when it is complete; only its owner can read it.

    The schema must be up to date. Raises Unusable ``backup_by_pg_dump``, ``backup_not_written``.
    """
    source, created_at = sqlite_only(url), utc_now(precision="seconds")
    try:
        with ExitStack() as stack:
            folder = stack.enter_context(_unfinished(path.parent))
            file = stack.enter_context(replacing(path, draft=folder / "backup.tar"))
            copy = folder / DATABASE
            rows = _copy(source, copy)
            # Keep the files open: if a file is replaced meanwhile, the one that was hashed is written.
            belongings = _belongings(data_dir) | {DATABASE: copy}
            kept = {name: stack.enter_context(at.open("rb")) for name, at in belongings.items()}
            sums = {name: hashlib.file_digest(at, "sha256").hexdigest() for name, at in kept.items()}
            head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "made_by": version, "created_at": created_at}
            head |= {"rows": rows, "sha256": sums}
            if signer is not None:
                head = signatures.signed(head, signer, PURPOSE)
            with tarfile.open(fileobj=file, mode="w") as tar:
                content = signatures.canonical(head)
                for name, at in {HEAD: io.BytesIO(content), **kept}.items():
                    member = tarfile.TarInfo(name)
                    member.mode, member.size = PRIVATE, at.seek(0, os.SEEK_END)
                    at.seek(0)
                    tar.addfile(member, at)
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise Unusable(f"{path}: {why}", code="backup_not_written") from None
    return BackupSummary(created_at, rows, signatures.fingerprint(signer.public_key) if signer else None)


@contextmanager
def _unfinished(beside: Path) -> Iterator[Path]:
    """Yield a new folder for a backup's files, and remove those of backups that were killed. Raises OSError."""
    for left in beside.glob(f"{UNFINISHED}*"):
        with suppress(OSError), locked_folder(left):  # if it is locked, a backup is being made in it
            shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=beside, prefix=UNFINISHED) as folder, locked_folder(Path(folder)):
        yield Path(folder)


def _copy(source: Path, copy: Path) -> dict[str, int]:
    """Copy the database as of one moment, without blocking its writers; return its row counts."""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as there,
        closing(sqlite3.connect(copy, isolation_level=None)) as here,
    ):
        there.backup(here)  # in one step: a write between two steps would restart the backup
        for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA secure_delete = ON", *LEFT_OUT):
            here.execute(statement)
        return {name: here.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in COUNTED}  # noqa: S608 (constants)


def _belongings(data_dir: Path) -> dict[str, Path]:
    """Return the paths of the data folder's keys, model packages and operating points, by their names in the backup."""
    paths = [data_dir / name for name in IRREPLACEABLE if (data_dir / name).exists()]
    for folder in OWN:
        paths += sorted(path for path in (data_dir / folder).rglob("[!.]*") if path.is_file())
    names = {path.relative_to(data_dir).as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if "/." not in name}  # drafts are hidden


# ---------------------------------------------------------------- restore


def restore(
    path: Path,
    url: str,
    data_dir: Path,
    *,
    find_rings: Callable[[], FoundRings],
    replace: bool = False,
    trust: bool = False,
) -> BackupSummary:
    """Replace the database at `url` with the backup, and migrate it to the present schema. If anything fails, nothing
    is changed.

    Key files, packages and calibrations that the data folder lacks are copied into it; with `replace`, packages and
    calibrations of the same name are replaced. `find_rings` then reads the folder's keys. No other process may use the
    folder: hold `app.db.usage.lock_exclusively`. `trust` accepts a backup that is unsigned or signed by an unknown
    server. Raises Conflict ``database_not_empty`` without `replace`; InvalidInput ``invalid_backup``,
    ``signature_wrong``, ``unknown_signer``; Unusable ``backup_by_pg_dump``, ``sealed_unreadable``, and as `Database`
    does.
    """
    place = sqlite_only(url)
    with ExitStack() as stack:
        # Delete the replaced files last: they may have to be moved back until the new database is in its place.
        unpacked = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=data_dir, prefix=RESTORING)))
        draft = stack.enter_context(replacing_sqlite(place, replace=replace))
        head, kept = unpack(path, draft, unpacked)
        try:
            signer = signatures.check_signed(head, PURPOSE) if "signature" in head else None
        except Unusable as error:
            raise InvalidInput("The backup's signature is wrong: it was altered.", code=error.code) from None
        stack.enter_context(_put(data_dir, kept))
        _check(draft, find_rings(), signer, trust=trust)
        stack.enter_context(_put_own(data_dir, unpacked, replace=replace))
    rows = {str(name): int(number) for name, number in head["rows"].items()}
    return BackupSummary(str(head["created_at"]), rows, signatures.fingerprint(signer) if signer else None)


def unpack(path: Path, draft: Path, unpacked: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Write the database to `draft`, and packages and calibrations to the folder `unpacked`. Return the content of
    `backup.json` and the key files' contents by name. Raises FileMissing, InvalidInput ``invalid_backup``."""
    small: dict[str, bytes] = {}
    sums: dict[str, str] = {}
    try:
        for entry in entries(lambda: _pieces(path), path.stat().st_size):
            if entry.name == DATABASE and entry.is_file:
                sums[DATABASE] = _write(draft, entry.pieces())
            elif entry.name in {HEAD, *IRREPLACEABLE} and entry.is_file and entry.size <= MAX_SMALL:
                small[entry.name] = entry.read()
                sums[entry.name] = hashlib.sha256(small[entry.name]).hexdigest()
            elif entry.name.startswith(tuple(f"{folder}/" for folder in OWN)) and entry.problem is None:
                sums[entry.name] = _write_own(unpacked / entry.name, entry.pieces())
            else:
                raise _invalid("it holds a file that no backup has")
        head = json.loads(small.pop(HEAD, b"null"))
    except FileNotFoundError as error:
        raise FileMissing(f"{path}: {error.strerror}") from None
    except InvalidInput as error:
        if error.code == "invalid_backup":
            raise
        raise _invalid("it is damaged, truncated, or not a backup") from error
    except ValueError as error:
        raise _invalid("it was altered") from error
    _check_head(head, sums)
    return head, small


def _check_head(head: object, sums: Mapping[str, str]) -> None:
    if not isinstance(head, dict) or (head.get("format"), head.get("version")) != (FORMAT, VERSION):
        raise _invalid("it is not a backup of Likeness, or of a later version")
    contained = {name: value for name, value in sums.items() if name != HEAD}
    if DATABASE not in contained or head.get("sha256") != contained:
        raise _invalid("it was altered or truncated")


def _write(draft: Path, pieces: Iterator[bytes], mode: int = PRIVATE) -> str:
    """Write a file that by default only its owner can read; return its SHA-256."""
    digest = hashlib.sha256()
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _write_own(path: Path, pieces: Iterator[bytes]) -> str:
    """Write a file, and make the folders that it is in; return its SHA-256. Raises InvalidInput ``invalid_backup``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _write(path, pieces, PUBLIC)
    except OSError as error:
        if error.errno in UNUSABLE_NAMES:
            raise _invalid("it holds a file that no backup has") from error
        raise


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(READ_AT_ONCE):
            if piece.startswith(GZIP_MAGIC) and file.tell() == len(piece):
                raise _invalid("it is of Likeness 0.1.0. Restore it with that version, then upgrade")
            yield piece


@contextmanager
def _put(data_dir: Path, files: Mapping[str, bytes]) -> Iterator[None]:
    """Create the files that the data folder lacks; delete them again if the block fails."""
    made = [data_dir / name for name, content in files.items() if write_new(data_dir / name, content)]
    try:
        yield
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def _put_own(data_dir: Path, unpacked: Path, *, replace: bool) -> Iterator[None]:
    """Move packages and calibrations from `unpacked` into the data folder; move them back if the block fails.

    If the process is killed while the database's draft exists, the next process that uses the folder moves them back.
    """
    found = sorted(path.relative_to(unpacked) for path in unpacked.glob("*/*"))
    names = [name for name in found if replace or not (data_dir / name).exists()]
    for name in names:
        (data_dir / name).parent.mkdir(exist_ok=True)
        (unpacked / REPLACED / name).parent.mkdir(parents=True, exist_ok=True)
    if names:
        with replacing(unpacked / MOVING) as file:
            file.write("\0".join(map(str, names)).encode())
    try:
        for name in names:
            if (data_dir / name).exists():
                (data_dir / name).rename(unpacked / REPLACED / name)
            (unpacked / name).rename(data_dir / name)
        yield
    except BaseException:
        if names:
            move_back(data_dir, unpacked)
        raise


def _check(draft: Path, rings: FoundRings, signer: bytes | None, *, trust: bool) -> None:
    """Migrate the restored database; check that it is undamaged, was signed by its own server (unless `trust`), and
    that the data folder's keys open it. Raises InvalidInput ``invalid_backup``, ``unknown_signer``;
    SealedUnreadable."""
    with closing(Database(sqlite_url(draft))) as database, database.read() as connection:
        if connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok":
            raise _invalid("its database is damaged")
        Blobs(rings.faces, seals=rings.seals).check(connection)
        sealed = {row.name: bytes(row.sealed) for row in connection.execute(sa.select(SECRETS).where(IS_SECRET))}
    try:
        opened = {name: rings.secrets.open(blob, purpose_of(name)) for name, blob in sealed.items() if rings.secrets}
    except SealedUnreadable:
        opened = {}
    restored_key = Signer(opened[SIGNING_KEY]).public_key if SIGNING_KEY in opened else None
    if not trust and (signer is None or signer != restored_key):
        reason = "isn't signed, so it may have been altered"
        if signer is not None:
            known_as = signatures.fingerprint(signer)
            reason = f"was signed by a server that the keys here don't know (SHA-256 of its public key: {known_as})"
        message = (
            f"This backup {reason}. If you know where it comes from, restore it with --trust into an empty folder."
        )
        raise InvalidInput(message, code="unknown_signer")
    if len(opened) < len(sealed):
        message = (
            "The keys here don't open the secrets in this backup. If it is of another server, restore it into an empty "
            "data folder, with its encryption keys. Nothing was changed."
        )
        raise SealedUnreadable(message)


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(f"This backup can't be restored: {why}.", code="invalid_backup")
