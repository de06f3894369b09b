"""Send events to webhooks, each at least once and in order, even if a receiver can't be reached for a long time.

The number of the last delivered event is written to SQL after the receiver has answered. If the server dies in between,
the event is sent again with the same id. Only one server at a time sends to a webhook: it takes a turn in SQL.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import secrets as random_secrets
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

import httpx
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.concurrency.threads import FailureLog, Worker
from app.db.engine import Database
from app.db.schema import EVENTS, GALLERIES, SUBJECTS, WEBHOOK_SUBJECTS, WEBHOOKS
from app.db.secrets import SecretStore
from app.errors import InvalidInput, NotFound
from app.features.watching.events import Event, aged, among, last_number, read_events
from app.features.watching.rows import Where
from app.features.watching.schemas import Webhook, WebhookCreate, WebhookSubject
from app.gallery.records import find_gallery, find_subject, lock_gallery, not_expired
from app.types import SKEW_S, utc_now, utc_seconds, utc_text

TIMEOUT_S: Final = 10.0
"""Seconds for one whole delivery."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""The first and the longest wait, in seconds, before an event is sent again; doubled each time. So a receiver that is
back gets its events within a minute."""
TURN_S: Final = 60.0
"""Seconds that a server's turn for a webhook lasts; then another server may take it over."""
SET_ASIDE_AFTER: Final = timedelta(days=1)
"""A webhook that has failed for this long is set aside until a person resumes it."""
REFUSED: Final = 5
"""Number of attempts after which an event that the receiver refuses (4xx) is skipped: it may accept the next one."""
TRY_AGAIN: Final = frozenset({408, 425, 429})
"""4xx statuses that don't refuse the event itself."""
POLL_S: Final = 0.5
"""Seconds between checks for new events."""
AT_ONCE: Final = 20
"""Events that are read at a time."""
MOST: Final = 50
"""Maximum number of webhooks: each has a thread while events are sent to it."""
REMEMBERED: Final = 10_000
"""Maximum combinations of webhook, kind, camera and person that are remembered for quiet times."""
SECRET_BYTES: Final = 32
PREFIX: Final = b"whsec_"
"""The beginning of a secret; the rest is base64."""
GIVEN_OUT: Final = ipaddress.ip_network("2000::/3")
"""The IPv6 addresses of the internet (RFC 4291, 2.4)."""
NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that a gateway translates to the IPv4 address in their last 32 bits (RFC 6052)."""
LAST_PORT: Final = 65_535
ACTIVE, ASIDE = "active", "set_aside"
_log = logging.getLogger(__name__)


class Webhooks:
    """Keeps webhooks and sends to them. Safe to share between threads, the database between servers."""

    def __init__(self, database: Database, secrets: SecretStore, networks: Sequence[str]) -> None:
        """Open the store; ``networks`` are private networks that may be sent to."""
        self._database, self._secrets = database, secrets
        self._allowed = [ipaddress.ip_network(network) for network in networks]
        self._sent: dict[int, float] = {}
        """When each webhook last got an event, in seconds since 1970, by a hash of kind, camera and person, so that no
        erased name stays in memory."""

    def add(self, asked: WebhookCreate) -> tuple[Webhook, str]:
        """Make a webhook for events from now on; return it with the secret that its events are signed with.

        Raises InvalidInput ``webhook_refused``, NotFound ``gallery_not_found``, ``subject_not_found``.
        """
        self.address_of(asked.url)
        webhook_id, now = uuid.uuid4().hex, utc_now()
        secret = PREFIX + base64.b64encode(random_secrets.token_bytes(SECRET_BYTES))
        values = {"id": webhook_id, "state": ACTIVE, "not_before": now, "created_at": now}
        for name, value in asked.model_dump(exclude={"subjects"}).items():
            values[name] = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
        with self._database.write() as connection:
            self._insert(connection, values, asked.subjects)
            self._secrets.put(connection, _name(webhook_id), secret)
        return self.find(webhook_id), secret.decode()

    def _insert(
        self, connection: Connection, values: Mapping[str, Any], subjects: Sequence[WebhookSubject] | None
    ) -> None:
        keys = set()
        for person in sorted(subjects or (), key=lambda person: person.gallery):
            gallery = lock_gallery(connection, find_gallery(connection, person.gallery))
            keys.add(find_subject(connection, gallery, person.subject).key)
        if len(connection.execute(sa.select(WEBHOOKS.c.key)).all()) >= MOST:
            raise InvalidInput(f"There are {MOST} webhooks at most.", code="webhook_refused")
        more = {"cursor": last_number(connection), "personal": subjects is not None}
        insert = sa.insert(WEBHOOKS).values({**values, **more}).returning(WEBHOOKS.c.key)
        made = connection.execute(insert).scalar_one()
        for key in keys:
            connection.execute(sa.insert(WEBHOOK_SUBJECTS).values(webhook_key=made, subject_key=key))

    def find(self, webhook_id: str) -> Webhook:
        """Return the webhook. Raises NotFound ``webhook_not_found``."""
        if found := self.all(WEBHOOKS.c.id == webhook_id):
            return found[0]
        raise _not_found(webhook_id)

    def all(self, *where: Where) -> list[Webhook]:
        """Return the webhooks for which ``where`` holds, oldest first."""
        ids = WEBHOOK_SUBJECTS.c.webhook_key, GALLERIES.c.id.label("gallery"), SUBJECTS.c.id.label("subject")
        people = sa.select(*ids).join_from(WEBHOOK_SUBJECTS, SUBJECTS).join(GALLERIES).where(not_expired())
        with self._database.read() as connection:
            rows = connection.execute(sa.select(WEBHOOKS).where(*where).order_by(WEBHOOKS.c.key)).all()
            mine = WEBHOOK_SUBJECTS.c.webhook_key.in_([row.key for row in rows if row.personal])
            named = connection.execute(people.where(mine).order_by(GALLERIES.c.id, SUBJECTS.c.id)).all()
        return [_webhook(row, (person for person in named if person.webhook_key == row.key)) for row in rows]

    def resume(self, webhook_id: str) -> Webhook:
        """Make the webhook active again, to continue after the last event it got. Raises NotFound
        ``webhook_not_found``."""
        self._update(webhook_id, {"state": ACTIVE, "attempts": 0, "failing_since": None, "not_before": utc_now()})
        return self.find(webhook_id)

    def delete(self, webhook_id: str) -> None:
        """Delete the webhook and its secret. Raises NotFound ``webhook_not_found``."""
        with self._database.write() as connection:
            if not connection.execute(sa.delete(WEBHOOKS).where(WEBHOOKS.c.id == webhook_id)).rowcount:
                raise _not_found(webhook_id)
            self._secrets.remove(connection, _name(webhook_id))

    def due(self) -> list[str]:
        """Return the ids of the webhooks that have events to send, are active and need not wait."""
        newest = sa.select(sa.func.coalesce(sa.func.max(EVENTS.c.number), 0)).scalar_subquery()
        return self._database.column(sa.select(WEBHOOKS.c.id).where(_free(), WEBHOOKS.c.cursor < newest))

    def send(self, webhook_id: str, stopping: threading.Event) -> None:
        """Send the webhook's next events one by one, until one fails, or half of the turn is over, or the server
        stops."""
        ends = time.monotonic() + TURN_S / 2
        turn = sa.update(WEBHOOKS).where(_free(), WEBHOOKS.c.id == webhook_id)
        with self._database.write(cached=False) as connection:
            if not connection.execute(turn.values(not_before=utc_now(timedelta(seconds=TURN_S)))).rowcount:
                return  # another server has the turn
        webhook = self.find(webhook_id)
        with self._database.read() as connection:
            newest = last_number(connection)
        while events := self._next(webhook):
            for event in events:
                if stopping.is_set() or time.monotonic() > ends:
                    events, newest = [], 0
                    break
                if not self._is_quiet(webhook, event):
                    if not self._deliver(webhook, event):
                        return
                    self._sent[_like(webhook, event)] = utc_seconds(event["at"])
                    webhook = webhook.model_copy(update={"attempts": 0, "failing_since": None})
                webhook = webhook.model_copy(update={"cursor": event["number"]})
            if len(events) < AT_ONCE:
                break
        self._update(webhook_id, {"cursor": max(webhook.cursor, newest), "not_before": utc_now()})

    def _next(self, webhook: Webhook) -> list[Event]:
        """Return the webhook's next events, at most AT_ONCE.

        A webhook for some people gets the events that name one of them, and each `name_changed` that takes such a name
        back, without the new name.
        """
        where, named = among(webhook.galleries, webhook.cameras, webhook.kinds), None
        if webhook.subjects is not None:
            mine = sa.select(SUBJECTS.c.key).join_from(WEBHOOK_SUBJECTS, SUBJECTS).join(WEBHOOKS)
            mine = mine.where(WEBHOOKS.c.id == webhook.id, not_expired())
            named, before = SUBJECTS.c.key.in_(mine), EVENTS.alias()
            same = (before.c.sighting_key == EVENTS.c.sighting_key) & (before.c.number < EVENTS.c.number)
            taken_back = (EVENTS.c.kind == "name_changed") & sa.exists().where(same & before.c.subject_key.in_(mine))
            where.append(EVENTS.c.subject_key.in_(mine) | taken_back)
        return read_events(self._database, webhook.cursor, AT_ONCE, where, named)

    def address_of(self, url: str) -> str:
        """Return an allowed IP address of the URL's host. Raises InvalidInput ``webhook_refused`` if there is none.
        Resolved for each delivery, since the name may have been moved to a machine in this network."""
        try:
            named = httpx.URL(url)
            found = socket.getaddrinfo(named.raw_host.decode(), named.port or 80, type=socket.SOCK_STREAM)
        except httpx.InvalidURL as error:
            raise InvalidInput("The webhook's URL can't be read.", code="webhook_refused") from error
        except (OSError, ValueError) as error:
            raise InvalidInput("The webhook's host has no address.", code="webhook_refused") from error
        if named.scheme not in {"http", "https"} or (named.port or 0) > LAST_PORT:
            raise InvalidInput("A webhook is an http or https address.", code="webhook_refused")
        for address in (str(entry[4][0]) for entry in found):
            if self._may_reach(address):
                return address
        message = "The webhook's address is private: LIKENESS_WEBHOOK_NETWORKS names those that may be sent to."
        raise InvalidInput(message, code="webhook_refused")

    def _may_reach(self, text: str) -> bool:
        address = ipaddress.ip_address(text.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            address = _carried(address)
        is_given_out = address.version == 4 or address in GIVEN_OUT
        is_public = is_given_out and address.is_global and not address.is_multicast
        return is_public or any(address in network for network in self._allowed)

    def _deliver(self, webhook: Webhook, event: Event) -> bool:
        """Send one event and store the outcome; return whether to go on with the next one."""
        problem, is_refusal = self._post(webhook, event)
        if problem is None:
            done = {"cursor": event["number"], "attempts": 0, "failing_since": None, "last_error": None}
            self._update(webhook.id, done | {"delivered_at": utc_now()})
            return True
        attempts = webhook.attempts + 1
        _log.warning("A webhook failed", extra={"fields": {"webhook": webhook.id, "problem": problem}})
        if is_refusal and attempts >= REFUSED:
            self._update(webhook.id, {"cursor": event["number"], "attempts": 0, "last_error": problem})
            return True
        now = datetime.now(UTC)
        since = webhook.failing_since or now
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempts - 1, 20))
        later = utc_now(timedelta(seconds=wait))
        values = {"attempts": attempts, "failing_since": utc_text(since), "last_error": problem, "not_before": later}
        if now - since >= SET_ASIDE_AFTER:
            values["state"] = ASIDE
        self._update(webhook.id, values)
        return False

    def _post(self, webhook: Webhook, event: Event) -> tuple[str | None, bool]:
        """Send the event; return the problem, or None, and whether the receiver refused the event itself."""
        body = json.dumps(aged(event, time.time()), ensure_ascii=False).encode()
        secret = self._secrets.get(_name(webhook.id)) or b""
        try:
            address = self.address_of(webhook.url)
            status = _send(webhook.url, address, body, signed_headers(secret, event["id"], body))
        except InvalidInput as error:
            return error.message, False
        except (httpx.HTTPError, OSError, ValueError) as error:
            return type(error).__name__, False
        if 200 <= status < 300:
            return None, False
        return f"status {status}", 400 <= status < 500 and status not in TRY_AGAIN

    def _is_quiet(self, webhook: Webhook, event: Event) -> bool:
        """Return whether a similar event was sent within the webhook's quiet time before or after this one. After is
        possible if the clock was set back or another server's clock differs."""
        if len(self._sent) >= REMEMBERED:
            self._sent.clear()
        last = self._sent.get(_like(webhook, event), -math.inf)
        return abs(utc_seconds(event["at"]) - last) < webhook.quiet_s

    def _update(self, webhook_id: str, values: dict[str, Any]) -> None:
        with self._database.write(cached=False) as connection:
            if not connection.execute(sa.update(WEBHOOKS).where(WEBHOOKS.c.id == webhook_id).values(values)).rowcount:
                raise _not_found(webhook_id)


