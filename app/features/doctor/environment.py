"""Check what the server runs on: Python, packages, disk, port, certificate, limits, photo workers, clock."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from app.config import PROJECT, Settings
from app.features.doctor.results import CheckResult, Outcome
from app.server import data_folder
from app.version import _PROJECT, DISTRIBUTION, VERSION

OLDEST_PYTHON = (3, 11)
LEAST_FREE, SMALL_FREE = 256 * 1024**2, 2 * 1024**3
"""Free disk space, in bytes, below which the check fails, and below which it warns."""
LEAST_FILES = 1024
"""Minimum for the limit of open files: each connection needs one, and the database some."""
RELEASED = datetime(2026, 1, 1, tzinfo=UTC)
"""A time before this release: a clock that shows an earlier one is wrong."""
SOON = timedelta(days=14)
"""The check warns of a certificate that ends within this time."""
SERVER_USES = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
"""If a certificate lists its uses, one of these must be among them, or browsers and clients reject the server."""
ENGINES = {"faiss": "the search index", "onnxruntime": "running models", "cv2": "finding faces"}


def check_python(_: Settings) -> Iterator[CheckResult]:
    version = sys.version.split()[0]
    if sys.version_info >= OLDEST_PYTHON:
        yield CheckResult("ok", version)
    else:
        yield CheckResult("failed", version, "Install Python 3.11 or newer, and create the environment again.")


def check_packages(_: Settings) -> Iterator[CheckResult]:
    """Check that the required packages are installed, in the tested versions."""
    pins = PROJECT / "constraints.txt"  # an installed wheel doesn't contain this file
    pairs = (line.strip().partition("==") for line in (pins.read_text().splitlines() if pins.is_file() else ()))
    pinned = {_plain(name): version for name, sign, version in pairs if sign}
    whole = "-c constraints.txt '.[{}]'" if pins.is_file() else f"'{DISTRIBUTION}[{{}}]'"
    install = f"pip install {whole.format('cpu')} (or {whole.format('gpu')})"
    required = {re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0] for line in requirements() if "extra ==" not in line}
    missing, others = [], []
    for name in sorted(required):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if pinned.get(_plain(name), version) != version:
            others.append(f"{name} {version} (tested: {pinned[_plain(name)]})")
    missing += [f"{module} ({purpose})" for module, purpose in ENGINES.items() if not _importable(module)]
    if missing:
        yield CheckResult("failed", f"missing: {', '.join(missing)}", f"Install them: {install}")
    if others:
        yield CheckResult("warning", f"other versions: {', '.join(others)}", f"Install the tested ones: {install}")
    if not missing and not others:
        yield CheckResult("ok", f"likeness {VERSION} and everything it needs")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _importable(module: str) -> bool:
    try:
        __import__(module)
    except Exception:  # noqa: BLE001 - a missing shared library may raise anything
        return False
    return True


def check_disk(settings: Settings) -> Iterator[CheckResult]:
    wanted = settings.data_dir.absolute()
    folder = next(folder for folder in (wanted, *wanted.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    verdict: Outcome = "failed" if free < LEAST_FREE else "warning" if free < SMALL_FREE else "ok"
    remedy = "" if verdict == "ok" else "Make room, or move LIKENESS_DATA_DIR to a larger disk."
    yield CheckResult(verdict, f"{free / 1024**3:.1f} GiB free at {folder}", remedy)


def check_port(settings: Settings) -> Iterator[CheckResult]:
    where = f"{settings.host}:{settings.port}"
    if url := data_folder.running_at(settings.data_dir):
        yield CheckResult("ok", f"the server of this data folder runs at {url}")
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        remedy = "Set LIKENESS_HOST to an address of this machine."
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(settings.port) or "the process that uses it (`ss -ltnp` as root shows it)"
            remedy = f"Stop {holder}, or set another LIKENESS_PORT."
        elif error.errno == errno.EACCES:
            remedy = "Set a LIKENESS_PORT from 1024 on, or give the process CAP_NET_BIND_SERVICE."
        yield CheckResult("failed", f"{where}: {error.strerror}", remedy)
    else:
        yield CheckResult("ok", f"{where} is free")


def check_tls(settings: Settings) -> Iterator[CheckResult]:
    if not settings.tls_cert or not settings.tls_key:
        return
    from app.server.http import tls_context  # noqa: PLC0415 - needs the engines, which `check_packages` looks for

    tls_context(settings.tls_cert, settings.tls_key)  # raises if the certificate or its key can't be used
    try:
        certificate = x509.load_pem_x509_certificates(settings.tls_cert.read_bytes())[0]
        usages = [
            extension.value
            for extension in certificate.extensions
            if isinstance(extension.value, x509.ExtendedKeyUsage)
        ]
    except ValueError:  # not a failure, since OpenSSL, which the server uses, reads more kinds of PEM
        message = f"{settings.tls_cert}: until when it is valid can't be read"
        yield CheckResult("warning", message, "Store it as plain X.509: -----BEGIN CERTIFICATE-----")
        return
    if any(SERVER_USES.isdisjoint(usage) for usage in usages):
        yield CheckResult(
            "failed", f"{settings.tls_cert} is not for servers", "Get a certificate for server authentication."
        )
        return
    begins, ends, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, datetime.now(UTC)
    renew = "Renew the certificate, then restart the server."
    if begins <= now < ends - SOON:
        yield CheckResult("ok", f"the certificate is valid until {ends:%Y-%m-%d}")
    else:
        validity = f"{settings.tls_cert}: valid from {begins:%Y-%m-%d} until {ends:%Y-%m-%d}"
        yield CheckResult("warning" if begins <= now < ends else "failed", validity, renew)


def check_limits(_: Settings) -> Iterator[CheckResult]:
    import resource  # noqa: PLC0415 - not on every system

    files, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files >= LEAST_FILES:
        yield CheckResult("ok", f"open files: {files}")
    else:
        yield CheckResult("warning", f"open files: {files}", f"ulimit -n {LEAST_FILES} or more.")


def check_workers(settings: Settings) -> Iterator[CheckResult]:
    """Check what keeps photo workers from files and the network. Done in a subprocess, which loses access to both."""
    if settings.photo_workers == 0 or sys.platform != "linux":
        yield CheckResult("ok", "the server's own process reads photos")
        return
    command = [sys.executable, "-c", "from app.workers.sandbox import enter; print(*enter())"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)  # noqa: S603 - itself
    if held := done.stdout.split():
        yield CheckResult("ok", f"photo workers are held by {' and '.join(held)}")
    else:
        remedy = "Use Linux 5.13 or newer, and a container runtime that lets processes use seccomp or Landlock."
        yield CheckResult("warning", "nothing keeps photo workers from files and network", remedy)


def check_clock(_: Settings) -> Iterator[CheckResult]:
    now = datetime.now(UTC)
    if now < RELEASED:
        yield CheckResult("failed", f"it is {now:%Y-%m-%d %H:%M} UTC", "Set the clock: expiry and logs depend on it.")
    elif is_synchronised() is False:
        yield CheckResult("warning", f"{now:%Y-%m-%d %H:%M} UTC, not synchronised", "Run an NTP client.")
    else:
        yield CheckResult("ok", f"{now:%Y-%m-%d %H:%M} UTC")


TIMEX_BYTES = 512
"""Bytes for `struct timex`: it takes 208 on 64-bit Linux, and may grow in later kernels."""
TIME_ERROR = 5
"""The result of adjtimex(2) if the clock is not synchronised."""
LISTENING = "0A"
"""The state TCP_LISTEN in /proc/net/tcp."""


def is_synchronised() -> bool | None:
    """Return whether the clock is synchronised; None if the kernel doesn't say. With a zeroed `struct timex`,
    adjtimex(2) changes nothing."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != TIME_ERROR


def holder_of(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return the process that listens on a port, such as `process 123 (likeness)`; None if there is none or it is
    another user's."""
    sockets = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    for process in proc.iterdir() if sockets else ():
        with suppress(OSError):  # another user's process, or one that has ended
            handles = (process / "fd").iterdir() if process.name.isdecimal() else ()
            if any(str(handle.readlink()) in sockets for handle in handles):
                # its arguments are left out, since they may contain secrets
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return None


def requirements() -> list[str]:
    """Return the server's requirements in pip's format; requirements of extras have a marker ``extra ==``."""
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return list(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"])
