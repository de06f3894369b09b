"""Limits that a container or a service manager sets on this process: Linux control groups, versions 2 and 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read_limits(controller: str, *names: str, root: Path = Path("/")) -> Iterator[list[str]]:
    """Yield the texts of the files ``names`` of this process's group, then of each group above it that has them all.

    ``names`` are those of one version; each group's limits hold, so that the least counts. Yields nothing where the
    system has no control groups. In a container the groups above it are hidden, and the mounted root is its own.
    """
    for folder in _folders(controller, root):
        try:
            yield [(folder / name).read_text(encoding="ascii").strip() for name in names]
        except OSError:  # not in this group, or of the other version
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
