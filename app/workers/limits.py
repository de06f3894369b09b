"""Limits that the system enforces for a worker: memory, processor time, and an end with its parent."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""<linux/prctl.h>"""


def end_with_parent(parent: int) -> None:
    """Make the system kill this process when its parent process, ``parent``, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has already ended
            os._exit(1)


def limit_processor(seconds: int) -> None:
    """End this process (SIGXCPU) when it has used this many more seconds of processor time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, resource.RLIM_INFINITY))
