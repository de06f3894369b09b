"""`likeness doctor`: looks at everything the server needs, changes nothing, and says what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from app import instance
from app.cli import options, output
from app.cli.clock import is_synchronised
from app.cli.doctor_models import check_device, check_galleries, check_models
from app.cli.findings import Finding, Verdict
from app.cli.ports import holder_of
from app.config import PROJECT, Settings, load_settings
from app.errors import LikenessError

DISTRIBUTION = "likeness"
OLDEST_PYTHON = (3, 11)
LEAST_FREE, SMALL_FREE = 256 * 1024**2, 2 * 1024**3
"""Bytes of disk: below the first nothing can be relied upon, below the second one should look."""
LEAST_FILES = 1024
"""Open files: a connection each, and the database's."""
RELEASED = datetime(2026, 1, 1, tzinfo=UTC)
"""No clock that is right shows an earlier time."""
CLOCK_OFF_S = 5.0
SOON_S = 14 * 24 * 3600
"""A certificate that ends sooner is worth a word."""
ENGINES = {"faiss": "the search index", "onnxruntime": "running models", "cv2": "finding faces"}

REMEDIES = {
    "models": "Set LIKENESS_MODELS_DIR, LIKENESS_EMBEDDER and LIKENESS_DETECTOR to packages that are there.",
    "device": "Name an embedding package in LIKENESS_EMBEDDER, or mend this one.",
    "key": "Restore the file, or make a new key: likeness key --rotate",
    "vault": "Put back the key file that the database was sealed with (vault.key, LIKENESS_ENCRYPTION_KEY_FILE).",
    "index": "Correct LIKENESS_INDEX and LIKENESS_INDEX_TOKEN (docs/how-to/milvus.md), and see that Milvus is up.",
    "galleries": "Correct LIKENESS_MODELS_DIR and LIKENESS_DATABASE_URL.",
    "database": "Correct LIKENESS_DATABASE_URL, or the permissions of the file that it names.",
    "tls": "Set LIKENESS_TLS_CERT and LIKENESS_TLS_KEY to a certificate and its own key, PEM, readable, no password.",
}
"""Of what a check raises."""


def doctor(as_json: options.AsJson = False) -> None:
    """Check the installation: packages, models, device, data folder, key, database, galleries, disk, port, TLS, clock.

    Mends nothing. Exit code 0: nothing is wrong (there may be warnings), 1: something is.
    """
    findings = list(examine(load_settings()))
    for finding in findings:
        if as_json:
            output.say_json(asdict(finding))
        else:
            output.say(f"{finding.verdict:8} {finding.check:10} {finding.found}")
            if finding.remedy:
                output.say(f"{'':19} → {finding.remedy}")
    if any(finding.verdict == "failed" for finding in findings):
        raise typer.Exit(output.Exit.NO)


def examine(settings: Settings, only: Collection[str] | None = None) -> Iterator[Finding]:
    """Every check (or ``only`` some), in the order in which one would mend things; one that breaks is a finding too."""
    for name, check in CHECKS.items():
        if only is not None and name not in only:
            continue
        try:
            yield from check(settings)
        except LikenessError as error:
            yield Finding(name, "failed", error.message, REMEDIES[name])
        except OSError as error:
            yield Finding(name, "failed", f"{error.filename or name}: {error.strerror or error}", "Mend access to it.")


def _python(_: Settings) -> Iterator[Finding]:
    found = sys.version.split()[0]
    if sys.version_info >= OLDEST_PYTHON:
        yield Finding("python", "ok", found)
    else:
        yield Finding("python", "failed", found, "Install Python 3.11 or newer, and make the environment anew.")


