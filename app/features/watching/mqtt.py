"""Publish events, and who is in front of which camera, to an MQTT broker, in the form that Home Assistant discovers.

Events are published with QoS 1 and contain their id. The number of the last published event is kept in SQL, so that
none is lost while the broker is away. States are retained messages computed from the sightings, one for each person and
one for each camera. Topics contain no names; the topics of a deleted person are removed.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, get_args

import paho.mqtt.client as paho
import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.choices import EventKind
from app.concurrency.threads import Worker
from app.db.engine import Database
from app.db.schema import EVENT_CURSORS, GALLERIES, SIGHTINGS, SUBJECTS
from app.errors import LikenessError
from app.features.watching.broker import broker_client
from app.features.watching.events import Event, aged, last_number, read_events
from app.features.watching.rows import ROWS, to_stored
from app.gallery.records import not_expired
from app.gallery.store import Store
from app.types import SKEW_S, utc_now

ROOT: Final = "likeness"
STATUS: Final = f"{ROOT}/status"
DISCOVERY: Final = "homeassistant"
NAME: Final = "mqtt"
"""Name of the cursor in SQL."""
TURN_S: Final = 15.0
"""Seconds after which another server publishes if this one does not renew its turn."""
POLL_S: Final = 0.5
ACK_S: Final = 10.0
"""Maximum seconds until the broker acknowledges an event."""
AT_ONCE: Final = 50
PICTURE: Final = "picture"
STATES_S: Final = 10.0
"""Seconds between publications of the states if there are no events, since people may expire, or be erased or
renamed."""


class Publisher:
    """Publishes events and states from threads of its own until it is closed."""

    def __init__(self, url: str, store: Store) -> None:
        """Start the threads. Raises InvalidSetting if the URL is not a broker's."""
        self._database, self._blobs = store.database, store.blobs
        self._owner = uuid.uuid4().hex
        self._stopping, self._stale = threading.Event(), threading.Event()
        self._retained: dict[str, str] = {}
        """The messages that this process has published, by topic, so that only changes are sent; for a picture, its
        sighting's id and number of photos."""
        self._states_at = 0.0
        self._client = broker_client(url, "LIKENESS_MQTT", ROOT)
        self._client.will_set(STATUS, "offline", qos=1, retain=True)
        self._client.on_connect, self._client.on_message = self._connected, self._heard
        self._client.loop_start()
        self._worker = Worker("mqtt", self._publish_in_turn)
        self._worker.wake(POLL_S)

    def close(self) -> None:
        """Publish that the server is gone, and disconnect."""
        self._stopping.set()
        self._worker.close(ACK_S)
        self._client.publish(STATUS, "offline", qos=1, retain=True)
        self._client.disconnect()
        self._client.loop_stop()

    def _publish_in_turn(self) -> float:
        if self._take_turn() and self._client.is_connected():
            try:
                self._publish()
            except Exception:
                self._stale.set()
                raise
        return POLL_S

    def _publish(self) -> None:
        """Publish the states that have changed, and the next events."""
        [last] = self._database.column(sa.select(EVENT_CURSORS.c.number).where(EVENT_CURSORS.c.name == NAME))
        events = read_events(self._database, last, AT_ONCE)
        if events or self._stale.is_set() or time.monotonic() >= self._states_at:
            self._stale.clear()
            self._publish_states()
            self._states_at = time.monotonic() + STATES_S
        for event in events:
            if self._stopping.is_set():
                return
            self._publish_event(event)
            self._move_cursor(event["number"])

    def _publish_event(self, event: Event) -> None:
        payload = json.dumps({"event_type": event["event"]} | aged(event, time.time()), ensure_ascii=False)
        topic = f"{ROOT}/cameras/{_camera_token(event['gallery'], event['camera'])}/event"
        sent = self._client.publish(topic, payload, qos=1)
        sent.wait_for_publish(ACK_S)
        if not sent.is_published():
            raise LikenessError("The broker does not take events.")

    def _publish_states(self) -> None:
        wanted: dict[str, str] = {STATUS: "online"}
        for person in _people(self._database):
            wanted |= _person_topics(person)
        cameras = _cameras(self._database)
        named = Counter(camera for _, camera in cameras)
        for (gallery, camera), there in cameras.items():
            device = camera if named[camera] == 1 else f"{camera} ({gallery})"
            wanted |= _camera_topics(gallery, camera, device, there)
        for topic in self._retained.keys() - wanted.keys():
            self._client.publish(topic, "", qos=1, retain=True)  # an empty message deletes what the broker retains
            self._retained.pop(topic, None)
        for topic, payload in wanted.items():
            if self._retained.get(topic) != payload:
                sent = self._crop(payload) if topic.endswith(f"/{PICTURE}") else payload
                self._client.publish(topic, sent, qos=1, retain=True)
                self._retained[topic] = payload

    def _crop(self, which: str) -> bytes | None:
        """Return the JPEG of a sighting's crop; None if it was deleted meanwhile. ``which`` begins with the sighting's
        id."""
        rows = self._database.rows(ROWS.where(SIGHTINGS.c.id == which.partition(" ")[0]))
        return to_stored(rows[0], self._blobs).crop if rows else None

    def _connected(self, client: paho.Client, *_: object) -> None:
        """Subscribe to the service's retained messages, so that outdated ones can be removed, and to Home Assistant's
        status."""
        self._retained.clear()
        topics = STATUS, f"{ROOT}/+/+/state", f"{ROOT}/+/+/{PICTURE}", f"{DISCOVERY}/+/+/config", f"{DISCOVERY}/status"
        client.subscribe([(topic, 1) for topic in topics])
        self._stale.set()

    def _heard(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        is_own = message.topic.startswith(f"{ROOT}/") or f"/{ROOT}_" in message.topic
        if message.topic == STATUS:
            if message.payload == b"offline" and self._retained.pop(STATUS, ""):  # another server's last message
                self._stale.set()
        elif message.topic == f"{DISCOVERY}/status":
            if message.payload == b"online":
                self._retained.clear()
                self._stale.set()
        elif is_own and message.retain and message.payload:
            self._retained.setdefault(message.topic, "")
            self._stale.set()

    def _take_turn(self) -> bool:
        """Take or renew the turn to publish, which only one server has at a time; return whether this server has it."""
        now, until = utc_now(), utc_now(timedelta(seconds=TURN_S))
        # No turn lasts that long: the clock was set back, so the turn counts as free.
        put_back = EVENT_CURSORS.c.until > utc_now(timedelta(seconds=TURN_S + SKEW_S))
        free = (EVENT_CURSORS.c.owner == self._owner) | (EVENT_CURSORS.c.until < now) | put_back
        turn = sa.update(EVENT_CURSORS).where((EVENT_CURSORS.c.name == NAME) & free)
        held = self._database.rows(sa.select(EVENT_CURSORS.c.owner, EVENT_CURSORS.c.until))
        if held and held[0].owner == self._owner and held[0].until > utc_now(timedelta(seconds=TURN_S / 2)):
            return True
        with self._database.write(cached=False) as connection:
            values = {"name": NAME, "number": last_number(connection), "owner": self._owner, "until": until}
            connection.execute(self._database.insert(EVENT_CURSORS).values(values).on_conflict_do_nothing())
            taken = connection.execute(turn.values(owner=self._owner, until=until)).rowcount
        return bool(taken)

    def _move_cursor(self, number: int) -> None:
        with self._database.write(cached=False) as connection:
            move = sa.update(EVENT_CURSORS).where(EVENT_CURSORS.c.name == NAME)
            connection.execute(move.values(number=number, until=utc_now(timedelta(seconds=TURN_S))))


def _people(database: Database) -> Sequence[Row[Any]]:
    """Return a row for each known person with sightings: the newest sighting, and whether any of them has not ended."""
    person, is_open = SIGHTINGS.c.subject_key, sa.case((SIGHTINGS.c.ended.is_(False), 1), else_=0)
    query = ROWS.with_only_columns(
        GALLERIES.c.id.label("gallery"),
        SUBJECTS.c.id.label("subject"),
        SUBJECTS.c.name,
        SIGHTINGS.c.camera,
        SIGHTINGS.c.last_at.label("seen_at"),
        sa.case((SIGHTINGS.c.crop.is_not(None), SIGHTINGS.c.id)).label("pictured"),
        SIGHTINGS.c.frames,
        sa.func.max(is_open).over(partition_by=person).label("present"),
        sa.func.row_number().over(partition_by=person, order_by=SIGHTINGS.c.last_at.desc()).label("place"),
    )
    known = query.where(SIGHTINGS.c.decision == "known", SUBJECTS.c.key.is_not(None)).subquery()
    return database.rows(sa.select(known).where(known.c.place == 1))


def _cameras(database: Database) -> dict[tuple[str, str], list[str]]:
    """Return who is in front of each camera with sightings, by gallery and camera: names, and `unknown` for unknown
    people."""
    columns = GALLERIES.c.id, SIGHTINGS.c.camera
    cameras = sa.select(*columns).join_from(SIGHTINGS, GALLERIES).distinct()
    there: dict[tuple[str, str], list[str]] = {(gallery, camera): [] for gallery, camera in database.rows(cameras)}
    named = sa.func.coalesce(SUBJECTS.c.name, SUBJECTS.c.id).label("who")
    known = sa.and_(SIGHTINGS.c.subject_key == SUBJECTS.c.key, SIGHTINGS.c.decision == "known", not_expired())
    query = sa.select(*columns, named).join_from(SIGHTINGS, GALLERIES).outerjoin(SUBJECTS, known)
    open_ = SIGHTINGS.c.ended.is_(False) & SIGHTINGS.c.said.is_not(None)
    for row in database.rows(query.where(open_).order_by(SIGHTINGS.c.key)):
        there[row.id, row.camera].append(row.who or "unknown")
    return there


def _person_topics(person: Row[Any]) -> dict[str, str]:
    token = _token(f"{person.gallery}\0{person.subject}")
    topic = f"{ROOT}/people/{token}/state"
    state = {name: getattr(person, name) for name in ("seen_at", "camera", "gallery", "subject", "name")}
    state["present"] = "ON" if person.present else "OFF"
    entity = partial(_entity, token, person.name or person.subject)
    present = {"name": None, "device_class": "occupancy", "value_template": "{{ value_json.present }}"}
    seen = {"name": "Last seen", "device_class": "timestamp", "value_template": "{{ value_json.seen_at }}"}
    where = {"name": "Camera", "icon": "mdi:cctv", "value_template": "{{ value_json.camera }}"}
    picture = f"{ROOT}/people/{token}/{PICTURE}"
    return {
        topic: json.dumps(state),
        **entity("binary_sensor", "present", present | {"state_topic": topic, "json_attributes_topic": topic}),
        **entity("sensor", "seen", seen | {"state_topic": topic}),
        **entity("sensor", "where", where | {"state_topic": topic}),
        **entity("image", PICTURE, {"name": "Picture", "image_topic": picture}),
        **({picture: f"{person.pictured} {person.frames}"} if person.pictured else {}),
    }


def _camera_topics(gallery: str, camera: str, device: str, there: list[str]) -> dict[str, str]:
    token = _camera_token(gallery, camera)
    topic = f"{ROOT}/cameras/{token}/state"
    entity = partial(_entity, token, device)
    names = "{{ value_json.who | join(', ') }}"
    who = {"name": "Who is there", "icon": "mdi:account-group", "value_template": names, "state_topic": topic}
    event = {"name": "Faces", "event_types": get_args(EventKind), "state_topic": f"{ROOT}/cameras/{token}/event"}
    return {
        topic: json.dumps({"camera": camera, "gallery": gallery, "who": there, "count": len(there)}),
        **entity("sensor", "who", who),
        **entity("event", "event", event),
    }


def _entity(token: str, device: str, kind: str, word: str, fields: Mapping[str, object]) -> dict[str, str]:
    """Return the discovery topic and message of a device's entity. ``kind``: Home Assistant's word, such as `sensor`;
    ``word`` makes the entity's id unique in its device."""
    unique = f"{ROOT}_{token}_{word}"
    common = {
        "unique_id": unique,
        "availability_topic": STATUS,
        "device": {"identifiers": [f"{ROOT}_{token}"], "name": device, "manufacturer": "Likeness"},
    }
    return {f"{DISCOVERY}/{kind}/{unique}/config": json.dumps(common | dict(fields))}


def _camera_token(gallery: str, camera: str) -> str:
    """Return the token of a gallery's camera, which no person's is: ids have no zero character."""
    return _token(f"{gallery}\0camera\0{camera}")


def _token(text: str) -> str:
    """Return the hash that stands for a camera or a person in topics, which don't allow every character."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
