"""What is kept of a database until it changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.db.engine import Cache, Database


def test_a_cache_keeps_values_until_the_database_changes_or_it_has_too_many() -> None:
    version: list[int | None] = [1]
    cache = Cache[int, str](lambda: version[0], most=3)
    cache.values().update({1: "one", 2: "two"})
    cache.values()[3] = "three"
    assert cache.values() == {1: "one", 2: "two", 3: "three"}
    version[0] = 2
    assert cache.values() == {}
    cache.values().update(dict.fromkeys((4, 5, 6, 7), "more than it keeps"))
    assert cache.values() == {}
    version[0] = None
    cache.values()[8] = "not known whether it is true yet"
    assert cache.values() == {}


def test_whoever_waits_for_a_check_shares_one_that_began_later(tmp_path: Path) -> None:
    """A check that had begun before may not have seen the commit that one who waits was told of."""
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    version = database._version
    assert version is not None
    before = version()
    arrived = threading.Semaphore(0)

    class Counting:
        """A lock that tells who has come to it."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            arrived.release()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    counting = Counting()
    version._lock = counting  # type: ignore[assignment]  # it is only entered and left
    counting.lock.acquire()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(version) for _ in range(4)]
        for _ in answers:
            arrived.acquire()
        with database.write():
            pass
        checks = version._checks
        counting.lock.release()
        counts = {answer.result() for answer in answers}
    assert version._checks == checks + 1
    assert before not in counts
    assert len(counts) == 1
    database.close()


def test_values_may_be_read_while_the_cache_makes_room() -> None:
    version = [1]
    cache = Cache[str, str](lambda: version[0], most=2)
    of_this_thread = cache.values()
    of_this_thread["a"] = "A"
    cache.values().update(b="B", c="C")  # by another thread
    assert cache.values() == {}
    version[0] = 2
    cache.values()
    of_this_thread["d"] = "D"  # read before the commit
    assert of_this_thread["a"] == "A"
    assert cache.values() == {}
