"""Run servers in subprocesses, on free ports of this machine."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

POLL_S = 0.02


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a free port of 127.0.0.1 for a server that gets its number.

    It is bound here without listening. Linux then never gives it to a process that asks for any free port, but lets a
    process listen that names it and sets SO_REUSEADDR. On other systems it is just a port that was free a moment ago.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


def environment(**settings: object) -> dict[str, str]:
    """Return this process's environment with these settings (named as in `app.config`, in capitals) and no others."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    return plain | {f"LIKENESS_{name}": str(value) for name, value in settings.items()}


@contextmanager
def spawned(
    environ: dict[str, str], log: Path, *, stop_s: float, code: Path | None = None, module: str = "app"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `likeness serve` while the block lasts; its output is added to ``log``.

    It runs the `app` in the folder ``code``, by default this process's own; ``module`` is run in place of `app`.

    At the end it gets SIGTERM, and SIGKILL if it takes longer than ``stop_s`` seconds.
    """
    if code is not None:
        environ = environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{code}{os.pathsep}{code / 'clients' / 'python'}"}
    with log.open("ab") as output:
        command = [sys.executable, "-m", module, "serve"]
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)  # noqa: S603 (our own program)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def becomes_ready(
    process: subprocess.Popen[bytes], url: str, *, patience_s: float, tls: ssl.SSLContext | None = None
) -> bool:
    """Wait until the server at ``url`` is ready; return False if it ends or ``patience_s`` seconds have passed."""
    end = time.monotonic() + patience_s
    # Without TLS, don't read certifi's certificates, which takes longer than an answer.
    with httpx.Client(verify=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False) as client:
        while time.monotonic() < end and process.poll() is None:
            try:
                if client.get(f"{url}/readyz").is_success:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(POLL_S)
    return False
