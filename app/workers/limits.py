"""Limits that the system keeps for one worker: memory, processor time, priority, and whose end is its end."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""<linux/prctl.h>"""
_FIRST_TO_GO = "1000"
"""Of -1000 to 1000: where memory runs out all the same, the system ends a worker and nothing else."""


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when the process ``parent``, which started it, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)


def limit_memory(size: int) -> None:
    """Let this process take ``size`` bytes of addresses more than it has, and leave no core file."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + size
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def lower_priority(niceness: int) -> None:
    """Add to this process's niceness, as far as the system allows it."""
    if niceness:
        with suppress(OSError):
            os.nice(niceness)


def limit_processor(seconds: int) -> None:
    """End this process (SIGXCPU) when it has used so many more seconds of processor time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, resource.RLIM_INFINITY))
