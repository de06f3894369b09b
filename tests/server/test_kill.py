"""What was acknowledged survives whatever ends the server, the database or the disk.

Each round starts a real server, lets eight clients enroll, delete and identify, ends it at a random moment, starts it
again and compares. `python -m pytest tests/server/test_kill.py --full -s` plays 100 rounds of each kind.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.support.live import LiveServer, serving
from tests.support.postgres import cluster
from tests.support.service import COLLINS, error_of
from tests.support.stores import fill
from tests.support.waiting import until

pytestmark = pytest.mark.long

CLIENTS = 8
ROUNDS, FULL_ROUNDS = 2, 100
MOST_DONE = 60
"""Requests answered in a round before its end comes, at most: counted, so that slow machines get on too."""
PATIENCE_S = 120.0
RESIDENTS = 10_000
"""Faces that are there all the time: enough for a snapshot to be written."""
GALLERY = "/v1/galleries/many"
JPEG = {"content-type": "image/jpeg"}
REFUSALS = frozenset({429, 503})
"""Said before anything was written, or after it was undone."""


@dataclass
class Known:
    """What one client knows of its own people: what the server acknowledged, and what it never answered."""

    enrolled: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)


class Client(threading.Thread):
    """Enrolls, deletes and identifies until its server is gone or it is told to stop."""

    def __init__(self, server: LiveServer, number: int, seed: int, known: Known, *, patient: bool) -> None:
        """A ``patient`` one takes refusals (a database that is away) and goes on."""
        super().__init__()
        self.server = server
        self.prefix = f"kill-{number}-{seed}"
        self.random = random.Random(f"{number} {seed}")
        self.known = known
        self.patient = patient
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.made = 0

    def run(self) -> None:
        try:
            with self.server.client(timeout=PATIENCE_S) as client:
                while not self.stop.is_set():
                    self.random.choice((self.enroll, self.enroll, self.delete, self.identify))(client)
        except httpx.TimeoutException as error:
            self.failure = error  # it may still do it, later than anybody looks
        except httpx.TransportError:
            pass  # the server is gone: what was asked last stays in doubt
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            self.failure = error

    def enroll(self, client: httpx.Client) -> None:
        self.made += 1
        subject = f"{self.prefix}-{self.made}"
        self.known.doubtful.add(subject)
        answer = client.post(f"{GALLERY}/subjects/{subject}/faces", content=COLLINS, headers=JPEG)
        if self.accepted(answer, "enroll"):
            assert len(answer.json()["enrolled"]) == 1
            self.known.doubtful.discard(subject)
            self.known.enrolled.add(subject)

    def delete(self, client: httpx.Client) -> None:
        mine = [subject for subject in self.known.enrolled if subject.startswith(self.prefix)]
        if not mine:
            return
        subject = self.random.choice(sorted(mine))
        self.known.enrolled.discard(subject)
        self.known.doubtful.add(subject)
        if self.accepted(client.delete(f"{GALLERY}/subjects/{subject}"), "delete"):
            self.known.doubtful.discard(subject)
            self.known.deleted.add(subject)

    def identify(self, client: httpx.Client) -> None:
        self.accepted(client.post(f"{GALLERY}/identify", content=COLLINS, headers=JPEG), "identify")

    def accepted(self, answer: httpx.Response, what: str) -> bool:
        if self.patient and answer.status_code in REFUSALS:
            self.known.done["refused"] += 1
            time.sleep(0.02)
            return False
        assert answer.is_success, f"{what}: {answer.status_code} {answer.text}"
        self.known.done[what] += 1
        return True


@contextmanager
def clients(server: LiveServer, seed: int, known: list[Known], *, patient: bool = False) -> Iterator[list[Client]]:
    """At work as long as the block lasts; whatever failed one of them fails the test."""
    working = [Client(server, number, seed, account, patient=patient) for number, account in enumerate(known)]
    for client in working:
        client.start()
    try:
        yield working
    finally:
        for client in working:
            client.stop.set()
        for client in working:
            client.join()
    raise_failures(working)


def raise_failures(working: list[Client]) -> None:
    for client in working:
        if client.failure is not None:
            raise client.failure


def work(working: list[Client], chance: random.Random) -> None:
    """Lets the clients go on until some more requests, a random number, were answered."""
    let_answer(working, chance.randrange(1, MOST_DONE))
    time.sleep(chance.uniform(0, 0.02))  # into the middle of what comes next


def let_answer(working: list[Client], wanted: int) -> None:
    """Waits until so many more requests were answered."""
    known = [client.known for client in working]
    before, end = answered(known), time.monotonic() + PATIENCE_S
    while answered(known) < before + wanted:
        raise_failures(working)
        assert time.monotonic() < end, "the clients get no answers"
        time.sleep(0.001)


def answered(known: list[Known]) -> int:
    return sum(account.done.total() for account in known)


def compare(server: LiveServer, known: list[Known], residents: int = RESIDENTS) -> None:
    """The server's people are those that were acknowledged, give or take those in doubt; index and SQL agree."""
    with server.client(timeout=PATIENCE_S) as client:
        found = dict(people(client))
        for account in known:
            assert account.enrolled <= found.keys(), "an acknowledged enrollment is lost"
            assert not account.deleted & found.keys(), "an acknowledged deletion is undone"
        asked = set().union(*(account.enrolled | account.doubtful for account in known))
        assert found.keys() <= asked, "somebody nobody enrolled is there"
        settled = set().union(*(account.enrolled for account in known))
        assert all(found[subject] == 1 for subject in settled)
        report = client.get(f"{GALLERY}/check").raise_for_status().json()
        assert report["ok"], report
        assert report["faces"] == report["indexed"] == residents + sum(found.values())
        answer = client.post(f"{GALLERY}/identify", content=COLLINS, headers=JPEG).raise_for_status().json()
        (face,) = answer["faces"]
        assert face["decision"] == ("known" if sum(found.values()) else "unknown")
    for account in known:  # what was in doubt is known now
        account.enrolled |= account.doubtful & found.keys()
        account.deleted |= account.doubtful - found.keys()
        account.doubtful.clear()


