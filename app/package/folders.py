"""Find, read and select model packages, which are folders with a `manifest.json`.

A package's manifest stays as it was shipped: `calibrations/NAME@VERSION.json` in the data folder holds the operating
points that were measured here, and which calibration decides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from app.errors import InvalidInput, Unusable
from app.files import read_regular
from app.package.cards import Name, Strict
from app.package.manifest import Calibration, Manifest
from app.package.thresholds import Thresholds
from app.wording import found_wrong

MANIFEST_NAME = "manifest.json"
OWN_FOLDER = "packages"
"""Folder in the data folder for packages that were added here."""
CALIBRATIONS = "calibrations"
"""Folder in the data folder for operating points that were measured here."""
SHOWN_FMR = 1e-4
"""The FMR at which the FNMR is stated: the service's default."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Package:
    """A manifest and the folder that it was read from."""

    folder: Path
    manifest: Manifest
    warnings: tuple[str, ...] = ()
    """Parts of the manifest that were left out when it was read, and why."""
    data_dir: Path | None = None
    """The data folder, which may have calibrations of the package that were measured here."""

    @cached_property
    def id(self) -> str:
        return self.manifest.id

    @cached_property
    def thresholds(self) -> Thresholds:
        """Return the operating points that its manifest states."""
        return Thresholds(self.manifest)

    @property
    def added(self) -> bool:
        """Return whether it was added here and so is in the data folder."""
        return self.data_dir is not None and self.folder.parent == self.data_dir / OWN_FOLDER

    @cached_property
    def files(self) -> tuple[Path, ...]:
        local = () if self.data_dir is None else (own_path(self.data_dir, self.id),)
        return self.folder / MANIFEST_NAME, *local


def load_package(folder: Path, data_dir: Path | None = None) -> Package:
    """Read ``folder/manifest.json``, without operating points that were measured with another model.

    Calibrations that were measured here are added from ``data_dir``, the data folder.
    Raises Unusable: package_manifest_missing, package_manifest_invalid, calibrations_invalid.
    """
    path = folder / MANIFEST_NAME
    try:
        text = read_regular(path)
    except OSError as error:
        message = (
            f"No readable {MANIFEST_NAME} in {folder} ({error.strerror}): a model package is a folder that has one."
        )
        raise Unusable(message, code="package_manifest_missing", folder=str(folder)) from error
    try:
        manifest, removed = Manifest.model_validate_json(text).without_foreign_points()
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'file'}: {found_wrong(problem)}" for problem in error.errors()
        ]
        message = f"{path} is no valid manifest; correct or restore it. {'; '.join(problems)}"
        raise Unusable(message, code="package_manifest_invalid", path=str(path), problems=problems) from error
    if data_dir is not None:
        manifest, left_out = with_own(manifest, read_own(own_path(data_dir, manifest.id)))
        removed = (*removed, *left_out)
    warning = (
        f"The operating points of {manifest.id} ({', '.join(removed)}) were measured with another file or preparation "
        f"and are not used. Measure its own: likeness models measure {manifest.id} --photos DIR"
    )
    return Package(folder, manifest, (warning,) if removed else (), data_dir)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A folder whose package can't be used, and why."""

    folder: Path
    problem: str


@dataclass(frozen=True, slots=True)
class PackageScan:
    """The packages in a folder, by id, and the folders that were skipped."""

    packages: dict[str, Package]
    skipped: tuple[Skipped, ...]


def scan_packages(models_dir: Path, data_dir: Path | None = None) -> PackageScan:
    """Read the manifest of every folder in ``models_dir`` that has one; skip those that can't be used.

    With ``data_dir``, the data folder, packages that were added there, and calibrations measured there, are read too.

    Raises Unusable: models_dir_missing.
    """
    if not models_dir.is_dir():
        message = f"There is no folder {models_dir}: point LIKENESS_MODELS_DIR at the folder of model packages."
        raise Unusable(message, code="models_dir_missing", folder=str(models_dir))
    packages: dict[str, Package] = {}
    skipped, folders = [], list[Path]()
    for parent in (models_dir, *([data_dir / OWN_FOLDER] if data_dir is not None else ())):
        folders += sorted(path.parent for path in parent.glob(f"[!.]*/{MANIFEST_NAME}"))  # drafts begin with a dot
    for folder in folders:
        try:
            package = load_package(folder, data_dir)
        except Unusable as error:
            skipped.append(Skipped(folder, error.message))
            continue
        if package.id in packages:
            message = f"{folder} and {packages[package.id].folder} are both {package.id}: give one another version."
            skipped.append(Skipped(folder, message))
        else:
            packages[package.id] = package
    return PackageScan(packages, tuple(skipped))


