"""`likeness models`: this module's commands show and remove packages, and choose the operating points that decide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from likeness_client import answers

from app.cli import options, output
from app.cli.connect import Data
from app.cli.options import CliSession, command, confirm
from app.config import load_settings
from app.errors import InvalidInput, Unusable
from app.models.commands import adding, measuring
from app.models.packages import without, write_own
from app.package.folders import OwnCalibrations, Package, find_packages, own_path, read_own, select
from app.package.manifest import Calibration

models = typer.Typer(no_args_is_help=True, epilog="Example: likeness models list")
calibrations = typer.Typer(no_args_is_help=True, epilog="Example: likeness models calibrations list sface")

CalibrationName = Annotated[str, typer.Argument(help="Name of the calibration.")]


@command(models, "list", epilog="Example: likeness models list --json")
def list_models(session: CliSession) -> None:
    """List the model packages: task, licence, and the device of each one that runs."""
    listed = session.client(Data.UNUSED).models()
    for problem in listed.skipped:
        output.warn(f"skipped {problem.folder}: {problem.problem}")
    for warning in (warning for model in listed.models for warning in model.warnings):
        output.warn(warning)
    session.say_list(
        ["model", "task", "dimension", "licence", "runs on", "groups", "sha256"],
        listed.models,
        lambda model: [
            model.id,
            model.task,
            model.dimension,
            model.licence.name + (" (non-commercial)" if model.licence.non_commercial else ""),
            model.device or "-",
            _groups(model),
            model.sha256[:12],
        ],
    )


def _groups(model: answers.Model) -> str:
    """Return the words that say in how many groups of people a rate was found above the stated one."""
    if model.bias_card is None:
        return "not measured" if model.task == "embed" else "-"
    groups = model.bias_card.groups
    return f"{sum(any(rate.low > rate.fmr for rate in group.rates) for group in groups)} of {len(groups)} above"


@command(models, "remove", epilog="Example: likeness models remove mine --yes")
def remove_model(session: CliSession, name: options.Package, yes: options.Yes = False) -> None:
    """Remove a model package that was added here, unless galleries or the server need it."""
    confirm(f"Remove model package {name} and its files?", yes)
    session.client().remove_model(name)
    session.say_done(name, "removed")


@command(models, epilog="Example: likeness models show sface")
def show(session: CliSession, name: options.Package) -> None:
    """Show a model package: its licence, its operating points, and how well these hold within groups of people."""
    listed = session.client(Data.UNUSED).models().models
    chosen = [model for model in listed if name in {model.id, model.name}]
    if len(chosen) != 1:
        message = (
            f"{len(chosen)} model packages are called {name!r}; there are {', '.join(model.id for model in listed)}."
        )
        raise Unusable(message, code="package_ambiguous" if chosen else "package_unknown", package=name)
    (model,) = chosen
    if session.as_json:
        output.say_json(model)
        return
    output.say(f"{model.id}: {model.title}, {model.licence.name}, SHA-256 {model.sha256}")
    for calibration in model.calibrations:
        word = ", which decides" if calibration.default else ""
        points = ", ".join(f"{point.threshold:.3f} at FMR {point.fmr:g}" for point in calibration.points)
        output.say(f"{calibration.name}{word}: thresholds {points}")
    if model.bias_card is not None:
        _say_bias_card(model.bias_card)


def _say_bias_card(card: answers.BiasCard) -> None:
    output.say(f"Found within groups at the stated FMR ({card.measured_on}), with 95 % interval; * above the stated:")
    stated = list(dict.fromkeys(rate.fmr for group in card.groups for rate in group.rates))
    rows = []
    for group in card.groups:
        rates = {
            rate.fmr: f"{'* ' if rate.low > rate.fmr else ''}{rate.found:.2g} ({rate.low:.2g}-{rate.high:.2g})"
            for rate in group.rates
        }
        rows.append([group.name, f"{group.photos:,}", *map(rates.get, stated)])
    output.say_table(["group", "photos", *(f"FMR {fmr:g}" for fmr in stated)], rows)
    output.say(f"People who appear twice: {card.repeats}")


@models.command("use", hidden=True, context_settings={"ignore_unknown_options": True})
def use_model(_names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Explain how a gallery gets a model, since there is no model for all galleries at once."""
    raise InvalidInput(
        "Each gallery has a model of its own. For a gallery that exists: likeness reembed start GALLERY MODEL (with a "
        "way back); for a new one: likeness galleries create GALLERY --embedder MODEL; for all new ones: set "
        "LIKENESS_EMBEDDER=MODEL, and start the server again."
    )


