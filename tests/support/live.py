"""Run a real server process, as `likeness serve` starts it, for tests that act as users do."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.ready import give_database, give_models
from training import service
from training.service import becomes_ready, reserved_port, spawned

START_S = 180.0
STOP_S = 30.0
ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A running server: its address, data folder, log and process."""

    url: str
    data_dir: Path
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()

    def client(self, path: str = "", **options: Any) -> httpx.Client:
        """Return a client with the admin's key, unless other headers are given, and a timeout for busy machines.

        ``verify`` is for servers with TLS; loading all of certifi's certificates takes longer than most tests.
        """
        if "headers" not in options:
            options["headers"] = {"x-api-key": self.key}
        return httpx.Client(base_url=self.url + path, **{"timeout": ANSWER_S, "verify": False, **options})


def environment(data_dir: Path, **settings: object) -> dict[str, str]:
    """Return this process's environment with these Likeness settings in place of its own.

    The server has its default threads, and reads photos itself unless the settings say otherwise.
    """
    inherited = service.environment(DATA_DIR=data_dir, **{"PHOTO_WORKERS": 0, **settings})
    return {name: value for name, value in inherited.items() if not name.startswith("OMP_")}


@contextmanager
def serving(
    data_dir: Path,
    settings: Mapping[str, object] | None = None,
    tls: ssl.SSLContext | None = None,
    *,
    wait: bool = True,
    models: bool = True,
    code: Path | None = None,
    port: int | None = None,
    remembering: bool = False,
) -> Iterator[LiveServer]:
    """Start a server, wait until it is ready, and stop it at the end as a supervisor would (SIGTERM).

    ``tls`` is what a client trusts, if the settings have a certificate. Without ``models`` the server prepares its own.
    ``code`` is as in `spawned`; ``port`` is one that the caller has reserved. With ``remembering`` it computes each
    photo once.
    """
    if models:
        give_models(data_dir)
        if "DATABASE_URL" not in (settings or {}):
            give_database(data_dir)
    log = data_dir.with_name(data_dir.name + ".log")
    with nullcontext(port) if port else reserved_port() as chosen:
        environ = environment(data_dir, PORT=chosen, **(settings or {}))
        url = f"{'https' if tls else 'http'}://127.0.0.1:{chosen}"
        module = "tests.support.remembering" if remembering else "app"
        with spawned(environ, log, stop_s=STOP_S, code=code, module=module) as process:
            if wait and not becomes_ready(process, url, patience_s=START_S, tls=tls):
                raise AssertionError(f"the server did not become ready:\n{log.read_text()}")
            yield LiveServer(url, data_dir, log, process)


def children(process: int) -> list[int]:
    """Return the running child processes of a process."""
    found: list[int] = []
    with suppress(OSError):  # it may end meanwhile
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def family(process: int) -> list[int]:
    """Return the process and all its descendants."""
    return [process, *(member for child in children(process) for member in family(child))]


def make_certificate(
    folder: Path, days: int, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH
) -> tuple[Path, Path]:
    """Write a certificate for this machine and its key, PEM. It expires in ``days``, or has expired if negative."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    private, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=localhost")
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=90)).not_valid_after(now + timedelta(days=days))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    cert.write_bytes(made.sign(private, hashes.SHA256()).public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert, key
