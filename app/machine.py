"""Facts about the machine that speed depends on, and settings of this process that change its speed.

Each setting says what it gains, measured in turns with and without it (docs/explanation/performance.md).
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path


def read_limits(controller: str, *names: str, root: Path = Path("/")) -> Iterator[list[str]]:
    """Yield the texts of the files ``names`` of this process's control group, then of each group above it that has all.

    ``names`` are those of one version of control groups. Every group's limits hold, so the lowest counts. Yields
    nothing if the system has no control groups. In a container the groups above it are hidden, and the mounted root is
    its own.
    """
    for folder in _folders(controller, root):
        try:
            yield [(folder / name).read_text(encoding="ascii").strip() for name in names]
        except OSError:  # missing in this group, or of the other version
            continue


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders where the controller's files may be: from the process's own group up to the mounted root."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has one hierarchy, without a controller's name; systemd mounts it apart beside version 1.
        for base in [mounted / controllers, mounted / controller] if controllers else [mounted, mounted / "unified"]:
            group = base / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(base))


ARENAS_PER_CORE = 2
MOST_DESCRIPTORS = 65_536
_FIRST_TO_GO = "1000"
"""The highest `oom_score_adj`, of -1000 to 1000: if memory runs out, the system kills this process, not the server."""
_M_ARENA_MAX, _MADV_COLLAPSE = -8, 25
"""<malloc.h>; <linux/mman.h>, from Linux 6.1 on"""
LARGE_PAGE = 2 * 1024**2
GATHERED_TO = 1024**3
"""Maximum bytes of a mapping: larger ones are indexes, which request large pages and reserve more than they use."""
MOSTLY = 0.9
"""Share of a large page's addresses that must be in use, so that gathering takes little memory."""

# Facts


def cores() -> int:
    """Return the number of cores that this process may use: those it is bound to, or a container's quota if less.

    A quota of 1.5 cores counts as 2, since with one thread a part of it would never be used.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _cpu_quota())))


@cache
def _cpu_quota(root: Path = Path("/")) -> float:
    """Return the cores' worth of processor time that control groups leave to this process; infinite without a limit."""
    second = [text.split() for (text,) in read_limits("cpu", "cpu.max", root=root)]
    first = read_limits("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", root=root)
    quotas = [int(quota) / int(period) for quota, period in (*second, *first) if quota not in ("max", "-1")]
    return min(quotas, default=math.inf)


def cpuinfo(field: str) -> str:
    """Return a field of the first core in /proc/cpuinfo, or an empty string on systems other than Linux."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
    return ""


def memory_limit(root: Path = Path("/")) -> int:
    """Return the bytes of memory that control groups leave to this process, or half of the machine's memory."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    second, first = (read_limits("memory", name, root=root) for name in ("memory.max", "memory.limit_in_bytes"))
    limits = [int(text) for (text,) in (*second, *first) if text.isdecimal()]  # `max` stands for unlimited
    return min((limit for limit in limits if limit < 2 * half), default=half)


def memory_in_use(process: int | str = "self") -> int:
    """Return the bytes of memory that a process holds, including its share of shared memory; 0 if it has ended. On
    systems other than Linux, return this process's peak.
    """
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        if process != "self":
            return 0  # it has ended
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 1024 * int(next((line.split()[1] for line in lines if line.startswith("Pss:")), 0))


def uptime() -> tuple[str, float] | None:
    """Return the id of the machine's boot and the seconds since, including sleep; None if the system hides either.

    All processes of a machine, also in containers, see the same values, and they can't be set.
    """
    boot = _boot_id()
    return (boot, time.clock_gettime(time.CLOCK_BOOTTIME)) if boot and hasattr(time, "CLOCK_BOOTTIME") else None


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


# Settings of the process


def pause_collector() -> None:
    """Switch the garbage collector off while modules are imported and the service is built, when nothing is freed.

    A start takes 14 % less processor time with it.
    """
    gc.disable()


def resume_collector() -> None:
    """Switch the garbage collector on, and exclude the objects that exist now: they live as long as the process.

    The exclusion spares the first full collection from visiting all of them: a start takes 8 % less processor time.
    """
    gc.freeze()
    gc.enable()


def raise_descriptors() -> int:
    """Raise the limit of open files and connections as far as allowed, at most to MOST_DESCRIPTORS; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def limit_memory(size: int, process: int = 0) -> None:
    """Limit this process, a server's child, to ``size`` more bytes of addresses than it has, and disable core files.

    ``process`` is the id of a child of this one to limit in its place. An existing limit is never raised.
    """
    if sys.platform != "linux":
        if not process:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        return
    folder = Path(f"/proc/{process or 'self'}")
    try:
        pages = int((folder / "statm").read_text(encoding="ascii").split()[0])
        _, hard = resource.prlimit(process, resource.RLIMIT_AS)
        most = pages * os.sysconf("SC_PAGE_SIZE") + size
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.prlimit(process, resource.RLIMIT_AS, (most, most))
        resource.prlimit(process, resource.RLIMIT_CORE, (0, 0))
    except (ProcessLookupError, FileNotFoundError):
        if not process:
            raise
        return  # the child has ended
    with suppress(OSError):
        (folder / "oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


def share_arenas() -> None:
    """Let threads share two malloc arenas per core, not eight. Call it before there are threads.

    After importing 500,000 faces a server of two cores holds 22 % more memory than their vectors need, in place of
    34 %. A user's MALLOC_ARENA_MAX is kept. Does nothing if the C library isn't glibc.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        option(_M_ARENA_MAX, ARENAS_PER_CORE * cores())


def release_memory() -> None:
    """Return malloc's unused memory to the system, which takes milliseconds.

    After photos of 12 megapixels from sixteen clients a server keeps 271 MiB in place of 501. Call it regularly, and
    at the end of large work. Does nothing if the C library isn't glibc.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def gather_pages() -> None:
    """Gather used memory in large pages, so that the processor looks up fewer addresses.

    With four clients an identification then takes 5 % less processor time (Zen 4, docs/decisions/speed.md). It takes
    0.1 to 0.4 s after a start and 0.02 s later, and does nothing if the system can't. Call it regularly, for new
    memory.
    """
    system, pages = ctypes.CDLL(None), LARGE_PAGE // os.sysconf("SC_PAGE_SIZE")
    maps = Path("/proc/self/maps").read_text(encoding="utf-8") if sys.platform == "linux" else ""
    for line in maps.splitlines():
        addresses, rights, _, _, file, *_ = line.split()
        first, last = (int(address, 16) for address in addresses.split("-"))
        suits = rights == "rw-p" and file == "0" and last - first <= GATHERED_TO
        for start in range(-(-first // LARGE_PAGE) * LARGE_PAGE, last - LARGE_PAGE + 1, LARGE_PAGE) if suits else ():
            used = (ctypes.c_ubyte * pages)()
            where, size = ctypes.c_void_p(start), ctypes.c_size_t(LARGE_PAGE)
            if not system.mincore(where, size, used) and sum(page & 1 for page in used) >= MOSTLY * pages:
                system.madvise(where, size, _MADV_COLLAPSE)
