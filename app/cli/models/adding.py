"""models add, models pull: a model file becomes a package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli import options, output
from app.cli.models import liveness
from app.cli.models.faces import crops_of_people, open_pipeline
from app.config import load_settings
from app.errors import Unusable

if TYPE_CHECKING:
    from app.adding.add import Added, Crops, Stated
    from app.adding.catalogue import KnownModel
    from app.adding.new_package import NewPackage
    from app.config import Settings
    from app.inference.manifest import Licence
    from app.inference.package import Package

PHOTOS_OF_FACES = 20
"""The packaged photos in their sizes, as many as a detector is tried on."""


def pull(
    name: options.Package,
    accept_non_commercial: Annotated[
        bool, typer.Option("--accept-non-commercial", help="Accept weights whose licence forbids commercial use.")
    ] = False,
    sha256: Annotated[
        str | None, typer.Option(help="SHA-256 that you confirm, for a known model whose hash nobody published.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Download the file of a package or of a known model (app/adding/catalogue.json), and check its SHA-256.

    A known model is added as a package, as by `likeness models add`.
    """
    from app.adding import download  # noqa: PLC0415 - slow to import
    from app.adding.catalogue import known_models  # noqa: PLC0415 - slow to import
    from app.inference import package  # noqa: PLC0415 - slow to import

    settings = load_settings()
    packages = package.find_packages(settings.models_dir)
    known = known_models().get(name)
    if known is not None and not any(each.manifest.name == name for each in packages.values()):
        path = _fetch_known(known, settings, accept_non_commercial=accept_non_commercial, sha256=sha256)
        _add_known(known, path, settings, as_json=as_json)
        return
    chosen = package.select(packages, name)
    path = download.pull(chosen, settings.data_dir / "models", accept_non_commercial=accept_non_commercial)
    if as_json:
        output.say_json({"model": chosen.id, "path": str(path), "licence": chosen.manifest.licence.name})
    else:
        output.say(f"{chosen.id}: {path} ({chosen.manifest.licence.name})")


def _fetch_known(known: KnownModel, settings: Settings, *, accept_non_commercial: bool, sha256: str | None) -> Path:
    """Return the file of a known model; ask on a terminal whether a hash that nobody published is right."""
    from app.adding.catalogue import fetch  # noqa: PLC0415 - slow to import

    folder = settings.data_dir / "models"
    try:
        return fetch(known, folder, accept_non_commercial=accept_non_commercial, sha256=sha256)
    except Unusable as error:
        if error.code != "package_hash_unknown" or not sys.stdin.isatty():
            raise
        found = str(error.details["found"])
        output.say(f"Nobody published the SHA-256 of {known.name}. The file from {known.url} has {found}.")
        if not typer.confirm("Is it right?"):
            raise
        return fetch(known, folder, accept_non_commercial=accept_non_commercial, sha256=found)


def _add_known(known: KnownModel, path: Path, settings: Settings, *, as_json: bool) -> None:
    from app.adding.add import Stated  # noqa: PLC0415 - slow to import

    new = _new(path, known.name, known.licence, settings)
    if known.liveness is not None:
        liveness.add(new, liveness.described(known, known.liveness), settings, as_json=as_json)
    else:
        _add(new, Stated(known.colour, known.normalisation), as_json=as_json)


def _new(file: Path, name: str, licence: Licence, settings: Settings) -> NewPackage:
    from app.adding.new_package import NewPackage  # noqa: PLC0415 - slow to import

    return NewPackage(file, name, licence, settings.models_dir, settings.data_dir / "models")


