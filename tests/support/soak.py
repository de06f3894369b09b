"""Run sixteen clients that enroll, identify and delete on a real server: `python -m tests.support.soak --minutes 30`.

Prints the server's memory over time, how long requests took, and whether anything failed; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from likeness_client import AsyncClient

from tests.support.live import LiveServer, serving
from tests.support.load import CLIENTS, GALLERY, Worker

MIB = 1 << 20
SAMPLE_S = 10.0


async def play(server: LiveServer, minutes: float) -> dict[str, Any]:
    seconds: dict[str, list[float]] = defaultdict(list)
    workers = [Worker(number, random.Random(number), seconds) for number in range(CLIENTS)]
    memory: list[tuple[float, float]] = []
    async with AsyncClient(server.url, server.key) as client:
        await client.create_gallery(GALLERY)
        begin = time.monotonic()
        watching = asyncio.create_task(_watch(server, begin, memory))
        try:
            await asyncio.gather(*(worker.run(client, begin + 60 * minutes) for worker in workers))
        finally:
            watching.cancel()
        known = {subject: len(person.faces) for worker in workers for subject, person in worker.people.items()}
        found = {subject.id: subject.face_count async for subject in client.all_subjects(GALLERY)}
        report = await client.check_gallery(GALLERY)
    return {
        "minutes": minutes,
        "memory_mib_per_minute": round(slope(memory), 2),
        "clients": CLIENTS,
        "requests": sum(map(len, seconds.values())),
        "milliseconds": {
            step: {f"p{q}": round(1000 * float(np.percentile(times, q)), 1) for q in (50, 99)}
            for step, times in sorted(seconds.items())
        },
        "memory_mib": [(round(at), round(mib)) for at, mib in memory],
        "people_as_acknowledged": found == known,
        "gallery_in_order": report.ok and report.faces == report.indexed == sum(found.values()),
    }


def slope(memory: list[tuple[float, float]]) -> float:
    """Return how fast memory grew over the second half of the time, in MiB a minute, by least squares."""
    late = np.array(memory[len(memory) // 2 :])
    return float(np.polyfit(late[:, 0] / 60, late[:, 1], 1)[0]) if len(late) > 1 else 0.0


async def _watch(server: LiveServer, begin: float, memory: list[tuple[float, float]]) -> None:
    while True:
        memory.append((time.monotonic() - begin, resident_mib(server.process.pid)))
        sys.stdout.write(f"{memory[-1][0]:7.0f} s  {memory[-1][1]:7.0f} MiB\n")
        sys.stdout.flush()
        await asyncio.sleep(SAMPLE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data") as server:
        result = asyncio.run(play(server, minutes))  # raises the first error of any request
        log = server.log.read_text()
    result["logged_errors"] = log.count('"level": "error"')
    sys.stdout.write(json.dumps(result) + "\n")


def resident_mib(pid: int | None = None) -> float:
    """Return the memory of a process, this one by default."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


if __name__ == "__main__":
    main()
