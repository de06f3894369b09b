"""Memory that is not needed any more goes back to the system, whatever lives on beside it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (Path("/proc/self/statm").is_file() and hasattr(ctypes.CDLL(None), "malloc_trim")),
        reason="a process's memory is read from Linux's /proc, and glibc's malloc is told to give it back",
    ),
]

RESIDENT = """
import resource, sys, time
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
"""
GROWING = """
import numpy as np
from app.search.index import Rows
from app.search.types import FaceBlock

np.ones(3 << 20)  # once so much was freed, glibc's malloc maps nothing smaller by itself
before, others = resident(), []
rows = Rows(128, "fp32")
for _ in range(28):
    keys = np.arange(rows.count, rows.count + 2_000)
    rows.append(FaceBlock(keys, keys, np.ones(2_000, np.float32), np.ones((2_000, 128), np.float32)))
    others.append(bytes(4_000))
print(resident() - before - rows.size)
"""
LARGE = """
import os
import numpy as np
from app.search.index import Rows
from app.search.types import FaceBlock
from app.memory import RESERVED_FROM

if sys.argv[1] == "counted":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 45, 1 << 45))  # more than is asked for
if sys.argv[1] == "refused":
    os.sysconf = lambda _name: 1 << 25  # so many pages, each so large
some, same = np.ones((25_000, 128), np.float32), np.ones(25_000, np.int64)
rows, moves, place = Rows(128, "int8"), 0, None
while rows.count * 512 < 4 * RESERVED_FROM:
    large = rows.count * 512 > 2 * RESERVED_FROM
    rows.append(FaceBlock(same, same, np.ones(25_000, np.float32), some))
    now = rows.view().vectors.ctypes.data
    moves, place = moves + (large and now != place), now
most = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
assert (rows.view().vectors == 1).all()
print(moves, most - resident())
"""
WORKING = """
from app.gallery.store import Store
from app.concurrency.scheduler import Scheduler
from app.jobs.runner import Runner
from app.jobs.store import JobStore

kept, most = [], []

def work(job):
    some = [bytes(1_000) for _ in range(50_000)]
    most.append(resident())
    kept.extend(some[::50])

store = Store(f"sqlite:///{sys.argv[1]}")
jobs = JobStore(store.database)
job = jobs.create("work", None)
runner = Runner(jobs, look_s=0.01)
before = resident()
scheduler = Scheduler()
runner.start({"work": work}, scheduler)
while not jobs.job(job.id).finished:
    time.sleep(0.01)
runner.close()
scheduler.close()
store.close()
print(resident() - before, most[0] - before)
"""
SHARING = """
import ctypes, os, threading
from app.machine import ARENAS_PER_CORE, cores, share_arenas

share_arenas()
together = threading.Barrier(16 * cores())
def allocate():
    some = bytes(1_000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(together.parties)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
told = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, told)
libc.fclose(told)
print(Path(sys.argv[1]).read_text().count("<heap nr="), ARENAS_PER_CORE * cores())
"""


def told_by(script: str, *arguments: str) -> list[int]:
    """In a process of its own: what other tests freed and took again would count too."""
    command = [sys.executable, "-c", RESIDENT + script, *arguments]
    told = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    return [int(word) for word in told.stdout.split()]


def test_an_index_that_grows_leaves_no_memory_behind() -> None:
    """Without memory of their own, the arrays that it had on its way would leave 40 MB."""
    (beyond,) = told_by(GROWING)
    assert beyond < 10e6


def test_a_large_index_grows_where_it_lies() -> None:
    moves, beyond = told_by(LARGE, "free")
    assert moves == 0
    assert beyond < 40e6, "more memory on the way than in the end"


@pytest.mark.parametrize("addresses", ["counted", "refused"])
def test_a_large_index_moves_where_addresses_are_not_free(addresses: str) -> None:
    """It takes about what it needs, also where the system won't give as many as the machine has memory."""
    moves, _ = told_by(LARGE, addresses)
    assert moves > 0


def test_a_job_leaves_no_memory_behind(tmp_path: Path) -> None:
    left, most = told_by(WORKING, str(tmp_path / "likeness.db"))
    assert most > 40e6
    assert left < 20e6


def test_threads_share_few_arenas(tmp_path: Path) -> None:
    arenas, most = told_by(SHARING, str(tmp_path / "told.xml"))
    assert 1 < arenas <= most


def test_a_users_number_of_arenas_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    arenas, _ = told_by(SHARING, str(tmp_path / "told.xml"))
    assert arenas == 1
