"""Sign archives, backups and receipts with Ed25519 (RFC 8032), and check their signatures.

Anybody can check a signature with the public key in the document, and compare this key's fingerprint with one that they
know.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from app.db.secrets import SecretStore
from app.errors import Unusable

ALGORITHM: Final = "Ed25519"
SIGNING_KEY = "signing-key"
"""Name of the private key among the server's secrets."""
KEY_ID_BYTES = 8
_CONTEXT = b"likeness signature v1\0"


class Signer:
    """Signs with one private key, which it never reveals. Safe to share between threads."""

    def __init__(self, private: bytes) -> None:
        """``private`` is the secret key of RFC 8032, 32 bytes."""
        self._private = Ed25519PrivateKey.from_private_bytes(private)
        self.public_key = self._private.public_key().public_bytes_raw()
        """The public key, 32 bytes."""
        self.key_id = public_key_id(self.public_key)

    def __repr__(self) -> str:
        return f"Signer({self.key_id})"

    @classmethod
    def of(cls, secrets: SecretStore) -> Self:
        """Return the signer of all servers that share these secrets. The first call makes its key. Raises Unusable
        ``sealed_unreadable``."""
        return cls(secrets.get_or_make(SIGNING_KEY, new_private_key))

    @property
    def pem(self) -> str:
        """Return the public key as PEM."""
        form = PublicFormat.SubjectPublicKeyInfo
        return self._private.public_key().public_bytes(Encoding.PEM, form).decode()

    def sign(self, data: bytes, purpose: bytes) -> bytes:
        """Return the signature, 64 bytes. A signature for one `purpose` isn't valid for another."""
        return self._private.sign(message(data, purpose))


def message(data: bytes, purpose: bytes) -> bytes:
    """Return the bytes to sign: a fixed text, the length of `purpose` (one byte), `purpose`, and `data`."""
    return _CONTEXT + bytes([len(purpose)]) + purpose + data


def public_key_id(public_key: bytes) -> str:
    """Return the first KEY_ID_BYTES bytes of the public key's SHA-256, hexadecimal."""
    return hashlib.sha256(public_key).digest()[:KEY_ID_BYTES].hex()


def encode(data: bytes) -> str:
    """Return a key or signature as base64, for JSON."""
    return base64.b64encode(data).decode()


def new_private_key() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes_raw()


def verify(public_key: bytes, signature: bytes, data: bytes, purpose: bytes) -> None:
    """Check that `data` was signed for `purpose` with the key of `public_key`. Raises Unusable ``signature_wrong``."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message(data, purpose))
    except (InvalidSignature, ValueError):
        raise Unusable("The signature doesn't match this key and content.", code="signature_wrong") from None


def canonical(document: Mapping[str, object]) -> bytes:
    """Return the document's canonical form: JSON in UTF-8 with sorted keys, without white space and with as few escapes
    as possible."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def signed(document: Mapping[str, object], signer: Signer, purpose: bytes) -> dict[str, Any]:
    """Return the document with the field `signature`, which signs all other fields."""
    return {**document, "signature": _signature(signer.public_key, signer.sign(canonical(document), purpose))}


def check_signed(document: Mapping[str, Any], purpose: bytes) -> bytes:
    """Return the public key that the document names, after checking its signature.

    Raises Unusable ``signature_wrong``, also if the field `signature` is not exactly as this module writes it.
    """
    rest = {name: value for name, value in document.items() if name != "signature"}
    try:
        named = document["signature"]
        public_key, value, content = decode(named["public_key"]), decode(named["value"]), canonical(rest)
    except (TypeError, KeyError, ValueError):  # ValueError: text with half a surrogate pair, which can't be encoded
        raise Unusable("It isn't signed.", code="signature_wrong") from None
    verify(public_key, value, content, purpose)
    if named != _signature(public_key, value):
        raise Unusable("The signature has another form than the server's.", code="signature_wrong")
    return public_key


def _signature(public_key: bytes, value: bytes) -> dict[str, str]:
    return {
        "algorithm": ALGORITHM,
        "key_id": public_key_id(public_key),
        "public_key": encode(public_key),
        "value": encode(value),
    }


def fingerprint(public_key: bytes) -> str:
    """Return the SHA-256 of a public key, hexadecimal, which people can compare."""
    return hashlib.sha256(public_key).hexdigest()


def is_named(public_key: bytes, text: str) -> bool:
    """Return whether `text` names the key: by its fingerprint, or as base64."""
    wanted = text.strip()
    return hmac.compare_digest(wanted.lower().encode(), fingerprint(public_key).encode()) or hmac.compare_digest(
        wanted.encode(), encode(public_key).encode()
    )


def decode(text: str) -> bytes:
    """Return the bytes of a text that `encode` returned. Raises Unusable ``signature_wrong``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Unusable("A key or signature is not base64.", code="signature_wrong") from None


def read_pem(text: str) -> bytes:
    """Return the public key, 32 bytes, in a PEM text. Raises Unusable ``signature_wrong``."""
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise Unusable("This isn't an Ed25519 public key.", code="signature_wrong")
    return key.public_bytes_raw()
