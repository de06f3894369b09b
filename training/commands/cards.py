"""`python -m training evaluate groups` and `conditions`: how well a package's operating points hold within groups of
people and in poor photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from app.models.calibration.intervals import Bools, Ints
from app.models.packages import write_manifest
from app.models.stages import pixels_of
from app.package.cards import ConditionCard
from app.package.folders import load_package
from app.package.thresholds import Thresholds
from app.types import Vector
from training.commands import options
from training.data.preparation.checking import THUMBNAIL, thumbnail
from training.evaluation import groups as measuring
from training.evaluation import plots
from training.evaluation.groups import EVERYBODY, GroupLabels, read_labels
from training.evaluation.pairs import Photos, person_of
from training.evaluation.photos import Templates, make_templates, open_photos
from training.evaluation.results import show_conditions, show_groups, show_spread, show_turned, write_found
from training.evaluation.stages import conditions as drawing
from training.evaluation.stages import turning
from training.terminal import counted, told

COPIES_ABOVE = 0.99
"""Correlation from which on two grey thumbnails show one photo; one person's photos of different days stay below."""
BLOCK = 100
"""Number of photos that are turned to all angles together. An interrupted run's result is complete for its blocks."""
SAME_ABOVE, DOUBT_ABOVE = 0.75, 0.6
"""Scores of SFace. None of 510,946 pairs of adults whose ages differ by 30 years scores above 0.47; of pairs of
children up to 3 years, who are surely different, many reach 0.6 and few 0.75."""


@options.with_template_options()
def groups(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    groups_by: Annotated[
        str,
        typer.Option(
            "--groups",
            help="utkface: AGE_SEX_GROUP_TIME in the names; folder: each folder is a group; or a CSV file with the "
            "columns file (folder/file.jpg), group and, if known, person. A photo may be in several groups.",
        ),
    ],
    measured_on: options.Written,
    copies_above: Annotated[
        float, typer.Option(help="Leave out a photo whose correlation with another is this or more; above 1: none.")
    ] = COPIES_ABOVE,
    same_above: Annotated[
        float, typer.Option(help="Take pairs with this score or more for one person; above 1: none.")
    ] = SAME_ABOVE,
    doubt_above: Annotated[
        float, typer.Option(help="The intervals' lower ends hold also if pairs with this score are one person.")
    ] = DOUBT_ABOVE,
    beside: Annotated[
        str | None,
        typer.Option(help="Another package, such as the one that this was made from: shows the spread of both."),
    ] = None,
    least: Annotated[int, typer.Option(help="Groups of fewer photos are not measured.")] = measuring.LEAST_PHOTOS,
    write: Annotated[bool, typer.Option("--write", help="Put the card into the package's manifest.")] = False,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of the bootstrap over people.")] = measuring.ROUNDS,
    seed: int = 0,
) -> None:
    """FMR within groups of people at the operating points, with intervals: the bias card of the manifest."""
    with told(ValueError, OSError):
        folder = way.folder
        calibration, thresholds = _stated(folder)
        made = options.templates_of(images, [], way)
        labels = read_labels(groups_by, made.names)
        copies = made.found & _near_copies(open_photos(images), made, copies_above)
        rows = _rows(labels, made, made.found & ~copies, least)
        people = [labels.people.get(name, name) for name in made.names]
        with counted("measuring groups", 2 * len(rows)) as advance:
            figures, strict = (
                measuring.measure_groups(
                    made.vectors, rows, people, thresholds, same_above=cut, rounds=rounds, seed=seed, progress=advance
                )
                for cut in (same_above, min(same_above, doubt_above))
            )
        figures = measuring.with_doubt(figures, strict)
        whole = next(group for group in figures if group.name == EVERYBODY)
        repeats = (
            f"{int(copies.sum())} of {int(made.found.sum())} photos are near copies of others and left out; "
            f"{whole.same_person} pairs with a score of {same_above:g} or more were taken for one person, and for the "
            f"intervals' lower ends all from {doubt_above:g} on; all others count as different people, so the rates "
            "are upper bounds"
        )
        shown, both = {made.package: made.vectors}, made.found & ~copies
        if beside is not None:
            other = options.templates_of(images, [], replace(way, package=beside, templates=None))
            shown[other.package], both = other.vectors, both & other.found
        spreads = measuring.spread(shown, _main(_rows(labels, made, both, least)), same_above=same_above)
        ages = [(row, years) for row in rows[EVERYBODY] if (years := measuring.age(made.names[row])) is not None]
        apart = {}
        if ages:
            of, years_of = np.array(ages, np.int64).T
            apart = measuring.by_years(made.vectors[of], years_of, thresholds, same_above=same_above)
        settings = {"images": str(images), "groups": groups_by, "copies_above": copies_above, "same_above": same_above}
        result = {
            "calibration": calibration,
            "repeats": repeats,
            "unlabelled": labels.unlabelled,
            "groups": figures,
            "spread": spreads,
            "years_apart": apart,
        }
        write_found(out, "groups", made, {**settings, "rounds": rounds, "seed": seed, "flip": way.flip}, result)
        show_groups(made.package, figures)
        show_spread(spreads, apart, list(thresholds))
        if write:
            manifest = load_package(folder).manifest
            card = measuring.bias_card(
                manifest, figures, measured_on=measured_on, calibration=calibration, repeats=repeats
            )
            write_manifest(folder, manifest.model_copy(update={"bias_card": card}))
            Console().print(f"Written to {folder}/manifest.json")


