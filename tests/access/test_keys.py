"""API keys: what is kept of them, how long they work, how often they may ask; and the file that declares them."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from app.access.grants import Scope
from app.access.keys import (
    ADMIN,
    ALL_ADDRESSES,
    CACHE_S,
    KEY_ID,
    NO_ADDRESS,
    AdminKey,
    ApiKeys,
    Guard,
    Key,
    KeyTerms,
    address_group,
    digest_of,
)
from app.access.rates import Buckets, RequestRate, parse_rate
from app.db.encryption import Sealer, new_key
from app.db.engine import Database
from app.db.schema import METADATA
from app.db.secrets import SecretStore
from app.errors import Conflict, InvalidInput, LikenessError, NotFound, Overloaded, Unusable
from app.features.access_keys import access_key_of, key_id_of, signing_tokens
from app.features.issued_keys import create_key, declare_keys, list_keys, read_key, revoke_key, rotate_key
from app.features.keys_file.reading import read_declared_keys
from app.gallery.store import Store
from app.types import utc_text
from tests.support.ready import give_database
from tests.support.refusals import refused

NOW = 1_800_000_000.0
READ = frozenset({Scope.READ})
SECRET = "s" * 40


@dataclass
class Clock:
    """Both clocks, moved by hand."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(Store(database_url)) as store:
        yield store.database


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(database: Database, clock: Clock) -> ApiKeys:
    return ApiKeys(database, clock=clock, monotonic=clock)


@pytest.fixture
def plain(tmp_path: Path, clock: Clock) -> Iterator[ApiKeys]:
    """Keys in SQLite alone, where the kind of the database does not matter."""
    give_database(tmp_path)
    with closing(Database(f"sqlite:///{tmp_path / 'likeness.db'}")) as opened:
        yield ApiKeys(opened, clock=clock, monotonic=clock)


def test_a_key_grants_what_was_asked_for(keys: ApiKeys) -> None:
    terms = KeyTerms("door", frozenset({Scope.READ, Scope.ENROLL}), "The door", frozenset({"staff", "gäste/2"}), "10/s")
    made = create_key(keys, terms)
    assert {name: getattr(made.key, name) for name in asdict(terms)} == asdict(terms)
    grant = keys.check(made.token)
    assert (grant.key_id, grant.scopes, grant.galleries) == ("door", terms.scopes, terms.galleries)
    assert grant.rate == RequestRate(10, 10)
    assert grant.sees("staff")
    assert not grant.sees("others")
    assert read_key(keys, "door") == made.key


def test_admin_implies_every_scope_but_templates(keys: ApiKeys) -> None:
    grant = keys.check(create_key(keys, KeyTerms("root", frozenset({Scope.ADMIN}))).token)
    assert {scope for scope in Scope if scope not in grant.allowed} == {Scope.TEMPLATES}
    assert all(scope in ADMIN.allowed for scope in Scope)
    given = keys.check(create_key(keys, KeyTerms("edge", frozenset({Scope.TEMPLATES}))).token)
    assert {scope for scope in Scope if scope in given.allowed} == {Scope.TEMPLATES}
    assert Scope.ENROLL not in keys.check(create_key(keys, KeyTerms("reader", READ)).token).allowed


def test_ids_are_taken_once_even_by_a_revoked_key(keys: ApiKeys) -> None:
    create_key(keys, KeyTerms("door", READ))
    revoke_key(keys, "door")
    with refused("key_exists", Conflict):
        create_key(keys, KeyTerms("door", READ))


def test_an_id_that_could_not_be_told_from_the_secret_is_refused(plain: ApiKeys) -> None:
    for key_id in ("", "-a", "a-", "A", "a_b", "ä", "a" * 64, "a.b", "a\n"):
        with refused("invalid_key_id", InvalidInput):
            create_key(plain, KeyTerms(key_id, READ))


