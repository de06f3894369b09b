"""How much memory a process holds."""

from __future__ import annotations

import resource
from pathlib import Path

MIB = 1 << 20


def resident_mib(pid: int | None = None) -> float:
    """Memory of a process, this one by default."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB
