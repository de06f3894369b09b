"""`python -m training halves`: does a calibration hold for people whom it was not measured on?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from app.calibration import operating_points as points
from app.inference.package import load_package
from app.inference.thresholds import Thresholds
from training.commands import options
from training.evaluation import halves as protocol
from training.evaluation.pairs import person_of
from training.evaluation.results import write_found
from training.terminal import counted, told


@options.with_template_options("flip")
def halves(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    splits: Annotated[int, typer.Option(min=1, help="Random splits of the people (seeds 0, 1, …).")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the bootstrap over people.")] = points.ROUNDS,
) -> None:
    """Calibrate a gallery of half of the people as the service does, and measure its thresholds on the other half.

    FMR stated against found, for the package's calibration and for the gallery's.
    """
    with told(ValueError, OSError):
        made = options.templates_of(images, [], way)
        shown = made.with_face()
        vectors, people = shown.vectors, points.numbered([person_of(name) for name in shown.names])
        thresholds = Thresholds(load_package(way.folder).manifest)
        found = []
        for seed in range(splits):
            with counted(f"split {seed}", len(vectors)) as advance:
                found.append(
                    protocol.try_split(vectors, people, thresholds, seed=seed, rounds=rounds, progress=advance)
                )
        rows = protocol.summarise(found)
        calibration = thresholds.calibration
        settings = {
            "images": images.name,
            "people": int(people.max()) + 1,
            "splits": splits,
            "rounds": rounds,
            "package_calibration": calibration and {"name": calibration.name, "measured_on": calibration.measured_on},
        }
        write_found(out, "halves", made, settings, {"summary": rows, "splits": found})
        _show(made.package, rows)


def _show(package: str, rows: list[protocol.Summary]) -> None:
    table = Table("calibration", "FMR stated", "FMR found", "95 % interval", "over splits", "FNMR", title=package)
    for row in rows:
        table.add_row(
            row.way,
            f"{row.stated:g}",
            f"{row.fmr:.2e}",
            f"{row.low:.1e}-{row.high:.1e}",
            f"{row.least:.1e}-{row.most:.1e} ({row.splits})",
            f"{row.fnmr:.2%}",
        )
    Console().print(table)
