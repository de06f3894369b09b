"""What is kept of a database until it changes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.db.engine import Cache, Database


def test_a_cache_asks_for_what_it_lacks_alone() -> None:
    version, asked = [1], list[list[int]]()

    def query(keys: Sequence[int]) -> dict[int, str]:
        asked.append(list(keys))
        return {key: f"{key} of {version[0]}" for key in keys if key != 13}

    cache = Cache[int, str](lambda: version[0], most=3)
    assert cache.get_all([1, 2], query) == {1: "1 of 1", 2: "2 of 1"}
    assert cache.get_all([2, 3, 13], query) == {2: "2 of 1", 3: "3 of 1"}
    assert cache.get(3, lambda: "not asked") == "3 of 1"
    version[0] = 2
    assert cache.get_all([3], query) == {3: "3 of 2"}
    assert cache.get_all([4, 5, 6], query) == {4: "4 of 2", 5: "5 of 2", 6: "6 of 2"}, "more than it keeps"
    assert asked == [[1, 2], [3, 13], [3], [4, 5, 6]]


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
    cache = Cache[str, str](lambda: 1, most=2)

    class Key(str):
        """A key that another thread might look up: the cache is filled anew before it is looked up a second time."""

        looks = 0

        def __hash__(self) -> int:
            self.looks += 1
            if self.looks == 2:
                cache.get_all(["b", "c"], lambda keys: {key: key.upper() for key in keys})
            return hash(str(self))

    cache.get("a", lambda: "A")
    assert cache.get_all([Key("a")], lambda keys: dict.fromkeys(keys, "again")) == {"a": "A"}
