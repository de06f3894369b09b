"""Operating points measured here, in the data folder: a package's manifest stays as it was shipped.

`calibrations/NAME@VERSION.json` holds those of one package, and which calibration decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from app.errors import Unusable
from app.files import PUBLIC, replacing
from app.inference.manifest import Calibration, Manifest, Name

FOLDER = "calibrations"
"""In the data folder."""


class OwnCalibrations(BaseModel):
    """The calibrations of one package that were measured here."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    deciding: Name | None = None
    """The calibration that decides, one of these or of the manifest; None for the manifest's default."""
    calibrations: tuple[Calibration, ...] = ()

    def added(self, new: Calibration, *, deciding: bool) -> OwnCalibrations:
        """Return these with ``new``, in place of the one of its name."""
        kept = [each for each in self.calibrations if each.name != new.name]
        chosen = new.name if deciding else self.deciding
        return OwnCalibrations(deciding=chosen, calibrations=(*kept, new.model_copy(update={"default": False})))

    def without(self, name: str) -> OwnCalibrations:
        """Return these without the one of that name; if it decides, the manifest's default does from now on."""
        kept = tuple(each for each in self.calibrations if each.name != name)
        return OwnCalibrations(deciding=None if self.deciding == name else self.deciding, calibrations=kept)


def own_path(data_dir: Path, package_id: str) -> Path:
    """Return the file of a package's own calibrations."""
    return data_dir / FOLDER / f"{package_id}.json"


def read_own(path: Path) -> OwnCalibrations:
    """Read a package's own calibrations; none where there is no file. Raises Unusable ``calibrations_invalid``."""
    try:
        return OwnCalibrations.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return OwnCalibrations()
    except (OSError, ValidationError) as error:
        problem = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
        message = (
            f"{path} can't be used ({problem}): restore it, or remove it to decide by the package's own thresholds."
        )
        raise Unusable(message, code="calibrations_invalid", path=str(path)) from error


def write_own(path: Path, own: OwnCalibrations) -> None:
    """Write a package's own calibrations in one step. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, PUBLIC) as file:
        file.write(own.model_dump_json(indent=2).encode() + b"\n")


def with_own(manifest: Manifest, own: OwnCalibrations) -> tuple[Manifest, Sequence[str]]:
    """Return the manifest with the calibrations measured here, and the names of those left out.

    One with the name of a manifest's takes its place. Those of another model are left out; if one of them decides, the
    manifest's default does.
    """
    usable = [each for each in own.calibrations if each.measured_with == manifest.recipe_digest]
    names = {each.name for each in usable}
    merged = [each for each in manifest.calibrations if each.name not in names] + usable
    shipped = next((each.name for each in manifest.calibrations if each.default), None)
    deciding = own.deciding if own.deciding in {each.name for each in merged} else shipped
    if deciding is None and merged:
        deciding = merged[0].name
    calibrations = tuple(each.model_copy(update={"default": each.name == deciding}) for each in merged)
    left_out = [each.name for each in own.calibrations if each not in usable]
    return manifest.model_copy(update={"calibrations": calibrations}), left_out
