"""Events reach an address at least once and in order, whatever it does, and delay nobody."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app import main
from app.access import keys
from app.db.engine import Database
from app.db.schema import WEBHOOKS
from app.errors import InvalidInput
from app.features.watching import webhooks as sending
from app.features.watching.webhooks import Webhooks
from app.main import FEATURES
from app.types import utc_now
from tests.api.test_statements import counted
from tests.conftest import PROJECT
from tests.support.listening import listening
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER, error_of, running
from tests.support.sighted import HOME, events_of, make_home, told
from tests.support.waiting import until
from training.service import reserved_port

LOCAL = ("127.0.0.0/8",)
NUMBERED = re.compile(r"\d")
"""Is found in the names of pools' threads, which start as they are needed."""
OWN_TABLES = re.compile(
    r"\b(sightings|strangers|cameras|events|event_numbers|event_cursors|webhooks|webhook_subjects)\b"
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(sending, "LONGEST_WAIT_S", 0.2)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "data", watching="on", webhook_networks=LOCAL) as api:
        make_home(api, eileen=COLLINS)
        yield api


def hook(api: httpx.Client, receiver: Receiver, **asked: Any) -> dict[str, Any]:
    made: dict[str, Any] = api.post("/v1/webhooks", json={"url": receiver.url} | asked).raise_for_status().json()
    return made


