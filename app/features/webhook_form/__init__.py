"""The page's form of webhooks, which `watching` sends to: they are listed, made, resumed and deleted there."""

from pathlib import Path

from app.api.feature import Feature

FEATURE = Feature(setting="watching", page=Path(__file__).parent / "page")
