"""Bias cards for tests, and model folders whose default embedder has one."""

from __future__ import annotations

from pathlib import Path

from app.inference.cards import BiasCard, Group, GroupRate
from app.inference.manifest import Manifest
from app.inference.package import load_package, write_manifest
from tests.conftest import PROJECT

STATED = {1e-2: 0.3085, 1e-4: 0.4411}
"""Thresholds of the card by stated FMR: a little on either side of SFace's own."""


def card(manifest: Manifest) -> BiasCard:
    """Return a card: of `children` 20 % pass both thresholds, of `adults` as many as stated or fewer."""
    low, high = ({"low": found * 0.9, "found": found, "high": found * 1.1} for found in (0.2, 1e-4))
    rates = {
        "children": [GroupRate(fmr=fmr, threshold=at, **low) for fmr, at in STATED.items()],
        "adults": [GroupRate(fmr=fmr, threshold=at, **high) for fmr, at in STATED.items()],
    }
    groups = [Group(name=name, photos=100, comparisons=4950, rates=tuple(found)) for name, found in rates.items()]
    return BiasCard(
        measured_on="a test's photos",
        calibration="made-up",
        repeats="nothing",
        groups=tuple(groups),
        measured_with=manifest.recipe_digest,
    )


def models_with_a_card(folder: Path) -> Path:
    """Fill a folder with the project's detector and SFace, whose manifest has the card."""
    (folder / "sface").mkdir(parents=True)
    (folder / "yunet").symlink_to(PROJECT / "models" / "yunet")
    (folder / "sface-slim").symlink_to(PROJECT / "models" / "sface-slim")
    sface = load_package(PROJECT / "models" / "sface").manifest
    write_manifest(folder / "sface", sface.model_copy(update={"bias_card": card(sface)}))
    return folder
