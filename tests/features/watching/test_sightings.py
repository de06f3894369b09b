"""A track becomes a sighting and events, once, whatever is told again; and goes without a trace."""

from __future__ import annotations

import io
import sqlite3
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from app import main
from app.db.engine import Database
from app.features.corrections.routes import FEATURE as CORRECTIONS
from app.features.erasure.erasing import NOT_REACHED_EVENTS, NOT_REACHED_SIGHTINGS
from app.features.watching import mqtt
from app.types import utc_now
from tests.support.calibrating import add_random_people, calibrate
from tests.support.following import let_expire
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, encoded, enrolled, error_of, running, running_here
from tests.support.sighted import HOME, events_of, make_home, tell, told
from tests.support.waiting import until


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def home(data_dir: Path) -> Iterator[httpx.Client]:
    """A service with the gallery `home`, in which Eileen Collins is enrolled."""
    with running(data_dir, watching="on", stranger_days=3) as api:
        make_home(api, eileen=COLLINS)
        yield api


def kinds_of(data_dir: Path) -> list[tuple[str, str | None]]:
    return [(str(event["event"]), event["subject"]) for event in events_of(data_dir)]


def test_a_known_person_is_said_at_the_first_good_photo_and_once(home: httpx.Client, data_dir: Path) -> None:
    seen = told(home, AGAIN)
    assert (seen["decision"], seen["subject"], seen["frames"], seen["ended"]) == ("known", "eileen", 1, False)
    again = told(home, AGAIN, AGAIN, sighting=seen["id"])
    assert (again["id"], again["frames"]) == (seen["id"], 2)
    told(home, AGAIN, sighting=seen["id"], ended=True)
    told(home, AGAIN, sighting=seen["id"], ended=True)
    assert kinds_of(data_dir) == [("person_seen", "eileen"), ("left", "eileen")]
    listed = home.get(f"{HOME}/sightings").raise_for_status().json()["sightings"]
    assert [row["id"] for row in listed] == [seen["id"]]


def test_unknown_is_said_after_two_good_photos(home: httpx.Client, data_dir: Path) -> None:
    seen = told(home, HOPPER)
    assert (seen["decision"], seen["stranger"]) == ("unknown", None)
    assert kinds_of(data_dir) == []
    told(home, HOPPER, HOPPER, sighting=seen["id"])
    assert kinds_of(data_dir) == [("unknown_seen", None)]


def test_a_track_is_decided_as_identify_decides_it(home: httpx.Client) -> None:
    """With `track=true`, and by the gallery's own operating points where these decide."""
    home.post("/v1/galleries", json={"id": "own"}).raise_for_status()
    enrolled(home, "/v1/galleries/own", "eileen", COLLINS)
    add_random_people(home, "own")
    decided = []
    for calibrated in (False, True):
        if calibrated:
            calibrate(home, "own")
        files = [("image", photo) for photo in (AGAIN, BOTH)]
        asked = home.post("/v1/galleries/own/identify", files=files, data={"track": "true"}).raise_for_status().json()
        [face] = asked["faces"]
        seen = told(home, AGAIN, BOTH, gallery="own")
        assert (seen["decision"], seen["subject"], seen["frames"]) == (face["decision"], "eileen", 2)
        assert (seen["threshold"], seen["fpir"]) == (pytest.approx(face["threshold"]), pytest.approx(asked["fpir"]))
        decided.append(seen["threshold"])
    assert decided[0] != decided[1], "the gallery's own points are others"


def test_a_photo_without_a_usable_face_is_no_sighting(home: httpx.Client) -> None:
    small = Image.open(io.BytesIO(HOPPER)).convert("RGB").resize((9, 11))
    blurred = np.asarray(small.resize((480, 576)))
    nothing = encoded(np.full((200, 200, 3), 90, np.uint8))
    for photo in (nothing, encoded(blurred)):
        error_of(tell(home, photo), 422, "no_face")
    assert home.get(f"{HOME}/sightings").json()["sightings"] == []