def _stated(folder: Path) -> tuple[str, Mapping[float, float]]:
    """Return the name of the default calibration, and its thresholds at the FMRs that are powers of ten."""
    thresholds = Thresholds(load_package(folder).manifest)
    if thresholds.calibration is None or thresholds.lowest is None or thresholds.highest is None:
        raise ValueError(f"{thresholds.package} has no operating points yet: measure them first")
    inside = [fmr for fmr in measuring.FMRS if thresholds.lowest <= fmr <= thresholds.highest]
    return thresholds.calibration.name, {fmr: thresholds.threshold(fmr) for fmr in inside}


@options.with_template_options("aligned", "flip")
def conditions(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    measured_on: options.Written,
    photos_of: options.PhotosOf = None,
    write: Annotated[bool, typer.Option("--write", help="Put the card into the package's manifest.")] = False,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of the bootstrap over people.")] = measuring.ROUNDS,
    seed: int = 0,
) -> None:
    """FNMR and FMR of artificially degraded photos (masked, dark, out of focus …) against untouched ones."""
    with told(ValueError, OSError):
        folder = way.folder
        calibration, thresholds = _stated(folder)
        made = options.templates_of(images, photos_of or [], way)
        photos, names = open_photos(images), drawing.one_photo_each(made)
        figures = []
        with way.open_stages() as stages, counted("drawing", len(names) * len(drawing.CONDITIONS)) as advance:
            for name, draw in drawing.CONDITIONS.items():

                def embed(photo: str, draw: drawing.DrawCondition = draw) -> tuple[Vector, float]:
                    return stages.embed_photo(drawing.drawn(photos.read(photo), stages.pipeline, draw, photo, seed))

                probes = make_templates(
                    made.package, stages.embedder.dimension, names, embed, threads=way.workers, progress=advance
                )
                figures.append(drawing.measure(name, probes, made, thresholds, rounds=rounds, seed=seed))
        settings = {"images": str(images), "rounds": rounds, "seed": seed}
        write_found(
            out,
            "conditions",
            made,
            settings,
            {"calibration": calibration, "conditions": [condition.model_dump() for condition in figures]},
        )
        show_conditions(made.package, figures)
        if write:
            manifest = load_package(folder).manifest
            card = ConditionCard(
                measured_on=measured_on,
                calibration=calibration,
                conditions=tuple(figures),
                measured_with=manifest.recipe_digest,
            )
            write_manifest(folder, manifest.model_copy(update={"condition_card": card}))
            Console().print(f"Written to {folder}/manifest.json")


