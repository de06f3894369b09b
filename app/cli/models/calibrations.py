"""models calibrations: which operating points of a package decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import options, output
from app.config import load_settings
from app.errors import Unusable

if TYPE_CHECKING:
    from app.inference.package import OwnCalibrations, Package

commands = typer.Typer(no_args_is_help=True, epilog="Example: likeness models calibrations list sface")
Calibration = Annotated[str, typer.Argument(help="Name of the calibration.")]


@commands.command("list", epilog="Example: likeness models calibrations list sface")
def list_calibrations(name: options.Package, as_json: options.AsJson = False) -> None:
    """List a package's calibrations: its own, and those measured here."""
    package, _, own = _found(name)
    here = {each.name for each in own.calibrations}
    rows = [
        {
            "name": each.name,
            "decides": each.default,
            "source": "data folder" if each.name in here else "package",
            "measured_on": each.measured_on,
            "lowest_fmr": each.points[-1].fmr,
        }
        for each in package.manifest.calibrations
    ]
    if as_json:
        for row in rows:
            output.say_json(row)
        return
    columns = ["calibration", "decides", "from", "lowest FMR", "measured on"]
    output.say_table(
        columns,
        [
            [
                str(row["name"]),
                "yes" if row["decides"] else "",
                str(row["source"]),
                f"{row['lowest_fmr']:g}",
                str(row["measured_on"]),
            ]
            for row in rows
        ],
    )


@commands.command(epilog="Example: likeness models calibrations use sface doors")
def use(name: options.Package, calibration: Calibration) -> None:
    """Decide by a calibration. A running server does at once; templates stay as they are."""
    from app.inference.package import write_own  # noqa: PLC0415 - slow to import

    package, path, own = _found(name)
    known = [each.name for each in package.manifest.calibrations]
    if calibration not in known:
        raise _unknown(package, calibration, known)
    write_own(path, own.model_copy(update={"deciding": calibration}))
    output.say(f"{package.id} decides by {calibration}.")


@commands.command(epilog="Example: likeness models calibrations remove sface doors")
def remove(name: options.Package, calibration: Calibration) -> None:
    """Remove a calibration that was measured here. If it decided, the package's default does."""
    from app.inference.package import write_own  # noqa: PLC0415 - slow to import

    package, path, own = _found(name)
    known = [each.name for each in own.calibrations]
    if calibration not in known:
        raise _unknown(package, calibration, known)
    write_own(path, own.without(calibration))
    deciding = next((each.name for each in _found(name)[0].manifest.calibrations if each.default), None)
    output.say(f"{package.id}: {calibration} is removed; {deciding or 'nothing'} decides.")


def _found(name: str) -> tuple[Package, Path, OwnCalibrations]:
    """Return the package, the file of its own calibrations, and what it holds."""
    from app.inference.package import find_packages, own_path, read_own, select  # noqa: PLC0415 - slow to import

    settings = load_settings()
    package = select(find_packages(settings.models_dir, settings.data_dir), name)
    path = own_path(settings.data_dir, package.id)
    return package, path, read_own(path)


def _unknown(package: Package, name: str, known: list[str]) -> Unusable:
    message = f"{package.id} has no such calibration {name!r}; there are {', '.join(known) or 'none'}."
    return Unusable(message, code="calibration_unknown", package=package.id, known=known)
