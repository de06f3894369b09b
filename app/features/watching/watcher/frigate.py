"""Use Frigate as a source: the people it sees become tracks, by its snapshots and live frames; names become its
sub-labels.

Follows Frigate's documented MQTT messages (`frigate/events`, `frigate/tracked_object_update`, `frigate/stats`,
`frigate/available`) and HTTP interface (`/api/events/ID/snapshot.jpg`, `/api/events/ID/sub_label`, go2rtc's
`/api/frame.jpeg`); Frigate itself was not run.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import paho.mqtt.client as paho

from app.concurrency.threads import Worker
from app.errors import InvalidInput, LikenessError
from app.features.watching.broker import broker_client
from app.features.watching.watcher.camera import fetch_picture
from app.features.watching.watcher.looks import KEPT, Look, Looker, keep_best
from app.features.watching.watcher.reporter import Report, Reporter
from app.features.watching.watcher.tally import Tally

EVENTS, FACES, STATS, AVAILABLE = TOPICS = tuple(
    f"frigate/{name}" for name in ("events", "tracked_object_update", "stats", "available")
)
TIMEOUT_S: Final = 10.0
MOST: Final = 200
"""Maximum number of visits remembered, and of messages that wait; the oldest are dropped first."""
MOST_CAMERAS: Final = 64
LENGTH: Final = 100
"""Maximum characters of a camera's or zone's name, and of a sub-label that Frigate accepts."""
AGAIN: Final = 2
"""Number of usable looks at which a second decision is asked for. Messages come seconds apart, so waiting for more
would take long."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Said:
    """A message from Frigate about one person; times are seconds since 1970."""

    event: str
    camera: str
    began: float
    at: float
    snapshot: bool
    ended: bool
    zone: str | None = None


@dataclass(slots=True)
class _Visit:
    """A person whom Frigate tracks: the messages and the best looks so far."""

    first: _Said
    last: float
    best: list[Look] = field(default_factory=list)
    told: int = 0
    """Number of decisions asked for so far, at most two."""
    zone: str | None = None
    label: str = ""

    @property
    def track(self) -> str:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"frigate/{self.first.event}").hex


