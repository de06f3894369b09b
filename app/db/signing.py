"""The server's signature, Ed25519 (RFC 8032), for receipts, archives, backups and exports of the audit log."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ALGORITHM: Final = "Ed25519"
PRIVATE_BYTES = 32
KEY_ID_BYTES = 8
_CONTEXT = b"likeness signature v1\0"


class Signer:
    """One private key; safe to share between threads, and never shows it."""

    def __init__(self, private: bytes) -> None:
        """Take RFC 8032's secret key, PRIVATE_BYTES."""
        self._private = Ed25519PrivateKey.from_private_bytes(private)
        self.public_key = self._private.public_key().public_bytes_raw()
        """32 bytes."""
        self.key_id = public_key_id(self.public_key)

    def __repr__(self) -> str:
        return f"Signer({self.key_id})"

    @staticmethod
    def make() -> bytes:
        """A new private key."""
        return Ed25519PrivateKey.generate().private_bytes_raw()

    @property
    def pem(self) -> str:
        """The public key as PEM."""
        form = PublicFormat.SubjectPublicKeyInfo
        return self._private.public_key().public_bytes(Encoding.PEM, form).decode()

    def sign(self, data: bytes, purpose: bytes) -> bytes:
        """Return the signature, 64 bytes. A signature for one `purpose` isn't valid for another."""
        return self._private.sign(message(data, purpose))


def message(data: bytes, purpose: bytes) -> bytes:
    """Return the signed bytes: a fixed text, the length of `purpose` (one byte), `purpose`, and `data`."""
    return _CONTEXT + bytes([len(purpose)]) + purpose + data


def public_key_id(public_key: bytes) -> str:
    """Return the first KEY_ID_BYTES of the key's SHA-256, hexadecimal."""
    return hashlib.sha256(public_key).digest()[:KEY_ID_BYTES].hex()


def encode(data: bytes) -> str:
    """Return a key or signature as base64, for JSON."""
    return base64.b64encode(data).decode()
