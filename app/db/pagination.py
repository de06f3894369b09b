"""Where a list that is given out in pages goes on."""

from __future__ import annotations

import base64
import binascii
import hashlib

from app.errors import InvalidInput

_CHECK_BYTES = 6


def encode_cursor(listing: str, last_key: int) -> str:
    """An opaque cursor that goes on after `last_key` in the list called `listing`."""
    payload = last_key.to_bytes(8, "big")
    return base64.urlsafe_b64encode(payload + _check(listing, payload)).decode().rstrip("=")


def decode_cursor(listing: str, cursor: str) -> int:
    """The key to go on after. Raises InvalidInput ``invalid_cursor`` where it isn't a cursor of `listing`."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid() from error
    key = int.from_bytes(raw[:8], "big")
    if cursor != encode_cursor(listing, key):
        raise _invalid()
    return key


def _check(listing: str, payload: bytes) -> bytes:
    """Tells accidents and other lists' cursors apart; no secret, since a key in reach harms no one."""
    return hashlib.blake2s(listing.encode() + b"\0" + payload, digest_size=_CHECK_BYTES).digest()


def _invalid() -> InvalidInput:
    return InvalidInput("This cursor is not one that this list gave out.", code="invalid_cursor")
