"""Subjects whose time is over are erased, a moment later, by whichever server looks first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from app.errors import NotFound
from app.gallery.erasure import Erasures
from app.gallery.service import Galleries

AT_ONCE = 100
Recorded: TypeAlias = Callable[[str, str], AbstractContextManager[None]]
"""Around the erasure of a gallery's subject, both by id: puts it into the audit log."""


class Expiry:
    """Erases the subjects that have expired; `recorded` wraps each erasure. The scheduler calls `sweep`."""

    def __init__(self, galleries: Galleries, erasures: Erasures, recorded: Recorded) -> None:
        self._galleries = galleries
        self._erasures = erasures
        self._recorded = recorded

    def sweep(self) -> int:
        """Erases everybody who has expired, and completes receipts that servers left which died; says how many were
        erased here."""
        erased = 0
        while found := self._galleries.store.expired(AT_ONCE):
            pending = [receipt for gallery, subject in found if (receipt := self._erase(gallery, subject))]
            self._erasures.complete(pending)
            erased += len(pending)
            if len(found) < AT_ONCE:
                break
        self._erasures.complete_pending()
        return erased

    def _erase(self, gallery: str, subject: str) -> str | None:
        """The id of a receipt to complete; None where another server was first, or they were given more time."""
        try:
            with self._recorded(gallery, subject):
                return self._erasures.delete(gallery, subject, reason="expired")
        except NotFound:
            return None
