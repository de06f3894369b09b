"""What this machine is, as far as speed depends on it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compute_here() -> None:
    """This thread is for long computing: when it is woken, the system need not push another off its core for it at once
    (SCHED_BATCH). What answers clients is still served first, and caches are lost less often."""
    with suppress(AttributeError, OSError):  # only Linux has that, and a container may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def processor() -> str:
    """Its model's name."""
    return cpuinfo("model name") or platform.processor() or platform.machine()


def cpuinfo(field: str) -> str:
    """The first core's line of that name where the system is Linux, else nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
