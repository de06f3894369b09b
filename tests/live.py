"""A real server process, as `likeness serve` starts it, for tests that act as users do."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.ready import give_models

START_S = 180.0
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveServer:
    """Where it answers, what it keeps its state in, and what it printed."""

    url: str
    data_dir: Path
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(data_dir: Path, **settings: object) -> dict[str, str]:
    """This process's environment without its own Likeness settings, and with these."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    given = {"DATA_DIR": data_dir, **settings}
    return plain | {f"LIKENESS_{name}": str(value) for name, value in given.items()}


@contextmanager
def serving(
    data_dir: Path,
    settings: Mapping[str, object] | None = None,
    tls: ssl.SSLContext | None = None,
    *,
    wait: bool = True,
    models: bool = True,
) -> Iterator[LiveServer]:
    """Starts a server, waits until it is ready, and stops it as a supervisor would (SIGTERM).

    ``tls`` is what a client trusts, where the settings have a certificate. Without ``models`` it prepares its own.
    """
    if models:
        give_models(data_dir)
    port = free_port()
    log = data_dir.with_name(data_dir.name + ".log")
    environ = environment(data_dir, PORT=port, **(settings or {}))
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", "app", "serve"], env=environ, stdout=output, stderr=output)
    server = LiveServer(f"{'https' if tls else 'http'}://127.0.0.1:{port}", data_dir, log, process)
    try:
        if wait:
            wait_until_ready(server, tls)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(server: LiveServer, tls: ssl.SSLContext | None = None) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}/readyz", verify=tls or True).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"the server did not become ready:\n{server.log.read_text()}")
