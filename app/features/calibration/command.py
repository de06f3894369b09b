"""`likeness galleries calibrate`: measure a gallery's own operating points."""

from __future__ import annotations

from typing import Annotated

import typer
from likeness_client import answers

from app import choices
from app.cli import jobs, options, output
from app.cli.options import CliSession, command
from app.cli.output import Exit

WHY = {
    "not_measured": "the gallery's is not measured yet",
    "too_few_subjects": "the gallery has too few subjects",
    "other_model": "the gallery's was measured with another model",
    "rate_not_supported": "the gallery's pairs do not support the rate",
}
commands = typer.Typer()


@command(commands, epilog="Example: likeness galleries calibrate staff --use gallery")
def calibrate(
    session: CliSession,
    gallery: options.Gallery,
    use: Annotated[
        choices.CalibrationSource | None,
        typer.Option(help="Whose operating points decide: the package's or the gallery's."),
    ] = None,
    allow_laxer: Annotated[
        bool | None,
        typer.Option(
            "--allow-laxer/--no-allow-laxer", help="Whether the gallery's thresholds may be laxer than the floor."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Only show the last measurement.")] = False,
) -> None:
    """Measure a gallery's own operating points among its subjects, and choose which points decide."""
    client = session.client()
    given = {"calibration": use, "allow_laxer": allow_laxer}
    if changes := {name: value for name, value in given.items() if value is not None}:
        client.update_gallery(gallery, changes)
    started = None if show else client.calibrate_gallery(gallery).job
    if started is not None:
        job = jobs.await_job(client, started.id)
        if (code := jobs.exit_code(job)) is not Exit.DONE:
            jobs.say(session, job)
            raise typer.Exit(code)
    calibration = client.calibration(gallery)
    if session.as_json:
        output.say_json(calibration)
    else:
        _say_calibration(calibration)


def _say_calibration(calibration: answers.GalleryCalibration) -> None:
    measured, decides = calibration.measured, calibration.decides
    if measured is None:
        output.say(f"{calibration.gallery}: not measured yet")
    else:
        output.say(
            f"{calibration.gallery}: {measured.compared_faces:,} of {measured.faces:,} faces compared, "
            f"{measured.compared_subjects:,} of {measured.subjects:,} subjects, "
            f"{measured.comparisons:,} pairs of different ones, {measured.measured_at:%Y-%m-%d}"
        )
    rows = [
        [
            f"{point.fmr:g}",
            "-" if point.threshold is None else f"{point.threshold:.4f}",
            "-" if point.threshold_low is None else f"{point.threshold_low:.4f}-{point.threshold_high:.4f}",
            "-" if point.package is None else f"{point.package:.4f}",
            "-" if point.found is None else f"{point.found:.1e} ({point.found_low:.1e}-{point.found_high:.1e})",
            "-" if point.decides is None else f"{point.decides:.4f}",
        ]
        for point in calibration.points
    ]
    heads = ["FMR", "gallery", "95 % interval", "package", "FMR here at the package's", "with --use gallery"]
    output.say_table(heads, rows)
    if measured is not None and measured.suspicious:
        expected = "" if measured.suspicious_expected is None else f", {measured.suspicious_expected:.2g} by chance"
        output.say(
            f"Pairs of subjects that may be one person: {measured.suspicious}{expected}; left out, so that each FMR "
            f"may be too low by {measured.missed:.1e} at most:"
        )
    for pair in calibration.pairs:
        first, second = pair.first, pair.second
        output.say(f"  {pair.score:.3f} {first.subject} ({first.face_id}), {second.subject} ({second.face_id})")
    why = f" ({WHY[decides.fallback]})" if decides.fallback else ""
    output.say(f"Decides: the {decides.source}'s calibration{f' {decides.name}' if decides.name else ''}{why}")
