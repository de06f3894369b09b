"""Hands each entry of the audit log on as a line of JSON, for a log collector on another machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from app.access.audit_store import AuditEntry
from app.concurrency.scheduler import FailureLog
from app.errors import Unusable
from app.files import PRIVATE

STDOUT = "stdout"


class AuditSink:
    """Appends lines to standard output or to a file, which is opened for each batch, so that it can be rotated.

    Raises Unusable ``audit_sink_unusable`` if the file can't be written at the start.
    """

    def __init__(self, target: str) -> None:
        self._path = None if target == STDOUT else Path(target)
        self._failures = FailureLog("the audit sink")
        try:
            self._append(b"")
        except OSError as error:
            raise Unusable(f"{target}: {error.strerror or error}", code="audit_sink_unusable") from None

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Append entries that have been committed. A failure is logged: the database has them."""
        lines = [json.dumps({"audit": asdict(entry)}, separators=(",", ":")) for entry in entries]
        try:
            self._append("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            self._failures.failed(error)
        else:
            self._failures.succeeded()

    def _append(self, content: bytes) -> None:
        if self._path is None:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
        with os.fdopen(handle, "ab") as file:
            file.write(content)
