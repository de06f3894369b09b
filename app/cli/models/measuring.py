"""models measure, models quantize: operating points from photos, and 8-bit weights."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import options, output
from app.cli.photos import open_pipeline
from app.config import load_settings
from app.errors import InvalidInput

if TYPE_CHECKING:
    from app.inference.package import Package
    from app.types import Pixels, Vector

CALIBRATION_PHOTOS = 2000
"""Photos that are searched for calibration faces, at most."""


def measure(
    name: options.Package,
    *,
    photos: Annotated[Path, typer.Option(help="Folder with a folder of photos for each person, of nobody twice.")],
    calibration: Annotated[str, typer.Option("--name", help="What the calibration is called.")] = "measured",
    same_above: Annotated[
        float | None,
        typer.Option(help="Leave out pairs of people whose photos' mean score is this or more: one person twice."),
    ] = None,
    default: Annotated[bool, typer.Option("--default/--no-default", help="Whether these points decide.")] = True,
    draw: Annotated[Path | None, typer.Option(help="SVG file to draw the scores and the DET curve into.")] = None,
    aligned: Annotated[bool, typer.Option("--aligned", help="The photos are aligned 112×112 crops already.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure a package's operating points on photos of people, and keep them in the data folder.

    Each threshold has a 95 % interval over people. A running server decides by them at once.
    """
    from app.calibration import operating_points as points  # noqa: PLC0415 - slow to import
    from app.calibration import people as measuring  # noqa: PLC0415 - slow to import
    from app.cli.photos import each, people  # noqa: PLC0415 - slow to import
    from app.inference.package import find_packages, own_path, read_own, select, write_own  # noqa: PLC0415 - slow to import
    from app.machine import cores  # noqa: PLC0415 - slow to import
    from app.stages import open_stages  # noqa: PLC0415 - slow to import

    options.check_name(calibration, "--name")
    settings = load_settings()
    packages = find_packages(settings.models_dir, settings.data_dir)
    package = select(packages, name)
    files = [(person, path) for person, paths in people(photos).items() for path in paths]
    with open_stages(package, select(packages, settings.detector), settings.data_dir / "models") as stages:
        embed = stages.embed_crop if aligned else stages.embed_photo
        rows = each(lambda file: _unless_refused(embed, file[1]), files, "embed", jobs=cores())
        found = measuring.Photographed.of([(*file, vector) for file, vector in rows if vector is not None])
    done = measuring.measure_package(found, same_above=same_above)
    on = f"{len(found.paths)} photos of {found.count} people, {datetime.now(UTC):%Y-%m-%d}"
    about = f"all pairs of {len(found.paths)} photos, without {done.left_out} that show one person"
    new = points.calibration(done.measurement, name=calibration, measured_on=on, pairs=about, default=default)
    written = package.manifest.bind(new)
    path = own_path(settings.data_dir, package.id)
    write_own(path, read_own(path).added(written, deciding=default or not package.manifest.calibrations))
    if draw is not None:
        draw.write_text(measuring.svg(written, f"{package.id}, {calibration}: {on}"), encoding="utf-8")
    if as_json:
        output.say_json({"model": package.id, "calibration": written.model_dump(mode="json", exclude={"scores"})})
        return
    output.say(f"{package.id}, {calibration}: {on}: {written.comparisons:,} non-mated, {written.mated:,} mated pairs")
    output.say_table(measuring.HEADS, measuring.rows(points.rising(done.measurement.points)))
    for line in measuring.remarks(done, found.count, settings.fpir):
        output.say(line)
    using = "a running server decides by it at once" if default else f"models calibrations use {name} {calibration}"
    output.say(f"Written to {path}; {using}.")


def _unless_refused(embed: Callable[[bytes], tuple[Vector, float]], path: Path) -> Vector | None:
    try:
        return embed(path.read_bytes())[0]
    except InvalidInput as error:
        output.warn(f"{path}: left out: {error.message}")
        return None


def quantize(
    name: options.Package,
    *,
    photos: Annotated[
        Path | None,
        typer.Option(help="Folder or tar of photos with faces, 256 or more like yours. Default: the packaged photos."),
    ] = None,
    aligned: Annotated[bool, typer.Option("--aligned", help="The photos are aligned 112×112 crops already.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Create NAME-int8 of an embedder: faster where processors multiply 8-bit integers, slightly less exact.

    It is a package of its own, whose templates don't compare with NAME's. Measure its operating points before it
    decides anything (docs/how-to/int8.md).
    """
    import numpy as np  # noqa: PLC0415 - slow to import

    from app.cli.sample_photos import SAMPLES, load  # noqa: PLC0415 - slow to import
    from app.inference.manifest import CROP_SIDE  # noqa: PLC0415 - slow to import
    from app.inference.package import OWN_FOLDER, find_packages, select  # noqa: PLC0415 - slow to import
    from app.inference.quantize import CALIBRATION_CROPS, quantize_package  # noqa: PLC0415 - slow to import
    from app.stages import aligned_crop  # noqa: PLC0415 - slow to import

    settings = load_settings()
    package, pipeline = select(find_packages(settings.models_dir, settings.data_dir), name), open_pipeline(settings)
    crops: list[Pixels] = []
    for photo in load(photos or SAMPLES, CALIBRATION_CROPS if aligned else CALIBRATION_PHOTOS):
        crops += [aligned_crop(photo)] if aligned else [face.crop for face in pipeline.detect(photo).faces]
        if len(crops) >= CALIBRATION_CROPS:
            break
    source = "the packaged photos" if photos is None else "photos given"
    stacked = np.stack(crops) if crops else np.empty((0, CROP_SIDE, CROP_SIDE, 3), np.uint8)
    cache, ranges = settings.data_dir / "models", f"{len(crops)} faces of {source}"
    made = quantize_package(package, stacked, settings.data_dir / OWN_FOLDER, cache, ranges_from=ranges)
    _say_quantized(made, package, len(crops), as_json=as_json)


def _say_quantized(made: Package, source: Package, faces: int, *, as_json: bool) -> None:
    figures = made.manifest.provenance.figures
    mean, lowest = figures["cosine_to_source_mean"], figures["cosine_to_source_lowest"]
    if as_json:
        output.say_json(
            {"model": made.id, "folder": str(made.folder), "faces": faces, "cosine_mean": mean, "cosine_lowest": lowest}
        )
        return
    output.say(f"{made.id}: {made.folder}, from {faces} faces")
    output.say(f"Cosine to {source.id}'s vectors: mean {mean}, lowest {lowest}")
    output.say(f"It has no operating points yet: likeness models measure {made.manifest.name} --photos DIR")
