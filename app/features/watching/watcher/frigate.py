"""Frigate as a source: whom it sees, its snapshots and its live frames become tracks, and names become its sub-labels.

Follows Frigate's documented MQTT messages (`frigate/events`, `frigate/tracked_object_update`) and HTTP interface
(`/api/events/ID/snapshot.jpg`, `/api/events/ID/sub_label`, go2rtc's `/api/frame.jpeg`); Frigate itself was not run.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import paho.mqtt.client as paho

from app.errors import InvalidInput, LikenessError
from app.face.formats import Limits
from app.face.image import decode
from app.features.watching.broker import broker_client
from app.features.watching.watcher.looks import KEPT, Look, Looker, keep_best
from app.features.watching.watcher.reporter import Report, Reporter

TOPICS: Final = ("frigate/events", "frigate/tracked_object_update")
SNAPSHOT: Final = Limits(max_bytes=16 * 1024 * 1024)
TIMEOUT_S: Final = 10.0
MOST: Final = 200
"""Visits that are remembered, and messages that wait; the oldest go first."""
CAMERA_LENGTH: Final = 100
LABEL_LENGTH: Final = 100
"""Characters of a sub-label that Frigate takes."""
AGAIN: Final = 2
"""Usable looks with which the decision is made again: messages come seconds apart, so more would come late."""
HTTP: Final = frozenset({"http", "https"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Said:
    """A message's words on a person: times in seconds since 1970."""

    event: str
    camera: str
    began: float
    at: float
    snapshot: bool
    ended: bool


@dataclass(slots=True)
class _Visit:
    """Keep what is known of one of Frigate's persons."""

    event: str
    camera: str
    began: float
    last: float
    best: list[Look] = field(default_factory=list)
    told: int = 0
    """Decisions asked for: one at the first look, and one more."""
    label: str = ""

    @property
    def track(self) -> str:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"frigate/{self.event}").hex


