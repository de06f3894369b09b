"""One request's entry in the audit log."""

from __future__ import annotations

import asyncio
import unicodedata
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from starlette.types import Message, Scope, Send

from app.access.audit import AuditLog
from app.access.audit_store import AuditEntry, fit_id
from app.api.error_answers import CLIENT_GONE
from app.api.operation import Operation
from app.errors import LikenessError, Overloaded

_BAD_KEY = frozenset({"expired_key", "revoked_key"})
_NOT_RECORDED = frozenset({429})
"""A request that was told to try again later did nothing; a flood of them must not become a flood of rows."""


def path_ids(scope: Scope) -> dict[str, str]:
    """Return the ids in the path, which was matched as it was sent: decoded, in NFC."""
    return {name: unicodedata.normalize("NFC", unquote(text)) for name, text in scope["path_params"].items()}


class AuditTrail:
    """Records a request and sends its answer on.

    An operation that changes something is written before it begins, and again before the answer goes out; any other is
    noted at its end. Refusals are noted too if the key is known or was wrong. Monitoring is not recorded.
    """

    def __init__(self, audit: AuditLog, operation: Operation, scope: Scope, send: Send) -> None:
        self.entry: AuditEntry = audit.entry(None, operation.name, scope["request_id"])
        ids = path_ids(scope)
        self.entry.gallery, self.entry.subject = fit_id(ids.pop("gallery", None)), fit_id(ids.pop("subject", None))
        self.entry.target = fit_id(next(iter(ids.values()), None))
        self.status = CLIENT_GONE
        self._audit = audit
        self._send = send
        self._changes = operation.changes
        self._begun = False
        self._finished = operation.monitoring

    async def begin(self) -> None:
        """Write the entry if the operation changes something; raise what the database raises, so that no change goes
        unrecorded."""
        if self._changes:
            await asyncio.wrap_future(self._audit.write(self.entry))
            self._begun = True

    def refuse(self, error: LikenessError) -> None:
        """Note a refusal. Requests without a key are not recorded: nothing limits how many there are."""
        if error.code in _BAD_KEY:
            self.entry.key = str(error.details["key"])
        is_try_again = isinstance(error, Overloaded) and not self._begun  # its status differs between wire formats
        self._finished = self._finished or is_try_again or error.code == "missing_key"

    async def send(self, message: Message) -> None:
        """Send on a part of the answer, after the outcome of a change was written."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            await self._finish()
        await self._send(message)

    async def _finish(self) -> None:
        """Add the outcome. If the database fails now, the work is done, and the entry stays without outcome."""
        if not self._begun or self._finished:
            return
        self.entry.status = self.status
        self._finished = True
        try:
            await asyncio.wrap_future(self._audit.write(self.entry))
        except LikenessError:
            self._audit.note(self.entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished or self.status in _NOT_RECORDED:
            return
        self.entry.status = self.status
        self._finished = True
        self._audit.note(self.entry)
