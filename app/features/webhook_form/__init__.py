"""The page's view of `watching`'s webhooks, where people list, make, resume and delete them."""

from pathlib import Path

from app.api.feature import Feature

FEATURE = Feature(setting="watching", page=Path(__file__).parent / "page")
