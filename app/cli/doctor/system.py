"""What the kernel knows: which process listens on a port, and whether the clock is synchronised."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

TIMEX_BYTES = 512
"""Room for `struct timex`, 208 bytes on 64-bit Linux, with what later kernels may add."""
TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""
LISTENING = "0A"
"""TCP_LISTEN in /proc/net/tcp."""


def is_synchronised() -> bool | None:
    """Return None where the kernel can't be asked. A `struct timex` of zeros changes nothing."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != TIME_ERROR


def holder_of(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return the process that listens on a port, as in `process 123 (likeness)`; None if it is another user's."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    if not sockets:
        return None
    for process in proc.iterdir():
        if process.name.isdecimal() and _holds(process, sockets):
            return f"process {process.name} ({_command(process)})"
    return None


def _listening(port: int, proc: Path) -> set[str]:
    """Return the inodes of the sockets that listen there."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        return any(str(handle.readlink()) in sockets for handle in (process / "fd").iterdir())
    except OSError:  # another user's process, or one that has ended
        return False


def _command(process: Path) -> str:
    """Return the program without its arguments, which may hold secrets."""
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "gone"
