"""`likeness models measure`, `quantize`, `fuse`: measure operating points, quantise to 8 bits, join embedders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import options, output
from app.cli.photos import in_parallel, people
from app.config import load_settings
from app.errors import InvalidInput
from app.machine import cores
from app.models.packages import added, write_own
from app.package.folders import OWN_FOLDER, Package, find_packages, load_package, own_path, read_own, select
from app.package.manifest import CROP_SIDE

if TYPE_CHECKING:
    from app.config import Settings
    from app.models.fuse import Member, Weighed
    from app.types import Pixels, Vector, Vectors

NOT_MEASURED = "It has no operating points yet: likeness models measure {name} --photos DIR"
CALIBRATION_PHOTOS = 2000
"""Maximum photos to search for calibration faces."""
NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,99}"
"""Pattern of a package's or calibration's name, as manifests allow it."""
WEIGHED_PHOTOS = 5000
"""Maximum photos to choose weights on: they make 12.5 million pairs, which take 4 bytes each per member and mirror
image."""


def measure(
    name: options.Package,
    *,
    photos: Annotated[
        Path, typer.Option(help="Folder with a folder of photos for each person; nobody may be in it twice.")
    ],
    calibration: Annotated[str, typer.Option("--name", help="Name of the calibration.")] = "measured",
    same_above: Annotated[
        float | None,
        typer.Option(
            help="Leave out pairs of people whose photos' mean score is this or more, since they are one person twice."
        ),
    ] = None,
    use: Annotated[
        bool, typer.Option("--use", help="Decide by these points from now on, in a running server too.")
    ] = False,
    draw: Annotated[Path | None, typer.Option(help="SVG file to draw the scores and the DET curve into.")] = None,
    aligned: Annotated[bool, typer.Option("--aligned", help="The photos are aligned 112×112 crops already.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure a package's operating points on photos of people, and store them in the data folder.

    Each threshold has a 95 % interval over people. The points decide if --use is given or the package has no others;
    `likeness models calibrations use` changes this later.
    """
    from app.models import people as measuring  # noqa: PLC0415 - slow to import
    from app.models.calibration import operating_points as points  # noqa: PLC0415 - slow to import
    from app.models.stages import open_stages  # noqa: PLC0415 - slow to import

    check_name(calibration, "--name")
    settings = load_settings()
    packages = find_packages(settings.models_dir, settings.data_dir)
    package = select(packages, name)
    files = [(person, path) for person, paths in people(photos).items() for path in paths]

    def vector_of(file: tuple[str, Path]) -> Vector | None:
        try:
            return embed(file[1].read_bytes())[0]
        except InvalidInput as error:
            output.warn(f"{file[1]}: left out: {error.message}")
            return None

    with open_stages(package, select(packages, settings.detector), settings.data_dir / "models") as stages:
        embed = stages.embed_crop if aligned else stages.embed_photo
        rows = in_parallel(vector_of, files, "embed", jobs=cores())
        shown = measuring.Photographed.of([(*file, vector) for file, vector in rows if vector is not None])
    done = measuring.measure_package(shown, same_above=same_above)
    on = f"{len(shown.paths)} photos of {shown.count} people, {datetime.now(UTC):%Y-%m-%d}"
    about = f"all pairs of {len(shown.paths)} photos, without {done.left_out} that show one person"
    use = use or not package.manifest.calibrations
    facts = {"name": calibration, "measured_on": on, "pairs": about}
    new = points.calibration(done.measurement, **facts, default=use, fusion=done.fusion)
    written = package.manifest.bind(new)
    path = own_path(settings.data_dir, package.id)
    write_own(path, added(read_own(path), written, deciding=use))
    if draw is not None:
        draw.write_text(measuring.svg(written, f"{package.id}, {calibration}: {on}"), encoding="utf-8")
    if as_json:
        output.say_json({"model": package.id, "calibration": written.model_dump(mode="json", exclude={"scores"})})
        return
    output.say(f"{package.id}, {calibration}: {on}: {written.comparisons:,} non-mated, {written.mated:,} mated pairs")
    output.say_table(measuring.HEADS, measuring.rows(points.rising(done.measurement.points)))
    for line in measuring.remarks(done, shown.count, settings.fmr, settings.fpir):
        output.say(line)
    deciding = load_package(package.folder, settings.data_dir).manifest.deciding
    if deciding is not None and deciding.name == calibration:
        output.say(f"Written to {path}; it decides, in a running server too.")
    else:
        output.say(f"Written to {path}. To decide by it: likeness models calibrations use {name} {calibration}")


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
    """Create the package NAME-int8 of an embedder: faster on processors that multiply 8-bit integers, slightly less
    exact.

    Its templates can't be compared with NAME's. Measure its operating points before it decides anything
    (docs/how-to/int8.md).
    """
    import numpy as np  # noqa: PLC0415 - slow to import

    from app.models.commands.sample_photos import SAMPLES, load, open_pipeline  # noqa: PLC0415 - slow to import
    from app.models.quantize import CALIBRATION_CROPS, quantize_package  # noqa: PLC0415 - slow to import
    from app.models.stages import aligned_crop  # noqa: PLC0415 - slow to import

    settings = load_settings()
    package, pipeline = select(find_packages(settings.models_dir, settings.data_dir), name), open_pipeline(settings)
    crops: list[Pixels] = []
    for photo in load(photos or SAMPLES, CALIBRATION_CROPS if aligned else CALIBRATION_PHOTOS):
        crops += (
            [aligned_crop(photo)]
            if aligned
            else [face.crop for face in pipeline.detect(photo).faces if face.crop is not None]
        )
        if len(crops) >= CALIBRATION_CROPS:
            break
    source = "the packaged photos" if photos is None else "photos given"
    stacked = np.stack(crops) if crops else np.empty((0, CROP_SIDE, CROP_SIDE, 3), np.uint8)
    cache, ranges = settings.data_dir / "models", f"{len(crops)} faces of {source}"
    made = quantize_package(package, stacked, settings.data_dir / OWN_FOLDER, cache, ranges_from=ranges)
    figures = made.manifest.provenance.figures
    mean, lowest = figures["cosine_to_source_mean"], figures["cosine_to_source_lowest"]
    answer = {"model": made.id, "folder": str(made.folder), "faces": len(crops)}
    output.answer(
        {**answer, "cosine_mean": mean, "cosine_lowest": lowest},
        f"{made.id}: {made.folder}, from {len(crops)} faces",
        f"Cosine to {package.id}'s vectors: mean {mean}, lowest {lowest}",
        NOT_MEASURED.format(name=made.manifest.name),
        as_json=as_json,
    )


