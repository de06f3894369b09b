"""Check what the server stores: data folder, keys, database, index."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from importlib.util import find_spec

from app.config import Settings
from app.db.clock import CLOCK, SETTLED_DAYS, Watched, read_clock
from app.db.encryption import ADMIN_KEY_FILE, VAULT_FILE, read_admin_key
from app.db.sealed_columns import MARK_PREFIX
from app.db.secrets import find_rings, purpose_of
from app.features.doctor.inspection import inspect
from app.features.doctor.results import REMEDIES, CheckResult
from app.types import utc_text

CLOCK_OFF_S = 5.0
"""Difference in seconds between the database's clock and this machine's above which the check warns."""


def check_data(settings: Settings) -> Iterator[CheckResult]:
    folder = settings.data_dir
    if not folder.exists():
        parent = next(parent for parent in folder.absolute().parents if parent.exists())
        if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
            yield CheckResult("ok", f"{folder} doesn't exist yet: the first start creates it")
        else:
            remedy = f"Make {parent} a folder that this user can write to, or create the data folder."
            yield CheckResult("failed", f"{folder} can't be created", remedy)
        return
    state = folder.stat()
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield CheckResult("failed", f"{folder} can't be written to", f"chown -R {os.getuid()} {folder}")
    elif state.st_mode & 0o077:
        mode = stat.S_IMODE(state.st_mode)
        yield CheckResult("warning", f"{folder} is open to others ({mode:o})", f"chmod 700 {folder}")
    elif open_files := [path.name for path in folder.iterdir() if path.stat().st_mode & 0o077 and path.is_file()]:
        names = ", ".join(sorted(open_files)[:5])
        yield CheckResult("warning", f"readable by others in {folder}: {names}", f"chmod 600 {folder}/*")
    else:
        yield CheckResult("ok", f"{folder}: writable, and closed to others")


def check_key(settings: Settings) -> Iterator[CheckResult]:
    path = settings.data_dir / ADMIN_KEY_FILE
    if not path.exists():
        yield CheckResult("ok", f"{path} doesn't exist yet: the first start creates it")
        return
    read_admin_key(path)
    if path.stat().st_mode & 0o077:
        yield CheckResult(
            "failed", f"{path} can be read by others", f"chmod 600 {path}, then likeness keys admin --rotate"
        )
    else:
        yield CheckResult("ok", f"{path}: closed to others")


def check_database(settings: Settings) -> Iterator[CheckResult]:
    database = inspect(settings.data_dir, settings.database)
    if not database.exists:
        yield CheckResult("ok", f"{database.kind}: doesn't exist yet, the first start creates it")
        return
    if database.problem:
        remedy = "Is the server up, and are host, user and password in LIKENESS_DATABASE_URL right?"
        if database.kind == "SQLite":
            remedy = "The file is damaged, locked or no database: stop what uses it, or restore a backup."
        yield CheckResult("failed", f"{database.kind}: can't be read ({database.problem})", remedy)
        return
    if not database.known:
        message = f"made by a newer or unreleased version (schema {database.revision})"
        yield CheckResult("failed", f"{database.kind}: {message}", "Install that version, or restore a backup.")
    elif database.damage:
        message = "; ".join(database.damage)
        yield CheckResult("failed", f"{database.kind}: damaged: {message}", "Stop the server and restore a backup.")
    elif not database.writable:
        yield CheckResult("failed", f"{database.kind}: can't be written to", "Give this user the right to write.")
    elif database.revision != database.newest:
        message = f"schema {database.revision or 'empty'}, the newest is {database.newest}"
        yield CheckResult("warning", f"{database.kind}: {message}", "The next start migrates it; back it up first.")
    else:
        yield CheckResult("ok", f"{database.kind}: whole, writable, schema {database.revision}")
    if abs(database.clock_off_s) > CLOCK_OFF_S:
        message = f"the database's is {database.clock_off_s:+.0f} s from this machine's"
        yield CheckResult("warning", message, "Synchronise both (NTP).", check="clock")


def check_vault(settings: Settings) -> Iterator[CheckResult]:
    """Check that the keys here decrypt what is encrypted in the database, and that only their owner can read their
    files."""
    path = settings.data_dir / VAULT_FILE
    sealed = inspect(settings.data_dir, settings.database).sealed
    seals = settings.encryption == "seal"
    rings = find_rings(settings.data_dir, settings.encryption_key_file, settings.encryption_keys, seals=seals)
    marks = {name: blob for name, blob in sealed.items() if name.startswith(MARK_PREFIX)}
    secrets = {name: blob for name, blob in sealed.items() if name not in marks}
    if marks and rings.faces is None:
        keys = ", ".join(name.removeprefix(MARK_PREFIX) for name in marks)
        yield CheckResult("failed", f"faces are encrypted with {keys}, and no key is set", REMEDIES["vault"])
        return
    if secrets and rings.secrets is None:
        message = f"{path} is missing, and the database has secrets encrypted with it"
        yield CheckResult("failed", message, REMEDIES["vault"])
        return
    for name, blob in secrets.items():
        if rings.secrets:
            opened = rings.secrets.open(blob, purpose_of(name))
            if name == CLOCK and (watched := Watched.decode(opened).after(read_clock())).ahead:
                message = f"too far ahead of {utc_text(watched.trusted.at)}: nothing is expired or deleted by its age"
                remedy = f"Correct it. If it is right, it is trusted after {SETTLED_DAYS} days with a server."
                yield CheckResult("warning", message, remedy, check="clock")
    for name, blob in marks.items():
        if rings.faces:
            rings.faces.open(blob, name.encode())
    files = [file for file in (path, settings.encryption_key_file) if file is not None and file.exists()]
    if open_files := [str(file) for file in files if file.stat().st_mode & 0o077]:
        yield CheckResult(
            "warning", f"readable by others: {', '.join(open_files)}", f"chmod 600 {' '.join(open_files)}"
        )
    elif rings.secrets is None:
        yield CheckResult("ok", f"{path} doesn't exist yet: the first start creates it")
    else:
        how = "encrypted" if rings.faces and rings.seals else "stored plain"
        yield CheckResult(
            "ok", f"the keys open the database's {len(sealed)} secrets; new templates and crops are {how}"
        )


def check_index(settings: Settings) -> Iterator[CheckResult]:
    """Check that Milvus answers, if it is used."""
    if settings.index == "faiss":
        yield CheckResult("ok", "in memory, with FAISS")
        return
    if find_spec("app.features.milvus") is None:
        message = "LIKENESS_INDEX names Milvus, and this installation does without it: no server starts"
        yield CheckResult("failed", message, "Put app/features/milvus back, or set LIKENESS_INDEX=faiss.")
        return
    from app.features.milvus.client import Milvus, parse_address  # noqa: PLC0415 - a feature that few use

    try:
        address = parse_address(settings.index)
    except ValueError as error:
        yield CheckResult("failed", f"LIKENESS_INDEX: {error}", REMEDIES["index"])
        return
    if address.is_file:  # not opened, since only one process at a time may do so
        yield CheckResult("warning", f"{address.name}: milvus-lite, which is meant for trials", REMEDIES["index"])
        return
    token = settings.index_token.get_secret_value() if settings.index_token else None
    milvus = Milvus(address, token)
    yield CheckResult("ok", f"{address.name} answers: Milvus {milvus.version}")
    milvus.close()
