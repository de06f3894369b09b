"""A server in a process of its own, for as long as somebody needs one."""

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

POLL_S = 0.01


@contextmanager
def reserved_port() -> Iterator[int]:
    """One of 127.0.0.1's on which nobody listens but who is told of it: bound here without listening, Linux gives it to
    nobody who asks for any port, and still lets those listen who name it and set SO_REUSEADDR, as servers do. Other
    systems don't, so there it is only one that was free a moment ago."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


def environment(**settings: object) -> dict[str, str]:
    """This process's environment without its own Likeness settings, and with these, named as in `app.config` in
    capitals."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    return plain | {f"LIKENESS_{name}": str(value) for name, value in settings.items()}


@contextmanager
def spawned(environ: dict[str, str], log: Path, *, stop_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """`likeness serve`, which adds what it prints to ``log``; at the end it is told to stop as a supervisor would
    (SIGTERM), and killed where that takes longer than ``stop_s``."""
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", "app", "serve"], env=environ, stdout=output, stderr=output)
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
    """Waits until the process answers at ``url`` that it is ready; False where it ends, or takes longer."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz", verify=tls or True, trust_env=False).is_success:
                return True
        except httpx.TransportError:
            pass
        time.sleep(POLL_S)
    return False
