"""Run `likeness` in a process that computes each photo once: `python -m tests.support.remembering serve`."""

from __future__ import annotations

from app import cli
from tests.support.ready import remembering

if __name__ == "__main__":
    with remembering():
        cli.main()
