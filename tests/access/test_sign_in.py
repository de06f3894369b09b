"""Sign-in codes and sessions, on every server of the database: of no use to whoever finds them later."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.access.audit import AuditEntry, AuditStore
from app.db.clock import DAY_S, ClockGuard
from app.db.encryption import Sealer, new_key
from app.db.engine import Database
from app.db.schema import SIGN_INS
from app.errors import DatabaseUnavailable, InvalidInput
from app.features.sign_in.codes import CACHE_S, CODE_VALID_S, Invitations, Sessions, SignInCodes
from app.features.sign_in.routes import SESSION_COOKIE, SESSION_HEADER
from app.gallery.store import Store
from app.server.data_folder import load_key
from tests.support.commands import run as likeness
from tests.support.live import LiveServer
from tests.support.ready import give_database
from tests.support.refusals import refused
from tests.support.service import error_of, running
from tests.support.trace import AUDIT, BACKGROUND
from tests.support.waiting import until

KEY = "lk_door_Vq3zTq9bZ0mJ6cXyqk1o7sJ8b2nPzq4wRrT5uYh6eLk"
NOW = 1_800_000_000.0
CALLERS = 8


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(Database(database_url)) as opened:
        yield opened


@pytest.fixture
def vault() -> Sealer:
    return Sealer([new_key()])


def fails(codes: SignInCodes, code: str) -> None:
    with refused("wrong_sign_in_code", InvalidInput):
        codes.spend(code)


def rows(database: Database) -> int:
    with database.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(SIGN_INS)).scalar_one()


def test_a_code_is_good_once(database: Database, vault: Sealer) -> None:
    codes = SignInCodes(database, vault)
    first, second = codes.make(KEY).text, codes.make(KEY).text
    assert first != second
    assert codes.spend(first) == KEY
    fails(codes, first)
    assert codes.spend(second) == KEY


def test_a_code_lives_a_minute_also_if_the_clock_is_set_back(database: Database, vault: Sealer) -> None:
    clock = Clock()
    codes = SignInCodes(database, vault, clock)
    early, late = codes.make(KEY).text, codes.make(KEY).text
    clock.now += CODE_VALID_S - 1
    assert codes.spend(early) == KEY
    clock.now += 2
    fails(codes, late)
    clock.now = NOW - 3600
    fails(codes, late)
    assert rows(database) == 1
    codes.prune()
    assert rows(database) == 0


def test_an_invitation_is_good_once_within_a_day_and_is_no_code(database: Database, vault: Sealer) -> None:
    clock = Clock()
    codes, invitations = SignInCodes(database, vault, clock), Invitations(database, vault, clock)
    used, late = invitations.make(KEY).text, invitations.make(KEY).text
    fails(codes, used)
    fails(codes, used.replace("li_", "lc_"))
    clock.now += DAY_S - 1
    assert invitations.spend(used) == KEY
    fails(invitations, used)
    codes.prune()
    assert rows(database) == 1
    clock.now += 2
    fails(invitations, late)
    invitations.prune()
    assert rows(database) == 0


@pytest.mark.parametrize("change", ["secret", "id", "half", "nothing", "key"])
def test_a_wrong_code_spends_none(database: Database, vault: Sealer, change: str) -> None:
    codes = SignInCodes(database, vault)
    code = codes.make(KEY).text
    name, secret = code.removeprefix("lc_").split("_", 1)
    wrong = {
        "secret": f"lc_{name}_{secret[::-1]}",
        "id": f"lc_{name[::-1]}_{secret}",
        "half": f"lc_{name}",
        "nothing": "",
        "key": KEY,
    }
    fails(codes, wrong[change])
    assert codes.spend(code) == KEY


def test_of_simultaneous_calls_of_two_servers_one_succeeds(database_url: str, vault: Sealer) -> None:
    with closing(Database(database_url)) as first, closing(Database(database_url)) as second:
        servers = [SignInCodes(first, vault), SignInCodes(second, vault)]
        for _ in range(5):
            code, found, refused = servers[0].make(KEY).text, list[str](), list[str]()
            start = threading.Barrier(CALLERS)

            def spend(codes: SignInCodes) -> None:
                start.wait()  # noqa: B023 (all threads of a round end within it)
                try:
                    found.append(codes.spend(code))  # noqa: B023
                except InvalidInput as error:
                    refused.append(error.code)  # noqa: B023

            threads = [threading.Thread(target=spend, args=(servers[n % 2],)) for n in range(CALLERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert (found, refused) == ([KEY], ["wrong_sign_in_code"] * (CALLERS - 1))


def test_neither_the_database_nor_the_vault_shows_the_key(database: Database, vault: Sealer) -> None:
    code = SignInCodes(database, vault).make(KEY).text
    name, secret = code.removeprefix("lc_").split("_", 1)
    with database.read() as connection:
        row = connection.execute(sa.select(SIGN_INS)).one()
    inner = vault.open(bytes(row.sealed), b"code\0" + name.encode())
    for stored in (bytes(row.digest), bytes(row.sealed), inner):
        assert KEY.encode() not in stored
        assert secret.encode() not in stored
    fails(SignInCodes(database, Sealer([new_key()])), code)  # another data folder's vault


def make_code(client: httpx.Client, key: str | None = None) -> str:
    headers = {"x-api-key": key} if key else {}
    made = client.post("/v1/sign-in-codes", headers=headers).raise_for_status().json()
    assert set(made) == {"code", "expires_at"}
    return str(made["code"])


def sign_in(client: httpx.Client, code: str) -> httpx.Response:
    return client.post("/v1/sign-in", headers={"x-api-key": code})


def test_a_code_is_exchanged_for_its_own_key(tmp_path: Path) -> None:
    """Also at another server of the database, and after a restart."""
    data = tmp_path / "data"
    with running(data) as client:
        admin = client.headers["x-api-key"]
        answered = sign_in(client, make_code(client)).raise_for_status()
        none: dict[str, Any] = {"galleries": [], "next_cursor": None}
        shown = {"id": "admin.key", "scopes": ["admin"], "galleries": None}
        assert answered.json() == shown | {"secret": admin, "gallery_page": none}
        assert answered.headers["cache-control"] == "no-store"
        door = client.post("/v1/keys", json={"id": "door", "scopes": ["read"]}).raise_for_status().json()["secret"]
        first, kept, revoked = (make_code(client, door) for _ in range(3))
        with running(data) as other:
            assert sign_in(other, first).json()["secret"] == door
        error_of(sign_in(client, first), 401, "wrong_sign_in_code")
        invited = client.post("/v1/sign-in-codes", params={"valid": "day"}, headers={"x-api-key": door}).json()["code"]
        assert sign_in(client, invited).json()["secret"] == door
        error_of(sign_in(client, invited), 401, "wrong_sign_in_code")
        error_of(client.post("/v1/sign-in", headers={"x-api-key": ""}), 401, "missing_key")
        error_of(client.get("/v1/key", headers={"x-api-key": kept}), 401, "wrong_key")
    with running(data) as client:
        shown = {"id": "door", "scopes": ["read"], "galleries": None}
        assert sign_in(client, kept).json() == shown | {"secret": door, "gallery_page": none}
        client.delete("/v1/keys/door").raise_for_status()
        error_of(sign_in(client, revoked), 401, "revoked_key")
        text = client.get("/v1/audit?limit=1000").text
        assert not any(secret[-20:] in text for secret in (first, kept, revoked, door, admin))


def test_a_sign_in_brings_the_galleries_that_the_key_may_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise DatabaseUnavailable("The disk is gone.")

    with running(tmp_path / "data") as client:
        for gallery in ("crew", "guests"):
            client.post("/v1/galleries", json={"id": gallery}).raise_for_status()
        client.post("/v1/galleries/crew/subjects", json={"id": "eileen"}).raise_for_status()

        def page(key: str) -> object:
            return sign_in(client, make_code(client, key)).raise_for_status().json()["gallery_page"]

        def new_key(name: str, *scopes: str, galleries: list[str] | None = None) -> str:
            asked = {"id": name, "scopes": scopes, "galleries": galleries}
            secret: str = client.post("/v1/keys", json=asked).raise_for_status().json()["secret"]
            return secret

        def listed(key: str) -> Any:
            return client.get("/v1/galleries", params={"limit": 1000}, headers={"x-api-key": key}).json()

        for key in (client.headers["x-api-key"], reader := new_key("reader", "read", galleries=["guests"])):
            assert page(key) == listed(key)
        assert [gallery["id"] for gallery in listed(reader)["galleries"]] == ["guests"]
        assert page(new_key("kiosk", "recognize")) is None, "it may not read"
        code = make_code(client)
        with monkeypatch.context() as lost:
            lost.setattr(Store, "galleries", gone)
            error_of(sign_in(client, code), 503, "database_unavailable")
        assert sign_in(client, code).is_success, "it was not spent without an answer"


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits that requests of this test's service wait for: "the change", and the operations of what the audit log
    writes by itself."""
    made: list[str] = []
    write, log = Database.write, AuditStore.write

    def is_here(database: Database) -> bool:
        return str(database._engine.url.database).startswith(str(tmp_path))

    @contextmanager
    def counted(self: Database, *, cached: bool = True) -> Iterator[sa.engine.Connection]:
        with write(self, cached=cached) as connection:
            yield connection
        if is_here(self) and not threading.current_thread().name.startswith((*BACKGROUND, AUDIT)):
            made.append("the change")

    def logged(self: AuditStore, entries: Sequence[AuditEntry]) -> None:
        if is_here(self.database):
            made.extend(entry.operation for entry in entries)
        log(self, entries)

    monkeypatch.setattr(Database, "write", counted)
    monkeypatch.setattr(AuditStore, "write", logged)
    return made


