"""Watching cameras: sightings, events and strangers in the service, and the watcher beside the cameras.

Off unless `LIKENESS_WATCHING` is `on`; nothing but this module is imported before that.

`deciding` turns photos of a track into a decision, `sightings` stores it, `events` says what happened, `webhooks` and
`mqtt` send it out, `strangers` groups the unknown. `watcher` is another process.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from app.api.feature import Feature


def _load() -> Feature:
    return cast(Feature, import_module("app.features.watching.routes").FEATURE)


FEATURE = Feature(setting="watching", load=_load)
