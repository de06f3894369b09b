"""Measure what a dead webhook costs everything else: `python -m tests.support.dead_webhook --minutes 10`.

Four servers do the same work in turns, in a new order in each round, so that other work of the machine affects them
equally. Each has a webhook whose receiver accepts events; three have a second one, whose receiver refuses connections,
hangs, or answers 500. Their times are given as shares of those of the first server, with what the median and the 99th
percentile vary by when rounds are drawn again. At the end these receivers come back, and the events that reach them are
counted by id.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from tests.support.live import LiveServer, family, serving
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER
from tests.support.sighted import HOME, make_home, tell
from training.service import reserved_port

WAYS = ("none", "refuses", "hangs", "500")
ROUND_S = 1.5
WARM = 20
"""Rounds before the measurement begins."""
ORDER = random.Random(43)
DRAWS = 2000
"""How often rounds are drawn again for an interval of 95 %."""
BACK_S = 300.0
"""How long a receiver that came back may take to get all missed events; the next retry comes within a minute."""


@dataclass
class Side:
    """A server, its receivers, and its measurements."""

    way: str
    server: LiveServer
    receiver: Receiver
    other: Receiver
    """The receiver that accepts events."""
    api: httpx.Client
    identify_s: list[float] = field(default_factory=list)
    tell_s: list[float] = field(default_factory=list)
    told: dict[str, float] = field(default_factory=dict)
    """When each sighting was reported, by its id."""
    event_s: list[float] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=dict)
    """The same as ``told``, for all sightings that are measured."""

    def work(self) -> None:
        """Identify a photo, and report a new track that has ended."""
        start = time.perf_counter()
        self.api.post(f"{HOME}/identify", content=AGAIN, headers={"content-type": "image/jpeg"}).raise_for_status()
        self.identify_s.append(time.perf_counter() - start)
        sighting, start = os.urandom(16).hex(), time.perf_counter()
        self.told[sighting] = self.counted[sighting] = start
        photo = (AGAIN, HOPPER)[len(self.counted) % 2]
        tell(self.api, photo, photo, sighting=sighting, ended=True).raise_for_status()
        self.tell_s.append(time.perf_counter() - start)

    def listen(self) -> None:
        """Record how long after a sighting's report its first event comes, by server-sent events."""
        with (
            suppress(httpx.HTTPError),
            self.server.client(timeout=None) as api,
            api.stream("GET", "/v1/events") as sent,
        ):
            for line in sent.iter_lines():
                if line.startswith("data:"):
                    start = self.told.get(json.loads(line[5:])["sighting"] or "")
                    if start is not None:
                        self.event_s.append(time.perf_counter() - start)
                        self.told.pop(json.loads(line[5:])["sighting"], None)

    def delivery_s(self) -> list[float]:
        """Return how long after each sighting's report its first event reached the other receiver."""
        waits: dict[str, float] = {}
        for event, at in zip(self.other.events, self.other.at, strict=False):
            if event["sighting"] in self.counted:
                waits.setdefault(event["sighting"], at - self.counted[event["sighting"]])
        return list(waits.values())

    @property
    def taken(self) -> list[str]:
        """The ids of the events that the receiver got."""
        return [headers["webhook-id"] for headers, _ in self.receiver.taken]

    def processor_s(self) -> float:
        fields = [
            Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
            for process_id in family(self.server.process.pid)
        ]
        return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        status = [Path(f"/proc/{process_id}/status").read_text() for process_id in family(self.server.process.pid)]
        return sum(int(text.partition("VmRSS:")[2].split()[0]) for text in status) / 1024

    def rows(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.server.data_dir / "likeness.db")) as database:
            counts = {}
            for table in ("sightings", "events", "webhooks"):
                counts[table] = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            return counts


def measure(minutes: float) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = [begin(way, folder, stack) for way in WAYS]
        time.sleep(2)
        work(sides, rounds=WARM)
        for side in sides:
            side.counted.clear()
            for times in (side.identify_s, side.tell_s, side.event_s):
                times.clear()
        before = [(side.processor_s(), side.memory_mib()) for side in sides]
        say(f"{work(sides, ends=time.monotonic() + 60 * minutes)} rounds of one identify and one track")
        time.sleep(3)
        for side, (used, memory) in zip(sides, before, strict=True):
            show(side, used, memory)
        for side in sides[1:]:
            say(f"{side.way:8} beside none: " + "; ".join(compared(side, sides[0])))
        for side in sides:
            if side.way != "none":
                come_back(side, stack)


