"""Convert keys' ids to AWS access key ids and back, and find the secrets that sign requests."""

from __future__ import annotations

import re

from app.access.keys import ApiKeys, token_of

PREFIX = "LKIA_"
KEPT_AS = "signing/{}"
"""Name under which a key's secrets are stored among the server's secrets."""
_ACCESS_KEY = re.compile(r"LKIA_[A-Z0-9_]{1,63}")


def access_key_of(key_id: str) -> str:
    """Return the AWS access key id of a key: capitals, digits and underscores. `key_id_of` is the inverse."""
    return PREFIX + key_id.upper().replace("-", "_")


def key_id_of(access_key: str) -> str | None:
    """Return the key's id for an AWS access key id; None if the text can't be one."""
    if not _ACCESS_KEY.fullmatch(access_key):
        return None
    return access_key.removeprefix(PREFIX).lower().replace("_", "-")


def signing_tokens(keys: ApiKeys, access_key: str) -> list[str]:
    """Return the tokens whose secrets may sign requests for an AWS access key id, the newest first.

    Reads the database. Tokens may have expired or been revoked: `ApiKeys.check` says so.
    """
    key_id = key_id_of(access_key)
    return [] if key_id is None else [token_of(key_id, secret) for secret in signing_secrets(keys, key_id)]


def signing_secrets(keys: ApiKeys, key_id: str) -> list[str]:
    """Return the secrets that may sign requests for a key, the newest first, valid or not. Reads the database."""
    kept = None if keys.secrets is None else keys.secrets.get(KEPT_AS.format(key_id))
    return kept.decode().split("\n") if kept else []
