"""`python -m tests.support.remembering serve`: the program `likeness`, in a process that computes no photo twice."""

from __future__ import annotations

from app import cli
from tests.support.ready import remembering

if __name__ == "__main__":
    with remembering():
        cli.main()