def test_a_decision_is_revised_once_and_does_not_flap(home: httpx.Client, data_dir: Path) -> None:
    seen = told(home, HOPPER, HOPPER)
    told(home, COLLINS, AGAIN, sighting=seen["id"])
    back = told(home, HOPPER, HOPPER, HOPPER, sighting=seen["id"])
    assert (back["decision"], back["subject"]) == ("known", "eileen")
    assert kinds_of(data_dir) == [("unknown_seen", None), ("name_changed", "eileen")]


def test_what_a_person_has_said_stays(home: httpx.Client, data_dir: Path) -> None:
    seen = told(home, AGAIN)
    wrong = home.post(f"{HOME}/sightings/{seen['id']}/who", json={"subject": None}).raise_for_status().json()
    assert (wrong["decision"], wrong["subject"]) == ("unknown", None)
    assert told(home, AGAIN, AGAIN, sighting=seen["id"])["decision"] == "unknown"
    assert kinds_of(data_dir) == [("person_seen", "eileen"), ("name_changed", None)]
    corrections = home.get(f"{HOME}/subjects/eileen/corrections").json()["corrections"]
    assert len(corrections) == 1
    assert told(home, AGAIN)["decision"] != "known", "the correction keeps the same face from being taken for her"


def test_a_denial_is_taken_back_by_naming_the_person(home: httpx.Client) -> None:
    """And its correction with it, whose face is hers; a correction of another sighting stays."""
    first, second = told(home, AGAIN), told(home, AGAIN, camera="garden")
    for seen in (first, second):
        home.post(f"{HOME}/sightings/{seen['id']}/who", json={"subject": None}).raise_for_status()

    home.patch(f"{HOME}/subjects/eileen", json={"id": "eileen-c"}).raise_for_status()
    for seen, left in ((first, 1), (second, 0)):  # of two
        home.post(f"{HOME}/sightings/{seen['id']}/who", json={"subject": "eileen-c"}).raise_for_status()
        assert len(home.get(f"{HOME}/subjects/eileen-c/corrections").json()["corrections"]) == left
    assert told(home, AGAIN)["subject"] == "eileen-c"


