"""`python -m training data`: align raw photos, check a set of crops, find wrong labels and shared people."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from app.inference.embedders import Embedder
from app.machine import cores
from app.models.opening import open_embedder
from training.commands import options
from training.data import open_dataset, rows_left
from training.data.crops import all_crops, open_pixels
from training.data.preparation.aligning import FAILED, AlignerSettings, align_folder, detector_file, read_failed
from training.data.preparation.blending import write_blends
from training.data.preparation.checking import Report, check_set
from training.data.preparation.overlap import Overlap, best_means, find_overlap, write_overlap
from training.data.preparation.templates import choose_threshold, embed_set
from training.packages import CACHE, MODELS, find_package
from training.terminal import counted, told

SHOWN = 10
"""Number of rows shown of each table; the JSON has all rows."""
FPIR = 0.05
"""Share of people who are found in the other set by mistake. Dropping too many people does little harm. A stricter
threshold would miss half of the shared people if their pictures vary as much as those of celebrities."""

app = typer.Typer(
    help="Align, check and compare sets of photos and crops.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Threshold = Annotated[
    float | None, typer.Option(help="Cosine from which on two are one person; without it, from the package and --fpir.")
]
Fpir = Annotated[float, typer.Option(help="Share of people found in the others by mistake that is accepted.")]


@app.command()
def align(
    source: Annotated[Path, typer.Argument(help="Folder of photos, by default one folder a person below it.")],
    target: Annotated[Path, typer.Argument(help="Folder for the crops; keeps the folders of the photos.")],
    *,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = cores(),
    min_quality: Annotated[float, typer.Option(min=0, max=100, help="Crops below this quality count as failed.")] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    models: options.Models = MODELS,
    cache: options.Cache = CACHE,
) -> None:
    """Detect and align the most prominent face of each photo, as the service does, to a 112 x 112 JPEG crop.

    Continues where an earlier run stopped. TARGET/failed.jsonl lists the failures with their reasons.
    """
    with told():
        settings = AlignerSettings(source, target, detector_file(models, cache), min_quality)
        with counted("aligning") as step:
            summary = align_folder(settings, workers, retry=retry, progress=step)
    Console().print(
        f"{summary.aligned} aligned, {summary.kept} were there, {summary.failed} failed, "
        f"{summary.gave_up} had failed before"
    )
    failed = read_failed(target)
    if failed:
        reasons = Table("reason", "photos", title=f"Failed (all in {target / FAILED})")
        codes = [outcome.code or "" for outcome in failed.values()]
        for code in sorted(set(codes), key=codes.count, reverse=True):
            reasons.add_row(code, str(codes.count(code)))
        Console().print(reasons)


@app.command()
def check(
    dataset: Annotated[str, typer.Argument(help="A set of crops: folder, list, .rec, tar, procedural:...")],
    *,
    report: Annotated[Path | None, typer.Option(help="Write the whole report here, as JSON.")] = None,
    package: options.PackageName = "sface",
    threshold: Threshold = None,
    fpir: Fpir = FPIR,
    models: options.Models = MODELS,
    cache: options.Cache = CACHE,
    device: options.OnDevice = "cpu",
) -> None:
    """Find broken files, duplicates, people with one image, and images that show another person."""
    with told():
        faces = open_dataset(dataset)
        chosen = find_package(package, models)
        limit, origin = choose_threshold(chosen, len(faces.people), fpir, threshold)
        with (
            Embedder(open_embedder(chosen, cache, device)) as embedder,
            counted("reading and embedding", len(faces)) as step,
        ):
            checked = check_set(faces, embedder, limit, origin, step)
    if report is not None:
        _write_json(report, asdict(checked))
    _show_report(checked)


@app.command()
def outliers(
    run: Annotated[Path, typer.Argument(help="A run trained with subcenter_arcface, or a checkpoint of it.")],
    *,
    out: Annotated[Path, typer.Option(help="Write the list of images to drop here, .json.")],
    degrees: Annotated[float, typer.Option(min=0, max=180, help="Largest angle to the dominant centre.")] = 75.0,
) -> None:
    """Find wrong labels in a run's own data: images far from the centre at which most images of their person lie."""
    from training.run.sub_centres import find_outliers  # noqa: PLC0415 - the other commands need no torch

    with told():
        doubts = find_outliers(run, degrees, Console(stderr=True))
        _write_json(out, asdict(doubts))
    Console().print(f"{len(doubts.outliers)} of {doubts.images} images are more than {degrees:g}° from their person.")


