"""Authenticated encryption of blobs and files: AES-256-GCM with a ring of keys; and the files with the keys.

A sealed blob is FORMAT (1 byte), the key's id (4), a random nonce (12) and the ciphertext with its tag (16 bytes longer
than the plain bytes). Its purpose is authenticated with it, so a blob that was moved to another place does not open
there. With random nonces, NIST SP 800-38D, section 8.3, allows 2^32 blobs per key.

Files are sealed in pieces, so that they need not fit in memory: a header (STREAM_FORMAT, key id, a random salt), then
pieces of PIECE bytes with the file's own key (HKDF-SHA256 of the ring's key with the salt). The nonce counts the pieces
and marks the last one, as in the STREAM construction (Hoang, Reyhanitabar, Rogaway and Vizár 2015), so pieces can't be
left out, moved, repeated or cut off.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.errors import SealedUnreadable, Unusable
from app.files import write_new

KEY_BYTES = 32
KEY_ID_BYTES = 4
NONCE_BYTES = 12
TAG_BYTES = 16
SALT_BYTES = 32
FORMAT, STREAM_FORMAT = 1, 2
HEADER_BYTES = 1 + KEY_ID_BYTES
OVERHEAD = HEADER_BYTES + NONCE_BYTES + TAG_BYTES
"""Number of bytes by which a sealed blob is longer than its content."""
PIECE = 1024 * 1024
STREAM_HEADER_BYTES = HEADER_BYTES + SALT_BYTES
_COUNTER_BYTES = NONCE_BYTES - 1


class Readable(Protocol):
    """A file open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