models.command(epilog="Example: likeness models pull best")(adding.pull)
models.command(epilog="Example: likeness models add w600k_r50.onnx --name mine --preset insightface --licence MIT")(
    adding.add
)
models.command(epilog="Example: likeness models measure auraface --photos people/")(measuring.measure)
models.command(epilog="Example: likeness models quantize sface --photos photos/")(measuring.quantize)
models.command(epilog="Example: likeness models fuse sface intel-face --name pair --photos people/")(measuring.fuse)
models.add_typer(calibrations, name="calibrations", help="Which operating points of a package decide.")


@calibrations.command("list", epilog="Example: likeness models calibrations list sface")
def list_calibrations(name: options.Package, as_json: options.AsJson = False) -> None:
    """List a package's calibrations: its own, and those measured here."""
    package, _, measured_here = _chosen(name)
    here = {calibration.name for calibration in measured_here.calibrations}
    rows = [
        {
            "name": calibration.name,
            "decides": calibration.default,
            "source": "data folder" if calibration.name in here else "package",
            "measured_on": calibration.measured_on,
            "lowest_fmr": calibration.points[-1].fmr,
        }
        for calibration in package.manifest.calibrations
    ]
    if as_json:
        for row in rows:
            output.say_json(row)
        return
    cells = [
        [row["name"], "yes" if row["decides"] else "", row["source"], f"{row['lowest_fmr']:g}", row["measured_on"]]
        for row in rows
    ]
    output.say_table(["calibration", "decides", "from", "lowest FMR", "measured on"], cells)


@calibrations.command(epilog="Example: likeness models calibrations use sface doors")
def use(name: options.Package, calibration: CalibrationName) -> None:
    """Decide by a calibration. A running server uses it at once; templates don't change."""
    package, path, measured_here = _chosen(name)
    _check_known(package, calibration, package.manifest.calibrations)
    write_own(path, measured_here.model_copy(update={"deciding": calibration}))
    output.say(f"{package.id} decides by {calibration}.")


@calibrations.command(epilog="Example: likeness models calibrations remove sface doors")
def remove(name: options.Package, calibration: CalibrationName) -> None:
    """Remove a calibration that was measured here. If it decided, the package's default decides again."""
    package, path, measured_here = _chosen(name)
    _check_known(package, calibration, measured_here.calibrations)
    write_own(path, without(measured_here, calibration))
    deciding = _chosen(name)[0].manifest.deciding
    output.say(f"{package.id}: {calibration} is removed; {deciding.name if deciding else 'nothing'} decides.")


def _chosen(name: str) -> tuple[Package, Path, OwnCalibrations]:
    """Return the package, the file of its own calibrations, and the file's content."""
    settings = load_settings()
    package = select(find_packages(settings.models_dir, settings.data_dir), name)
    path = own_path(settings.data_dir, package.id)
    return package, path, read_own(path)


def _check_known(package: Package, name: str, calibrations: Sequence[Calibration]) -> None:
    known = [calibration.name for calibration in calibrations]
    if name not in known:
        message = f"{package.id} has no such calibration {name!r}; there are {', '.join(known) or 'none'}."
        raise Unusable(message, code="calibration_unknown", package=package.id, known=known)