def entries_of(client: httpx.Client, operation: str) -> list[tuple[str, int]]:
    listed = client.get("/v1/audit", params={"limit": 1000, "operation": operation}).raise_for_status().json()
    return [(entry["key"], entry["status"]) for entry in listed["entries"]]


def test_signing_in_and_staying_are_a_commit_each_with_its_entry(tmp_path: Path, commits: list[str]) -> None:
    with running(tmp_path / "data") as client:
        door = client.post("/v1/keys", json={"id": "door", "scopes": ["read"]}).raise_for_status().json()["secret"]

        def post(path: str, key: str, operation: str) -> dict[str, str]:
            del commits[:]
            answer = client.post(path, headers={"x-api-key": key}).raise_for_status()
            assert [change for change in commits if change in {"the change", operation}] == ["the change"], operation
            assert entries_of(client, operation) == [("door", answer.status_code)], "in the log before the answer"
            made: dict[str, str] = answer.json()
            return made

        code = post("/v1/sign-in-codes", door, "create_sign_in_code")["code"]
        assert post("/v1/sign-in", code, "sign_in")["secret"] == door
        post("/v1/session", door, "begin_session")


def test_a_code_whose_entry_cannot_be_written_is_not_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise DatabaseUnavailable("The disk is full.")

    with running(tmp_path / "data") as client:
        code = make_code(client)
        with monkeypatch.context() as lost:
            lost.setattr(AuditEntry, "insert", full)
            error_of(sign_in(client, code), 503, "database_unavailable")
        assert sign_in(client, code).is_success
        error_of(sign_in(client, code), 401, "wrong_sign_in_code")
        until(lambda: len(entries_of(client, "sign_in")) == 3)
        assert sorted(status for _, status in entries_of(client, "sign_in")) == [200, 401, 503]


