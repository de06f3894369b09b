"""The benchmark compares what ran side by side, and its load generator can't be fooled by a server that stalls."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from app.bench.contest import Figure, Speeds, Spread, contest
from app.bench.load import Target, closed_loop, open_loop
from app.cli import app
from app.errors import Unusable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_each_contender_has_its_turn_in_every_round() -> None:
    turns: list[str] = []

    def player(name: str, items: int) -> int:
        turns.append(name)
        time.sleep(0.001)
        return items

    speeds = contest({"a": lambda: player("a", 30), "b": lambda: player("b", 10)}, 3, shortest_s=0.0005)
    assert turns == ["a", "b", "b", "a", "a", "b", "b", "a"]  # the first round warms up
    assert [len(values) for values in speeds.rounds.values()] == [3, 3]


def test_a_ratio_is_taken_within_each_round() -> None:
    """A machine that gets ten times slower doesn't change it."""
    speeds = Speeds({"ours": np.array([200.0, 20.0, 2.0]), "theirs": np.array([100.0, 10.0, 1.0])})
    assert speeds.ratio("ours", "theirs") == Spread(2.0, 2.0, 2.0)
    assert Figure("p", "w", 1.0, "x/s", "theirs", Spread(2.0, 2.0, 2.0), goal=2.1).reached is False
    assert Figure("p", "w", 1.0, "x/s", "theirs", None).reached is None


class Slow(threading.Thread):
    """A server that answers each request at once, but for one stall of all of them."""

    def __init__(self, stall_after: int, stall_s: float) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.left, self.stall_s = stall_after, stall_s
        self.lock = threading.Lock()

    @property
    def target(self) -> Target:
        return Target("127.0.0.1", self.listener.getsockname()[1], "key")

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            while connection.recv(65536):
                with self.lock:
                    self.left -= 1
                    if self.left == 0:
                        time.sleep(self.stall_s)
                connection.sendall(OK)


@pytest.fixture
def slow() -> Iterator[Slow]:
    server = Slow(stall_after=40, stall_s=0.5)
    server.start()
    yield server
    server.listener.close()


def test_a_stall_counts_for_every_request_that_was_due_meanwhile(slow: Slow) -> None:
    """At 100 a second for a second, a stall of half a second is felt by some 50 of them; clients who wait for their
    answers would tell of one."""
    load = open_loop(slow.target, [slow.target.request("GET", "/")], rate=100, seconds=1.0)
    assert load.statuses == {200: 100}
    assert sum(seconds > 0.1 for seconds in load.seconds) > 20


def test_clients_wait_for_their_answers(slow: Slow) -> None:
    def requests(_client: int) -> Iterator[bytes]:
        for _ in range(30):
            yield slow.target.request("GET", "/")

    load = closed_loop(slow.target, requests, clients=2, seconds=60)
    assert load.statuses == {200: 60}
    assert sum(seconds > 0.4 for seconds in load.seconds) <= 2


def test_no_answer_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = Target("127.0.0.1", listener.getsockname()[1], "key")

        def hang_up() -> None:
            listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(Unusable, match="no answer"):
            open_loop(target, [target.request("GET", "/")], rate=10, seconds=0.1)


def test_a_part_is_measured_shown_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKENESS_DATA_DIR", "data")
    command = ["bench", "search", "--faces", "2000", "--rounds", "2", "--out", str(tmp_path)]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    (written,) = tmp_path.glob("*.json")
    document = json.loads(written.read_text())
    assert document["machine"]["cores"] >= 1
    assert {figure["against"] for figure in document["figures"]} >= {"one query at a time"}
    assert written.with_suffix(".svg").read_bytes().startswith(b"<?xml")
    assert all(figure["work"] in run.output for figure in document["figures"])


def test_an_unknown_part_is_refused() -> None:
    run = CliRunner().invoke(app, ["bench", "nonesuch"])
    assert run.exit_code != 0
    assert "nonesuch" in str(run.exception)