def test_a_wrong_key_is_no_key(keys: ApiKeys) -> None:
    create_key(keys, KeyTerms("door", READ))
    wrong = ("", "lk_", "lk_door", "lk_door_", "lk_door_wrong", "lk_other_secret", "xx_door_secret", "lk_DOOR_x", "🗝")
    for token in wrong:
        with refused("wrong_key", InvalidInput):
            keys.check(token)


def test_a_key_expires_even_between_two_looks_at_the_database(keys: ApiKeys, clock: Clock) -> None:
    made = create_key(keys, KeyTerms("door", READ, expires_at=utc_text(NOW + 0.5)))
    keys.check(made.token)
    clock.now += 0.4
    assert keys.recall(digest_of(made.token)) is not None
    clock.now += 0.2
    assert keys.recall(digest_of(made.token)) is None
    with refused("expired_key", InvalidInput):
        keys.check(made.token)


def test_a_key_that_would_have_expired_is_not_made(keys: ApiKeys) -> None:
    with refused("invalid_expiry", InvalidInput):
        create_key(keys, KeyTerms("door", READ, expires_at=utc_text(NOW)))


def test_a_rotated_key_has_two_secrets_for_as_long_as_was_said(keys: ApiKeys, clock: Clock) -> None:
    first = create_key(keys, KeyTerms("door", READ))
    keys.check(first.token)
    second = rotate_key(keys, "door", grace_s=100)
    assert keys.recall(digest_of(first.token)) is None, "looked up anew at once"
    assert keys.check(first.token).key_id == keys.check(second.token).key_id == "door"
    clock.now += 100
    assert keys.check(second.token)
    with refused("expired_key", InvalidInput):
        keys.check(first.token)
    third = rotate_key(keys, "door")
    for old in (first, second):
        with pytest.raises(InvalidInput, match="not this server's"):
            keys.check(old.token)
    assert keys.check(third.token)


def test_a_revoked_key_stops_at_once_here_and_within_the_cache_time_elsewhere(
    keys: ApiKeys, database: Database, clock: Clock
) -> None:
    made = create_key(keys, KeyTerms("door", READ))
    elsewhere = ApiKeys(database, clock=clock, monotonic=clock)
    keys.check(made.token)
    elsewhere.check(made.token)
    revoke_key(keys, "door")
    assert keys.recall(digest_of(made.token)) is None
    clock.now += CACHE_S
    assert elsewhere.recall(digest_of(made.token)) is None
    for process in (keys, elsewhere):
        with refused("revoked_key", InvalidInput):
            process.check(made.token)
    with refused("key_revoked", Conflict):
        rotate_key(keys, "door")
    assert revoke_key(keys, "door").revoked_at == utc_text(NOW), "the first revocation stands"


def test_only_who_knows_the_secret_learns_that_a_key_was_revoked(keys: ApiKeys) -> None:
    create_key(keys, KeyTerms("door", READ))
    revoke_key(keys, "door")
    with refused("wrong_key", InvalidInput):
        keys.check("lk_door_guess")


def test_what_is_not_there_can_be_neither_shown_nor_changed(keys: ApiKeys) -> None:
    for call in (read_key, revoke_key, rotate_key):
        with refused("key_not_found", NotFound):
            call(keys, "door")


def test_a_checked_key_costs_no_look_at_the_database_for_a_while(plain: ApiKeys, tmp_path: Path, clock: Clock) -> None:
    made = create_key(plain, KeyTerms("door", READ))
    plain.check(made.token)
    clock.now += CACHE_S * 0.9
    (tmp_path / "likeness.db").unlink()
    grant = plain.recall(digest_of(made.token))
    assert grant is not None
    assert grant.key_id == "door"


def test_keys_are_listed_page_by_page(keys: ApiKeys) -> None:
    made = [create_key(keys, KeyTerms(f"key-{number}", READ)).key for number in range(5)]
    seen: list[Key] = []
    cursor = None
    while True:
        page = list_keys(keys, cursor, 2)
        seen += page.items
        if (cursor := page.next_cursor) is None:
            break
    assert seen == made
    with refused("invalid_cursor", InvalidInput):
        list_keys(keys, "nonsense")


