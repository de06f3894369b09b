"""Encryption, key files, secrets and signatures: altered, moved or foreign data never opens."""

from __future__ import annotations

import io
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config import Settings
from app.db.encryption import (
    OVERHEAD,
    PIECE,
    TAG_BYTES,
    VAULT_FILE,
    Sealer,
    encode_key,
    key_id,
    load_or_make,
    new_key,
    parse_keys,
    read_keys,
)
from app.db.engine import Database
from app.db.secrets import SecretStore
from app.errors import Unusable
from app.features import signatures
from app.features.doctor.command import examine
from app.features.signatures import Signer
from app.features.vault.reseal import reseal_secrets
from tests.support.service import running

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
PURPOSE = b"template\0of somebody"


def code_of(error: pytest.ExceptionInfo[Unusable]) -> str:
    return error.value.code


@given(data=st.binary(max_size=2000), purpose=st.binary(max_size=80))
def test_what_is_sealed_opens_as_it_was(data: bytes, purpose: bytes) -> None:
    sealed = Sealer([OLD]).seal(data, purpose)
    assert Sealer([OLD]).open(sealed, purpose) == data
    assert len(sealed) == len(data) + OVERHEAD


@given(data=st.binary(min_size=1, max_size=100), place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_change_of_any_byte_is_refused(data: bytes, place: int, flip: int) -> None:
    sealed = bytearray(Sealer([OLD, NEW]).seal(data, PURPOSE))
    sealed[place % len(sealed)] ^= flip
    with pytest.raises(Unusable) as caught:
        Sealer([OLD, NEW]).open(bytes(sealed), PURPOSE)
    assert code_of(caught) == "sealed_unreadable"


@given(data=st.binary(max_size=100), kept=st.integers(0, 200), more=st.binary(max_size=3))
def test_what_was_cut_or_continued_is_refused(data: bytes, kept: int, more: bytes) -> None:
    sealed = Sealer([OLD]).seal(data, PURPOSE)
    other = sealed[:kept] + more
    if other == sealed:
        return
    with pytest.raises(Unusable):
        Sealer([OLD]).open(other, PURPOSE)


@given(purpose=st.binary(max_size=40))
def test_another_purpose_is_refused(purpose: bytes) -> None:
    sealed = Sealer([OLD]).seal(b"data", PURPOSE)
    if purpose != PURPOSE:
        with pytest.raises(Unusable, match="altered, or moved"):
            Sealer([OLD]).open(sealed, purpose)


def test_the_same_data_is_sealed_otherwise_each_time() -> None:
    assert len({Sealer([OLD]).seal(b"data", PURPOSE) for _ in range(100)}) == 100


def test_old_keys_still_open_and_the_first_seals() -> None:
    old = Sealer([OLD]).seal(b"data", PURPOSE)
    ring = Sealer([NEW, OLD])
    assert ring.open(old, PURPOSE) == b"data"
    new = ring.seal(b"data", PURPOSE)
    assert Sealer([NEW]).open(new, PURPOSE) == b"data"
    assert new.startswith(ring.mark)
    with pytest.raises(Unusable, match=f"key {key_id(NEW).hex()}, which is not among {key_id(OLD).hex()}") as caught:
        Sealer([OLD]).open(new, PURPOSE)
    assert caught.value.details["key_id"] == key_id(NEW).hex()


def test_no_key_is_ever_shown() -> None:
    for text in (repr(Sealer([OLD])), repr(Signer(OLD)), " ".join(Sealer([OLD]).key_ids)):
        assert encode_key(OLD) not in text
        assert OLD.hex() not in text


@pytest.mark.parametrize("keys", [[], [OLD, OLD], [OLD[:31]], [b""]])
def test_rings_that_make_no_sense_are_refused(keys: list[bytes]) -> None:
    with pytest.raises(Unusable) as caught:
        Sealer(keys)
    assert code_of(caught) == "vault_key_unusable"


def sealed_file(pieces: list[bytes], purpose: bytes = PURPOSE) -> bytes:
    return b"".join(Sealer([OLD]).seal_stream(pieces, purpose))


def opened_file(sealed: bytes, purpose: bytes = PURPOSE) -> bytes:
    return b"".join(Sealer([NEW, OLD]).open_stream(io.BytesIO(sealed), purpose))


@settings(max_examples=30)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 1000, PIECE - 1, PIECE, PIECE + 1]), max_size=4),
    filling=st.binary(min_size=1),
)
def test_files_open_as_they_were(sizes: list[int], filling: bytes) -> None:
    pieces = [(filling * (size // len(filling) + 1))[:size] for size in sizes]
    assert opened_file(sealed_file(pieces)) == b"".join(pieces)


def test_pieces_of_a_file_cannot_be_left_out_moved_repeated_cut_or_altered() -> None:
    size = PIECE + TAG_BYTES
    whole = sealed_file([b"a" * PIECE, b"b" * PIECE, b"c" * 10])
    head = len(whole) - 2 * size - 10 - TAG_BYTES
    header, first, second, third = (
        whole[:head],
        whole[head : head + size],
        whole[head + size : head + 2 * size],
        whole[head + 2 * size :],
    )
    others = sealed_file([b"a" * PIECE, b"b" * PIECE, b"c" * 10])
    assert opened_file(header + first + second + third) == b"a" * PIECE + b"b" * PIECE + b"c" * 10
    wrong = [
        b"", header[:-1], header, header + first, header + first + second, header + first + third,
        header + second + first + third, header + first + first + second + third, whole[:-1],
        whole + b"x", whole + third, others[:head] + whole[head:],
    ]  # fmt: skip
    places = (0, 1, 5, head - 1, head, len(whole) - 1)
    wrong += [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in places]
    for sealed in wrong:
        with pytest.raises(Unusable) as caught:
            opened_file(sealed)
        assert code_of(caught) == "sealed_unreadable"
    with pytest.raises(Unusable):
        opened_file(whole, b"something else")
    with pytest.raises(Unusable):
        Sealer([OLD]).open(whole, PURPOSE)


def test_a_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / VAULT_FILE
    with ThreadPoolExecutor(4) as pool:
        rings = list(pool.map(lambda _: load_or_make(path), range(8)))
    assert {ring.key_ids for ring in rings} == {rings[0].key_ids}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [VAULT_FILE]
    path.chmod(0o644)
    load_or_make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_key_files_hold_one_key_a_line_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# since May\n{encode_key(NEW)}\n\n{encode_key(OLD)}  # the one before\n")
    assert read_keys(path) == (NEW, OLD)
    assert parse_keys(f"{encode_key(NEW)}, {encode_key(OLD)}", "X") == (NEW, OLD)


@pytest.mark.parametrize("text", ["", "# nothing\n", "hunter2", encode_key(OLD)[:-4], encode_key(OLD + b"x"), "é"])
def test_files_without_a_key_are_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(Unusable) as caught:
        load_or_make(path)
    assert code_of(caught) == "vault_key_unusable"
    assert str(path) in str(caught.value)
    assert not text or text not in str(caught.value)


def test_secrets_are_sealed_bound_to_their_name_and_the_same_for_all(database_url: str) -> None:
    database, ring = Database(database_url), Sealer([OLD])
    stores = [SecretStore(database, ring) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda store: store.get_or_make("one", new_key), stores))
    assert len(made) == 1
    assert stores[0].get("one") in made
    assert stores[0].get("other") is None
    for store, secret in zip(stores, [b"plain", b"plainer"], strict=False):
        with database.write() as connection:
            store.put(connection, "other", secret)
    assert stores[2].get("other") == b"plainer"
    with database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'one') WHERE name = 'other'"
        )
    with pytest.raises(Unusable):
        stores[0].get("other")
    for _ in range(2):
        with database.write() as connection:
            stores[0].remove(connection, "other")
        assert stores[0].get("other") is None
    database.close()


