"""Keys, what they allow, and what the audit log says: plain frozen values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.access.grants import Scopes, parse_rate
from app.errors import InvalidInput
from app.gallery.text import clean_id

ADMIN_KEY_ID = "admin.key"
"""What the audit log calls the key of the data folder; no id of another key can hold a dot."""
KEY_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Lower case letters, digits and hyphens, as in a host's name: no underscore, which ends the id within a key."""
MAX_GALLERIES = 1000
"""That one key may be restricted to."""


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """What a key allows, as it was asked for; ``rate`` None: the server's default. Times are UTC, ISO 8601."""

    id: str
    scopes: Scopes
    name: str | None = None
    galleries: frozenset[str] | None = None
    rate: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is kept: never its secret, only the SHA-256 of it; ``old_digest`` is valid until ``old_until``."""

    key: int
    """Internal."""
    terms: KeyTerms
    digest: bytes
    old_digest: bytes | None
    old_until: str | None
    declared: bytes | None
    """The digest that the bootstrap file named when it was last applied; None for keys made otherwise."""
    created_at: str
    rotated_at: str | None
    revoked_at: str | None


@dataclass(slots=True)
class AuditEntry:
    """One operation. ``status``: None as long as its outcome isn't known; ``target``: the face or key it was about."""

    at: str
    who: str | None
    operation: str
    request_id: str
    gallery: str | None = None
    subject: str | None = None
    target: str | None = None
    status: int | None = None
    key: int | None = None
    """Of its row, once there is one."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; None: all. ``since`` is included, ``until`` is not."""

    who: str | None = None
    operation: str | None = None
    gallery: str | None = None
    subject: str | None = None
    since: str | None = None
    until: str | None = None


def check_terms(terms: KeyTerms) -> KeyTerms:
    """The same with gallery ids in NFC. Raises InvalidInput ``invalid_key_id``, ``invalid_rate``, ``invalid_id``."""
    if not KEY_ID.fullmatch(terms.id):
        raise InvalidInput("a key's id is 1 to 63 of a-z, 0-9 and inner hyphens", code="invalid_key_id")
    if terms.rate is not None:
        parse_rate(terms.rate)
    galleries = None if terms.galleries is None else frozenset(clean_id(one, "gallery") for one in terms.galleries)
    return KeyTerms(terms.id, terms.scopes, terms.name, galleries, terms.rate, terms.expires_at)


def fit_id(text: str | None) -> str | None:
    """``text`` where it can be an id of anything: the audit log holds nothing else that callers make up."""
    try:
        return None if text is None else clean_id(text, "record")
    except InvalidInput:
        return None
