"""Read the file that declares keys, for installations that are set up by files (docker compose).

    keys:
      - id: door
        scopes: [recognize]
        galleries: [staff]                  # optional; all galleries if absent
        expires_at: 2027-01-01T00:00:00Z    # optional
        rate: 10/s                          # optional
        secret_env: DOOR_KEY                # or secret_file: /run/secrets/door, or secret: ...

A secret has at least 32 characters. The key's holder sends `lk_` + id + `_` + secret; the file may also contain this
whole key in place of the secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from app.access.grants import Scope
from app.access.keys import KeyTerms, token_of
from app.errors import InvalidInput, Unusable
from app.features.declarations import first_wrong
from app.features.issued_keys import MAX_GALLERIES, MIN_SECRET, check_terms
from app.gallery.text import MAX_TEXT
from app.types import utc_text


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    name: str | None = Field(default=None, max_length=MAX_TEXT)
    scopes: list[Scope] = Field(min_length=1)
    galleries: list[str] | None = Field(default=None, min_length=1, max_length=MAX_GALLERIES)
    expires_at: AwareDatetime | None = None
    rate: str | None = None
    secret: SecretStr | None = None
    secret_env: str | None = None
    secret_file: Path | None = None

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if sum(secret is not None for secret in (self.secret, self.secret_env, self.secret_file)) != 1:
            raise ValueError("give one of secret, secret_env and secret_file")
        return self


class _KeysFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[_Declared]

    @model_validator(mode="after")
    def _ids_differ(self) -> Self:
        ids = [key.id for key in self.keys]
        if len(set(ids)) < len(ids):
            raise ValueError("two keys have the same id")
        return self


def read_declared_keys(path: Path, environ: Mapping[str, str]) -> list[tuple[KeyTerms, str]]:
    """Return the keys that the file declares, each with its secret. Raises Unusable (``keys_file_invalid``)."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        declared = _KeysFile.model_validate(raw).keys
        return [(check_terms(_terms(key)), _secret(key, environ)) for key in declared]
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, f"cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})") from None
    except yaml.YAMLError:  # the error's text is left out, since it would quote the file
        raise _invalid(path, "is not YAML") from None
    except ValidationError as error:
        raise _invalid(path, first_wrong(error)) from None
    except InvalidInput as error:
        raise _invalid(path, error.message) from None


def _terms(key: _Declared) -> KeyTerms:
    expires_at = None if key.expires_at is None else utc_text(key.expires_at)
    galleries = None if key.galleries is None else frozenset(key.galleries)
    return KeyTerms(key.id, frozenset(key.scopes), key.name, galleries, key.rate, expires_at)


def _secret(key: _Declared, environ: Mapping[str, str]) -> str:
    if key.secret is not None:
        text = key.secret.get_secret_value()
    elif key.secret_env is not None:
        text = environ.get(key.secret_env, "")
        if not text:
            raise InvalidInput(f"{key.id}: the environment has no {key.secret_env}")
    else:
        text = (key.secret_file or Path()).read_text(encoding="utf-8").strip()
    secret = text.removeprefix(token_of(key.id, ""))
    if len(secret) < MIN_SECRET or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise InvalidInput(f"{key.id}: the secret needs at least {MIN_SECRET} ASCII characters, without spaces")
    return secret


def _invalid(path: Path, what: str) -> Unusable:
    return Unusable(f"{path}: {what}", code="keys_file_invalid")