def people(client: httpx.Client) -> Iterator[tuple[str, int]]:
    """Everybody these clients enrolled, with how many faces."""
    cursor: str | None = None
    while True:
        params = {"search": "kill-", "limit": "1000"} | ({"cursor": cursor} if cursor else {})
        page = client.get(f"{GALLERY}/subjects", params=params).raise_for_status().json()
        yield from ((subject["id"], subject["face_count"]) for subject in page["subjects"])
        if (cursor := page["next_cursor"]) is None:
            return


def play(folder: Path, settings: dict[str, object], rounds: int, damage: Callable[[random.Random], str]) -> None:
    """Kills the server ``rounds`` times; ``damage`` is done between an end and the next start."""
    chance = random.Random(7)
    known = [Known() for _ in range(CLIENTS)]
    seen: Counter[str] = Counter()
    for seed in range(rounds):
        with serving(folder, settings) as server:
            if seed:
                compare(server, known)
            with clients(server, seed, known) as working:
                work(working, chance)
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
        seen[damage(chance)] += 1
        if chance.random() < 0.2:  # and once more before it has got up
            with serving(folder, settings, wait=False) as server:
                time.sleep(chance.uniform(0, 1.5))
                server.process.kill()
                server.process.wait()
            seen["killed while starting"] += 1
    with serving(folder, settings) as server:
        compare(server, known)
    done = sum((account.done for account in known), Counter[str]())
    print(f"{rounds} rounds: {dict(done)}, between them: {dict(seen)}")  # noqa: T201 (shown by `pytest -s`)
    assert done["enroll"]
    assert "Traceback" not in server.log.read_text()


def snapshot_damage(folder: Path) -> Callable[[random.Random], str]:
    """Cuts a snapshot short, flips a bit of it, removes it, or leaves it."""

    def damage(chance: random.Random) -> str:
        found = sorted((folder / "snapshots").glob("*.snapshot"))
        kind = chance.choice(["untouched", "cut short", "flipped", "removed"])
        if kind == "untouched" or not found:
            return "untouched snapshots"
        path, content = found[0], bytearray(found[0].read_bytes())
        if kind == "removed":
            path.unlink()
        elif kind == "cut short":
            path.write_bytes(content[: chance.randrange(len(content))])
        else:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
        return f"snapshot {kind}"

    return damage


