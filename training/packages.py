"""The model packages that training works with, and where their prepared files are kept."""

from __future__ import annotations

from pathlib import Path

from app.inference.package import MANIFEST_NAME, Package, find_packages, load_package, select

MODELS = Path("models")
CACHE = Path("build") / "packages"
"""Of prepared model files, where a command names none."""
DETECTOR = "yunet"


def find_package(name: str, models: Path) -> Package:
    """Return the package in the folder ``name``, or with that name or id in ``models``.

    Raises Unusable: package_unknown, package_ambiguous and the codes of `load_package`.
    """
    folder = Path(name)
    return load_package(folder) if (folder / MANIFEST_NAME).is_file() else select(find_packages(models), name)