def shown(api: httpx.Client, made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/webhooks/{made['id']}").raise_for_status().json()
    return found


def test_an_event_is_posted_signed_with_its_id_and_age(home: httpx.Client, receiver: Receiver) -> None:
    made = hook(home, receiver)
    with receiver.listening():
        seen = told(home, AGAIN, ago_s=5)
        until(lambda: receiver.taken)
    [(headers, body)], [event] = receiver.taken, receiver.events
    assert (event["event"], event["subject"], event["sighting"]) == ("person_seen", "eileen", seen["id"])
    assert event["age_s"] >= 5
    assert headers["webhook-id"] == event["id"]
    signed = b".".join((event["id"].encode(), headers["webhook-timestamp"].encode(), body))
    key = base64.b64decode(made["secret"].removeprefix("whsec_"))
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert "secret" not in shown(home, made)


def test_a_receiver_that_fails_and_is_gone_gets_all_events_in_order(home: httpx.Client, receiver: Receiver) -> None:
    made = hook(home, receiver)
    receiver.status = 500
    with receiver.listening():
        told(home, AGAIN)
        until(lambda: receiver.asked > 2)
    for _ in range(3):
        told(home, AGAIN, camera="garden", ended=True)
    until(lambda: shown(home, made)["last_error"] == "ConnectError")
    receiver.status = 200
    with receiver.listening():
        until(lambda: len(receiver.taken) >= 7)
        until(lambda: shown(home, made)["failing_since"] is None)
    numbers = [event["number"] for event in receiver.events]
    assert numbers == sorted(set(numbers)) == list(range(1, 8))


@pytest.mark.long
def test_all_that_a_receiver_missed_goes_at_once_when_it_is_back(
    home: httpx.Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any further wait would be longer than this test."""
    for name in ("FIRST_WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(sending, name, 3600.0)
    made = hook(home, receiver)
    told(home, AGAIN)
    until(lambda: shown(home, made)["attempts"] == 1)
    for camera in range(sending.AT_ONCE):
        told(home, AGAIN, camera=f"camera {camera}", ended=True)
    with receiver.listening():
        home.post(f"/v1/webhooks/{made['id']}/resume").raise_for_status()
        until(lambda: len(receiver.taken) >= 2 * sending.AT_ONCE + 1)
    assert receiver.asked == len(receiver.taken)


def test_while_a_webhook_is_dead_nothing_else_does_more(
    home: httpx.Client, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By statements of a request, threads, and statements of a look for events."""
    monkeypatch.setattr(keys, "CACHE_S", 3600.0)
    monkeypatch.setattr(sending, "FIRST_WAIT_S", 3600.0)
    monkeypatch.setattr(sending, "LONGEST_WAIT_S", 3600.0)

    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("webhook")}

    told(home, AGAIN)
    with counted(str(tmp_path)) as before:
        told(home, AGAIN)
    idle = threads()
    made = hook(home, receiver)
    told(home, AGAIN)
    until(lambda: shown(home, made)["attempts"] == 1 and threads() == idle)
    with counted(str(tmp_path)) as dead:
        told(home, AGAIN)
    for table in ("webhooks", "event_numbers", "events", "sightings", "galleries"):  # the audit log writes as it will
        assert dead[table] == before[table], table
    assert (shown(home, made)["attempts"], threads()) == (1, idle)
    looked: list[str] = []
    with closing(Database(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}")) as database:
        waiting = Webhooks(database, None, ())  # type: ignore[arg-type]  # no secret is needed
        waiting.due()
        sa.event.listen(database._engine, "before_cursor_execute", lambda *args: looked.append(args[2]))
        assert waiting.due() == []
    assert [text.split()[0] for text in looked if text.split()[0] in {"SELECT", "UPDATE"}] == ["SELECT"]


def test_an_event_that_failed_is_not_taken_for_one_that_was_sent(home: httpx.Client, receiver: Receiver) -> None:
    """The quiet time begins when an event has arrived."""
    hook(home, receiver, quiet_s=3600)
    receiver.status = 500
    with receiver.listening():
        told(home, AGAIN)
        until(lambda: receiver.asked > 1)
        receiver.status = 200
        until(lambda: receiver.taken)


def test_a_receiver_that_hangs_delays_no_other(home: httpx.Client, receiver: Receiver) -> None:
    receiver.hangs.set()
    with receiver.listening(), reserved_port() as port:
        other = Receiver(port)
        with other.listening():
            hook(home, receiver)
            hook(home, other)
            told(home, AGAIN)
            until(lambda: receiver.asked)
            told(home, AGAIN, camera="garden")
            until(lambda: len(other.taken) == 2)
        assert receiver.taken == []
        receiver.released.set()


def test_a_receiver_that_refuses_one_event_gets_the_next(home: httpx.Client, receiver: Receiver) -> None:
    made = hook(home, receiver)
    receiver.status = 422
    with receiver.listening():
        told(home, AGAIN)
        until(lambda: receiver.asked >= sending.REFUSED and shown(home, made)["attempts"] == 0)
        receiver.status = 200
        told(home, AGAIN, camera="garden")
        until(lambda: receiver.taken)
    assert [event["camera"] for event in receiver.events] == ["garden"]
    assert shown(home, made)["state"] == "active"


def test_one_that_was_dead_for_a_day_is_set_aside_and_resumes(
    home: httpx.Client, receiver: Receiver, tmp_path: Path
) -> None:
    made = hook(home, receiver)
    told(home, AGAIN)
    until(lambda: shown(home, made)["attempts"] > 0)

    def set_aside() -> bool:
        with database.write() as connection:  # again, as an attempt under way writes its own
            connection.execute(sa.update(WEBHOOKS).values(failing_since=utc_now(timedelta(days=-2))))
        return bool(shown(home, made)["state"] == "set_aside")

    with closing(Database(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}")) as database:
        until(set_aside)
    with receiver.listening():
        home.post(f"/v1/webhooks/{made['id']}/resume").raise_for_status()
        until(lambda: receiver.taken)
    assert shown(home, made)["state"] == "active"


def test_a_webhook_gets_the_kinds_cameras_and_quiet_that_were_asked_for(home: httpx.Client, receiver: Receiver) -> None:
    hook(home, receiver, kinds=["person_seen"], cameras=["door"], quiet_s=3600)
    last = hook(home, receiver, kinds=["unknown_seen"])
    with receiver.listening():
        for camera in ("garden", "door", "door"):
            told(home, AGAIN, camera=camera, ended=True)
        told(home, HOPPER, HOPPER)
        until(lambda: len(receiver.taken) == 2)
    assert {(event["event"], event["camera"]) for event in receiver.events} == {
        ("person_seen", "door"),
        ("unknown_seen", "door"),
    }
    home.delete(f"/v1/webhooks/{last['id']}").raise_for_status()
    error_of(home.get(f"/v1/webhooks/{last['id']}"), 404, "webhook_not_found")
    assert len(home.get("/v1/webhooks").json()["webhooks"]) == 1


def test_events_of_a_restarted_server_go_on_with_their_ids(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "data", watching="on", webhook_networks=LOCAL) as api:
        make_home(api, eileen=COLLINS)
        hook(api, receiver)
        told(api, AGAIN)
    due = [event["id"] for event in events_of(tmp_path / "data")]
    with receiver.listening(), running(tmp_path / "data", watching="on", webhook_networks=LOCAL):
        until(lambda: receiver.taken)
    assert [event["id"] for event in receiver.events] == due


PRIVATE = ("127.0.0.1", "[::1]", "localhost", "169.254.169.254", "[::ffff:10.0.0.1]", "[64:ff9b::10.0.0.1]")
CARRIED = ("[2002:a00:1::1]", "[::10.0.0.1]", "[fec0::1]")
"""Of 6to4, compatible with IPv4, of a site: nobody uses them any more."""


@pytest.mark.parametrize("url", [f"http://{host}/" for host in (*PRIVATE, *CARRIED)])
def test_private_addresses_are_refused_unless_they_are_named(tmp_path: Path, url: str) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'likeness.db'}")) as database:
        with pytest.raises(InvalidInput, match="private"):
            Webhooks(database, None, ()).address_of(url)  # type: ignore[arg-type]  # no secret is needed
        assert Webhooks(database, None, ("0.0.0.0/0", "::/0")).address_of(url)  # type: ignore[arg-type]


def test_only_an_unrestricted_admin_makes_webhooks(home: httpx.Client, receiver: Receiver) -> None:
    for scopes, galleries, code in ((["enroll"], None, "missing_scope"), (["admin"], ["home"], "gallery_restricted")):
        made = home.post("/v1/keys", json={"scopes": scopes, "galleries": galleries}).json()
        refused = home.post("/v1/webhooks", json={"url": receiver.url}, headers={"x-api-key": made["secret"]})
        error_of(refused, 403, code)


def test_off_no_thread_runs_and_no_statement_is_sent_that_would_not_be_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one look at the start, whether there are sightings of before."""
    sent: set[str] = set()

    def note(_connection: object, _cursor: object, text: str, *_: Any) -> None:
        sent.update(OWN_TABLES.findall(text))

    def used(name: str, expected: frozenset[str] = frozenset(), **settings: Any) -> tuple[set[str], set[str]]:
        """Return the names of the threads that a new service starts, and the tables it uses after the start; wait for
        those that are expected."""
        before = set(threading.enumerate())
        with running(tmp_path / name, expiry_seconds=0.05, **settings) as api:
            sent.clear()
            make_home(api, eileen=COLLINS)
            api.post(f"{HOME}/identify", files={"image": AGAIN}).raise_for_status()
            time.sleep(0.5)
            until(lambda: sent >= expected)
            threads = {thread.name for thread in threading.enumerate() if thread not in before}
            return {name for name in threads if not NUMBERED.search(name)}, set(sent)

    with listening(str(tmp_path), before_cursor_execute=note):
        on = used("on", frozenset({"sightings", "cameras", "webhooks"}), watching="on")
        off = used("off")
        features = [feature for feature in main.FEATURES if feature.setting != "watching"]
        monkeypatch.setattr(main, "FEATURES", tuple(features))
        assert len(features) == len(FEATURES) - 2, "itself and the page's form"
        without = used("without")
    assert off == without
    assert off[1] == set()
    assert {"webhooks", "background sightings", "background silent tracks"} <= on[0] - off[0]


@pytest.mark.long
def test_nothing_of_it_is_imported_while_it_is_off(tmp_path: Path) -> None:
    """But its setting, how it is loaded, and what deletes sightings that there are."""
    code = (
        "import sys; from pathlib import Path; from tests.support.service import running\n"
        "with running(Path(sys.argv[1])) as api: api.get('/v1/galleries').raise_for_status()\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('app.features.watching', 'paho', 'av.'))))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["app.features.watching", "app.features.watching.feature"]


def test_one_delivery_of_a_webhook_ends_before_the_next_begins() -> None:
    sending_to, sent, together = Counter[str](), list[str](), list[str]()

    class Stub:
        def due(self) -> list[str]:
            return ["a", "b"]

        def send(self, name: str, _stopping: threading.Event) -> None:
            sending_to[name] += 1
            if sending_to[name] > 1:
                together.append(name)
            time.sleep(0.05)
            sending_to[name] -= 1
            sent.append(name)

    stub: Any = Stub()
    sender = sending.Sender(stub, poll_s=0.005)
    until(lambda: len(sent) >= 8)
    sender.close()
    assert not together
    assert set(sent) == {"a", "b"}


def test_a_turn_is_one_servers(home: httpx.Client, receiver: Receiver, tmp_path: Path) -> None:
    """A second one has nothing to do with an event that is being sent."""
    receiver.hangs.set()
    made = hook(home, receiver)
    with receiver.listening():
        told(home, AGAIN)
        until(lambda: receiver.asked)
        with closing(Database(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}")) as database:
            other = Webhooks(database, None, LOCAL)  # type: ignore[arg-type]  # no secret is needed
            assert other.due() == []
            other.send(made["id"], threading.Event())
        assert receiver.asked == 1
        receiver.released.set()


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://ex\u2100mple.com/", "http://127.0.0.1:9/\x01", "http://127.0.0.1:99999/", "http:///events"],
)
def test_a_url_that_nothing_can_be_sent_to_is_refused(home: httpx.Client, url: str) -> None:
    error_of(home.post("/v1/webhooks", json={"url": url}), 422, "webhook_refused")


def test_names_that_no_gallery_and_no_camera_can_have_are_refused(home: httpx.Client, receiver: Receiver) -> None:
    for asked in ({"galleries": ["a\0b"]}, {"cameras": ["a\0b"]}):
        error_of(home.post("/v1/webhooks", json={"url": receiver.url} | asked), 422, "invalid_id")


@pytest.mark.parametrize(
    ("host", "named"),
    [("[::1]", "[::1]"), ("b\u00fccher.example", "xn--bcher-kva.example"), ("127.0.0.1", "127.0.0.1")],
)
def test_the_header_host_names_the_urls_host(receiver: Receiver, host: str, named: str) -> None:
    with receiver.listening():
        assert sending._send(f"http://{host}:{receiver.port}/events", "127.0.0.1", b"{}", {}) == 204
    [(headers, _)] = receiver.taken
    assert headers["host"] == f"{named}:{receiver.port}"