def fuse(
    names: Annotated[list[str], typer.Argument(metavar="PACKAGE...", help="Embedders, two or more.")],
    *,
    name: Annotated[str, typer.Option(help="Name of the new package: a-z, 0-9 and . _ -")],
    photos: Annotated[
        Path | None,
        typer.Option(help="Folder with a folder of photos for each person, on which weights and mirror are chosen."),
    ] = None,
    weight: Annotated[
        list[float] | None,
        typer.Option(
            help="Weight of each package, in the order of the packages. Default: equal, or chosen on --photos."
        ),
    ] = None,
    mirror: Annotated[
        list[str] | None, typer.Option(help="Package that also takes the mirror image: more exact, at twice its time.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a package whose templates join those of several packages: more exact, but as slow as all of them together.

    Its templates can't be compared with another package's. Measure its operating points before it decides anything, on
    photos that were not used to choose weights.
    """
    from app.models.fuse import Member, add_fused  # noqa: PLC0415 - slow to import

    check_name(name, "--name")
    if weight is not None and len(weight) != len(names):
        raise typer.BadParameter(f"{len(weight)} for {len(names)} packages", param_hint="--weight")
    if photos is not None and (weight or mirror):
        raise typer.BadParameter(
            "they choose weights and mirror; leave --weight and --mirror away", param_hint="--photos"
        )
    settings = load_settings()
    installed = find_packages(settings.models_dir, settings.data_dir)
    packages = [select(installed, package_name) for package_name in names]
    mirrored = {select(installed, package_name).id for package_name in mirror or ()}
    if stray := mirrored - {package.id for package in packages}:
        raise typer.BadParameter(f"{', '.join(stray)}: not among the packages", param_hint="--mirror")
    shares = weight or [1 / len(packages)] * len(packages)
    members = [Member(package, share, package.id in mirrored) for package, share in zip(packages, shares, strict=True)]
    weighed: list[Weighed] = []
    chosen = "Weights and mirror image as stated."
    if photos is not None:
        shown, weighed = _weigh(members, photos, settings)
        members = [Member(*weighing) for weighing in zip(packages, weighed[0].weights, weighed[0].mirrors, strict=True)]
        rates = " and ".join(f"{rate:g}" for rate in weighed[0].rates)
        chosen = f"Weights and mirror image chosen on photos of {shown} people, by the FNMR at FMR {rates}."
    made = add_fused(members, name, chosen, settings.data_dir / OWN_FOLDER, settings.data_dir / "models")
    _say_fused(made, members, weighed, as_json=as_json)


def _weigh(members: Sequence[Member], folder: Path, settings: Settings) -> tuple[int, list[Weighed]]:
    """Return the number of people in the folder's photos, and the best weights for each choice of mirror images."""
    import numpy as np  # noqa: PLC0415 - slow to import

    from app.models.commands.sample_photos import main_face, open_pipeline  # noqa: PLC0415 - slow to import
    from app.models.fuse import weigh  # noqa: PLC0415 - slow to import
    from app.models.opening import open_embedder  # noqa: PLC0415 - slow to import

    pipeline = open_pipeline(settings)
    files = [(who, path) for who, paths in people(folder).items() for path in paths][:WEIGHED_PHOTOS]
    rows = in_parallel(lambda file: main_face(pipeline, file[1]), files, "find faces", jobs=cores())
    shown = [(who, crop) for (who, _), crop in rows if crop is not None]
    sessions = [open_embedder(member.package, settings.data_dir / "models", "cpu") for member in members]

    def embed(crop: Pixels) -> list[Vectors]:
        return [session.run(np.stack([crop, crop[:, ::-1]])) for session in sessions]

    pairs = [vectors for _, vectors in in_parallel(embed, [crop for _, crop in shown], "embed", jobs=cores())]
    plain, mirrored = ([np.stack([row[at][side] for row in pairs]) for at in range(len(members))] for side in (0, 1))
    names, who = np.unique([name for name, _ in shown], return_inverse=True)
    return len(names), weigh(plain, mirrored, who)


def _say_fused(made: Package, members: Sequence[Member], weighed: Sequence[Weighed], *, as_json: bool) -> None:
    rates = weighed[0].rates if weighed else ()
    if as_json:
        used = [{"model": member.package.id, "weight": member.weight, "mirror": member.mirror} for member in members]
        tried = [{"weights": choice.weights, "mirror": choice.mirrors, "fnmr": choice.fnmr} for choice in weighed]
        output.say_json({"model": made.id, "folder": str(made.folder), "members": used, "rates": rates, "tried": tried})
        return
    if weighed:
        rows = []
        for choice in weighed:
            shares = zip(choice.weights, choice.mirrors, strict=True)
            weights = [f"{weight:g}{' + mirror' if mirror else ''}" for weight, mirror in shares]
            rows.append([*weights, *(f"{100 * fnmr:.2f} %" for fnmr in choice.fnmr)])
        heads = [member.package.manifest.name for member in members]
        output.say_table([*heads, *(f"FNMR at {rate:g}" for rate in rates)], rows)
    for member in members:
        output.say(f"{member.weight:g} of {member.package.id}{', with the mirror image' if member.mirror else ''}")
    output.say(f"{made.id}: {made.folder}, {made.manifest.dimension} numbers ({made.manifest.licence.name})")
    output.say(NOT_MEASURED.format(name=made.manifest.name))


def check_name(name: str, option: str) -> None:
    """Raise BadParameter if a manifest can't have this name."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise typer.BadParameter(f"{name!r} must be up to 100 of a-z, 0-9 and . _ -", param_hint=option)