def _packages(_: Settings) -> Iterator[Finding]:
    """What the installation asks for is there, in the versions it was tested with."""
    pinned = _pinned(PROJECT / "constraints.txt")
    install = "pip install -c constraints.txt '.[cpu]' (or '.[gpu]')"
    missing, others = [], []
    for name in sorted(_required()):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if pinned.get(_plain(name), version) != version:
            others.append(f"{name} {version} (tested: {pinned[_plain(name)]})")
    missing += [f"{module} ({purpose})" for module, purpose in ENGINES.items() if not _importable(module)]
    if missing:
        yield Finding("packages", "failed", f"missing: {', '.join(missing)}", f"Install them: {install}")
    if others:
        yield Finding(
            "packages", "warning", f"other versions: {', '.join(others)}", f"Install the tested ones: {install}"
        )
    if not missing and not others:
        yield Finding("packages", "ok", f"likeness {metadata.version(DISTRIBUTION)} and all that it needs")


def _required() -> set[str]:
    """Names of the distributions that serving needs, extras left out."""
    lines = metadata.requires(DISTRIBUTION) or []
    return {re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line}


def _pinned(path: Path) -> dict[str, str]:
    if not path.is_file():  # installed from a wheel, which does not carry it
        return {}
    pairs = (line.strip().partition("==") for line in path.read_text().splitlines())
    return {_plain(name): version for name, sign, version in pairs if sign}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _importable(module: str) -> bool:
    try:
        __import__(module)
    except Exception:  # noqa: BLE001 - a shared library that is missing may raise anything
        return False
    return True


def _data_dir(settings: Settings) -> Iterator[Finding]:
    folder = settings.data_dir
    if not folder.exists():
        parent = next(one for one in folder.absolute().parents if one.exists())
        if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
            yield Finding("data", "ok", f"{folder} is not there yet: the first start makes it")
        else:
            yield Finding(
                "data",
                "failed",
                f"{folder} cannot be made",
                f"Make {parent} a folder that this user can write to, or make the data folder.",
            )
        return
    state = folder.stat()
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("data", "failed", f"{folder} cannot be written to", f"chown -R {os.getuid()} {folder}")
    elif state.st_mode & 0o077:
        mode = stat.S_IMODE(state.st_mode)
        yield Finding("data", "warning", f"{folder} is open to others ({mode:o})", f"chmod 700 {folder}")
    elif strangers := [path.name for path in folder.iterdir() if path.stat().st_mode & 0o077 and path.is_file()]:
        names = ", ".join(sorted(strangers)[:5])
        yield Finding("data", "warning", f"readable by others in {folder}: {names}", f"chmod 600 {folder}/*")
    else:
        yield Finding("data", "ok", f"{folder}: writable, and its owner's alone")


def _key(settings: Settings) -> Iterator[Finding]:
    from app.api.auth import KEY_FILE, read_key  # noqa: PLC0415 - so that a broken package is a finding

    path = settings.data_dir / KEY_FILE
    if not path.exists():
        yield Finding("key", "ok", f"{path} is not there yet: the first start makes it")
        return
    read_key(path)
    if path.stat().st_mode & 0o077:
        yield Finding("key", "failed", f"{path} can be read by others", f"chmod 600 {path}, then likeness key --rotate")
    else:
        yield Finding("key", "ok", f"{path}: its owner's alone")