def find_packages(models_dir: Path, data_dir: Path | None = None) -> dict[str, Package]:
    """Return the usable packages by id, as `scan_packages` finds them. Raises Unusable: models_dir_missing."""
    return scan_packages(models_dir, data_dir).packages


def select(packages: Mapping[str, Package], name: str) -> Package:
    """Return the package called ``name`` (if there is only one version of it) or ``name@version``.

    Raises Unusable: package_unknown, package_ambiguous.
    """
    matching = [package for package in packages.values() if name in {package.id, package.manifest.name}]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        there = ", ".join(sorted(packages)) or "none"
        message = f"There is no model package {name!r}; there are {there}. `likeness models pull` lists more."
        raise Unusable(message, code="package_unknown", package=name, known=sorted(packages))
    versions = sorted(package.id for package in matching)
    message = f"{name!r} may be {' or '.join(versions)}: name one of them."
    raise Unusable(message, code="package_ambiguous", package=name, known=versions)


class OwnCalibrations(Strict):
    """The calibrations of one package that were measured here."""

    deciding: Name | None = None
    """The calibration that decides, one of these or of the manifest; None for the manifest's default."""
    calibrations: tuple[Calibration, ...] = ()


def own_path(data_dir: Path, package_id: str) -> Path:
    return data_dir / CALIBRATIONS / f"{package_id}.json"


def read_own(path: Path) -> OwnCalibrations:
    """Read the calibrations measured here; none if there is no file. Raises Unusable ``calibrations_invalid``."""
    try:
        return OwnCalibrations.model_validate_json(read_regular(path))
    except FileNotFoundError:
        return OwnCalibrations()
    except (OSError, ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else found_wrong(error.errors()[0])
        message = (
            f"{path} can't be used ({problem}): restore it, or remove it to decide by the package's own thresholds."
        )
        raise Unusable(message, code="calibrations_invalid", path=str(path)) from error


def with_own(manifest: Manifest, local: OwnCalibrations) -> tuple[Manifest, Sequence[str]]:
    """Return the manifest with the ``local`` calibrations, measured here, and the names of those left out.

    A local calibration replaces the manifest's of the same name. Those of another model are left out; if one of them
    should decide, the manifest's default does.
    """
    usable = [calibration for calibration in local.calibrations if calibration.measured_with == manifest.recipe_digest]
    names = {calibration.name for calibration in usable}
    merged = [calibration for calibration in manifest.calibrations if calibration.name not in names] + usable
    shipped = manifest.deciding and manifest.deciding.name
    deciding = local.deciding if local.deciding in {calibration.name for calibration in merged} else shipped
    if deciding is None and merged:
        deciding = merged[0].name
    calibrations = tuple(
        calibration.model_copy(update={"default": calibration.name == deciding}) for calibration in merged
    )
    left_out = [calibration.name for calibration in local.calibrations if calibration not in usable]
    return manifest.model_copy(update={"calibrations": calibrations}), left_out


def check_choice(manifest: Manifest, *, force: bool, accept_non_commercial: bool) -> None:
    """Raise InvalidInput ``licence_not_accepted`` or ``package_not_measured`` unless the arguments accept it."""
    about = f"{manifest.id}: licence {manifest.licence.name}; {accuracy(manifest)}."
    if manifest.licence.non_commercial and not accept_non_commercial:
        message = (
            f"{about} It may not be used commercially. If yours is another use, say so: accept_non_commercial "
            "(--accept-non-commercial)"
        )
        raise InvalidInput(message, code="licence_not_accepted", package=manifest.id, licence=manifest.licence.name)
    if not manifest.calibrations and not force:
        message = (
            f"{about} Nobody can be identified or verified by it before it is measured: likeness models measure "
            f"{manifest.name}. To take it anyway: force (--force)"
        )
        raise InvalidInput(message, code="package_not_measured", package=manifest.id)


def accuracy(manifest: Manifest) -> str:
    """Return as text the FNMR that the package's deciding calibration states."""
    calibration = manifest.deciding
    if calibration is None:
        return "no operating points were measured"
    measured = [point for point in calibration.points if point.fnmr is not None]
    if not measured:
        return f"measured on {calibration.measured_on}, without misses"
    point = min(measured, key=lambda point: abs(point.fmr - SHOWN_FMR))
    return f"FNMR {point.fnmr:.2%} at FMR {point.fmr:g} on {calibration.measured_on}"