def test_killed_at_any_moment_on_sqlite_with_damaged_snapshots(tmp_path: Path, full: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    fill(f"sqlite:///{folder / 'likeness.db'}", RESIDENTS)
    play(folder, {"SNAPSHOT_SECONDS": 0.5}, FULL_ROUNDS if full else ROUNDS, snapshot_damage(folder))


def test_killed_at_any_moment_on_postgresql(tmp_path: Path, full: bool) -> None:
    with cluster(durable=full) as database:
        url = database.new_database()
        fill(url, RESIDENTS)
        settings = {"DATABASE_URL": url, "SNAPSHOT_SECONDS": 0.5}
        play(tmp_path / "data", settings, FULL_ROUNDS if full else 1, snapshot_damage(tmp_path / "data"))


def test_the_database_is_killed_under_a_server_that_goes_on(tmp_path: Path, full: bool) -> None:
    """Meanwhile requests are refused or answered; afterwards the same process has everything that was acknowledged."""
    rounds, chance = (FULL_ROUNDS if full else 2), random.Random(9)
    known = [Known() for _ in range(CLIENTS)]
    with cluster(durable=True) as database:
        url = database.new_database()
        fill(url, RESIDENTS)
        with serving(tmp_path / "data", {"DATABASE_URL": url}) as server:
            for seed in range(rounds):
                with clients(server, seed, known, patient=True) as working:
                    work(working, chance)
                    database.kill()
                    time.sleep(chance.uniform(0, 0.5))
                    database.start(durable=True)
                    time.sleep(chance.uniform(0.2, 0.5))
                compare(server, known)
            done = sum((account.done for account in known), Counter[str]())
            print(f"{rounds} rounds: {dict(done)}")  # noqa: T201 (shown by `pytest -s`)
            assert done["enroll"] >= rounds


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own with 96 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system can't be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill_up(folder: Path, left: int) -> Path:
    """A file that leaves so many bytes of the folder's file system."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        while (room := shutil.disk_usage(folder).free - left) > 0:
            file.write(bytes(min(room, 1 << 20)))
            file.flush()
    return filler


def test_a_full_disk_costs_what_is_refused_and_nothing_else(small_disk: Path) -> None:
    """Refused enrollments leave nothing behind; the same process goes on when there is room again."""
    known = [Known() for _ in range(CLIENTS)]
    with serving(small_disk / "data") as server, server.client(timeout=PATIENCE_S) as client:
        client.post("/v1/galleries", json={"id": "many"}).raise_for_status()
        filler = fill_up(small_disk, left=400_000)
        with clients(server, 1, known, patient=True) as working:
            end = time.monotonic() + PATIENCE_S
            while not all(account.done["refused"] for account in known):
                raise_failures(working)
                assert time.monotonic() < end, "the disk is never full"
                time.sleep(0.01)
        answer = client.post(f"{GALLERY}/identify", content=COLLINS, headers=JPEG)
        assert answer.json()["faces"][0]["decision"] == "known"
        filler.unlink()
        with clients(server, 2, known) as working:
            let_answer(working, 20)
        compare(server, known, residents=0)
        fill_up(small_disk, left=50_000)
        server.process.kill()
        server.process.wait()
    filler.unlink()
    with serving(small_disk / "data") as server:
        compare(server, known, residents=0)


def test_a_server_that_can_not_write_is_not_ready_until_it_can(small_disk: Path) -> None:
    with serving(small_disk / "data") as server, server.client() as client:
        assert client.get("/readyz").status_code == 200
        filler = fill_up(small_disk, left=0)
        answers = [client.post("/v1/galleries", json={"id": f"g{n}", "metadata": {"a": "b" * 3000}}) for n in range(40)]
        assert 500 < answers[-1].status_code < 600
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "storage_unavailable")
        filler.unlink()
        until(lambda: client.get("/readyz").is_success, PATIENCE_S)
        assert client.post("/v1/galleries", json={"id": "room"}).is_success


def test_an_upload_without_room_is_refused_by_name_and_leaves_no_file(small_disk: Path) -> None:
    with serving(small_disk / "data") as server, server.client("/v1") as client:
        client.post("/galleries", json={"id": "many"}).raise_for_status()
        fill_up(small_disk, left=2_000_000)
        tar = {"content-type": "application/x-tar"}
        answer = client.post("/galleries/many/import", content=bytes(8_000_000), headers=tar)
        error_of(answer, 503, "upload_not_kept")
        assert answer.json()["error"]["message"] == "The upload can't be stored: No space left on device"
        assert [path.name for path in (small_disk / "data" / "jobs").iterdir()] == ["place"]


@pytest.mark.parametrize("existing", [True, False])
def test_a_start_on_a_full_disk_says_so(small_disk: Path, tmp_path: Path, existing: bool) -> None:
    (small_disk / "data").mkdir(mode=0o700)
    data = tmp_path / "data"  # the log lies beside it, where there is room
    data.symlink_to(small_disk / "data")
    if existing:
        with serving(data):
            pass
    fill_up(small_disk, left=0)
    with serving(data, wait=False, models=False) as server:
        assert server.process.wait(PATIENCE_S) not in (0, None)
    said = server.log.read_text()
    assert "Traceback" not in said
    assert "full" in said or "No space left" in said
