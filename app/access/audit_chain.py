"""An export of the audit log: a file to which lines are only appended, chained by hash and signed at checkpoints.

Each line is a JSON object in its only encoding (`signing.canonical`) with its `number` in the file, its `kind`, and
`previous`: the SHA-256 of the line before, without its line break (BEGIN for the first line).

`entry`: an entry as it was when it was exported, with its `row` in the log. `status` is null while its call runs.
`outcome`: the same entry after its call has ended. `lost`: the row of an entry that will get no outcome, because its
    server was killed, or that the log no longer has.
`checkpoint`: signed by the server; ends what one request appended. It repeats the last entry and which rows are open.

A line that was altered, removed, inserted or moved breaks the chain; whoever repairs the chain can't sign it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, TypeAlias

from app.db import signing
from app.db.signing import Signer
from app.errors import InvalidInput, Unusable

Document: TypeAlias = dict[str, Any]
VERSION: Final = 1
PURPOSE: Final = b"audit export"
BEGIN: Final = "0" * 64
MAX_LINE: Final = 1024 * 1024
"""Bytes; a longer line is none of an export."""
LAST = ("row", "at", "request_id")
"""What a checkpoint repeats of the last entry."""
_FIELDS = {"row", "at", "key", "operation", "request_id", "gallery", "subject", "target", "status"}
_OWN: dict[object, set[str]] = {
    "entry": _FIELDS,
    "outcome": _FIELDS,
    "lost": {"row"},
    "checkpoint": {"version", "at", "last", "open", "complete", "signature"},
}
"""The fields of each kind, beside ``kind``, ``number`` and ``previous``."""


class Broken(InvalidInput):
    """The file was altered; ``details.line`` is the first line that doesn't fit."""

    code = "audit_export_broken"


def digest(line: bytes) -> str:
    """Return the SHA-256, hexadecimal, that the next line must name."""
    return hashlib.sha256(line).hexdigest()


@dataclass(slots=True)
class Chain:
    """Writes lines after the line of that number and digest."""

    number: int = 0
    previous: str = BEGIN
    lines: list[bytes] = field(default_factory=list)

    def add(self, kind: str, fields: Document) -> None:
        self._append(self._document(kind, fields))

    def sign(self, fields: Document, signer: Signer) -> None:
        """Add a checkpoint."""
        self._append(signing.signed(self._document("checkpoint", {"version": VERSION, **fields}), signer, PURPOSE))

    def _document(self, kind: str, fields: Document) -> Document:
        return {"kind": kind, "number": self.number + 1, "previous": self.previous, **fields}

    def _append(self, document: Document) -> None:
        line = signing.canonical(document)
        self.lines.append(line)
        self.number, self.previous = self.number + 1, digest(line)


