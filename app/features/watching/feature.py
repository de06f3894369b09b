"""The part of watching that the service imports while it is off: its setting, and how it is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from app.api.feature import Feature


def _load() -> Feature:
    return cast(Feature, import_module("app.features.watching.routes").FEATURE)


FEATURE = Feature(setting="watching", load=_load)
