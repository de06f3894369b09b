"""Keys and the audit log from the command line and from the client."""

from __future__ import annotations

from pathlib import Path

import pytest
from likeness_client import ApiError, Client

from tests.support.commands import run as likeness
from tests.support.live import LiveServer, serving
from tests.support.ready import give_models


def test_keys_are_made_listed_rotated_and_revoked(shared_server: LiveServer) -> None:
    folder = shared_server.data_dir
    made = likeness(
        folder, "keys", "create", "--id", "lobby", "--scope", "read", "--scope", "recognize",
        "--gallery", "lobby-staff", "--rate", "100/s", "--expires", "2035-01-01", "--name", "The door",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert secret.startswith("lk_lobby_")
    listed = likeness(folder, "keys", "list", "--json")
    (row,) = (row for row in listed.rows if row["id"] == "lobby")
    assert (row["id"], row["scopes"], row["galleries"]) == ("lobby", ["read", "recognize"], ["lobby-staff"])
    assert row["expires_at"] == "2035-01-01T00:00:00Z"
    zoned = likeness(
        shared_server.data_dir, "keys", "create", "--scope", "read", "--expires", "2035-01-01T12:00:00+02:00"
    )
    assert "2035-01-01T10:00:00Z" in likeness(shared_server.data_dir, "keys", "list", "--json").stdout, zoned
    assert secret not in likeness(folder, "keys", "list").stdout
    with Client(shared_server.url, secret) as client:
        assert client.galleries().galleries == []
        rotated = likeness(folder, "keys", "rotate", "lobby", "--json")
        with pytest.raises(ApiError) as caught:
            client.galleries()
        assert (caught.value.status, caught.value.code) == (401, "wrong_key")
    with Client(shared_server.url, rotated.rows[0]["secret"]) as client:
        assert client.galleries().galleries == []
        assert likeness(folder, "keys", "revoke", "lobby").stdout == "lobby: revoked\n"
        with pytest.raises(ApiError) as caught:
            client.galleries()
        assert caught.value.code == "revoked_key"
    assert likeness(folder, "keys", "create", "--scope", "fly").returncode == 2

    exported = likeness(folder, "audit", "export", "--json", "--since", "2020-01-01", "--operation", "rotate_key")
    (entry,) = (row for row in exported.rows if row["target"] == "lobby")
    assert (entry["key"], entry["target"], entry["status"], entry["subject"]) == ("admin.key", "lobby", 200, None)
    assert entry in likeness(folder, "audit", "export", "--json", "--until", "2100-01-01").rows
    for span in (("--since", "2100-01-01"), ("--until", "2020-01-01")):
        assert likeness(folder, "audit", "export", "--json", *span).rows == []
    assert " admin.key rotate_key - - lobby 200 " in likeness(folder, "audit", "export", "--by", "admin.key").stdout


@pytest.mark.long
def test_a_rotated_admin_key_reaches_all_servers_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(folder) as first, serving(folder) as second:
        old = first.key
        done = likeness(folder, "keys", "admin", "--rotate")
        assert (done.returncode, done.stderr) == (0, ""), done
        new = done.stdout.strip()
        assert new == first.key != old
        for server in (first, second):
            for key, status in ((new, 200), (old, 401)):
                with server.client(headers={"x-api-key": key}) as client:
                    assert client.get("/v1/galleries").status_code == status


@pytest.mark.long
def test_a_server_that_keeps_the_old_key_is_named(tmp_path: Path) -> None:
    """As one of 0.1.0: here it is one whose key lies in another folder."""
    folder = tmp_path / "data"
    with serving(folder) as server:
        moved = tmp_path / "moved"
        moved.mkdir()
        (moved / "servers").symlink_to(folder / "servers")
        done = likeness(moved, "keys", "admin", "--rotate")
        assert done.returncode == 1, done
        assert server.url in done.stderr
        assert done.stdout.strip() == (moved / "admin.key").read_text().strip()


def test_keys_for_awss_clients(shared_server: LiveServer) -> None:
    folder = shared_server.data_dir
    (made,) = likeness(folder, "keys", "create", "--aws", "--json", "--id", "lobby-2").rows
    assert set(made) == {"aws_access_key_id", "aws_secret_access_key"}
    assert made["aws_access_key_id"] == "LKIA_LOBBY_2"
    lines = likeness(folder, "keys", "rotate", "lobby-2").stdout.splitlines()
    assert lines[0] == "aws_access_key_id = LKIA_LOBBY_2"
    secret = lines[1].removeprefix("aws_secret_access_key = ")
    assert secret != made["aws_secret_access_key"]
    with Client(shared_server.url, f"lk_lobby-2_{secret}") as client:
        assert client.own_key().scopes == ["admin"]
        assert client.key("lobby-2").galleries is None
        narrow = client.create_key(["read"], aws=True, galleries=["lobby-staff"])
        assert narrow.aws_secret_access_key == narrow.secret.rpartition(f"{narrow.id}_")[2]
        assert client.create_key(["read"]).aws_access_key_id is None
    stored = b"".join(path.read_bytes() for path in folder.glob("likeness.db*"))
    assert b"lobby-2" in stored
    assert secret.encode() not in stored
    assert likeness(folder, "keys", "admin").stdout.strip() == shared_server.key
    refused = likeness(folder, "keys", "create")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_neither_the_log_nor_the_database_holds_a_key(shared_server: LiveServer) -> None:
    with Client(shared_server.url, shared_server.key) as client:
        first = client.create_key(["read"])
        secrets = [first.secret, client.rotate_key(first.id, grace_seconds=60).secret]
    for secret in secrets:
        with shared_server.client(headers={"x-api-key": secret}) as client:
            client.get("/v1/galleries").raise_for_status()
    wanted = [secret.removeprefix(f"lk_{first.id}_").encode() for secret in secrets]
    files = [path for path in (shared_server.log, *shared_server.data_dir.rglob("*")) if path.is_file()]
    found = {path: path.read_bytes() for path in files}
    assert any(first.id.encode() in content for content in found.values()), "what is looked for can be found at all"
    assert not [path for path, content in found.items() for secret in wanted if secret in content]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"RATE_LIMIT": "often"}, "LIKENESS_RATE_LIMIT"),
        ({"FAILED_KEYS": "unlimited"}, "LIKENESS_FAILED_KEYS: Give a rate such as 10/m"),
        ({"KEYS_FILE": "/not/there.yaml"}, "/not/there.yaml"),
    ],
)
def test_settings_that_make_no_sense_stop_the_start(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    give_models(tmp_path)
    done = likeness(tmp_path, "galleries", "create", "staff", **settings)
    assert done.returncode in {2, 4}
    assert words in done.stderr
    assert "Traceback" not in done.stderr