@dataclass(slots=True)
class Reader:
    """Checks line after line; what it has seen up to now. Raises Broken."""

    lines: int = 0
    size: int = 0
    """Bytes up to the last checkpoint, its line break included."""
    checkpoint: bytes = b""
    """The last one's line."""
    head: str = BEGIN
    """The last checkpoint's digest, which stands for everything before it."""
    heads: set[str] = field(default_factory=set)
    """The digest of every checkpoint."""
    head_at: str | None = None
    public_key: bytes | None = None
    """Of the signer, the same one from the first checkpoint to the last."""
    complete: bool = False
    """Whether the last checkpoint holds everything that the log held when it was signed."""
    entries: int = 0
    first_at: str | None = None
    last: Document | None = None
    """LAST of the last entry."""
    open: set[int] = field(default_factory=set)
    """Rows whose outcome is not known."""
    lost: int = 0
    missing: int = 0
    """Rows that are not in the file though there are rows before and after them."""
    unsigned: int = 0
    """Lines after the last checkpoint."""
    _previous: str = BEGIN
    _bytes: int = 0

    def read(self, file: BinaryIO) -> None:
        """Read all lines from the file's beginning. A last line that was cut off counts as unsigned."""
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                raise self._broken("it is longer than any line of an export")
            if not line.endswith(b"\n"):
                self.unsigned += 1
                return  # cut off
            self.add(line.removesuffix(b"\n"))

    def fault(self, head: str | None = None) -> str | None:
        """Return why the lines are no whole export that leads up to the checkpoint `head`; None if they are."""
        if not self.checkpoint:
            return "It holds no checkpoint: it is empty, or it was cut off."
        if self.unsigned:
            return f"It was cut off: its last {self.unsigned} lines come after the last checkpoint, and are not signed."
        if head is not None and head.strip().lower() not in self.heads:
            return "It does not lead up to that head: it was cut off before it, or is another export."
        return None

    def add(self, line: bytes) -> None:
        """Check the next line, without its line break."""
        document = self._parse(line)
        self._check_place(document)
        kind, row = document["kind"], document.get("row")
        self.unsigned += 1
        self._bytes += len(line) + 1
        if kind == "checkpoint":
            self._check_checkpoint(document, line)
        elif kind == "entry":
            self._take_entry(document)
        elif row not in self.open:
            raise self._broken("it ends an entry that is not open")
        elif kind == "lost":
            self.lost += 1
            self.open.discard(row)
        elif document["status"] is None:
            raise self._broken("it is an outcome without a status")
        else:
            self.open.discard(row)
        self.lines += 1
        self._previous = digest(line)

    def _parse(self, line: bytes) -> Document:
        try:
            document = json.loads(line, parse_constant=_refuse)
            is_canonical = isinstance(document, dict) and signing.canonical(document) == line
        except (ValueError, RecursionError):  # UnicodeDecodeError is one
            is_canonical = False
        if not is_canonical:
            raise self._broken("it is not in the form of an export")
        found: Document = document
        own = _OWN.get(kind) if isinstance(kind := found.get("kind"), str) else None
        if own is None or found.keys() != own | {"kind", "number", "previous"}:
            raise self._broken("it has other fields than a line of an export")
        if type(found["number"]) is not int or type(found.get("row", 0)) is not int:
            raise self._broken("a number in it is none")
        return found

    def _check_place(self, document: Document) -> None:
        number, expected = document["number"], self.lines + 1
        if number > expected:
            raise self._broken(f"{number - expected} lines before it were removed or moved")
        if number < expected:
            raise self._broken("it was inserted or moved here")
        if document["previous"] != self._previous:
            raise self._broken("this line or the one before it was altered")

    def _take_entry(self, document: Document) -> None:
        row, before = document["row"], self.last["row"] if self.last else None
        if before is not None and row <= before:
            raise self._broken("its entry is older than the one before")
        self.missing += 0 if before is None else row - before - 1
        self.entries += 1
        self.first_at = self.first_at or document["at"]
        self.last = {name: document[name] for name in LAST}
        if document["status"] is None:
            self.open.add(row)

    def _check_checkpoint(self, document: Document, line: bytes) -> None:
        try:
            public_key = signing.check_signed(document, PURPOSE)
        except Unusable:
            raise self._broken("its signature is wrong: lines since the last checkpoint were altered") from None
        if self.public_key not in {None, public_key}:
            raise self._broken("it was signed with another key than the checkpoints before")
        if document["version"] != VERSION:
            raise self._broken("it is of a later version of Likeness")
        if (document["last"], document["open"]) != (self.last, sorted(self.open)):
            raise self._broken("it does not fit the lines before it")
        self.public_key, self.complete, self.head_at = public_key, bool(document["complete"]), str(document["at"])
        self.checkpoint, self.head = line, digest(line)
        self.heads.add(self.head)
        self.size, self.unsigned = self._bytes, 0

    def _broken(self, why: str) -> Broken:
        line = self.lines + 1
        return Broken(f"The export is broken at line {line}: {why}.", line=line)


def read_checkpoint(text: str, signer: Signer) -> Document:
    """Return a checkpoint that `signer` signed. Raises InvalidInput ``invalid_checkpoint``."""
    try:
        document = json.loads(text, parse_constant=_refuse)
        mine = isinstance(document, dict) and signing.check_signed(document, PURPOSE) == signer.public_key
        if mine and signing.canonical(document) == text.encode() and document["version"] == VERSION:
            return dict(document)
    except (ValueError, RecursionError, Unusable):
        pass
    message = "This is not a checkpoint of an audit export that this server signed: begin a new file."
    raise InvalidInput(message, code="invalid_checkpoint")


def _refuse(constant: str) -> None:
    raise ValueError(constant)
