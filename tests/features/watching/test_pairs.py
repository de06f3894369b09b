"""Tracks, sightings, strangers and groups beside what else a service has: two servers, own calibration, the vault."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.db.encryption import encode_key
from app.features.watching import routes
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.calibrating import add_random_people, calibrate
from tests.support.commands import run
from tests.support.service import AGAIN, COLLINS, HOPPER, error_of, running, two_running
from tests.support.sighted import HOME, events_of, make_home, told
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended, until


@pytest.fixture
def servers(tmp_path: Path, postgresql: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two services on one PostgreSQL with the gallery `home`, in which Eileen Collins is enrolled."""
    with two_running(tmp_path, postgresql) as (one, two):
        make_home(one, eileen=COLLINS)
        yield one, two


@pytest.mark.long
def test_photos_are_grouped_by_one_server_and_the_other_says_where_the_groups_are(
    servers: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = servers
    photos = {"1.jpg": COLLINS, "2.jpg": AGAIN, "3.jpg": HOPPER}
    asked = one.post(f"{HOME}/group", content=tar_of(photos), headers={"content-type": "application/x-tar"})
    job = asked.raise_for_status().json()["id"]
    assert job_ended(two, job)["state"] == "done"
    groups = one.get(f"{HOME}/group/{job}").raise_for_status().json()["groups"]
    assert [[face["name"] for face in group] for group in groups] == [["1.jpg", "2.jpg"], ["3.jpg"]]
    elsewhere = two.get(f"{HOME}/group/{job}")
    error_of(elsewhere, 404, "result_not_found")
    assert "another server" in elsewhere.text


@pytest.mark.long
def test_tracks_are_verified_at_the_gallerys_own_points_at_both_servers(
    servers: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = servers
    add_random_people(one, "home")
    point = calibrate(one, "home")[1e-3]

    def verified(api: httpx.Client, *photos: bytes) -> dict[str, Any]:
        asked: dict[str, str] = {"fmr": "1e-3", "explain": "true"} | ({"track": "true"} if len(photos) > 1 else {})
        files = [("image", photo) for photo in photos]
        found: dict[str, Any] = api.post(f"{HOME}/subjects/eileen/verify", files=files, data=asked).json()
        return found

    until(lambda: verified(two, AGAIN)["threshold"] == point["decides"])
    for api in servers:
        single, track = verified(api, AGAIN), verified(api, AGAIN, HOPPER)
        assert single["threshold"] == point["decides"] != point["package"]
        assert track["threshold"] > single["threshold"], "two photos that differ"
        assert single["calibration"]["source"] == track["calibration"]["source"] == "gallery"
        assert verified(api, AGAIN, AGAIN)["threshold"] == pytest.approx(single["threshold"], abs=1e-6)


def test_sealing_by_another_key_leaves_sightings_and_strangers_as_they_are(tmp_path: Path) -> None:
    data_dir, keys = tmp_path / "data", tmp_path / "keys"
    old, new = encode_key(bytes(range(32))), encode_key(bytes(range(1, 33)))
    keys.write_text(f"{old}\n")
    keys.chmod(0o600)
    settings: dict[str, Any] = {"watching": "on", "stranger_days": 3, "encryption_key_file": keys}
    with running(data_dir, **settings) as api:
        make_home(api)
        first = told(api, HOPPER, HOPPER)
        crop = api.get(f"{HOME}/sightings/{first['id']}/crop").raise_for_status().content
    keys.write_text(f"{new}\n{old}\n")
    sealed = run(data_dir, "vault", "seal", ENCRYPTION_KEY_FILE=keys)
    assert sealed.returncode == 0, sealed.stderr
    keys.write_text(f"{new}\n")
    with running(data_dir, **settings) as api:
        assert api.get(f"{HOME}/sightings/{first['id']}/crop").raise_for_status().content == crop
        assert told(api, HOPPER, HOPPER, camera="garden")["stranger"] == first["stranger"]
    with closing(sqlite3.connect(data_dir / "likeness.db")) as database:
        assert {template[0] for (template,) in database.execute("SELECT template FROM sightings")} == {1}


def test_visits_and_strangers_move_to_another_model_with_their_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visit that goes on is still one, and a stranger is met again."""
    monkeypatch.setattr(routes, "REEMBED_S", 0.2)
    with running(tmp_path / "data", watching="on", stranger_days=3) as api:
        make_home(api, eileen=COLLINS)
        known, unknown = told(api, AGAIN), told(api, HOPPER, HOPPER)
        asked = api.post(f"{HOME}/reembed", json={"embedder": "sface-slim", "accept_non_commercial": True})
        assert asked.status_code == 202, asked.text
        job = asked.json()["job"]["id"]
        assert job_ended(api, job)["state"] == "done"
        again = told(api, AGAIN, AGAIN, sighting=known["id"])
        assert (again["decision"], again["subject"]) == ("known", "eileen")

        def packages() -> set[str]:
            with closing(sqlite3.connect(tmp_path / "data" / "likeness.db")) as database:
                return {package for (package,) in database.execute("SELECT package FROM sightings")}

        until(lambda: {package.partition("@")[0] for package in packages()} == {"sface-slim"})
        assert told(api, HOPPER, HOPPER, camera="garden")["stranger"] == unknown["stranger"]
    assert [(event["event"], event["subject"]) for event in events_of(tmp_path / "data")] == [
        ("person_seen", "eileen"),
        ("unknown_seen", None),
        ("unknown_seen", None),
    ]


def test_a_stranger_is_looked_for_while_visits_still_have_templates_of_the_model_before(tmp_path: Path) -> None:
    """Whose templates have another length: they are made anew within a minute, and until then not compared."""
    models = tmp_path / "models"
    for name in ("yunet", "sface"):
        shutil.copytree(PROJECT / "models" / name, models / name)
    packages.install(models, "small", dimension=32)
    with running(tmp_path / "data", watching="on", stranger_days=3, models_dir=models, embedder="sface") as api:
        make_home(api)
        before = told(api, HOPPER, HOPPER)
        job = api.post(f"{HOME}/reembed", json={"embedder": "small"}).raise_for_status().json()["job"]["id"]
        assert job_ended(api, job)["state"] == "done"
        told(api, AGAIN, AGAIN)
        found = api.get(f"{HOME}/strangers/{before['stranger']}/resembling").raise_for_status().json()
    assert found["resembling"] == []


@pytest.mark.parametrize("policy", ["reject", "warn"])
def test_a_gallery_that_rejects_conflicts_takes_no_face_of_somebody_else_from_a_sighting(
    tmp_path: Path, policy: str
) -> None:
    """Nor a duplicate of the person's own photo; the sighting is settled all the same."""
    with running(tmp_path / "data", watching="on", stranger_days=3) as api:
        make_home(api, eileen=COLLINS, grace=HOPPER)
        api.patch(HOME, json={"on_conflict": policy}).raise_for_status()
        seen = told(api, AGAIN)

        def said(subject: str) -> httpx.Response:
            return api.post(f"{HOME}/sightings/{seen['id']}/who", json={"subject": subject, "enroll": True})

        def faces(subject: str) -> int:
            return int(api.get(f"{HOME}/subjects/{subject}").raise_for_status().json()["face_count"])

        if policy == "warn":
            assert said("grace").json()["subject"] == "grace"
            assert faces("grace") == 2
            return
        refused = error_of(said("grace"), 422, "face_conflict")
        assert refused == {}, "whom it matches is for keys that may recognise"
        assert faces("grace") == 1
        assert api.get(f"{HOME}/sightings/{seen['id']}").json()["subject"] == "eileen"
        assert said("eileen").raise_for_status().json()["subject"] == "eileen"
        assert faces("eileen") == 1, "the photo's score with the enrolled one is a duplicate's"
