"""A secret is stored and removed with what it belongs to: a kill at any commit leaves both, or neither."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
from contextlib import closing

import pytest
import sqlalchemy as sa

from app.access.grants import Scope
from app.access.keys import ApiKeys, KeyTerms, digest_of
from app.db.encryption import Sealer, parse_keys
from app.db.engine import Database
from app.db.schema import API_KEYS, SECRETS, WEBHOOKS
from app.db.secrets import SecretStore
from app.features.access_keys import signing_secrets
from app.features.issued_keys import create_key, revoke_key, rotate_key
from app.features.watching.schemas import WebhookCreate
from app.features.watching.webhooks import Webhooks
from tests.conftest import PROJECT

RING = base64.b64encode(bytes(32)).decode()
CHILD = """
import os, signal, sys
import sqlalchemy as sa
from tests.db import test_secret_kills as here
url, action, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
with here.closing(here.Database(url)) as database:
    def commit(connection):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    sa.event.listen(database._engine, "commit", commit)
    here.act(database, action)
"""


def store_of(database: Database) -> SecretStore:
    return SecretStore(database, Sealer(parse_keys(RING, "RING")))


def act(database: Database, action: str) -> None:
    """Do what a client asks for."""
    secrets = store_of(database)
    keys, webhooks = ApiKeys(database, secrets=secrets), Webhooks(database, secrets, ["127.0.0.0/8"])
    if action == "add":
        webhooks.add(WebhookCreate(url="http://127.0.0.1:9/"))
    elif action == "delete":
        webhooks.delete(webhooks.all()[0].id)
    elif action == "create":
        create_key(keys, KeyTerms("signer", frozenset({Scope.READ})), signs=True)
    elif action == "rotate":
        rotate_key(keys, "signer")
    else:
        revoke_key(keys, "signer")


def belongings(database: Database) -> tuple[set[str], set[str], str]:
    """Return whose secrets are stored, who should have one, and what says whether anything has changed."""
    with database.read() as connection:
        names = {name for name in connection.execute(sa.select(SECRETS.c.name)).scalars() if "/" in name}
        hooks = {f"webhook/{name}" for name in connection.execute(sa.select(WEBHOOKS.c.id)).scalars()}
        valid = connection.execute(sa.select(API_KEYS).where(API_KEYS.c.revoked_at.is_(None))).all()
        sealed = connection.execute(sa.select(SECRETS).order_by(SECRETS.c.name)).all()
    return names, hooks | {f"signing/{key.id}" for key in valid}, repr((sealed, hooks, valid))


def in_turn(database: Database) -> bool:
    """Return whether a valid key's digest is that of its newest secret that signs."""
    with database.read() as connection:
        valid = connection.execute(sa.select(API_KEYS).where(API_KEYS.c.revoked_at.is_(None))).all()
    keys = ApiKeys(database, secrets=store_of(database))
    return all(key.digest == digest_of(signing_secrets(keys, key.id)[0]) for key in valid)


@pytest.mark.long
@pytest.mark.parametrize("action", ["add", "delete", "create", "rotate", "revoke"])
def test_a_kill_at_any_commit_leaves_a_secret_with_what_it_belongs_to(action: str, database_url: str) -> None:
    with closing(Database(database_url)) as database:
        for before in {"delete": ["add"], "rotate": ["create"], "revoke": ["create"]}.get(action, []):
            act(database, before)
        _, _, first = belongings(database)
        for killed in range(10):
            command = [sys.executable, "-c", CHILD, database_url, action, str(killed)]
            ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
            stored, wanted, state = belongings(database)
            assert stored == wanted, f"killed at commit {killed}"
            assert in_turn(database)
            if ended.returncode != -signal.SIGKILL:
                assert (ended.returncode, killed > 0) == (0, True), ended.stderr
                assert state != first
                break
            assert state == first
        else:
            pytest.fail("more than ten commits")
