"""How many cores and how much memory this process may use."""

from __future__ import annotations

import math
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from app import machine
from tests.support.waiting import until

SECOND = "0::/kubepods/pod7\n"
FIRST = "4:memory:/docker/7\n3:cpu,cpuacct:/docker/7\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (SECOND, {"kubepods/pod7/cpu.max": "150000 100000\n"}, 1.5),
        (SECOND, {"kubepods/pod7/cpu.max": "max 100000\n"}, math.inf),
        (SECOND, {"kubepods/pod7/cpu.max": "400000 100000\n", "kubepods/cpu.max": "100000 50000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),  # a container that sees no group but its own
        (SECOND, {"unified/cpu.max": "70000 10000\n"}, 7.0),
        (
            FIRST,
            {"cpu,cpuacct/docker/7/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/docker/7/cpu.cfs_period_us": "50000\n"},
            4.0,
        ),
        (FIRST, {"cpu/cpu.cfs_quota_us": "30000\n", "cpu/cpu.cfs_period_us": "10000\n"}, 3.0),
        (FIRST, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        (SECOND, {}, math.inf),
        (None, {"cpu.max": "100000 100000\n"}, math.inf),
    ],
)
def test_quotas_of_this_group_and_of_those_above_are_read(
    tmp_path: Path, groups: str | None, files: dict[str, str], quota: float
) -> None:
    write_groups(tmp_path, groups, files)
    assert machine._cpu_quota(tmp_path) == quota


def write_groups(root: Path, groups: str | None, files: dict[str, str]) -> None:
    if groups is not None:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(groups, encoding="ascii")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (SECOND, {"kubepods/pod7/memory.max": "1073741824\n"}, 2**30),
        (SECOND, {"kubepods/pod7/memory.max": "max\n", "kubepods/memory.max": "2147483648\n"}, 2**31),
        ("0::/\n", {"memory.max": "1073741824\n"}, 2**30),  # a container that sees no group but its own
        (FIRST, {"memory/docker/7/memory.limit_in_bytes": "2147483648\n"}, 2**31),
        (FIRST, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        (SECOND, {}, None),
    ],
)
def test_the_memory_of_this_group_and_of_those_above_is_read(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    write_groups(tmp_path, groups, files)
    assert machine.memory_limit(tmp_path) == (limit or half)


@pytest.mark.parametrize(("quota", "wanted"), [(0.2, 1), (1.0, 1), (1.5, 2), (3.0, 3), (64.0, 4), (math.inf, 4)])
def test_a_quota_counts_as_that_many_cores_rounded_up(
    monkeypatch: pytest.MonkeyPatch, quota: float, wanted: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)))
    monkeypatch.setattr(machine, "_cpu_quota", lambda: quota)
    assert machine.cores() == wanted


def large_pages(start: int) -> int:
    """Return the bytes in large pages of the mapping that holds an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        if "-" in (first := line.split()[0]):
            low, high = (int(address, 16) for address in first.split("-"))
            here = low <= start < high
        elif here and first == "AnonHugePages:":
            return 1024 * int(line.split()[1])
    return 0


def present(area: NDArray[np.uint8]) -> int:
    """Return how many of the array's pages there are."""
    page = os.sysconf("SC_PAGE_SIZE")
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(area.ctypes.data // page * 8)
        return int((np.frombuffer(pages.read(area.size // page * 8), np.uint64) >> np.uint64(63)).sum())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux gathers pages")
def test_memory_in_use_is_gathered_in_large_pages_and_the_rest_takes_none() -> None:
    flags, size = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 4 * machine.LARGE_PAGE
    used, sparse = (np.frombuffer(mmap.mmap(-1, size, flags), np.uint8) for _ in range(2))
    used[:] = numbers = np.arange(size, dtype=np.int64) % 251
    sparse[:: machine.LARGE_PAGE // 2] = 1

    def gathered() -> int:
        machine.gather_pages()  # again where the system had no large page to give at that moment
        return large_pages(used.ctypes.data + machine.LARGE_PAGE)

    if not gathered():
        pytest.skip("this system gathers no pages")
    until(lambda: gathered() >= 3 * machine.LARGE_PAGE)
    assert present(sparse) == 8
    assert (used == numbers).all()
