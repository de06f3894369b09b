"""The schema of version 0.1.0, the first that was released. Only its databases have it: new ones are made whole."""

from __future__ import annotations

revision = "0012"
down_revision = None


def upgrade() -> None:
    raise NotImplementedError