@app.command()
def blend(
    dataset: Annotated[str, typer.Argument(help="A set of crops: folder, list, .rec, tar, procedural:...")],
    target: Annotated[Path, typer.Argument(help="The .tar file to write: the set's own crops, then the blends.")],
    *,
    count: Annotated[int, typer.Option(min=1, help="Blends to make.")],
    drop: Annotated[
        Path | None, typer.Option(help="What to leave out: a list of `data overlap` or `data check`.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Mix pairs of crops into new faces without labels, for distillation from a teacher."""
    with told():
        faces = open_dataset(dataset)
        with counted("blending") as step:
            crops = all_crops(faces, open_pixels(faces, None)).take(rows_left(faces, drop))
            write_blends(crops, target, count, seed, step)


@app.command()
def overlap(
    a: Annotated[str, typer.Argument(help="The set to leave people out of, usually the training set.")],
    b: Annotated[str, typer.Argument(help="The set that must stay unseen, usually the one measured on.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Write the list of A's people to drop here, .json or .csv.")] = None,
    package: options.PackageName = "sface",
    threshold: Threshold = None,
    pair_threshold: Annotated[
        float | None,
        typer.Option(
            help="Cosine for two single images. Default: --threshold, else stricter than for people, as there are "
            "more images."
        ),
    ] = None,
    fpir: Fpir = FPIR,
    models: options.Models = MODELS,
    cache: options.Cache = CACHE,
    device: options.OnDevice = "cpu",
) -> None:
    """Find the people of A who are in B too. Both are sets of aligned crops."""
    with told():
        first, second = open_dataset(a, "skip"), open_dataset(b, "skip")
        chosen = find_package(package, models)
        limit, origin = choose_threshold(chosen, len(second.people), fpir, threshold)
        if pair_threshold is None:
            # The number of comparisons of an average person's images with all of B's.
            comparisons = len(second) * len(first) // len(first.people)
            pair_threshold, _ = choose_threshold(chosen, comparisons, fpir, threshold)
        with Embedder(open_embedder(chosen, cache, device)) as embedder:
            with counted(f"embedding {a}", len(first)) as step:
                ours = embed_set(first, embedder, progress=step)
            with counted(f"embedding {b}", len(second)) as step:
                theirs = embed_set(second, embedder, progress=step)
        matches = find_overlap(ours, theirs, limit, pair_threshold)
        best = sorted(best_means(ours, theirs)[0].tolist())
        shared = Overlap(chosen.id, limit, origin, pair_threshold, len(ours.people), len(theirs.people), best, matches)
        if out is not None:
            write_overlap(out, shared)
    _show_overlap(shared)


def _show_report(report: Report) -> None:
    title = f"{report.images} images of {report.people} people; {report.package}, threshold {report.threshold:.3f}"
    table = Table(title=title)
    for column in ("what", "how many", "for example"):
        table.add_column(column, overflow="fold")
    spread = report.images_per_person
    most = f"{spread['least']:g} to {spread['most']:g}, half have {spread['median']:g} or more"
    table.add_row("images a person", "", most)
    problems = {
        "broken images": [broken.image for broken in report.broken],
        "people with one image": report.single,
        "equal images": [" = ".join(group) for group in report.exact_duplicates],
        "nearly equal images": [" ~ ".join(group) for group in report.near_duplicates],
        "images of somebody else": [f"{doubt.image} is {doubt.nearest}" for doubt in report.misplaced],
        "images unlike their person": [doubt.image for doubt in report.outliers],
        "people alike": [" ~ ".join(pair.people) for pair in report.alike],
    }
    for what, items in problems.items():
        table.add_row(what, str(len(items)), "; ".join(items[:3]) + (" ..." if len(items) > 3 else ""))
    Console().print(table)


def _show_overlap(shared: Overlap) -> None:
    title = (
        f"{len(shared.matches)} of {shared.people_a} people are among the other set's {shared.people_b} "
        f"({shared.package}, threshold {shared.threshold:.3f}: {shared.threshold_from})"
    )
    table = Table("drop", "is", "score", "best pair", title=title)
    for match in shared.matches[:SHOWN]:
        table.add_row(match.drop, match.matches, f"{match.score:.3f}", f"{match.best_pair:.3f}")
    if len(shared.matches) > SHOWN:
        table.add_row("...", f"and {len(shared.matches) - SHOWN} more", "", "")
    Console().print(table)


def _write_json(path: Path, facts: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