class Frigate:
    """Follows a Frigate's persons in threads of its own, until it is closed."""

    def __init__(self, broker: str, api: str, looker: Looker, *, go2rtc: str | None = None) -> None:
        """``broker`` is `mqtt://user:password@host:port`, ``api`` Frigate's own address, ``go2rtc`` that of its live
        frames. Raises InvalidInput (``invalid_source``), InvalidSetting for addresses of another kind.
        """
        for address in (api, go2rtc or api):
            if urlsplit(address).scheme not in HTTP or not urlsplit(address).hostname:
                raise InvalidInput("Frigate's address is one such as http://host:5000.", code="invalid_source")
        self._api, self._go2rtc, self._looker = api.rstrip("/"), (go2rtc or "").rstrip("/"), looker
        self._http = httpx.Client(timeout=TIMEOUT_S)
        self._visits: OrderedDict[str, _Visit] = OrderedDict()
        self._due: OrderedDict[str, _Said] = OrderedDict()
        self._changed = threading.Condition()
        self._closing = False
        self._reporter: Reporter | None = None
        self._thread = threading.Thread(target=self._run, name="frigate", daemon=True)
        self._client = broker_client(broker, "--mqtt", "likeness-watch")
        self._client.on_connect = lambda client, *_: client.subscribe([(topic, 1) for topic in TOPICS])
        self._client.on_message = self._heard

    def start(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._thread.start()
        self._client.loop_start()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(TIMEOUT_S)
        self._http.close()

    def answered(self, report: Report, sighting: Any) -> None:
        """Write the name of a known person back as the sub-label, and take it back if it was wrong."""
        with self._changed:
            visit = next((each for each in self._visits.values() if each.track == report.track), None)
        if visit is None:
            return
        known = sighting.decision == "known"
        label = str(sighting.name or sighting.subject)[:LABEL_LENGTH] if known else ""
        if label == visit.label:
            return
        body: dict[str, object] = {"subLabel": label, "camera": visit.camera}
        if known and sighting.score is not None and 0 < sighting.score <= 1:
            body["subLabelScore"] = sighting.score
        try:
            path = f"{self._api}/api/events/{quote(visit.event, safe='')}/sub_label"
            self._http.post(path, json=body).raise_for_status()
            visit.label = label
        except httpx.HTTPError as error:
            _log.warning("Frigate took no sub-label: %s", type(error).__name__)

    def _heard(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        try:
            said = _read(message.topic, json.loads(message.payload))
        except (ValueError, TypeError, KeyError, AttributeError):
            _log.warning("Frigate sent a message that its documentation does not have")
            return
        if said is None:
            return
        with self._changed:
            waiting = self._due.pop(said.event, None)
            self._due[said.event] = said if waiting is None or not waiting.ended else waiting
            if len(self._due) > MOST:
                self._due.popitem(last=False)
                _log.warning("Frigate sends faster than faces are found: a message was dropped")
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closing)
                if self._closing:
                    return
                _, said = self._due.popitem(last=False)
            try:
                self._take(said)
            except Exception:  # noqa: BLE001 - the thread's edge: one message is lost, not the source
                _log.exception("A message of Frigate's could not be used")

    def _take(self, said: _Said) -> None:
        visit = self._visit(said)
        self._look(visit, snapshot=said.snapshot, live=not said.ended)
        visit.last = max(visit.began, said.at)
        if visit.best and (not visit.told or (visit.told == 1 and len(visit.best) >= AGAIN)):
            visit.told += 1
            self._report(visit, visit.best, ended=said.ended)
        elif said.ended and visit.told:
            self._report(visit, [], ended=True)

    def _report(self, visit: _Visit, looks: list[Look], *, ended: bool) -> None:
        if self._reporter is not None:
            self._reporter.tell(Report(visit.track, visit.camera, visit.began, visit.last, ended, tuple(looks)))

    def _visit(self, said: _Said) -> _Visit:
        with self._changed:
            visit = self._visits.setdefault(said.event, _Visit(said.event, said.camera, said.began, said.began))
            if len(self._visits) > MOST:
                self._visits.popitem(last=False)
            return visit

    def _look(self, visit: _Visit, *, snapshot: bool, live: bool) -> None:
        """Add the usable face of the snapshot, or else of the live frame."""
        looks: list[Look] = []
        if snapshot:
            path = f"{self._api}/api/events/{quote(visit.event, safe='')}/snapshot.jpg"
            looks = self._faces(path, {"crop": 1, "bbox": 0, "timestamp": 0, "quality": 95})
        if not looks and live and self._go2rtc and len(visit.best) < KEPT:
            found = self._faces(f"{self._go2rtc}/api/frame.jpeg", {"src": visit.camera})
            looks = found if len(found) == 1 else []  # of several people nothing says which one it is
        if looks:
            visit.best = keep_best(visit.best, max(looks, key=lambda look: look.box.width * look.box.height))

    def _faces(self, address: str, query: dict[str, Any]) -> list[Look]:
        """Return the usable faces of the picture at the address; none if there is no picture."""
        try:
            answer = self._http.get(address, params=query)
            answer.raise_for_status()
            pixels = decode(answer.content, SNAPSHOT).pixels
        except (httpx.HTTPError, LikenessError) as error:
            _log.info("Frigate has no picture: %s", type(error).__name__)
            return []
        return [look for look in self._looker.look(pixels, time.time()) if look.usable]


def _read(topic: str, said: dict[str, Any]) -> _Said | None:
    """Return what a message says of a person; None if it is about something else.

    Raises TypeError, ValueError, KeyError or AttributeError for a message of another form.
    """
    now = time.time()
    if topic != TOPICS[0]:  # Frigate's own face recognition sees a face now
        is_face = said.get("type") == "face"
        return _Said(str(said["id"]), _camera(said), now, now, snapshot=True, ended=False) if is_face else None
    after = said["after"]
    if after["label"] != "person" or after.get("false_positive"):
        return None
    began, ended = float(after.get("start_time") or now), said["type"] == "end"
    at = float(after.get("end_time") or now)
    return _Said(str(after["id"]), _camera(after), began, at, snapshot=bool(after.get("has_snapshot")), ended=ended)


def _camera(said: dict[str, Any]) -> str:
    return str(said["camera"])[:CAMERA_LENGTH]