def test_the_command_prints_a_new_link_each_time(shared_server: LiveServer) -> None:
    links = [likeness(shared_server.data_dir, "keys", "link").stdout.strip() for _ in range(2)]
    assert links[0] != links[1]
    for link in links:
        url, code = link.split("/#code=")
        assert url == shared_server.url
        with shared_server.client(headers={"x-api-key": code}) as client:
            assert client.post("/v1/sign-in").raise_for_status().json()["secret"] == shared_server.key
    (row,) = likeness(shared_server.data_dir, "keys", "link", "--json").rows
    assert set(row) == {"link", "expires_at"}
    assert not any(link.partition("=")[2] in shared_server.log.read_text() for link in links)


def test_without_a_server_there_is_no_link(tmp_path: Path) -> None:
    load_key(tmp_path)
    give_database(tmp_path)
    done = likeness(tmp_path, "keys", "link")
    assert (done.returncode, done.stdout) == (4, "")
    assert "likeness serve" in done.stderr


def ended(sessions: Sessions, session: str) -> None:
    with refused("session_ended", InvalidInput):
        sessions.open(session)


def test_a_session_lasts_its_days_and_is_no_code(database: Database, vault: Sealer) -> None:
    clock = Clock()
    sessions, codes = Sessions(database, vault, 2, clock), SignInCodes(database, vault, clock)
    session, code = sessions.make(KEY).text, codes.make(KEY).text
    assert [sessions.open(session) for _ in range(2)] == [KEY, KEY]
    ended(sessions, code)
    fails(codes, session)
    ended(sessions, session.replace("ls_", "lc_")[::-1])
    codes.prune()
    clock.now += 2 * DAY_S - 1
    assert sessions.open(session) == KEY
    clock.now += 2
    ended(sessions, session)
    sessions.prune()
    clock.now = NOW - 3600
    codes.prune()
    assert rows(database) == 0