def test_secrets_are_sealed_anew_under_a_new_key(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as connection:
        SecretStore(database, Sealer([OLD])).put(connection, "one", b"secret")
    both = Sealer([NEW, OLD])
    assert reseal_secrets(database, both) == 1
    assert reseal_secrets(database, both) == 0
    assert SecretStore(database, Sealer([NEW])).get("one") == b"secret"
    database.close()


@given(data=st.binary(max_size=200), purpose=st.binary(max_size=40), place=st.integers(0, 63))
def test_signatures_hold_for_what_was_signed_alone(data: bytes, purpose: bytes, place: int) -> None:
    signer, other = Signer(OLD), Signer(NEW)
    signature = signer.sign(data, purpose)
    signatures.verify(signer.public_key, signature, data, purpose)
    altered = signature[:place] + bytes([signature[place] ^ 1]) + signature[place + 1 :]
    for key, mark, what, why in (
        (other.public_key, signature, data, purpose),
        (signer.public_key, altered, data, purpose),
        (signer.public_key, signature, data + b"x", purpose),
        (signer.public_key, signature, data, purpose + b"x"),
        (signer.public_key, signature[:-1], data, purpose),
        (b"short", signature, data, purpose),
    ):
        with pytest.raises(Unusable) as caught:
            signatures.verify(key, mark, what, why)
        assert code_of(caught) == "signature_wrong"


def test_the_signature_is_the_standards_own() -> None:
    """RFC 8032, section 7.1, TEST 2: the public key of a secret key."""
    secret = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert Signer(secret).public_key.hex() == public


def test_one_document_has_one_canonical_text() -> None:
    assert signatures.canonical({"b": 1, "a": {"d": "é", "c": None}}) == '{"a":{"c":null,"d":"é"},"b":1}'.encode()
    with pytest.raises(ValueError, match="Out of range"):
        signatures.canonical({"a": float("nan")})


def test_the_servers_key_stays_and_a_wrong_or_missing_key_file_ends_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as client:
        first = client.get("/v1/server-key").raise_for_status().json()
    with running(data) as client:
        assert client.get("/v1/server-key").json() == first
    assert stat.S_IMODE((data / VAULT_FILE).stat().st_mode) == 0o600
    loaded = serialization.load_pem_public_key(first["pem"].encode())
    assert isinstance(loaded, ed25519.Ed25519PublicKey)
    assert signatures.encode(loaded.public_bytes_raw()) == first["public_key"]
    kept = (data / VAULT_FILE).read_text()
    assert vault_findings(data) == ["ok"]
    (data / VAULT_FILE).unlink()
    assert vault_findings(data) == ["failed"]
    for damage in (None, "nonsense"):
        if damage:
            (data / VAULT_FILE).write_text(damage)
        with pytest.raises(Unusable, match=VAULT_FILE), running(data):
            pass
        assert vault_findings(data) == ["failed"]
    (data / VAULT_FILE).write_text(kept)
    with running(data) as client:
        assert client.get("/v1/server-key").json() == first


def vault_findings(data: Path) -> list[str]:
    return [finding.verdict for finding in examine(Settings(data_dir=data), ["vault"])]


def test_every_key_may_see_the_public_key(api: httpx.Client) -> None:
    made = api.post("/v1/keys", json={"scopes": ["read"], "galleries": ["none"]}).json()
    shown = api.get("/v1/server-key", headers={"x-api-key": made["secret"]}).raise_for_status().json()
    assert shown["key_id"] == signatures.public_key_id(signatures.decode(shown["public_key"]))