@options.with_template_options("aligned", "flip", "templates")
def turned(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    photos_of: options.PhotosOf = None,
    most: Annotated[int, typer.Option("--photos", min=0, help="Photos that are turned; 0 = all with a mate.")] = 1000,
    skip_people: Annotated[
        int, typer.Option(min=0, help="Number of people with a mate to leave out, from the first on.")
    ] = 0,
    singles: Annotated[
        bool, typer.Option("--singles", help="Take people with one photo too, as where who a photo shows is not known.")
    ] = False,
    every: Annotated[int, typer.Option(min=1, max=180, help="Degrees between two turns.")] = 15,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder for templates, by angle: a run that was interrupted goes on where it was."),
    ] = None,
    draw: options.Plots = True,
) -> None:
    """Count how many faces turned in their plane are found, match the same person upright, and match strangers.

    The result so far is written after every 100 photos.
    """
    with told(ValueError, OSError):
        thresholds, photos, steps = (
            Thresholds(load_package(way.folder).manifest),
            open_photos(images),
            range(0, 360, every),
        )
        names = turning.sample(options.names_of(images, photos_of or []), most, skipped=skip_people, singles=singles)
        options.check_there(images, photos, names)
        made: dict[int, list[Templates]] = {degrees: [] for degrees in steps}
        settings = {"images": str(images), "every": every, "skip_people": skip_people, "singles": singles}
        with way.open_stages() as stages, counted("turning", len(names) * len(steps)) as advance:
            for start in range(0, len(names), BLOCK):
                part = names[start : start + BLOCK]
                for degrees in steps:

                    def embed(photo: str, degrees: int = degrees) -> tuple[Vector, float]:
                        return stages.embed_photo(turning.turn(photos.read(photo), degrees))

                    kept, made_by = keep and keep / f"{degrees}-{start}.npz", way.facts(images) | {"turned": degrees}
                    block = options.read_kept(kept, made_by)
                    if block is None:
                        block = make_templates(
                            stages.embedder.package_id, stages.embedder.dimension, part, embed, threads=way.workers
                        )
                        block = replace(block, made_by=made_by)
                        if kept is not None:
                            block.save(kept)
                    made[degrees].append(block.only(part))
                    advance(len(part))
                figures, beside = _write_turned(out, made, thresholds, settings, draw=draw)
        show_turned(stages.embedder.package_id, figures, beside)


def _write_turned(
    out: Path,
    made: Mapping[int, Sequence[Templates]],
    thresholds: Thresholds,
    settings: Mapping[str, object],
    *,
    draw: bool,
) -> tuple[list[turning.Turned], list[turning.Beside]]:
    """Write and return the figures of the photos turned so far, by degrees, with those of the upright ones."""
    upright = Templates.join(made[0])
    at = turning.MatchThresholds.of(thresholds, len({person_of(name) for name in upright.names}))
    measured = {
        degrees: turning.measure(degrees, Templates.join(parts), upright, at) for degrees, parts in made.items()
    }
    figures = [figure for figure, _ in measured.values()]
    beside = turning.beside_upright({degrees: counted for degrees, (_, counted) in measured.items()})
    write_found(out, "turned", upright, settings, {"turned": figures, "beside_upright": beside})
    if draw:
        plots.turned(figures, out / "turned.svg")
    return figures, beside


def _near_copies(photos: Photos, made: Templates, above: float) -> Bools:
    """Return (N,) bool: whether each photo is a near copy of an earlier one."""
    if above > 1:
        return np.zeros(len(made.names), bool)
    small = np.zeros((len(made.names), THUMBNAIL**2), np.float32)
    with counted("looking for copies", len(made.names)) as advance:
        for row, name in enumerate(made.names):
            if made.found[row]:
                small[row] = thumbnail(pixels_of(photos.read(name)))
            advance(1)
    return measuring.near_copies(small, above)


def _rows(labels: GroupLabels, made: Templates, used: NDArray[np.bool_], least: int) -> dict[str, Ints]:
    """Return the rows of each group's used photos; groups with fewer than ``least`` are left out."""
    rows = {name: made.rows(photos) for name, photos in labels.groups.items()}
    kept = {name: members[used[members]] for name, members in rows.items()}
    large = {name: members for name, members in kept.items() if len(members) >= least}
    if EVERYBODY not in large:
        raise ValueError(f"fewer than {least} photos have a face and a group")
    return large


def _main(rows: Mapping[str, Ints]) -> dict[str, Ints]:
    """Return the groups that are not part of another group. Comparing all people with each other would take longer than
    comparing the people within each of these groups."""
    return {name: members for name, members in rows.items() if "/" not in name and name != EVERYBODY}
