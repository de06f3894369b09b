"""`python -m training evaluate liveness`: measure a liveness package's error rates. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from app.machine import cores
from app.models.packages import write_manifest
from app.package.folders import Package, load_package
from training.commands import options
from training.evaluation.bootstrap import ROUNDS
from training.evaluation.results import interval, percent, write
from training.evaluation.stages import liveness
from training.packages import MODELS, find_package
from training.terminal import counted, told

LivenessPackages = Annotated[
    list[str], typer.Option("--package", help="Liveness package; given again, the scores are averaged.")
]


def evaluate_liveness(
    *,
    package: LivenessPackages,
    live: Annotated[Path, typer.Option(help="Photos or frames of live people, best a folder for each person.")],
    spoof: Annotated[
        Path, typer.Option(help="A folder for each kind of attack, with photos or a folder for each person or video.")
    ],
    out: options.Out,
    name: Annotated[str, typer.Option(help="What the calibration is called in the manifest.")],
    measured_on: Annotated[str, typer.Option(help="One sentence for the manifest: which camera, which attacks.")],
    write_points: Annotated[bool, typer.Option("--write", help="Put the points into the first package.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the bootstrap over people or videos.")] = ROUNDS,
    seed: int = 0,
    models: options.Models = MODELS,
    cache: options.Cache = options.CACHE,
    device: options.OnDevice = "cpu",
    threads: options.Threads = 0,
) -> None:
    """APCER and BPCER (ISO/IEC 30107-3) on recordings of your camera, and thresholds for the package's manifest."""
    with told(ValueError, OSError):
        packages = [find_package(name, models) for name in package]
        recordings = liveness.find_recordings(live, spoof)
        with (
            liveness.open_judge(packages, models, cache, device) as judge,
            counted("judging", len(recordings)) as advance,
        ):
            scored = liveness.score_all(recordings, judge, threads=threads or cores(), progress=advance)
        measured = liveness.measure(scored, rounds=rounds, seed=seed)
        new = liveness.calibration(measured, packages, name=name, measured_on=measured_on)
        _write_result(out, packages, scored, measured)
        _show(packages, measured)
        if write_points:
            folder = packages[0].folder
            write_manifest(folder, liveness.with_calibration(load_package(folder).manifest, new))
            Console().print(f"Written to {folder}/manifest.json")


def _write_result(
    out: Path, packages: list[Package], scored: list[liveness.Scored], measured: liveness.LivenessMeasurement
) -> None:
    failures = {str(photo.recording.path): photo.failure for photo in scored if photo.failure is not None}
    samples = {"live": measured.live, **measured.attacks}
    document = {
        "kind": "liveness",
        "packages": [package.id for package in packages],
        "photos": {kind: len(sample.scores) for kind, sample in samples.items()},
        "non_responses": {kind: sample.unanswered for kind, sample in samples.items()},
        "groups": {
            kind: None if sample.groups is None else int(sample.groups.max()) + 1 for kind, sample in samples.items()
        },
        "smallest_face": measured.smallest_face,
        "points": measured.points,
        "failures": failures,
    }
    write(out, document)


def _show(packages: list[Package], measured: liveness.LivenessMeasurement) -> None:
    counts = ", ".join(f"{len(sample.scores)} {kind}" for kind, sample in measured.attacks.items())
    title = f"{' + '.join(package.id for package in packages)}: {len(measured.live.scores)} live, {counts}"
    kinds = [f"APCER {kind}" for kind in measured.attacks] if len(measured.attacks) > 1 else []
    table = Table("threshold", "APCER", "95 %", "BPCER", "95 %", *kinds, title=title)
    for point in measured.points:
        shares = [percent(point.kinds[kind].value) for kind in measured.attacks] if kinds else []
        rates = [percent(point.apcer.value), interval(point.apcer), percent(point.bpcer.value), interval(point.bpcer)]
        table.add_row(f"{point.threshold:.4f}", *rates, *shares)
    Console().print(table)
    for kind, sample in {"live": measured.live, **measured.attacks}.items():
        if sample.unanswered.value > 0:
            Console().print(f"No face in {percent(sample.unanswered.value)} of {kind}")
