"""Who listens on a port of this machine, as far as /proc tells this user."""

from __future__ import annotations

from pathlib import Path

LISTENING = "0A"
"""TCP_LISTEN in /proc/net/tcp."""


def holder_of(port: int, proc: Path = Path("/proc")) -> str | None:
    """``process 123 (likeness)``; None where it is another user's, or unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    if not sockets:
        return None
    for process in proc.iterdir():
        if process.name.isdecimal() and _holds(process, sockets):
            return f"process {process.name} ({_command(process)})"
    return None


def _listening(port: int, proc: Path) -> set[str]:
    """Inodes of the sockets that listen there."""
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
    except OSError:  # another user's, or gone meanwhile
        return False


def _command(process: Path) -> str:
    """The program alone: arguments may hold secrets."""
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "gone"
