"""A server process of the benchmark's own, on a data folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.bench.load import Target
from app.errors import Unusable
from app.main import admin_key

START_S, STOP_S, ANSWER_S = 180.0, 120.0, 300.0


@dataclass(frozen=True, slots=True)
class Server:
    target: Target
    process: subprocess.Popen[bytes]
    seconds_to_ready: float
    data_dir: Path

    @property
    def database(self) -> Path:
        return self.data_dir / "likeness.db"

    @property
    def url(self) -> str:
        return f"http://{self.target.host}:{self.target.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"x-api-key": self.target.key}, timeout=ANSWER_S)

    def memory(self) -> int:
        """Bytes it has in memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_memory(self) -> int:
        """Most bytes that it ever had in memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@contextmanager
def serving(data_dir: Path, **settings: object) -> Iterator[Server]:
    """Starts one, waits until it is ready, stops it at the end. Raises Unusable ``server_did_not_start``."""
    key = admin_key(data_dir)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    given = {"DATA_DIR": data_dir, "PORT": port, "LOG_LEVEL": "warning", "QUEUE_LIMIT": 512, **settings}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    environ |= {f"LIKENESS_{name}": str(value) for name, value in given.items()}
    begin = time.perf_counter()
    with (data_dir / "server.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "app", "serve"], env=environ, stdout=log, stderr=log)
    try:
        _wait(process, f"http://127.0.0.1:{port}/readyz")
        yield Server(Target("127.0.0.1", port, key), process, time.perf_counter() - begin, data_dir)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.perf_counter() + START_S
    while time.perf_counter() < end and process.poll() is None:
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.01)
    raise Unusable("the benchmark's server did not become ready", code="server_did_not_start")
