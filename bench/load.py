"""Put load on a server: prepared bytes over kept connections, so that the generator takes little of the machine.

`closed_loop` has clients that each wait for their answer. `open_loop` sends at a fixed rate, regardless of answers, and
counts each request's time from its scheduled start, so that a stalling server isn't measured less often (no coordinated
omission; Tene, "How NOT to Measure Latency").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.errors import Unusable

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int
    key: str

    def request(self, method: str, path: str, body: bytes = b"", content_type: str = "image/jpeg") -> bytes:
        """Return one request as bytes."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nX-Api-Key: {self.key}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body


@dataclass
class Load:
    """The seconds each answered request took, and the number of answers by status."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    elapsed_s: float = 0.0
    """Seconds from the first request to the last answer."""
    own_cpu_s: float = 0.0
    """Processor seconds that sending and receiving took: the generator runs on the cores it measures."""

    def count(self, status: int, seconds: float) -> None:
        self.seconds.append(seconds)
        self.statuses[status] = self.statuses.get(status, 0) + 1

    @property
    def rate(self) -> float:
        """Return answers per second."""
        return len(self.seconds) / self.elapsed_s

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.statuses.items() if status >= 400)

    def checked(self) -> Load:
        """Return the load. Raises Unusable ``bench_failed`` if the server rejected a request, which makes it
        meaningless.
        """
        if self.failed:
            raise Unusable(f"the server refused {self.failed} requests: {self.statuses}", code="bench_failed")
        return self

    def percentile(self, q: float) -> float:
        """Return a percentile of the times, in seconds."""
        return float(np.percentile(self.seconds, q)) if self.seconds else float("nan")


class Connection:
    """A kept connection; `ask` sends a request and reads its answer."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> int:
        """Return the answer's status. Raises Unusable ``no_answer`` if there is none."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._target.host, self._target.port, limit=1 << 24)
        reader, writer = self._streams
        writer.write(request)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_length(head))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            self.close()
            raise Unusable("the server gave no answer", code="no_answer") from error
        if b"connection: close" in head.lower():
            self.close()
        return int(head[9:12])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def closed_loop(target: Target, requests: Callable[[int], Iterator[bytes]], clients: int, seconds: float) -> Load:
    """Send each client's `requests(client)`, an endless iterator, each as soon as the previous answer arrived."""
    load = Load()

    async def client(number: int, until: float) -> None:
        connection = Connection(target)
        for request in requests(number):
            begin = time.perf_counter()
            if begin >= until:
                break
            status = await connection.ask(request)
            load.count(status, time.perf_counter() - begin)
        connection.close()

    async def all_clients() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(client(number, until) for number in range(clients)))

    _clocked(load, all_clients())
    return load


def arrivals(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Return the arrival times of a Poisson process, in seconds from its start."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))
    return np.cumsum(gaps)


def open_loop(target: Target, requests: Sequence[bytes], rate: float, seconds: float, seed: int = 0) -> Load:
    """Send the arrivals of a Poisson process of `rate` per second on time, on a new connection if none is free."""
    load = Load()
    due_at = arrivals(rate, seconds, seed)
    free: list[Connection] = []

    async def send(request: bytes, due: float) -> None:
        connection = free.pop() if free else Connection(target)
        status = await connection.ask(request)
        load.count(status, time.perf_counter() - due)
        free.append(connection)

    async def all_arrivals() -> None:
        begin = time.perf_counter()
        running = set()
        for number, after in enumerate(due_at.tolist()):
            due = begin + after
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(send(requests[number % len(requests)], due))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        for connection in free:
            connection.close()

    _clocked(load, all_arrivals())
    return load


def _clocked(load: Load, work: Coroutine[None, None, None]) -> None:
    begin, cpu = time.perf_counter(), time.process_time()
    asyncio.run(work)
    load.elapsed_s, load.own_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
