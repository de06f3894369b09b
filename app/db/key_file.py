"""Files of encryption keys, readable by their owner alone."""

from __future__ import annotations

import base64
import binascii
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.db.encryption import KEY_BYTES, Sealer, new_key
from app.errors import Unusable
from app.files import write_new

VAULT_FILE = "vault.key"
"""In the data folder: the key for the server's own secrets if no encryption key is configured."""
ADMIN_KEY_FILE = "admin.key"
"""In the data folder: the key that may do everything, made at the first start."""
IRREPLACEABLE = (ADMIN_KEY_FILE, VAULT_FILE)
"""Files of the data folder that can't be made again, and that no backup of the database contains."""
_SEPARATORS = re.compile(r"[\s,]+")


def load_or_make(path: Path) -> Sealer:
    """Return the ring of the keys in `path`; a missing file is made with one key. Other users lose access to it.

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


@dataclass(frozen=True, slots=True)
class FoundRings:
    """``faces`` is the ring for templates and crops, None without one; if not ``seals``, it only decrypts.

    ``secrets`` is the ring for the server's own secrets, None before the first start.
    """

    faces: Sealer | None
    seals: bool
    secrets: Sealer | None


@dataclass(frozen=True, slots=True)
class Rings(FoundRings):
    secrets: Sealer


def load_rings(
    data_dir: Path,
    file: Path | None,
    text: str | None,
    *,
    seals: bool = True,
    has_secrets: Callable[[], bool] = lambda: False,
) -> Rings:
    """Return the rings for these settings: encryption keys from a `file` or `text`, and those of VAULT_FILE.

    VAULT_FILE, in `data_dir`, is made if no encryption key can seal the secrets, and the database has none that only
    the missing file opens.

    Raises Unusable ``vault_key_unusable``, ``vault_key_missing``.
    """
    if not (seals and (file or text)):
        vault = data_dir / VAULT_FILE
        if not (file or text or vault.exists()) and has_secrets():
            message = (
                f"{vault} is missing and no encryption key is set, and one of them opens the database's secrets: "
                "put that one back, or restore a backup."
            )
            raise Unusable(message, code="vault_key_missing")
        load_or_make(vault)
    found = find_rings(data_dir / VAULT_FILE, file, text, seals=seals)
    if found.secrets is None:
        raise Unusable(f"{data_dir / VAULT_FILE}: doesn't exist any more", code="vault_key_unusable")
    return Rings(found.faces, found.seals, found.secrets)


def find_rings(vault: Path, file: Path | None, text: str | None, *, seals: bool = True) -> FoundRings:
    """Return the same as `load_rings` without making a file; `vault` is the path of VAULT_FILE."""
    given = read_keys(file) if file else parse_keys(text, "LIKENESS_ENCRYPTION_KEY") if text else ()
    own = read_keys(vault) if vault.exists() else ()
    both = list(dict.fromkeys([*given, *own] if seals else [*own, *given]))
    return FoundRings(Sealer(given) if given else None, seals, Sealer(both) if both else None)


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
    """Return the keys in `text`, separated by white space or commas; errors name `where` it is from.

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
