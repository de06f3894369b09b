"""The model packages that training works with, and where their prepared files are kept."""

from __future__ import annotations

import shlex
from pathlib import Path

from app.errors import Unusable
from app.package.folders import MANIFEST_NAME, OWN_FOLDER, Package, find_packages, load_package, select

MODELS = Path("models")
CACHE = Path("build") / "packages"
"""Folder of prepared model files, unless a command names another."""
DETECTOR = "yunet"


def check_free(folder: Path, *, replace: bool = False) -> None:
    """Raise Unusable ``package_exists`` if there is a package in the folder that may not be replaced."""
    if replace or not (folder / MANIFEST_NAME).exists():
        return
    message = (
        f"There is a package in {folder}, and galleries may have its templates, which another model's don't compare "
        "with. Choose another --name; or --replace it, if no gallery has."
    )
    raise Unusable(message, code="package_exists", folder=str(folder))


def how_to_serve(folder: Path) -> str:
    """Return the command that serves a package. A package elsewhere is first copied to the data folder's packages."""
    target = Path("data") / OWN_FOLDER
    copied = "" if folder.parent == MODELS else f"mkdir -p {target} && cp -r {shlex.quote(str(folder))} {target}/ && "
    return f"{copied}LIKENESS_EMBEDDER={folder.name} make serve"


def how_to_measure(folder: Path) -> str:
    """Return the command that measures the operating points of a package that has none, and why they are needed."""
    name = folder.name
    package = name if folder.parent == MODELS else shlex.quote(str(folder))
    return (
        f"{name} has no operating points yet, so the service decides nothing with it. Measure them on photos, a folder "
        "a person, that it has not seen:\n"
        f"python -m training evaluate operating-points --package {package} --images PHOTOS --name own "
        f'--measured-on "which photos" --write --default --out runs/{name}-points'
    )


def find_package(name: str, models: Path) -> Package:
    """Return the package in the folder ``name``, or with that name or id in ``models``.

    Raises Unusable: package_unknown, package_ambiguous and the codes of `load_package`.
    """
    folder = Path(name)
    return load_package(folder) if (folder / MANIFEST_NAME).is_file() else select(find_packages(models), name)