def test_what_a_person_has_said_ends_also_without_the_feature_that_corrects(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [feature for feature in main.FEATURES if feature is not CORRECTIONS]
    monkeypatch.setattr(main, "FEATURES", others)
    with (
        running(data_dir, watching="on", expiry_seconds=0.1) as api,
        closing(sqlite3.connect(data_dir / "likeness.db")) as database,
    ):
        make_home(api, eileen=COLLINS)
        seen = told(api, AGAIN)
        api.post(f"{HOME}/sightings/{seen['id']}/who", json={"subject": None}).raise_for_status()
        count = "SELECT count(*) FROM corrections"
        assert database.execute(count).fetchone() == (1,)
        database.execute("UPDATE corrections SET expires_at = '2026-01-01T00:00:00.000000Z'")
        database.commit()
        until(lambda: database.execute(count).fetchone() == (0,))


def test_this_is_somebody_enrolls_only_when_it_is_asked(home: httpx.Client) -> None:
    seen = told(home, HOPPER, HOPPER)
    who = f"{HOME}/sightings/{seen['id']}/who"
    error_of(home.post(who, json={"subject": "grace"}), 404, "subject_not_found")
    named = home.post(who, json={"subject": "grace", "enroll": True}).raise_for_status().json()
    assert (named["decision"], named["subject"]) == ("known", "grace")
    assert home.get(f"{HOME}/subjects/grace").json()["face_count"] == 1
    assert told(home, HOPPER)["subject"] == "grace"


def test_an_id_is_one_track_of_one_camera(home: httpx.Client) -> None:
    seen = told(home, AGAIN)
    error_of(tell(home, AGAIN, sighting=seen["id"], camera="garden"), 409, "sighting_taken")
    home.post("/v1/galleries", json={"id": "other"}).raise_for_status()
    error_of(tell(home, AGAIN, sighting=seen["id"], gallery="other"), 409, "sighting_taken")
    error_of(tell(home, *[AGAIN] * 9), 422, "too_many_images")
    error_of(home.get(f"{HOME}/sightings/{uuid.uuid4().hex}"), 404, "sighting_not_found")


@pytest.mark.parametrize("name", ["a\nb", "a\0b", " door"])
def test_a_cameras_name_is_one_visible_line(home: httpx.Client, name: str) -> None:
    error_of(tell(home, AGAIN, camera=name), 422, "invalid_id")
    error_of(home.put(f"{HOME}/cameras", json={"cameras": [{"name": name}]}), 422, "invalid_id")


def test_a_cameras_name_is_one_however_it_is_composed(home: httpx.Client) -> None:
    """As the names of files from macOS are, in NFD."""
    composed, split = (unicodedata.normalize(form, "Tür") for form in ("NFC", "NFD"))
    visit = told(home, AGAIN, camera=split, zone=split)
    assert (visit["camera"], visit["zone"]) == (composed, composed)
    home.put(f"{HOME}/cameras", json={"cameras": [{"name": split}]}).raise_for_status()
    assert [camera["name"] for camera in home.get(f"{HOME}/cameras").json()["cameras"]] == [composed]
    for name in (composed, split):
        [found] = home.get(f"{HOME}/sightings", params={"camera": name}).json()["sightings"]
        assert found["id"] == visit["id"]
        assert '"person_seen"' in home.get("/v1/events", params={"after": 0, "seconds": 0, "camera": name}).text


def test_sightings_are_listed_by_person_camera_time_and_decision(home: httpx.Client) -> None:
    first = told(home, AGAIN, camera="door")
    second = told(home, HOPPER, HOPPER, camera="garden", ago_s=0)

    def listed(**wanted: Any) -> list[str]:
        answer = home.get(f"{HOME}/sightings", params=wanted).raise_for_status().json()
        return [row["id"] for row in answer["sightings"]]

    assert listed() == [second["id"], first["id"]]
    assert listed(subject="eileen") == listed(camera="door") == listed(decision="known") == [first["id"]]
    assert listed(stranger=second["stranger"]) == listed(decision="unknown") == [second["id"]]
    assert listed(since=utc_now(timedelta(hours=1))) == listed(until=utc_now(timedelta(hours=-1))) == []
    assert home.delete(f"{HOME}/sightings", params={"camera": "garden"}).json() == {"deleted": 1}
    assert listed() == [first["id"]]
    assert home.get(f"{HOME}/strangers").json()["strangers"] == [], "a stranger goes with the last sighting"


def test_a_zone_is_told_with_the_sighting_and_its_events(home: httpx.Client, data_dir: Path) -> None:
    seen = told(home, AGAIN, zone="gate")
    assert seen["zone"] == "gate"
    assert told(home, AGAIN, AGAIN, sighting=seen["id"])["zone"] == "gate", "the last one that it was in"
    heard = {"last_at": utc_now(), "ended": True, "zone": "yard"}
    home.patch(f"{HOME}/sightings/{seen['id']}", json=heard).raise_for_status()
    assert [event["zone"] for event in events_of(data_dir)] == ["gate", "yard"]


def test_sightings_and_events_follow_a_subject_whose_id_changes(home: httpx.Client, data_dir: Path) -> None:
    seen = told(home, AGAIN, ended=True)
    home.patch(f"{HOME}/subjects/eileen", json={"id": "e.collins", "name": "Eileen"}).raise_for_status()
    assert home.get(f"{HOME}/sightings", params={"subject": "e.collins"}).json()["sightings"][0]["id"] == seen["id"]
    assert [(event["subject"], event["name"]) for event in events_of(data_dir)] == [("e.collins", "Eileen")] * 2
    assert told(home, AGAIN)["subject"] == "e.collins"
    told(home, AGAIN, AGAIN, sighting=seen["id"])
    assert "name_changed" not in {event["event"] for event in events_of(data_dir)}, "it is the same person"


def test_what_was_seen_ends_and_is_erased_also_where_watching_is_off(tmp_path: Path) -> None:
    """Sightings of unknown people too, once they are known by a photo, and without the rest of watching."""
    with running(tmp_path, watching="on") as home:
        make_home(home)
        told(home, AGAIN, AGAIN)
        told(home, HOPPER, HOPPER)
    with running(tmp_path) as home:
        enrolled(home, HOME, "eileen", COLLINS)
        receipt = home.post(f"{HOME}/subjects/eileen/erase").raise_for_status().json()
        assert receipt["erased"]["sightings"] == 1
        assert NOT_REACHED_SIGHTINGS not in receipt["not_reached"]
        assert NOT_REACHED_EVENTS in receipt["not_reached"], "of its unknown visitors, sent while it was on"
        error_of(home.get(f"{HOME}/sightings"), 404, "not_found")
    with closing(sqlite3.connect(tmp_path / "likeness.db")) as database, database:
        assert database.execute("SELECT COUNT(*) FROM sightings").fetchone() == (1,)
        database.execute("UPDATE sightings SET expires_at = ?", [utc_now()])
    with running(tmp_path, expiry_seconds=0.1), closing(sqlite3.connect(tmp_path / "likeness.db")) as database:
        until(lambda: database.execute("SELECT COUNT(*) FROM sightings").fetchone() == (0,))


@pytest.mark.anyio
async def test_a_receipt_names_the_sightings_that_an_erasure_leaves_without_the_feature(tmp_path: Path) -> None:
    with running(tmp_path, watching="on") as home:
        make_home(home, eileen=COLLINS)
        told(home, HOPPER, HOPPER)
    async with running_here(tmp_path) as (service, api):
        service.state.components.erased_too.clear()
        receipt = (await api.post(f"{HOME}/subjects/eileen/erase")).json()
    assert NOT_REACHED_SIGHTINGS in receipt["not_reached"]


def test_no_event_names_who_was_erased(home: httpx.Client, data_dir: Path) -> None:
    """Not even one of a sighting that showed somebody else."""
    home.patch(f"{HOME}/subjects/eileen", json={"name": "Eileen Collins"}).raise_for_status()
    seen = told(home, AGAIN)
    enrolled(home, HOME, "grace", HOPPER)
    home.post(f"{HOME}/sightings/{seen['id']}/who", json={"subject": "grace"}).raise_for_status()
    with closing(sqlite3.connect(data_dir / "likeness.db")) as database:
        database.execute("UPDATE sightings SET template = NULL, crop = NULL")  # so that it stays
        database.commit()
    home.post(f"{HOME}/subjects/eileen/erase").raise_for_status()
    assert [event["subject"] for event in events_of(data_dir)] == [None, "grace"]
    files = [path.read_bytes() for path in data_dir.rglob("likeness.db*")]
    assert not [content for content in files if b"Eileen Collins" in content]


def test_erasure_leaves_no_byte_of_a_face(home: httpx.Client, data_dir: Path) -> None:
    """Not of the sightings of the erased person, and not of those in which she was not recognised."""
    known = told(home, AGAIN, ended=True)
    missed = told(home, COLLINS, COLLINS, camera="garden")
    home.post(f"{HOME}/sightings/{missed['id']}/who", json={"subject": None}).raise_for_status()
    other = told(home, HOPPER, HOPPER)
    crops = [home.get(f"{HOME}/sightings/{row['id']}/crop").raise_for_status().content for row in (known, missed)]
    receipt = home.post(f"{HOME}/subjects/eileen/erase").raise_for_status().json()
    assert receipt["erased"]["sightings"] == 2
    assert [row["id"] for row in home.get(f"{HOME}/sightings").json()["sightings"]] == [other["id"]]
    assert {event["sighting"] for event in events_of(data_dir)} == {other["id"]}
    files = [path.read_bytes() for path in data_dir.rglob("*") if path.is_file()]
    assert not [crop for crop in crops for content in files if crop[-400:-100] in content]


@pytest.mark.long
def test_everything_of_a_sighting_expires(data_dir: Path) -> None:
    second = 1 / 86_400
    days: dict[str, Any] = {"sightings_days": 15 * second, "unknown_days": 10 * second}
    with running(data_dir, watching="on", expiry_seconds=0.2, **days) as api:
        make_home(api)
        seen = told(api, HOPPER, HOPPER)
        crop = api.get(f"{HOME}/sightings/{seen['id']}/crop").raise_for_status().content
        until(lambda: api.get(f"{HOME}/sightings/{seen['id']}/crop").status_code == 404)
        until(lambda: not api.get(f"{HOME}/sightings").json()["sightings"])
    assert events_of(data_dir) == []
    files = [path.read_bytes() for path in data_dir.rglob("*") if path.is_file()]
    assert not [content for content in files if crop[-400:-100] in content]


def test_a_sighting_does_not_name_who_has_expired(home: httpx.Client, data_dir: Path) -> None:
    """From the end on: the sweep, which deletes the sighting, comes later."""
    seen = told(home, AGAIN)
    assert (seen["decision"], seen["subject"]) == ("known", "eileen")
    let_expire(f"sqlite:///{data_dir / 'likeness.db'}", "eileen")
    asked = home.get(f"{HOME}/sightings", params={"subject": "eileen"}).raise_for_status().json()
    assert asked["sightings"] == []
    listed = home.get(f"{HOME}/sightings").raise_for_status().json()["sightings"]
    shown = home.get(f"{HOME}/sightings/{seen['id']}").raise_for_status().json()
    assert [row["subject"] for row in (*listed, shown)] == [None, None]
    with closing(Database(f"sqlite:///{data_dir / 'likeness.db'}")) as database:
        assert (mqtt._people(database), mqtt._cameras(database)) == ([], {("home", "door"): ["unknown"]})


def test_crops_and_templates_are_sealed_like_those_of_faces(tmp_path: Path) -> None:
    key = "0" * 43 + "="
    with running(tmp_path / "data", watching="on", encryption_key=key) as api:
        make_home(api)
        seen = told(api, HOPPER, HOPPER)
        crop = api.get(f"{HOME}/sightings/{seen['id']}/crop").raise_for_status().content
        with closing(sqlite3.connect(tmp_path / "data" / "likeness.db")) as database:
            [(template, stored)] = database.execute("SELECT template, crop FROM sightings").fetchall()
        assert stored[0] == template[0] == 1
        assert crop[-400:-100] not in stored


def test_a_gallery_without_crops_keeps_none_of_sightings(home: httpx.Client) -> None:
    home.post("/v1/galleries", json={"id": "bare", "store": "none"}).raise_for_status()
    seen = told(home, HOPPER, HOPPER, gallery="bare")
    assert not seen["has_crop"]
    error_of(home.get(f"/v1/galleries/bare/sightings/{seen['id']}/crop"), 404, "crop_not_stored")
    who = {"subject": "grace", "enroll": True}
    home.post(f"/v1/galleries/bare/sightings/{seen['id']}/who", json=who).raise_for_status()
    assert told(home, HOPPER, gallery="bare")["subject"] == "grace"


def test_a_key_of_a_watcher_tells_and_reads_nothing(home: httpx.Client) -> None:
    made = home.post("/v1/keys", json={"scopes": ["watch"], "galleries": ["home"]}).raise_for_status().json()
    seen = told(home, AGAIN, key=made["secret"])
    for path in (f"{HOME}/sightings", f"{HOME}/sightings/{seen['id']}/crop", "/v1/events", f"{HOME}/subjects"):
        error_of(home.get(path, headers={"x-api-key": made["secret"]}), 403, "missing_scope")


def test_off_there_is_nothing_of_it(data_dir: Path) -> None:
    with running(data_dir) as api:
        make_home(api)
        error_of(tell(api, HOPPER), 404, "not_found")
        assert "/v1/events" not in api.get("/openapi.json").json()["paths"]