class Sender:
    """A thread that looks for events, and a thread for each webhook that has some, so that a slow receiver delays no
    other."""

    def __init__(self, webhooks: Webhooks, poll_s: float = POLL_S) -> None:
        self._webhooks, self._poll_s = webhooks, poll_s
        self._failures = FailureLog("webhooks")
        self._stopping = threading.Event()
        self._sending: dict[str, threading.Thread] = {}
        self._worker = Worker("webhooks", self._begin_due, failures=self._failures)
        self._worker.wake(poll_s)

    def close(self) -> None:
        """Stop after the deliveries in progress, which take at most TIMEOUT_S."""
        self._stopping.set()
        self._worker.close(TIMEOUT_S)
        for thread in self._sending.values():
            thread.join(TIMEOUT_S)

    def _begin_due(self) -> float:
        self._sending = {name: thread for name, thread in self._sending.items() if thread.is_alive()}
        for webhook_id in set(self._webhooks.due()) - self._sending.keys():
            thread = threading.Thread(target=self._send, args=(webhook_id,), name="webhook", daemon=True)
            self._sending[webhook_id] = thread
            thread.start()
        return self._poll_s

    def _send(self, webhook_id: str) -> None:
        try:
            self._webhooks.send(webhook_id, self._stopping)
        except Exception as error:  # noqa: BLE001 - the thread's edge: logged, and tried again
            self._failures.failed(error)