class Sealer:
    """A ring of keys: the first one encrypts, all decrypt. Safe to share between threads; never reveals a key."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Take keys of KEY_BYTES each. Raises Unusable ``vault_key_unusable`` without keys, or if two are equal."""
        self._secrets = {key_id(key): key for key in keys}
        if not keys or len(self._secrets) != len(keys) or any(len(key) != KEY_BYTES for key in keys):
            message = f"A key ring holds one or more different keys of {KEY_BYTES} bytes."
            raise Unusable(message, code="vault_key_unusable")
        self._ciphers = {name: AESGCM(key) for name, key in self._secrets.items()}
        self._first = key_id(keys[0])
        self._header = bytes([FORMAT]) + self._first

    def __repr__(self) -> str:
        return f"Sealer({', '.join(self.key_ids)})"

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Return the ids of all keys, hexadecimal and not secret, first the encrypting key's."""
        return tuple(name.hex() for name in self._ciphers)

    @property
    def mark(self) -> bytes:
        """Return the bytes with which every blob sealed with this ring begins."""
        return self._header

    def seal(self, data: bytes, purpose: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return self._header + nonce + self._ciphers[self._first].encrypt(nonce, data, self._header + purpose)

    def open(self, sealed: bytes, purpose: bytes) -> bytes:
        """Return the content of a sealed blob.

        Raises Unusable ``sealed_unreadable`` if it was altered, has another purpose, or its key is unknown.
        """
        header = sealed[:HEADER_BYTES]
        cipher = self._ciphers.get(header[1:])
        if len(sealed) < OVERHEAD or header[0] != FORMAT or cipher is None:
            raise self._unreadable(header, FORMAT)
        try:
            return cipher.decrypt(
                sealed[HEADER_BYTES : HEADER_BYTES + NONCE_BYTES],
                sealed[HEADER_BYTES + NONCE_BYTES :],
                header + purpose,
            )
        except InvalidTag:
            raise _altered() from None

    def seal_stream(self, data: Iterable[bytes | memoryview], purpose: bytes) -> Iterator[bytes]:
        """Seal `data`, which comes in parts of any size; yield the bytes to write."""
        stream = self.stream(purpose)
        yield stream.header
        for part in data:
            yield from stream.add(part)
        yield stream.end()

    def stream(self, purpose: bytes) -> SealedStream:
        """Return a stream that seals a file for this purpose."""
        header = bytes([STREAM_FORMAT]) + self._first + os.urandom(SALT_BYTES)
        return SealedStream(header, self._stream_cipher(header, purpose))

    def open_stream(self, file: Readable, purpose: bytes) -> Iterator[bytes]:
        """Yield a sealed file's content piece by piece. Raises Unusable ``sealed_unreadable``, perhaps only at its end.

        Each piece is authentic, but only the end shows that none is missing.
        """
        header = _read(file, STREAM_HEADER_BYTES)
        known = header[:1] == bytes([STREAM_FORMAT]) and header[1:HEADER_BYTES] in self._ciphers
        if not known or len(header) < STREAM_HEADER_BYTES:
            raise self._unreadable(header[:HEADER_BYTES], STREAM_FORMAT)
        cipher = self._stream_cipher(header, purpose)
        piece = _read(file, PIECE + TAG_BYTES)
        for number in count():
            following = _read(file, PIECE + TAG_BYTES)
            try:
                yield cipher.decrypt(_nonce(number, last=not following), piece, None)
            except InvalidTag:
                raise _altered() from None
            if not following:
                return
            piece = following

    def _stream_cipher(self, header: bytes, purpose: bytes) -> AESGCM:
        """Derive the file's own key from its header and purpose, so that other files' pieces don't fit."""
        secret = self._secrets[header[1:HEADER_BYTES]]
        derive = HKDF(SHA256(), KEY_BYTES, salt=header[HEADER_BYTES:], info=header[:HEADER_BYTES] + purpose)
        return AESGCM(derive.derive(secret))

    def _unreadable(self, header: bytes, form: int) -> Unusable:
        if len(header) < HEADER_BYTES or header[0] != form:
            return SealedUnreadable("Stored data isn't sealed in a known format.")
        message = f"Stored data was sealed with key {header[1:].hex()}, which is not among {', '.join(self.key_ids)}."
        return SealedUnreadable(message, key_id=header[1:].hex())


class SealedStream:
    """A file that is being sealed: it consists of the ``header``, the results of `add`, and that of `end`."""

    def __init__(self, header: bytes, cipher: AESGCM) -> None:
        self.header = header
        self._cipher = cipher
        self._number = 0
        self._piece = bytearray()

    def add(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Add content of any size; yield the pieces that are full."""
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        while view:
            if len(self._piece) == PIECE:
                yield self._seal(last=False)
            room = PIECE - len(self._piece)
            self._piece += view[:room]
            view = view[room:]

    def end(self) -> bytes:
        """Return the last piece."""
        return self._seal(last=True)

    def _seal(self, *, last: bool) -> bytes:
        sealed = self._cipher.encrypt(_nonce(self._number, last=last), bytes(self._piece), None)
        self._number += 1
        self._piece.clear()
        return sealed


def key_id(key: bytes) -> bytes:
    """Return KEY_ID_BYTES that identify a key without revealing it."""
    return hashlib.sha256(b"likeness key id\0" + key).digest()[:KEY_ID_BYTES]


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def _altered() -> Unusable:
    return SealedUnreadable("Stored data was altered, or moved from another place.")


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(_COUNTER_BYTES, "big") + bytes([last])


def _read(file: Readable, size: int) -> bytes:
    """Read `size` bytes, fewer only at the file's end."""
    parts: list[bytes] = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


VAULT_FILE = "vault.key"
"""File in the data folder with the key for the server's own secrets, if no encryption key is configured."""
ADMIN_KEY_FILE = "admin.key"
"""File in the data folder with the key that may do everything, made at the first start."""
IRREPLACEABLE = (ADMIN_KEY_FILE, VAULT_FILE)
"""Files of the data folder that can't be remade, and that backups of the database alone don't contain."""
_SEPARATORS = re.compile(r"[\s,]+")


def load_or_make(path: Path) -> Sealer:
    """Return the ring of the keys in `path`; make a missing file with one key. Remove other users' access to it.

    Raises Unusable ``vault_key_unusable``.
    """
    if not path.exists():
        write_new(path, encode_key(new_key()).encode() + b"\n")
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise Unusable(f"{path}: can't take other users' access away ({error})", code="vault_key_unusable") from None
    return Sealer(read_keys(path))


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read the keys in a file: a line for each, KEY_BYTES as base64; `#` begins a comment.

    Raises Unusable ``vault_key_unusable``, whose message never shows the content.
    """
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise Unusable(f"{path}: cannot be read as keys ({reason})", code="vault_key_unusable") from None
    return parse_keys("\n".join(line.partition("#")[0] for line in text.splitlines()), str(path))


def parse_keys(text: str, where: str) -> tuple[bytes, ...]:
    """Return the keys in `text`, separated by white space or commas; errors name `where` it comes from.

    Raises Unusable ``vault_key_unusable``.
    """
    keys = []
    for number, word in enumerate(filter(None, _SEPARATORS.split(text)), 1):
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            message = f"{where}: key {number} is not {KEY_BYTES} bytes as base64 (`openssl rand -base64 {KEY_BYTES}`)"
            raise Unusable(message, code="vault_key_unusable")
        keys.append(key)
    if not keys:
        raise Unusable(f"{where}: holds no key", code="vault_key_unusable")
    return tuple(keys)


def read_admin_key(path: Path) -> str:
    """Return the one key in `path`. Raises Unusable ``key_unusable``."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{path}: cannot be read as a key ({error})", code="key_unusable") from None
    if len(key) < KEY_BYTES or any(character.isspace() for character in key):
        message = f"{path}: put one key of at least {KEY_BYTES} characters in it, alone on one line"
        raise Unusable(message, code="key_unusable")
    return key


def encode_key(key: bytes) -> str:
    return base64.b64encode(key).decode()
