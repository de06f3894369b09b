"""Bytes made unreadable, and unchangeable, for whoever lacks the key: AES-256-GCM with a ring of keys.

A sealed blob is FORMAT (one byte), the key's id (four), a random nonce (twelve), and the ciphertext with its tag
(sixteen more than the plain bytes). What it is *for* is authenticated with it: a blob that was moved to another place
does not open there. Nonces are random: NIST SP 800-38D, section 8.3, bounds that to 2^32 blobs a key.

Files are sealed in pieces, so that neither side holds them whole: a header (STREAM_FORMAT, key id, a random salt), then
pieces of PIECE bytes under a key of the file's own (HKDF-SHA256 of the ring's key with the salt), the nonce counting
them and marking the last, as in the STREAM construction (Hoang, Reyhanitabar, Rogaway and Vizár 2015): pieces can't be
left out, moved, repeated or cut off.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app.errors import SealedUnreadable, Unusable

KEY_BYTES = 32
KEY_ID_BYTES = 4
NONCE_BYTES = 12
TAG_BYTES = 16
SALT_BYTES = 32
FORMAT, STREAM_FORMAT = 1, 2
HEADER_BYTES = 1 + KEY_ID_BYTES
OVERHEAD = HEADER_BYTES + NONCE_BYTES + TAG_BYTES
"""Bytes that a sealed blob is longer than what is in it."""
PIECE = 1024 * 1024
STREAM_HEADER_BYTES = HEADER_BYTES + SALT_BYTES
_COUNTER_BYTES = NONCE_BYTES - 1


class Readable(Protocol):
    """A file open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


class Sealer:
    """A ring of keys: the first seals, all open. Safe to share between threads; never shows a key."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """`keys` of KEY_BYTES each. Raises Unusable ``vault_key_unusable`` for none, or two alike."""
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
        """Of all keys, the sealing one's first; hexadecimal, and no secret."""
        return tuple(name.hex() for name in self._ciphers)

    @property
    def mark(self) -> bytes:
        """What every blob that this ring seals begins with."""
        return self._header

    def seal(self, data: bytes, purpose: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return self._header + nonce + self._ciphers[self._first].encrypt(nonce, data, self._header + purpose)

    def open(self, sealed: bytes, purpose: bytes) -> bytes:
        """Raises Unusable ``sealed_unreadable``: altered, for another purpose, or of a key that the ring lacks."""
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
        """`data` in pieces of any size, as sealed pieces to be written one after the other."""
        salt = os.urandom(SALT_BYTES)
        header = bytes([STREAM_FORMAT]) + self._first + salt
        yield header
        cipher = self._stream_cipher(header, purpose)
        number, waiting = 0, b""
        for piece in _pieces(data):
            if waiting:
                yield cipher.encrypt(_nonce(number, last=False), waiting, None)
                number += 1
            waiting = piece
        yield cipher.encrypt(_nonce(number, last=True), waiting, None)

    def open_stream(self, file: Readable, purpose: bytes) -> Iterator[bytes]:
        """What is in a sealed file, piece by piece. Raises Unusable ``sealed_unreadable``, maybe only at its end:
        nothing of it is to be relied on before. A piece itself is never given out altered."""
        header = _read(file, STREAM_HEADER_BYTES)
        if (
            len(header) < STREAM_HEADER_BYTES
            or header[0] != STREAM_FORMAT
            or header[1:HEADER_BYTES] not in self._ciphers
        ):
            raise self._unreadable(header[:HEADER_BYTES], STREAM_FORMAT)
        cipher = self._stream_cipher(header, purpose)
        number, piece = 0, _read(file, PIECE + TAG_BYTES)
        while True:
            following = _read(file, PIECE + TAG_BYTES)
            try:
                yield cipher.decrypt(_nonce(number, last=not following), piece, None)
            except InvalidTag:
                raise _altered() from None
            if not following:
                return
            number, piece = number + 1, following

    def _stream_cipher(self, header: bytes, purpose: bytes) -> AESGCM:
        """The file's own: its header and purpose are in the key, so no other file's pieces fit."""
        secret = self._secrets[header[1:HEADER_BYTES]]
        derive = HKDF(SHA256(), KEY_BYTES, salt=header[HEADER_BYTES:], info=header[:HEADER_BYTES] + purpose)
        return AESGCM(derive.derive(secret))

    def _unreadable(self, header: bytes, form: int) -> Unusable:
        if len(header) < HEADER_BYTES or header[0] != form:
            return SealedUnreadable("Stored data is not sealed as it should be.")
        message = f"Stored data was sealed with key {header[1:].hex()}, which is not among {', '.join(self.key_ids)}."
        return SealedUnreadable(message, key_id=header[1:].hex())


def key_id(key: bytes) -> bytes:
    """KEY_ID_BYTES that name a key and tell nothing of it."""
    return hashlib.sha256(b"likeness key id\0" + key).digest()[:KEY_ID_BYTES]


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def key_of(sealed: bytes) -> str | None:
    """The id of the key that a blob says it was sealed with; None for what is no sealed blob."""
    fits = len(sealed) >= OVERHEAD and sealed[0] == FORMAT
    return sealed[1:HEADER_BYTES].hex() if fits else None


def _altered() -> Unusable:
    return SealedUnreadable("Stored data was altered, or is not what it is taken for.")


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(_COUNTER_BYTES, "big") + bytes([last])


def _pieces(data: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE, the last one shorter."""
    buffer = bytearray()
    for some in data:
        view = memoryview(some).cast("B") if memoryview(some).nbytes else memoryview(b"")
        while view:
            room = PIECE - len(buffer)
            buffer += view[:room]
            view = view[room:]
            if len(buffer) == PIECE:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)


def _read(file: Readable, size: int) -> bytes:
    """`size` bytes, fewer only at the file's end."""
    parts: list[bytes] = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