def test_digests_are_compared_in_constant_time(plain: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known and an unknown id cost the same comparisons, all of them of whole digests."""
    made = create_key(plain, KeyTerms("door", READ))
    real, compared = hmac.compare_digest, []

    def counting(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return real(first, second)

    monkeypatch.setattr("app.access.keys.hmac.compare_digest", counting)
    plain.check(made.token)
    for token in ("lk_door_wrong", "lk_nobody_wrong"):
        with pytest.raises(InvalidInput):
            plain.check(token)
    assert compared == [(32, 32)] * 6


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/s", RequestRate(10, 10)),
        ("600/m", RequestRate(10, 600)),
        ("600/m:20", RequestRate(10, 20)),
        ("unlimited", None),
    ],
)
def test_rates_are_read(text: str, rate: RequestRate | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "10", "10/h", "0/s", "10/s:0", "-1/s", "1.5/s", " 10/s", "10/s\n", "99999999/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with refused("invalid_rate", InvalidInput):
        parse_rate(text)


def test_a_burst_is_let_through_and_then_the_rate(clock: Clock) -> None:
    buckets, rate = Buckets(clock), RequestRate(2, 3)
    assert [buckets.take("a", rate) for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a", rate) == pytest.approx(0.5)
    assert buckets.take("b", rate) == 0, "callers do not share"
    clock.now += 0.5
    assert buckets.take("a", rate) == 0
    assert buckets.take("a", rate) == pytest.approx(0.5)
    clock.now += 1000
    assert [buckets.take("a", rate) > 0 for _ in range(4)] == [False, False, False, True], "never more than a burst"


@given(st.lists(st.floats(0, 3), max_size=60), st.integers(1, 5), st.integers(1, 8))
def test_no_stretch_of_time_gets_more_than_burst_and_rate(pauses: list[float], per_second: int, burst: int) -> None:
    clock, rate = Clock(0.0), RequestRate(per_second, burst)
    buckets, taken = Buckets(clock), []
    for pause in pauses:
        clock.now += pause
        if not buckets.take("a", rate):
            taken.append(clock.now)
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - start) * per_second + 1e-6


def test_memory_is_bounded_whoever_calls(clock: Clock) -> None:
    buckets = Buckets(clock, size=10)
    for number in range(100):
        assert buckets.seconds_to_wait(str(number), RequestRate(1, 1)) == 0
        buckets.take(str(number), RequestRate(1, 1))
    assert len(buckets) == 10
    assert buckets.seconds_to_wait("99", RequestRate(1, 1)) > 0, "the latest are remembered"


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", NO_ADDRESS),
        ("", NO_ADDRESS),
        ("999.1.1.1", NO_ADDRESS),
        ("fe80::1%" + "x" * 9, "fe80::/64"),
    ],
)
def test_an_ipv6_customer_counts_once(host: str, group: str) -> None:
    assert address_group(host) == group


@given(st.ip_addresses())
def test_every_address_has_a_group(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert address_group(address_group(str(address)).split("/")[0]) == address_group(str(address))


def guard_of(keys: ApiKeys, clock: Clock, failures: str = "3/m") -> Guard:
    rate = parse_rate(failures)
    assert rate
    return Guard(AdminKey("the-admin-key"), keys, rate, Buckets(clock), Buckets(clock))


def ask(guard: Guard, token: str, address: str = "192.0.2.7") -> object:
    async def check() -> object:
        return await guard.check(token, address)

    return anyio.run(check)


def test_wrong_keys_are_limited_by_address_and_good_ones_go_on(plain: ApiKeys, clock: Clock) -> None:
    guard = guard_of(plain, clock)
    used, unused = (create_key(plain, KeyTerms(name, READ)).token for name in ("used", "unused"))
    ask(guard, used)
    for _ in range(3):
        with pytest.raises(InvalidInput, match="not this server's"):
            ask(guard, "lk_used_guess")
    for token in ("lk_used_guess", unused):
        with pytest.raises(Overloaded) as caught:
            ask(guard, token)
        assert caught.value.code == "too_many_failures"
        assert caught.value.details["retry_after"] == pytest.approx(20)
    clock.now += CACHE_S * 2  # what worked before is looked up again
    assert ask(guard, used) != ADMIN
    assert ask(guard, "the-admin-key") == ADMIN
    with pytest.raises(InvalidInput):
        ask(guard, "lk_used_guess", "198.51.100.1")
    clock.now += 20
    assert ask(guard, unused) != ADMIN, "a token has flowed in, and a good key takes none"
    with pytest.raises(InvalidInput):
        ask(guard, "lk_used_guess")
    with pytest.raises(Overloaded):
        ask(guard, "lk_used_guess")


def test_simultaneous_guesses_are_no_more_than_the_limit(plain: ApiKeys, clock: Clock) -> None:
    guard, looked_up = guard_of(plain, clock), []

    def look_up() -> None:
        looked_up.append(1)
        time.sleep(0.05)  # so that the others come meanwhile
        raise InvalidInput("Wrong.", code="wrong_key")

    async def guess() -> str | None:
        try:
            await guard.attempt(look_up, "192.0.2.7")
        except LikenessError as error:
            return error.code
        return None

    async def at_once() -> list[str | None]:
        return await asyncio.gather(*(guess() for _ in range(8)))

    assert sorted(map(str, anyio.run(at_once))) == ["too_many_failures"] * 5 + ["wrong_key"] * 3
    assert len(looked_up) == 3


def test_wrong_keys_are_limited_over_all_addresses_and_good_ones_go_on(plain: ApiKeys, clock: Clock) -> None:
    guard = guard_of(plain, clock)
    used, unused = (create_key(plain, KeyTerms(name, READ)).token for name in ("used", "unused"))
    ask(guard, used)

    async def guess_from_everywhere() -> None:
        for number in range(3 * ALL_ADDRESSES):
            with pytest.raises(InvalidInput, match="not this server's"):
                await guard.check("lk_used_guess", f"192.0.{number // 100}.{number % 100}")

    anyio.run(guess_from_everywhere)
    for token in ("lk_used_guess", unused):
        with refused("too_many_failures", Overloaded):
            ask(guard, token, "198.51.100.1")
    clock.now += CACHE_S * 2
    assert ask(guard, used, "198.51.100.1") != ADMIN, "what worked before is looked up again"
    for _ in range(3):
        assert ask(guard, unused, "198.51.100.1") != ADMIN, "tokens flow in, and a good key takes none"
        clock.now += CACHE_S * 2


def test_a_key_that_was_revoked_is_a_failed_attempt_like_any(plain: ApiKeys, clock: Clock) -> None:
    guard = guard_of(plain, clock)
    token = create_key(plain, KeyTerms("door", READ)).token
    ask(guard, token)
    revoke_key(plain, "door")
    for _ in range(3):
        with pytest.raises(InvalidInput, match="revoked"):
            ask(guard, token)
    with pytest.raises(Overloaded):
        ask(guard, token)


def test_each_key_has_its_own_rate_and_the_admin_key_none(plain: ApiKeys, clock: Clock) -> None:
    guard = guard_of(plain, clock)
    tokens = [create_key(plain, KeyTerms(name, READ, rate="2/s")).token for name in ("one", "two")]
    for token in tokens:
        ask(guard, token)
        ask(guard, token, "198.51.100.1")
        with pytest.raises(Overloaded) as caught:
            ask(guard, token)
        assert caught.value.code == "rate_limited"
        assert caught.value.details["retry_after"] == pytest.approx(0.5)
    clock.now += 0.5
    ask(guard, tokens[0])
    for _ in range(50):
        ask(guard, "the-admin-key")


def test_keys_without_a_rate_have_the_default_one(database: Database, clock: Clock) -> None:
    keys = ApiKeys(database, default_rate=RequestRate(1, 2), clock=clock, monotonic=clock)
    assert keys.check(create_key(keys, KeyTerms("plain", READ)).token).rate == RequestRate(1, 2)
    assert keys.check(create_key(keys, KeyTerms("free", READ, rate="unlimited")).token).rate is None


def declare(keys: ApiKeys, path: Path, text: str, environ: dict[str, str] | None = None) -> None:
    path.write_text(text)
    declare_keys(keys, read_declared_keys(path, environ or {}))


DOOR = "keys: [{id: door, scopes: [recognize], galleries: [staff], rate: 10/s, secret_env: DOOR}]"


def test_keys_are_declared_by_a_file_however_often(keys: ApiKeys, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("f" * 40 + "\n")
    text = f"""
keys:
  - {{id: door, scopes: [recognize], galleries: [staff], rate: 10/s, secret_env: DOOR}}
  - {{id: desk, name: The desk, scopes: [read, enroll], expires_at: 2035-01-01T00:00:00Z, secret: {SECRET}}}
  - {{id: file, scopes: [admin], secret_file: {tmp_path / "secret"}}}
"""
    declare(keys, tmp_path / "keys.yaml", text, {"DOOR": "lk_door_" + "d" * 40})
    before = list_keys(keys).items
    assert keys.check("lk_door_" + "d" * 40).galleries == frozenset({"staff"})
    assert keys.check(f"lk_desk_{SECRET}").scopes == {Scope.READ, Scope.ENROLL}
    assert Scope.ADMIN in keys.check("lk_file_" + "f" * 40).allowed
    assert before[1].expires_at == "2035-01-01T00:00:00.000000Z"
    clock.now += 100
    declare(keys, tmp_path / "keys.yaml", text, {"DOOR": "d" * 40})
    assert list_keys(keys).items == before


def test_a_changed_file_changes_keys_and_one_taken_out_is_gone(keys: ApiKeys, tmp_path: Path) -> None:
    made = create_key(keys, KeyTerms("mine", READ))
    declare(keys, tmp_path / "keys.yaml", DOOR, {"DOOR": SECRET})
    declare(keys, tmp_path / "keys.yaml", DOOR.replace("recognize", "read"), {"DOOR": "n" * 40})
    assert keys.check("lk_door_" + "n" * 40).scopes == READ
    with pytest.raises(InvalidInput):
        keys.check(f"lk_door_{SECRET}")
    declare(keys, tmp_path / "keys.yaml", "keys: []")
    with pytest.raises(InvalidInput):
        keys.check("lk_door_" + "n" * 40)
    assert keys.check(made.token), "keys that no file declares are let alone"


def test_a_file_neither_revives_a_revoked_key_nor_an_old_secret(keys: ApiKeys, tmp_path: Path) -> None:
    declare(keys, tmp_path / "keys.yaml", DOOR, {"DOOR": SECRET})
    rotated = rotate_key(keys, "door")
    declare(keys, tmp_path / "keys.yaml", DOOR, {"DOOR": SECRET})
    assert keys.check(rotated.token)
    with refused("wrong_key", InvalidInput):
        keys.check(f"lk_door_{SECRET}")
    revoke_key(keys, "door")
    declare(keys, tmp_path / "keys.yaml", DOOR, {"DOOR": "n" * 40})
    with refused("revoked_key", InvalidInput):
        keys.check("lk_door_" + "n" * 40)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("keys: [", "not YAML"),
        ("[]", "should be an object$"),
        ("keys: [{id: door, scopes: [fly], secret: %s}]", "scopes.0"),
        ("keys: [{id: door, scopes: [], secret: %s}]", "scopes"),
        ("keys: [{id: door, scopes: [read]}]", "secret"),
        ("keys: [{id: door, scopes: [read], secret: %s, secret_env: X}]", "one of secret"),
        ("keys: [{id: door, scopes: [read], secret_env: NOT_THERE}]", "NOT_THERE"),
        ("keys: [{id: door, scopes: [read], secret_file: /not/there}]", "cannot be read"),
        ("keys: [{id: door, scopes: [read], secret: short}]", "32"),
        ("keys: [{id: a_b, scopes: [read], secret: %s}]", "id"),
        ("keys: [{id: door, scopes: [read], rate: often, secret: %s}]", "rate"),
        ("keys: [{id: door, scopes: [read], expires_at: 2035-01-01T00:00:00, secret: %s}]", "timezone"),
        ("keys: [{id: door, scopes: [read], colour: red, secret: %s}]", "colour"),
        ("keys: [{id: d, scopes: [read], secret: %s}, {id: d, scopes: [read], secret: %s}]", "same id"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_never_what_the_secret_is(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text.replace("%s", SECRET))
    with pytest.raises(Unusable, match=words) as caught:
        read_declared_keys(path, {})
    assert caught.value.code == "keys_file_invalid"
    assert str(path) in caught.value.message
    assert SECRET not in caught.value.message


@pytest.fixture
def signing(database: Database, clock: Clock) -> ApiKeys:
    """Keys that requests may be signed with."""
    secrets = SecretStore(database, Sealer([new_key()]))
    return ApiKeys(database, secrets=secrets, clock=clock, monotonic=clock)


def good(keys: ApiKeys, access_key: str) -> list[str]:
    """The secrets that a request may be signed with now."""
    found = []
    for token in signing_tokens(keys, access_key):
        with suppress(InvalidInput):
            keys.check(token)
            found.append(token.rpartition("lk_signer_")[2])
    return found


def test_a_key_to_sign_with_is_kept_sealed(signing: ApiKeys, database: Database) -> None:
    made = create_key(signing, KeyTerms("signer", READ), signs=True)
    assert access_key_of("signer") == "LKIA_SIGNER"
    assert good(signing, "LKIA_SIGNER") == [made.secret]
    assert made.token == f"lk_signer_{made.secret}"
    assert signing.check(made.token).key_id == "signer"
    with database.read() as connection:
        rows = [str(row) for table in METADATA.sorted_tables for row in connection.execute(sa.select(table))]
    assert rows
    assert not any(made.secret in row for row in rows)


def test_what_signs_ends_with_its_key(signing: ApiKeys, clock: Clock) -> None:
    first = create_key(signing, KeyTerms("signer", READ), signs=True).secret
    second = rotate_key(signing, "signer", grace_s=60)
    assert second.signs
    assert good(signing, "LKIA_SIGNER") == [second.secret, first]
    clock.now += 61
    assert good(signing, "LKIA_SIGNER") == [second.secret]
    third = rotate_key(signing, "signer")
    assert good(signing, "LKIA_SIGNER") == [third.secret]
    revoke_key(signing, "signer")
    assert signing_tokens(signing, "LKIA_SIGNER") == []


def test_other_keys_do_not_sign(signing: ApiKeys) -> None:
    made = create_key(signing, KeyTerms("plain", READ))
    assert not made.signs
    assert not rotate_key(signing, "plain").signs
    for name in ("LKIA_PLAIN", "LKIA_NOBODY", "AKIAIOSFODNN7EXAMPLE", "LKIA_", "LKIA_plain", "plain", "", "LKIA_Ä"):
        assert signing_tokens(signing, name) == []


@given(st.from_regex(KEY_ID, fullmatch=True))
def test_access_keys_name_their_key(key_id: str) -> None:
    assert key_id_of(access_key_of(key_id)) == key_id
    assert re.fullmatch(r"[A-Z0-9_]+", access_key_of(key_id))
