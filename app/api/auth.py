"""The key: made at the first start, kept in a file of the data folder, compared by its hash."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers

from app.errors import InvalidInput, Unusable

KEY_FILE = "admin.key"
KEY_PREFIX = "lk_"
KEY_BYTES = 32
"""Of randomness: 256 bits, so that a fast hash protects the key as well as a slow one."""
OPEN_PATHS = frozenset({"/livez", "/readyz", "/version"})
"""What answers without a key."""
BROWSER_PATHS = ("/docs", "/openapi.json")
"""What also takes the key as the password of HTTP Basic, so that a browser can open it. Nothing else does: browsers
send Basic credentials along with requests that other sites make."""


@dataclass(frozen=True, slots=True)
class KeyGuard:
    """Knows the key's SHA-256 and nothing more."""

    digest: bytes

    @classmethod
    def of(cls, key: str) -> KeyGuard:
        return cls(hashlib.sha256(key.encode()).digest())

    def check(self, headers: Headers, path: str) -> None:
        """Raises InvalidInput (``missing_key`` or ``wrong_key``) unless the request carries the key.

        Compares in constant time (`hmac.compare_digest`).
        """
        if path in OPEN_PATHS:
            return
        given = _given_key(headers, path)
        if given is None:
            raise InvalidInput("send the key: `Authorization: Bearer KEY` or `x-api-key: KEY`", code="missing_key")
        if not hmac.compare_digest(hashlib.sha256(given.encode()).digest(), self.digest):
            raise InvalidInput("the key is not this server's", code="wrong_key")


def _given_key(headers: Headers, path: str) -> str | None:
    if key := headers.get("x-api-key"):
        return key
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and rest:
        return rest.strip()
    if scheme.lower() == "basic" and is_browser_path(path):
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def is_browser_path(path: str) -> bool:
    return any(path == open_path or path.startswith(open_path + "/") for open_path in BROWSER_PATHS)


def prepare_data_dir(folder: Path) -> None:
    """Makes the data folder, for its owner alone. Raises Unusable (``data_dir_unusable``)."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror}", code="data_dir_unusable") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Unusable(f"{folder}: cannot be written to", code="data_dir_unusable")


def load_key(folder: Path) -> tuple[str, bool]:
    """The key in ``folder`` and whether this call made it.

    A file that others can read is closed to them; one that is no key raises Unusable (``key_unusable``).
    """
    path = folder / KEY_FILE
    made = not path.exists() and _write_new(path, _new_key())
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise Unusable(f"{path}: cannot be closed to others ({error})", code="key_unusable") from None
    return read_key(path), made


def read_key(path: Path) -> str:
    """Raises Unusable (``key_unusable``) where the file holds none."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{path}: cannot be read as a key ({error})", code="key_unusable") from None
    if len(key) < KEY_BYTES or any(character.isspace() for character in key):
        raise Unusable(
            f"{path}: one key of at least {KEY_BYTES} characters, alone on one line, is due", code="key_unusable"
        )
    return key


def replace_key(folder: Path) -> str:
    """A new key in place of the one in ``folder``, all at once."""
    key = _new_key()
    _draft(folder / KEY_FILE, key).replace(folder / KEY_FILE)
    return key


def _new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def _write_new(path: Path, key: str) -> bool:
    """Writes ``path`` whole or not at all; False when another process was first."""
    draft = _draft(path, key)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _draft(path: Path, key: str) -> Path:
    """A file beside ``path`` that only its owner can read, with the key in it, on the disk."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
    return draft