def signed_headers(secret: bytes, event_id: str, body: bytes) -> dict[str, str]:
    """Return the headers of a delivery as Standard Webhooks specifies them: id, time, and the HMAC-SHA256 of
    ``id.time.body``, whose key are the secret's decoded bytes."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    at = str(int(time.time()))
    signed = hmac.digest(key, b".".join((event_id.encode(), at.encode(), body)), hashlib.sha256)
    return {
        "content-type": "application/json",
        "user-agent": "Likeness",
        "webhook-id": event_id,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


_trusted = cache(httpx.create_ssl_context)
"""Returns the TLS context of deliveries, made only once: reading the trusted certificates takes longer than most
deliveries."""


def _send(url: str, address: str, body: bytes, headers: dict[str, str]) -> int:
    """Post to this IP address, with the URL's host name for TLS and the host header; return the status. Redirects are
    not followed, and only the answer's head is read."""
    named = httpx.URL(url)
    target, name = named.copy_with(host=address), named.raw_host.decode()
    headers = headers | {"host": named.netloc.decode()}
    with (
        httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False, verify=_trusted()) as client,
        client.stream("POST", target, content=body, headers=headers, extensions={"sni_hostname": name}) as response,
    ):
        return response.status_code


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address contains (NAT64, mapped, 6to4); without one, the address itself."""
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _free() -> Where:
    """Return the SQL condition for webhooks that are active, not waiting, and in no server's turn. One that seems to
    wait longer than any wait or turn lasts is free too: the clock was set back."""
    put_back = WEBHOOKS.c.not_before > utc_now(timedelta(seconds=max(TURN_S, LONGEST_WAIT_S) + SKEW_S))
    return (WEBHOOKS.c.state == ACTIVE) & ((WEBHOOKS.c.not_before <= utc_now()) | put_back)


def _like(webhook: Webhook, event: Event) -> int:
    who = event["subject"] or event["stranger"] or ""
    return hash((webhook.id, event["event"], event["gallery"], event["camera"], who))


def _webhook(row: Row[Any], named: Iterable[Any]) -> Webhook:
    lists = {name: json.loads(getattr(row, name) or "null") for name in ("kinds", "galleries", "cameras")}
    subjects = [{"gallery": person.gallery, "subject": person.subject} for person in named] if row.personal else None
    return Webhook.of(row, subjects=subjects, **lists)


def _name(webhook_id: str) -> str:
    return f"webhook/{webhook_id}"


def _not_found(webhook_id: str) -> NotFound:
    return NotFound(f"There is no webhook {webhook_id!r}.", code="webhook_not_found", webhook=webhook_id)