def test_a_session_ends_here_at_once_and_elsewhere_after_its_cache(database_url: str, vault: Sealer) -> None:
    with closing(Database(database_url)) as first, closing(Database(database_url)) as second:
        monotonic = Clock()
        here, there = (Sessions(database, vault, 30, monotonic=monotonic) for database in (first, second))
        session = here.make(KEY).text
        assert there.recall(session) is None
        assert there.open(session) == KEY
        here.end("ls_" + session[3:7])
        here.end(session)
        ended(here, session)
        assert there.recall(session) == KEY
        monotonic.now += CACHE_S
        assert there.recall(session) is None
        ended(there, session)


def test_a_browser_stays_signed_in_by_a_cookie_that_other_sites_cannot_use(tmp_path: Path) -> None:
    page = {SESSION_HEADER: "page"}
    with running(tmp_path / "data") as client:
        door = client.post("/v1/keys", json={"id": "door", "scopes": ["read"]}).raise_for_status().json()["secret"]
        made = client.post("/v1/session", headers={"x-api-key": door})
        assert made.status_code == 201
        cookie = made.headers["set-cookie"]
        session = cookie.partition("=")[2].partition(";")[0]
        for attribute in ("HttpOnly", "SameSite=Strict", "Path=/v1", f"Max-Age={30 * 86400}"):
            assert attribute in cookie
        assert door not in made.text + cookie
        del client.headers["x-api-key"]
        assert dict(client.cookies) == {SESSION_COOKIE: session}
        assert client.get("/v1/key", headers=page).raise_for_status().json()["id"] == "door"
        error_of(client.get("/v1/key"), 401, "missing_key")
        cross = page | {"sec-fetch-site": "same-site"}
        error_of(client.get("/v1/key", headers=cross), 401, "missing_key")
        error_of(client.post("/v1/galleries", json={"id": "x"}, headers=page), 403, "missing_scope")
        code = client.post("/v1/sign-in-codes", headers=page).json()["code"]
    with running(tmp_path / "data") as client:  # after a restart, and another way of sending it
        admin = client.headers.pop("x-api-key")
        header = page | {"cookie": f"a=b; {SESSION_COOKIE}={session}"}
        assert client.get("/v1/key", headers=header).raise_for_status().json()["id"] == "door"
        assert sign_in(client, code).json()["secret"] == door
        gone = client.delete("/v1/session", headers=header)
        assert gone.status_code == 204
        assert "Max-Age=0" in gone.headers["set-cookie"]
        error_of(client.get("/v1/key", headers=header), 401, "session_ended")
        other = client.post("/v1/session", headers={"x-api-key": door}).headers["set-cookie"].partition("=")[2]
        header["cookie"] = f"{SESSION_COOKIE}={other.partition(';')[0]}"
        client.delete("/v1/keys/door", headers={"x-api-key": admin}).raise_for_status()
        error_of(client.get("/v1/key", headers=header), 401, "revoked_key")
        text = client.get("/v1/audit?limit=1000", headers={"x-api-key": admin}).text
        assert not any(secret in text for secret in (session[-20:], door[-20:], code[-20:]))


def test_a_leaping_clock_signs_nobody_out_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if others sign in meanwhile; and what was begun at a false time ends with it."""
    clock = Clock()
    monkeypatch.setattr("app.main.ClockGuard", partial(ClockGuard, now=clock))
    monkeypatch.setattr("app.features.sign_in.codes.CACHE_S", 0.0)
    with running(tmp_path / "data") as client:
        key = {"x-api-key": client.headers.pop("x-api-key")}

        def begun() -> dict[str, str]:
            cookie = client.post("/v1/session", headers=key).raise_for_status().headers["set-cookie"]
            client.cookies.clear()
            return {SESSION_HEADER: "page", "cookie": cookie.partition(";")[0]}

        first = begun()
        for leap in (-600, -7200, 0, 43200, 0):
            clock.now = NOW + leap
            client.get("/v1/key", headers=first).raise_for_status()
            client.get("/v1/key", headers=begun()).raise_for_status()
        clock.now = NOW + 100 * DAY_S
        error_of(client.get("/v1/key", headers=first), 401, "session_ended")
        false = begun()
        clock.now = NOW
        client.get("/v1/key", headers=first).raise_for_status()
        error_of(client.get("/v1/key", headers=false), 401, "session_ended")


def test_a_server_may_keep_nobody_signed_in(tmp_path: Path) -> None:
    with running(tmp_path / "data") as client:
        session = client.post("/v1/session").raise_for_status().headers["set-cookie"].partition(";")[0]
    with running(tmp_path / "data", session_days=0) as client:
        error_of(client.post("/v1/session"), 403, "sessions_not_allowed")
        del client.headers["x-api-key"]
        headers = {SESSION_HEADER: "page", "cookie": session}
        error_of(client.get("/v1/key", headers=headers), 401, "session_ended")
