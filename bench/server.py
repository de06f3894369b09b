"""A server process for the benchmark, on its own data folder."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.errors import Unusable
from app.machine import memory_in_use
from app.server.data_folder import load_key
from bench.load import Target
from training.service import becomes_ready, environment, reserved_port, spawned

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
        """Return the bytes of memory that it and its photo workers use."""
        return sum(map(memory_in_use, _family(self.process.pid)))

    def processor_s(self) -> float:
        """Return the processor seconds that its threads and its photo workers have used."""
        spent = 0
        for process in _family(self.process.pid):
            fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
        return spent / os.sysconf("SC_CLK_TCK")


def _family(process: int) -> list[int]:
    """Return the process, its children, and theirs."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    children = [int(word) for task in tasks for word in (task / "children").read_text(encoding="ascii").split()]
    return [process, *(member for child in children for member in _family(child))]


@contextmanager
def serving(data_dir: Path, code: Path | None = None, **settings: object) -> Iterator[Server]:
    """Start a server of the checkout ``code``, by default this one, wait until it is ready, and stop it at the end.

    Raises Unusable ``server_did_not_start``."""
    key, begin = load_key(data_dir)[0], time.perf_counter()
    with reserved_port() as port:
        given = {"DATA_DIR": data_dir, "PORT": port, "LOG_LEVEL": "warning", "QUEUE_LIMIT": 512, **settings}
        with spawned(environment(**given), data_dir / "server.log", stop_s=STOP_S, code=code) as process:
            if not becomes_ready(process, f"http://127.0.0.1:{port}", patience_s=START_S):
                raise Unusable("the benchmark's server did not become ready", code="server_did_not_start")
            yield Server(Target("127.0.0.1", port, key), process, time.perf_counter() - begin, data_dir)