class Frigate:
    """Follows the people that Frigate tracks, in threads of its own, until it is closed."""

    def __init__(self, broker: str, api: str, looker: Looker, *, go2rtc: str | None = None) -> None:
        """``broker`` is `mqtt://user:password@host:port`, ``api`` Frigate's own address, ``go2rtc`` that of its live
        frames. Raises InvalidInput (``invalid_source``), InvalidSetting for addresses of another kind.
        """
        for address in (api, go2rtc or api):
            if urlsplit(address).scheme not in {"http", "https"} or not urlsplit(address).hostname:
                raise InvalidInput("Frigate's address is one such as http://host:5000.", code="invalid_source")
        self._api, self._go2rtc, self._looker = api.rstrip("/"), (go2rtc or "").rstrip("/"), looker
        self._http = httpx.Client(timeout=TIMEOUT_S)
        self._visits: OrderedDict[str, _Visit] = OrderedDict()
        self._due: OrderedDict[str, _Said] = OrderedDict()
        self._problems: dict[str, str | None] = {}
        """Why each camera that Frigate reported has no pictures; None if it has some."""
        self._tallies: dict[str, Tally] = defaultdict(Tally)
        self._away = False
        self._lock = threading.Lock()
        self._worker = Worker("frigate", self._take_next)
        self._client = broker_client(broker, "--mqtt", "likeness-watch")
        self._client.on_connect = lambda client, *_: client.subscribe([(topic, 1) for topic in TOPICS])
        self._client.on_message = self._heard

    def start(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._client.loop_start()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._worker.close(TIMEOUT_S)
        self._http.close()

    def reports(self) -> list[dict[str, Any]]:
        """Return each camera's state, in the form of `app.features.watching.schemas.CameraTold`."""
        now, away = time.monotonic(), "Frigate is offline" if self._away else None
        with self._lock:
            problems = dict(self._problems)
        return [
            {"name": name, "problem": away or problem} | self._tallies[name].report(now)
            for name, problem in problems.items()
        ]

    def answered(self, report: Report, sighting: Any) -> None:
        """Write a known person's name back to Frigate as the sub-label, or remove it if the decision changed."""
        with self._lock:
            visit = next((visit for visit in self._visits.values() if visit.track == report.track), None)
        if visit is None:
            return
        known = sighting.decision == "known"
        label = str(sighting.name or sighting.subject)[:LENGTH] if known else ""
        if label == visit.label:
            return
        body: dict[str, object] = {"subLabel": label, "camera": visit.first.camera}
        if known and sighting.score is not None and 0 < sighting.score <= 1:
            body["subLabelScore"] = sighting.score
        try:
            path = f"{self._api}/api/events/{quote(visit.first.event, safe='')}/sub_label"
            self._http.post(path, json=body).raise_for_status()
            visit.label = label
        except httpx.HTTPError as error:
            _log.warning("Frigate took no sub-label: %s", type(error).__name__)

    def _heard(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        if message.topic == AVAILABLE:
            self._away = message.payload == b"offline"
            return
        try:
            document = json.loads(message.payload)
            if message.topic == STATS:
                fps = {str(name)[:LENGTH]: camera["camera_fps"] for name, camera in document["cameras"].items()}
                names = list(fps)[:MOST_CAMERAS]
                with self._lock:
                    self._problems = {name: None if fps[name] else "no pictures in Frigate" for name in names}
                return
            said = _read(message.topic, document)
        except (ValueError, TypeError, KeyError, AttributeError):
            _log.warning("Frigate sent a message that its documentation does not have")
            return
        if said is None:
            return
        with self._lock:
            waiting = self._due.pop(said.event, None)
            self._due[said.event] = said if waiting is None or not waiting.ended else waiting
            if len(self._due) > MOST:
                self._due.popitem(last=False)
                _log.warning("Frigate sends faster than faces are found: a message was dropped")
        self._worker.wake()

    def _take_next(self) -> float | None:
        """Process the next message; return 0, the seconds until the next call, or None if there is no message."""
        with self._lock:
            if not self._due:
                return None
            _, said = self._due.popitem(last=False)
            visit = self._visits.setdefault(said.event, _Visit(said, said.began))
            if len(self._visits) > MOST:
                self._visits.popitem(last=False)
        visit.zone = said.zone or visit.zone
        self._take_face(visit, snapshot=said.snapshot, live=not said.ended)
        visit.last = max(visit.first.began, said.at)
        if visit.best and (not visit.told or (visit.told == 1 and len(visit.best) >= AGAIN)):
            visit.told += 1
            self._report(visit, visit.best, ended=said.ended)
        elif said.ended and visit.told:
            self._report(visit, [], ended=True)
        return 0.0

    def _report(self, visit: _Visit, looks: list[Look], *, ended: bool) -> None:
        camera, began = visit.first.camera, visit.first.began
        self._reporter.tell(Report(visit.track, camera, began, visit.last, ended, tuple(looks), visit.zone))

    def _take_face(self, visit: _Visit, *, snapshot: bool, live: bool) -> None:
        """Add the largest usable face of the snapshot to the visit's looks; without one, the live frame's only usable
        face."""
        looks: list[Look] = []
        if snapshot:
            path = f"{self._api}/api/events/{quote(visit.first.event, safe='')}/snapshot.jpg"
            looks = self._faces(visit.first.camera, path, {"crop": 1, "bbox": 0, "timestamp": 0, "quality": 95})
        if not looks and live and self._go2rtc and len(visit.best) < KEPT:
            found = self._faces(visit.first.camera, f"{self._go2rtc}/api/frame.jpeg", {"src": visit.first.camera})
            looks = found if len(found) == 1 else []  # of several people, it is unknown who Frigate means
        if looks:
            visit.best = keep_best(visit.best, max(looks, key=lambda look: look.box.width * look.box.height))

    def _faces(self, camera: str, address: str, query: dict[str, Any]) -> list[Look]:
        """Return the usable faces of the camera's picture at the address; none if there is no picture."""
        try:
            pixels = fetch_picture(self._http, address, query)
        except (httpx.HTTPError, LikenessError) as error:
            _log.info("Frigate has no picture: %s", type(error).__name__)
            return []
        looks = self._looker.detect(pixels, time.time(), turned=True)
        self._tallies[camera].add(looks, time.monotonic())
        return self._looker.embed([look for look in looks if look.usable])


def _read(topic: str, said: dict[str, Any]) -> _Said | None:
    """Return a message's content about a person; None if it is about something else.

    Raises TypeError, ValueError, KeyError or AttributeError for a message of another form.
    """
    now = time.time()
    if topic == FACES:  # sent when Frigate's own face recognition sees a face
        if said.get("type") != "face":
            return None
        return _Said(str(said["id"]), str(said["camera"])[:LENGTH], now, now, snapshot=True, ended=False)
    after = said["after"]
    if after["label"] != "person" or after.get("false_positive"):
        return None
    began, ended = float(after.get("start_time") or now), said["type"] == "end"
    at, zones = float(after.get("end_time") or now), after.get("current_zones") or after.get("entered_zones")
    zone, snapshot = str(zones[-1])[:LENGTH] if zones else None, bool(after.get("has_snapshot"))
    return _Said(str(after["id"]), str(after["camera"])[:LENGTH], began, at, snapshot, ended, zone)
