"""Report tracks as a watcher does, for tests of sightings and events."""

from __future__ import annotations

import uuid
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from app.db.engine import Database
from app.features.watching.events import read_events
from app.types import utc_now
from tests.support.service import enrolled

HOME = "/v1/galleries/home"


def make_home(api: httpx.Client, **people: bytes) -> None:
    """Make the gallery `home`, and enroll a photo of each of these people."""
    api.post("/v1/galleries", json={"id": "home"}).raise_for_status()
    for subject, photo in people.items():
        enrolled(api, HOME, subject, photo)


def tell(
    api: httpx.Client,
    *photos: bytes,
    sighting: str = "",
    camera: str = "door",
    gallery: str = "home",
    key: str = "",
    ago_s: float = 1.0,
    ended: bool = False,
    zone: str = "",
) -> httpx.Response:
    """Report a track of these photos, with a new id unless one is given, and return the answer."""
    at = utc_now(timedelta(seconds=-ago_s))
    return api.put(
        f"/v1/galleries/{gallery}/sightings/{sighting or uuid.uuid4().hex}",
        files=[("images", photo) for photo in photos],
        data={"camera": camera, "first_at": at, "last_at": at, "ended": str(ended).lower()}
        | ({"zone": zone} if zone else {}),
        headers={"x-api-key": key} if key else {},
    )


def told(api: httpx.Client, *photos: bytes, **about: Any) -> dict[str, Any]:
    """Report a track of these photos and return the sighting."""
    sighting: dict[str, Any] = tell(api, *photos, **about).raise_for_status().json()
    return sighting


def events_of(data_dir: Path) -> list[dict[str, Any]]:
    """Return all events so far, from the database of this data folder."""
    with closing(Database(f"sqlite:///{data_dir / 'likeness.db'}")) as database:
        return read_events(database, 0, 1000)