def begin(way: str, folder: Path, stack: ExitStack) -> Side:
    """Start a server, and a receiver that behaves as ``way`` says."""
    server = stack.enter_context(serving(folder / way, {"WATCHING": "on", "WEBHOOK_NETWORKS": "127.0.0.0/8"}))
    receiver = Receiver(stack.enter_context(reserved_port()), status=500 if way == "500" else 204)
    other = Receiver(stack.enter_context(reserved_port()))
    side = Side(way, server, receiver, other, stack.enter_context(server.client()))
    make_home(side.api, eileen=COLLINS)
    for listener in [receiver, other] if way != "none" else [other]:
        side.api.post("/v1/webhooks", json={"url": listener.url}).raise_for_status()
    stack.enter_context(other.listening())
    if way == "hangs":
        receiver.hangs.set()
    if way in {"hangs", "500"}:
        stack.enter_context(receiver.listening())
    threading.Thread(target=side.listen, daemon=True).start()
    return side


def work(sides: list[Side], *, rounds: float = math.inf, ends: float = math.inf) -> int:
    """Have each side work once in each round, until enough rounds or the time are over; return the rounds."""
    number = 0
    while number < rounds and time.monotonic() < ends:
        start = time.monotonic()
        for side in ORDER.sample(sides, len(sides)):
            side.work()
        number += 1
        time.sleep(max(0.0, ROUND_S - (time.monotonic() - start)))
    return number


def show(side: Side, used_before: float, memory_before: float) -> None:
    """Print what a side used since ``used_before`` and ``memory_before``, and its times."""
    figures = [
        f"{name} p50 {1e3 * np.median(times):.0f} p99 {1e3 * np.quantile(times, 0.99):.0f} ms"
        for name, times in (
            ("identify", side.identify_s),
            ("tell", side.tell_s),
            ("event", side.event_s),
            ("other webhook", side.delivery_s()),
        )
    ]
    say(
        f"{side.way:8} processor {side.processor_s() - used_before:.1f} s, {', '.join(figures)}, memory "
        f"{memory_before:.0f} -> {side.memory_mib():.0f} MiB, asked {side.receiver.asked}, rows {side.rows()}"
    )


def compared(side: Side, none: Side) -> Iterator[str]:
    """Yield a side's times as shares of those of the side without a dead webhook, each round with its own."""
    for name, ours, theirs in (("identify", side.identify_s, none.identify_s), ("tell", side.tell_s, none.tell_s)):
        times = np.array([ours, theirs])
        drawn = np.random.default_rng(43).integers(times.shape[1], size=(DRAWS, times.shape[1]))
        for share in (0.5, 0.99):
            first, second = np.quantile(times[:, drawn], share, axis=2)
            low, high = np.quantile(first / second, (0.025, 0.975))
            here = np.divide(*np.quantile(times, share, axis=1))
            yield f"{name} p{share * 100:.0f} {here:.2f} ({low:.2f}-{high:.2f})"


def come_back(side: Side, stack: ExitStack) -> None:
    """Have the receiver accept events again, and print how many of all events arrived."""
    side.receiver.status = 204
    side.receiver.hangs.clear()
    if side.way == "refuses":
        stack.enter_context(side.receiver.listening())
    wanted, start = all_events(side), time.monotonic()
    while time.monotonic() < start + BACK_S and not wanted <= set(side.taken):
        time.sleep(0.2)
    came, numbers = side.taken, [event["number"] for event in side.receiver.events]
    first = [number for place, number in enumerate(numbers) if number not in numbers[:place]]
    say(
        f"{side.way:8} back after {time.monotonic() - start:.0f} s: of {len(wanted)} events {len(wanted & set(came))} "
        f"came, {len(came) - len(set(came))} more than once, in order: {first == sorted(first)}"
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def all_events(side: Side) -> set[str]:
    with closing(sqlite3.connect(side.server.data_dir / "likeness.db")) as database:
        return {event for (event,) in database.execute("SELECT id FROM events")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    measure(parser.parse_args().minutes)