def _database(settings: Settings) -> Iterator[Finding]:
    from app.gallery.inspection import inspect  # noqa: PLC0415 - so that a broken package is a finding

    found = inspect(settings.database)
    if not found.exists:
        yield Finding("database", "ok", f"{found.kind}: not there yet, the first start makes it")
        return
    if found.problem:
        remedy = "Is the server up, and are host, user and password in LIKENESS_DATABASE_URL right?"
        if found.kind == "SQLite":
            remedy = "The file is damaged, locked or no database: stop what uses it, or restore a backup."
        yield Finding("database", "failed", f"{found.kind}: cannot be read ({found.problem})", remedy)
        return
    if not found.known:
        message = f"made by a newer version (schema {found.revision})"
        yield Finding("database", "failed", f"{found.kind}: {message}", "Install that version, or restore a backup.")
    elif found.damage:
        message = "; ".join(found.damage)
        yield Finding(
            "database", "failed", f"{found.kind}: damaged: {message}", "Stop the server and restore a backup."
        )
    elif not found.writable:
        yield Finding("database", "failed", f"{found.kind}: cannot be written to", "Give this user the right to write.")
    elif found.revision != found.newest:
        message = f"schema {found.revision or 'empty'}, the newest is {found.newest}"
        yield Finding(
            "database", "warning", f"{found.kind}: {message}", "The next start migrates it; back it up first."
        )
    else:
        yield Finding("database", "ok", f"{found.kind}: whole, writable, schema {found.revision}")
    if abs(found.clock_off_s) > CLOCK_OFF_S:
        message = f"the database's is {found.clock_off_s:+.0f} s from this machine's"
        yield Finding("clock", "warning", message, "Synchronise both (NTP).")


def _vault(settings: Settings) -> Iterator[Finding]:
    """What is sealed in the database opens with the keys that are there."""
    from app.gallery.blobs import MARK_PREFIX  # noqa: PLC0415 - so that a broken package is a finding
    from app.gallery.inspection import inspect  # noqa: PLC0415 - as above
    from app.gallery.secrets import purpose_of  # noqa: PLC0415 - as above
    from app.vault.keyfile import VAULT_FILE, find_rings  # noqa: PLC0415 - as above

    path = settings.data_dir / VAULT_FILE
    sealed = inspect(settings.database).sealed
    seals = settings.encryption == "seal"
    rings = find_rings(settings.data_dir, settings.encryption_key_file, settings.encryption_keys, seals=seals)
    marks = {name: blob for name, blob in sealed.items() if name.startswith(MARK_PREFIX)}
    secrets = {name: blob for name, blob in sealed.items() if name not in marks}
    if secrets and rings.secrets is None:
        message = f"{path} is missing, and the database has secrets sealed with it"
        yield Finding("vault", "failed", message, REMEDIES["vault"])
        return
    if marks and rings.faces is None:
        keys = ", ".join(name.removeprefix(MARK_PREFIX) for name in marks)
        yield Finding("vault", "failed", f"faces are sealed with {keys}, and no key is set", REMEDIES["vault"])
        return
    for name, blob in secrets.items():
        if rings.secrets:
            rings.secrets.open(blob, purpose_of(name))
    for name, blob in marks.items():
        if rings.faces:
            rings.faces.open(blob, name.encode())
    files = [one for one in (path, settings.encryption_key_file) if one is not None and one.exists()]
    if strangers := [str(one) for one in files if one.stat().st_mode & 0o077]:
        yield Finding(
            "vault", "warning", f"readable by others: {', '.join(strangers)}", f"chmod 600 {' '.join(strangers)}"
        )
    elif rings.secrets is None:
        yield Finding("vault", "ok", f"{path} is not there yet: the first start makes it")
    else:
        how = "sealed" if rings.faces and rings.seals else "stored as they are"
        yield Finding("vault", "ok", f"the database's {len(sealed)} secrets open; new templates and crops are {how}")


def _index(settings: Settings) -> Iterator[Finding]:
    """Milvus, where vectors are searched there."""
    from app.gallery.milvus import Milvus, parse_address  # noqa: PLC0415 - so that a broken package is a finding

    if settings.index == "faiss":
        yield Finding("index", "ok", "in memory, with FAISS")
        return
    try:
        address = parse_address(settings.index)
    except ValueError as error:
        yield Finding("index", "failed", f"LIKENESS_INDEX: {error}", REMEDIES["index"])
        return
    if address.is_file:  # which only one process at a time may open
        yield Finding("index", "warning", f"{address.name}: milvus-lite, which is to try things out", REMEDIES["index"])
        return
    token = settings.index_token.get_secret_value() if settings.index_token else None
    milvus = Milvus(address, token)
    yield Finding("index", "ok", f"{address.name} answers: Milvus {milvus.version}")
    milvus.close()


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = next(one for one in (settings.data_dir.absolute(), *settings.data_dir.absolute().parents) if one.exists())
    free = shutil.disk_usage(folder).free
    verdict: Verdict = "failed" if free < LEAST_FREE else "warning" if free < SMALL_FREE else "ok"
    remedy = "" if verdict == "ok" else "Make room, or move LIKENESS_DATA_DIR to a larger disk."
    yield Finding("disk", verdict, f"{free / 1024**3:.1f} GiB free at {folder}", remedy)