def add(
    file: Annotated[
        Path, typer.Argument(help="ONNX file: a face embedder for 112×112 crops, a YuNet, or a liveness model.")
    ],
    *,
    name: Annotated[str, typer.Option(help="Name of the new package: a-z, 0-9 and . _ -")],
    task: Annotated[Literal["embed", "detect", "liveness"], typer.Option(help="What the model does.")] = "embed",
    licence: Annotated[
        str | None, typer.Option(help="Licence of the weights, an SPDX identifier where there is one.")
    ] = None,
    non_commercial: Annotated[bool, typer.Option("--non-commercial", help="It forbids commercial use.")] = False,
    colour: Annotated[Literal["rgb", "bgr"] | None, typer.Option(help="Colour order, if you know it.")] = None,
    normalisation: Annotated[
        Literal["0-255", "127.5", "128", "0-1", "imagenet"] | None,
        typer.Option(help="Normalisation, if you know it: (x - 127.5) / 127.5 is 127.5."),
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(
            help="Folder with a folder of photos for each person (default: the packaged drawn faces). Liveness: photos "
            "of live people."
        ),
    ] = None,
    cut: Annotated[
        Literal["square", "box"] | None,
        typer.Option(
            help="Liveness: what the model is shown. square: of the box's longer side, mirrored beyond the photo's "
            "edge. box: in the box's proportions, moved into the photo."
        ),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(min=1, max=8, help="Liveness: sides of the cut, in sides of the box.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Liveness: names of the outputs in order, one of them live: live,spoof.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Add an ONNX file as a model package.

    Colour order and normalisation are measured: those with which the file tells people apart best. A running server
    finds the package at once. It decides nothing before its operating points are measured.
    """
    from app.adding.add import Stated  # noqa: PLC0415 - slow to import
    from app.inference.manifest import Licence  # noqa: PLC0415 - slow to import

    options.check_name(name, "--name")
    settings = load_settings()
    terms = Licence(name=licence or _ask_for_licence(), non_commercial=non_commercial)
    new = _new(file, name, terms, settings)
    if task == "detect":
        _add_detector(new, settings, as_json=as_json)
    elif task == "liveness":
        described = liveness.stated_of(cut, scale, classes, colour, normalisation)
        liveness.add(new, described, settings, photos=photos, as_json=as_json)
    else:
        crops = None if photos is None else crops_of_people(photos, settings)
        _add(new, Stated(colour, normalisation), crops=crops, as_json=as_json)


def _add(new: NewPackage, stated: Stated, *, crops: Crops | None = None, as_json: bool) -> None:
    """Add an embedder's file, and say what it rests on."""
    from app.adding.add import add as add_file  # noqa: PLC0415 - slow to import

    _say_added(add_file(new, crops=crops, stated=stated), as_json=as_json)


def _add_detector(new: NewPackage, settings: Settings, *, as_json: bool) -> None:
    """Add a YuNet's file, and say in how many of the packaged photos it finds somebody."""
    from app.adding.detector import add_detector  # noqa: PLC0415 - slow to import
    from app.cli.sample_photos import SAMPLES, load  # noqa: PLC0415 - slow to import

    seen: list[bool] = []

    def finds(package: Package) -> tuple[int, int]:
        pipeline = open_pipeline(settings, package)
        seen[:] = [bool(pipeline.detect(photo).faces) for photo in load(SAMPLES, PHOTOS_OF_FACES)]
        return sum(seen), len(seen)

    made = add_detector(new, finds)
    if as_json:
        output.say_json({"model": made.id, "folder": str(made.folder), "found": sum(seen), "photos": len(seen)})
        return
    output.say(f"{made.id}: {made.folder}, prepared; its numbers equal the file's own.")
    output.say(f"It finds faces in {sum(seen)} of {len(seen)} packaged photos.")
    output.say(f"LIKENESS_DETECTOR={new.name} makes it the detector.")


def _ask_for_licence() -> str:
    if not sys.stdin.isatty():
        message = "which licence do the weights have? It is on the page that you have them from"
        raise typer.BadParameter(message, param_hint="--licence")
    return str(typer.prompt("Licence of the weights (an SPDX identifier where there is one)"))


def _say_added(added: Added, *, as_json: bool) -> None:
    comparison = added.comparison
    if as_json:
        output.say_json(
            {
                "model": added.package.id,
                "folder": str(added.package.folder),
                "input": added.chosen.candidate.name,
                "dimension": added.facts.dimension,
                "pairs": {"mated": comparison.mated, "nonmated": comparison.nonmated},
                "separation": {row.candidate.name: round(row.separation, 3) for row in comparison.rows},
            }
        )
        return
    facts = added.facts
    output.say(
        f"Input {facts.shape} {facts.dtype} ({facts.layout}), output {facts.dimension} numbers"
        f"{' of length 1' if facts.unit_output else ''}."
    )
    output.say(f"{comparison.basis.capitalize()}:")
    rows = [
        [
            row.candidate.name,
            f"{row.separation:.2f}",
            f"{row.mated:.2f}",
            f"{row.nonmated:.2f}",
            "chosen" if row is added.chosen else f"{row.behind_low:.2f} to {row.behind_high:.2f} behind the best",
        ]
        for row in comparison.rows
    ]
    output.say_table(["input", "separation d'", "mated", "non-mated", "95 % interval"], rows)
    output.say(f"{added.package.id}: {added.package.folder}, prepared; its templates equal the file's own.")
    output.say(f"It has no operating points yet: likeness models measure {added.package.manifest.name} --photos DIR")
