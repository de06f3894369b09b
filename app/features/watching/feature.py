"""The part of watching that the service imports even while watching is off: it loads the rest once it is on, and
deletes old sightings."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import sqlalchemy as sa

from app.api.components import Components, Reached
from app.api.feature import Feature, Part, PeriodicTask
from app.db.schema import CAMERAS, EVENTS, SIGHTINGS, STRANGERS, WEBHOOK_SUBJECTS
from app.gallery.store import Change

DAYS = ("sightings_days", "unknown_days", "stranger_days", "correction_days")
TABLES = (SIGHTINGS, STRANGERS, EVENTS, WEBHOOK_SUBJECTS)
"""The tables that hold data about people."""


def _load() -> Feature:
    return cast(Feature, import_module("app.features.watching.routes").FEATURE)


def _start(core: Components, *, expiry_seconds: float, **days: float) -> Part:
    """Delete the sightings of earlier days when they expire, or when the people in them are erased. If there are none
    at the start, no task is scheduled and the rest of the feature is not imported."""
    database = core.store.database

    def watching() -> Any:
        return import_module("app.features.watching.service").Watching(core, **days)

    def erase_like(change: Change, subject_id: str) -> int:
        any_sighting = sa.select(SIGHTINGS.c.key).where(SIGHTINGS.c.gallery_key == change.gallery.key).limit(1)
        return int(watching().erase_like(change, subject_id)) if change.connection.execute(any_sighting).all() else 0

    def prune() -> None:
        watching().sightings.prune()
        watching().cameras.prune()

    left = sa.exists(sa.select(SIGHTINGS.c.key)) | sa.exists(sa.select(CAMERAS.c.name))
    tasks = [PeriodicTask(expiry_seconds, "sightings of before", prune)] if database.column(sa.select(left))[0] else []
    return Part(tasks=tasks, erased_too=[Reached("sightings", erase_like, TABLES)])


FEATURE = Feature(start=_start, settings=(*DAYS, "expiry_seconds"), setting="watching", load=_load)
