"""Copy the audit log, as lines of JSON, to standard output, a file or a pipe (LIKENESS_AUDIT_SINK)."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from app.access.audit import AuditEntry
from app.concurrency.threads import FailureLog
from app.errors import Unusable
from app.files import PRIVATE

STDOUT = "stdout"


SINK_S = 2.0
"""Maximum seconds that a change waits for the reader of a full pipe. After that, changes don't wait until the pipe is
read again, and the sink loses their entries."""
_PAUSE_S = 0.01


class AuditSink:
    """Appends lines to standard output, or to a file or pipe. A file is opened for each batch, so that it can be
    rotated.

    Raises Unusable ``audit_sink_unusable`` if it can't be written at the start.
    """

    def __init__(self, target: str) -> None:
        self._path = None if target == STDOUT else Path(target)
        self._failures = FailureLog("the audit sink")
        self._rest = b""  # the rest of a line of which only the beginning was written
        self.available = True
        """False after a failure, until writing works again."""
        self.lost = 0
        """Number of entries that the sink did not get; the database has them."""
        try:
            self._append(b"", 0)
        except OSError as error:
            raise Unusable(f"{target}: {error.strerror or error}", code="audit_sink_unusable") from None

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Append entries that were committed. A failure is logged and counted."""
        lines = [json.dumps({"audit": asdict(entry)}, separators=(",", ":")) for entry in entries]
        self._write("".join(f"{line}\n" for line in lines).encode())

    def retry(self) -> None:
        """After a failure, check whether writing works again."""
        if not self.available:
            self._write(b"")

    def _write(self, lines: bytes) -> None:
        content, sent = self._rest + lines, 0
        try:
            sent = self._append(content, SINK_S if self.available else 0)
            if sent < len(content):
                raise TimeoutError("it is full and nobody reads it")
        except OSError as error:
            self._failures.failed(error)
            self.available = False
            sent = max(sent, 0)
            unsent = content[sent:]
            is_cut = bool(self._rest) if not sent else content[sent - 1 : sent] != b"\n"
            self._rest, _, lost = unsent.partition(b"\n") if is_cut else (b"", b"", unsent)
            self._rest += b"\n" if is_cut else b""
            self.lost += lost.count(b"\n")
        else:
            self._rest, self.available = b"", True
            self._failures.succeeded()

    def _append(self, content: bytes, wait_s: float) -> int:
        """Write to the target; return the number of bytes written, -1 if there was no room. Raises OSError if it can't
        be opened."""
        if self._path is None:
            return _send(sys.stdout.fileno(), content, wait_s)
        # Not blocking, since a pipe whose reader is gone or slow must not delay changes.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, PRIVATE)
        try:
            return _send(handle, content, wait_s)
        finally:
            os.close(handle)


def _send(handle: int, content: bytes, wait_s: float) -> int:
    """Write to a file or pipe, waiting at most ``wait_s`` seconds for room; return the number of bytes written, -1 if
    there was no room."""
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    until, sent = time.monotonic() + wait_s, -1
    while poll.poll(max(0.0, until - time.monotonic()) * 1000):
        sent = max(sent, 0)
        if sent == len(content):
            break
        try:
            sent += os.write(handle, content[sent : sent + select.PIPE_BUF])
        except BlockingIOError:  # there is less room than needed
            if time.monotonic() >= until:
                break
            time.sleep(_PAUSE_S)
    return sent
