"""Who asks: the admin key, made at the first start and kept in a file of the data folder, or a key of the database.

Attempts that fail are limited by the caller's address, what a key may ask for by the key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from starlette.datastructures import Headers

from app.access.grants import Grant, Rate, Scope
from app.access.keys import Keys
from app.access.rate_limits import Buckets, address_group
from app.access.records import ADMIN_KEY_ID
from app.db.key_file import draft_of, write_new
from app.errors import InvalidInput, Overloaded, Unusable

T = TypeVar("T")

KEY_FILE = "admin.key"
KEY_PREFIX = "lk_"
KEY_BYTES = 32
"""Of randomness: 256 bits, so that a fast hash protects the key as well as a slow one."""
OPEN_PATHS = frozenset({"/livez", "/readyz", "/version"})
"""What answers without a key."""
BROWSER_PATHS = ("/docs", "/openapi.json")
"""What also takes the key as the password of HTTP Basic, so that a browser can open it. Nothing else does: browsers
send Basic credentials along with requests that other sites make."""


ADMIN = Grant(ADMIN_KEY_ID, frozenset({Scope.ADMIN}))
"""What the admin key allows: everything, everywhere, as often as its holder likes."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Knows the admin key's SHA-256, and asks `keys` about the others.

    `failures` is how many wrong keys an address may send at once, and how soon again. An address that has used them up
    is answered with 429, without a look at what it sends, unless that is a key which worked before.
    """

    digest: bytes
    keys: Keys
    failures: Rate
    attempts: Buckets
    requests: Buckets

    @classmethod
    def of(cls, admin_key: str, keys: Keys, failures: Rate) -> Guard:
        return cls(hashlib.sha256(admin_key.encode()).digest(), keys, failures, Buckets(), Buckets())

    async def check(self, headers: Headers, path: str, address: str) -> Grant:
        """What the request's key allows.

        Raises InvalidInput (``missing_key``, ``wrong_key``, ``expired_key``, ``revoked_key``) and Overloaded
        (``too_many_failures``, ``rate_limited``). Secrets are compared in constant time (`hmac.compare_digest`).
        """
        given = _given_key(headers, path)
        if given is None:
            raise InvalidInput("send the key: `Authorization: Bearer KEY` or `x-api-key: KEY`", code="missing_key")
        if hmac.compare_digest(hashlib.sha256(given.encode()).digest(), self.digest):
            return ADMIN
        return await self.admit(
            self.keys.recall(given), lambda: self.keys.check(given), address, known=self.keys.is_known(given)
        )

    async def admit(self, recalled: Grant | None, look_up: Callable[[], Grant], address: str, *, known: bool) -> Grant:
        """The same for keys that come in other ways: `recalled` is what is known of it at once, `look_up` asks the
        database, and `known` says whether the caller has shown a secret that was good when it was last looked up."""
        grant = recalled if recalled is not None else await self.attempt(look_up, address, known=known)
        if grant.rate and (wait_s := self.requests.take(grant.key_id, grant.rate)):
            raise Overloaded("this key asks too often", code="rate_limited", retry_after=wait_s)
        return grant

    async def attempt(self, look_up: Callable[[], T], address: str, *, known: bool = False) -> T:
        """What `look_up` finds in the database; its InvalidInput counts as a failure of the address.

        Raises Overloaded (``too_many_failures``) without asking, where the caller is not `known`.
        """
        caller = address_group(address)
        if not known and (wait_s := self.attempts.wait(caller, self.failures)):
            raise Overloaded("too many wrong keys from this address", code="too_many_failures", retry_after=wait_s)
        try:
            return await asyncio.to_thread(look_up)
        except InvalidInput:
            self.attempts.take(caller, self.failures)
            raise


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


def load_key(folder: Path) -> tuple[str, bool]:
    """The key in ``folder`` and whether this call made it.

    A file that others can read is closed to them; one that is no key raises Unusable (``key_unusable``).
    """
    path = folder / KEY_FILE
    made = not path.exists() and write_new(path, _new_key())
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
    draft_of(folder / KEY_FILE, key).replace(folder / KEY_FILE)
    return key


def _new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
