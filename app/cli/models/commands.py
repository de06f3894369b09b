"""The commands below `likeness models`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from app.cli import options, output
from app.cli.connect import Data, connect
from app.cli.models import adding, calibrations, fusing, measuring
from app.errors import Unusable

if TYPE_CHECKING:
    from likeness_client import answers

models = typer.Typer(no_args_is_help=True, epilog="Example: likeness models list")


@models.command("list", epilog="Example: likeness models list --json")
def list_models(server: options.Server = None, key: options.Key = None, as_json: options.AsJson = False) -> None:
    """List the model packages: task, licence, and the device of each one that runs."""
    with connect(server, key, Data.UNUSED) as client:
        found = client.models()
    for problem in found.skipped:
        output.warn(f"skipped {problem.folder}: {problem.problem}")
    for warning in (each for model in found.models for each in model.warnings):
        output.warn(warning)
    if as_json:
        for model in found.models:
            output.say_json(model)
        return
    rows = [
        [
            model.id,
            model.task,
            str(model.dimension or ""),
            model.licence.name + (" (non-commercial)" if model.licence.non_commercial else ""),
            model.device or "-",
            _groups(model),
            model.sha256[:12],
        ]
        for model in found.models
    ]
    output.say_table(["model", "task", "dimension", "licence", "runs on", "groups", "sha256"], rows)


def _groups(model: answers.Model) -> str:
    """Return for how many groups of people a stated rate was seen not to hold."""
    if model.bias_card is None:
        return "not measured" if model.task == "embed" else "-"
    groups = model.bias_card.groups
    return f"{sum(any(rate.low > rate.fmr for rate in group.rates) for group in groups)} of {len(groups)} above"


@models.command(epilog="Example: likeness models show sface")
def show(
    name: options.Package,
    server: options.Server = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a model package: its licence, its operating points, and how they hold within groups of people."""
    with connect(server, key, Data.UNUSED) as client:
        found = client.models().models
    chosen = [model for model in found if name in {model.id, model.name}]
    if len(chosen) != 1:
        message = f"{len(chosen)} model packages are called {name!r}; there are {', '.join(one.id for one in found)}."
        raise Unusable(message, code="package_ambiguous" if chosen else "package_unknown", package=name)
    model = chosen[0]
    if as_json:
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
        found = {
            rate.fmr: f"{'* ' if rate.low > rate.fmr else ''}{rate.found:.2g} ({rate.low:.2g}-{rate.high:.2g})"
            for rate in group.rates
        }
        rows.append([group.name, f"{group.photos:,}", *(found.get(fmr, "") for fmr in stated)])
    output.say_table(["group", "photos", *(f"FMR {fmr:g}" for fmr in stated)], rows)
    output.say(f"People who appear twice: {card.repeats}")


models.command(epilog="Example: likeness models pull best")(adding.pull)
models.command(epilog="Example: likeness models add w600k_r50.onnx --name mine --preset insightface --licence MIT")(
    adding.add
)
models.command(epilog="Example: likeness models measure auraface --photos people/")(measuring.measure)
models.command(epilog="Example: likeness models quantize sface --photos photos/")(measuring.quantize)
models.command(epilog="Example: likeness models fuse sface intel-face --name pair --photos people/")(fusing.fuse)
models.add_typer(calibrations.commands, name="calibrations", help="Which operating points of a package decide.")