def _port(settings: Settings) -> Iterator[Finding]:
    where = f"{settings.host}:{settings.port}"
    if url := instance.running_at(settings.data_dir):
        yield Finding("port", "ok", f"this data folder's server runs, at {url}")
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        remedy = "Name an address of this machine in LIKENESS_HOST."
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(settings.port)
            remedy = f"Stop {holder or 'who holds it (`ss -ltnp` as root says who)'}, or set another LIKENESS_PORT."
        elif error.errno == errno.EACCES:
            remedy = "Set a LIKENESS_PORT from 1024 on, or give the process CAP_NET_BIND_SERVICE."
        yield Finding("port", "failed", f"{where}: {error.strerror}", remedy)
    else:
        yield Finding("port", "ok", f"{where} is free")


def _tls(settings: Settings) -> Iterator[Finding]:
    if not settings.tls_cert or not settings.tls_key:
        return
    from app.api.serving import tls_context  # noqa: PLC0415 - so that a broken package is a finding

    server = tls_context(settings.tls_cert, settings.tls_key)
    renew = "Renew the certificate, then restart the server."
    try:
        ends = _end_of(_own_certificate(server, settings.tls_cert))
    except ssl.SSLError as error:
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error.reason)
        yield Finding("tls", "failed", f"{settings.tls_cert}: {reason}", renew)
        return
    soon = (ends - datetime.now(UTC)).total_seconds() < SOON_S
    yield Finding(
        "tls", "warning" if soon else "ok", f"the certificate holds until {ends:%Y-%m-%d}", renew if soon else ""
    )


def _own_certificate(server: ssl.SSLContext, cert: Path) -> dict[str, Any]:
    """The server's certificate as a client that trusts it sees it: a handshake in memory, which checks its dates."""
    trusting = ssl.create_default_context(cafile=cert)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, other = trusting.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            try:
                other.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(client.getpeercert() or {})


def _end_of(certificate: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)


def _limits(_: Settings) -> Iterator[Finding]:
    import resource  # noqa: PLC0415 - not on every system

    files, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files >= LEAST_FILES:
        yield Finding("limits", "ok", f"open files: {files}")
    else:
        yield Finding("limits", "warning", f"open files: {files}", f"ulimit -n {LEAST_FILES} or more.")


def _clock(_: Settings) -> Iterator[Finding]:
    now = datetime.now(UTC)
    if now < RELEASED:
        yield Finding("clock", "failed", f"it is {now:%Y-%m-%d %H:%M} UTC", "Set the clock: expiry and logs go by it.")
    elif is_synchronised() is False:
        yield Finding("clock", "warning", f"{now:%Y-%m-%d %H:%M} UTC, not synchronised", "Run an NTP client.")
    else:
        yield Finding("clock", "ok", f"{now:%Y-%m-%d %H:%M} UTC")


CHECKS: Mapping[str, Callable[[Settings], Iterator[Finding]]] = {
    "python": _python,
    "packages": _packages,
    "models": check_models,
    "device": check_device,
    "data": _data_dir,
    "key": _key,
    "database": _database,
    "galleries": check_galleries,
    "index": _index,
    "vault": _vault,
    "disk": _disk,
    "port": _port,
    "tls": _tls,
    "limits": _limits,
    "clock": _clock,
}
