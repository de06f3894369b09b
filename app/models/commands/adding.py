"""`likeness models add`, `models pull`: make a package of a model file."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.choices import Preset
from app.cli import options, output
from app.config import Settings, load_settings
from app.errors import FileMissing, Unusable
from app.models.commands import archives
from app.models.commands.measuring import NOT_MEASURED, check_name
from app.package.folders import OWN_FOLDER, SHOWN_FMR, Package, find_packages, select
from app.package.manifest import Colour, CutShape, Licence, LivenessContract, PackageTask
from app.wording import nearest_name

if TYPE_CHECKING:
    from app.models.add import NewPackage
    from app.models.download import KnownModel
    from app.models.measured import MeasuredModel
    from app.models.presets import Crops, Stated

PHOTOS_OF_FACES = 20
"""Maximum packaged photos, including smaller copies, that a detector is tried on."""
TIME_LIMIT_S = 900.0
"""Default of the maximum seconds to check a file. SFace's takes a minute on two busy cores."""


def pull(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The model. Default: list the models that can be pulled.", autocompletion=options.model_ids
        ),
    ] = None,
    accept_non_commercial: options.AcceptNonCommercial = False,
    folder: Annotated[
        Path | None,
        typer.Option("--from", help="Folder that has the files under their own names, to use in place of the network."),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="SHA-256 that you confirm, for a known model whose hash nobody published.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Download the file of a package or of a known model (app/models/catalogue.json), and check its SHA-256.

    A known model is added as a package, as by `likeness models add`. `best` and `intel-face` (app/models/measured) come
    with operating points; `best` is made of `sface` and `intel-face`. Without a network, fetch the files elsewhere
    (`likeness models pull` names their addresses) and give their folder with --from.
    """
    from app.models import download  # noqa: PLC0415 - slow to import
    from app.models.measured import measured_models  # noqa: PLC0415 - slow to import
    from app.models.presets import PRESETS  # noqa: PLC0415 - slow to import

    settings = load_settings()
    packages = find_packages(settings.models_dir, settings.data_dir)
    if name is None:
        _list_pullable(packages.values(), as_json=as_json)
        return
    if folder is not None and not folder.is_dir():
        raise FileMissing(f"{folder}: no such folder")
    is_new = not any(package.manifest.name == name for package in packages.values())
    if is_new and (measured := measured_models().get(name)) is not None:
        _add_measured(measured, settings, accept_non_commercial=accept_non_commercial, folder=folder, as_json=as_json)
    elif is_new and (known := download.known_models().get(name)) is not None:
        path = _fetch_known(known, settings, accept_non_commercial=accept_non_commercial, sha256=sha256, folder=folder)
        new = _new(path, known.name, known.licence, settings)
        form = PRESETS[known.preset] if isinstance(known.preset, str) else known.preset
        if known.liveness is None:
            _add(new, form, TIME_LIMIT_S, as_json=as_json)
        else:
            _add_liveness(new, known.liveness, form, TIME_LIMIT_S, as_json=as_json)
    elif is_new and name not in packages:
        nearest = nearest_name(name, [model.name for model in _pullable()])
        meant = f" Did you mean {nearest}?" if nearest else ""
        message = f"There is no model {name!r} to pull.{meant} `likeness models pull` lists those that there are."
        raise Unusable(message, code="package_unknown", package=name)
    else:
        chosen = select(packages, name)
        cache = settings.data_dir / "models"
        path = download.pull(chosen, cache, accept_non_commercial=accept_non_commercial, folder=folder)
        licence = chosen.manifest.licence.name
        answer = {"model": chosen.id, "path": str(path), "licence": licence}
        output.answer(answer, f"{chosen.id}: {path} ({licence})", as_json=as_json)


@dataclass(frozen=True, slots=True)
class Pullable:
    """A model that can be pulled."""

    name: str
    licence: Licence
    accuracy: str | None
    files: tuple[tuple[str, str | None], ...]
    """The address and the SHA-256 of each file."""
    most_bytes: int


def _pullable() -> Iterator[Pullable]:
    from app.models.download import known_models  # noqa: PLC0415 - slow to import
    from app.models.measured import measured_models  # noqa: PLC0415 - slow to import

    for name, measured in measured_models().items():
        calibration = measured.manifest.calibrations[0]
        rates = {point.fmr: point.fnmr for point in calibration.points}
        accuracy = f"FNMR {rates[SHOWN_FMR]:.2%} at FMR {SHOWN_FMR:g} ({calibration.name})"
        files = measured.downloads
        addresses = tuple((file.url, file.sha256) for file in files)
        yield Pullable(name, measured.manifest.licence, accuracy, addresses, sum(file.size for file in files))
    for name, known in known_models().items():
        lfw = f"LFW {known.figures['LFW']} (its makers)" if known.figures and "LFW" in known.figures else None
        file = known.archive or known
        yield Pullable(name, known.licence, lfw, ((known.url, file.sha256),), file.max_bytes)


def _list_pullable(installed: Collection[Package], *, as_json: bool) -> None:
    """Print the models that can be pulled: size, accuracy and licence, with --json also where their files are."""
    there = {package.manifest.name for package in installed}
    models = list(_pullable())
    if as_json:
        for model in models:
            files = [{"url": url, "sha256": sha256} for url, sha256 in model.files]
            row = {"name": model.name, "installed": model.name in there, "max_bytes": model.most_bytes, "files": files}
            output.say_json(row | {"accuracy": model.accuracy, "licence": model.licence.model_dump()})
        return
    rows = [
        [
            model.name,
            "yes" if model.name in there else "",
            f"{model.most_bytes / 1e6:.0f} MB at most",
            model.accuracy or "-",
            f"{model.licence.name}{' (non-commercial)' if model.licence.non_commercial else ''}",
        ]
        for model in models
    ]
    output.say_table(["model", "installed", "size", "accuracy", "licence"], rows)


def _fetch_known(
    known: KnownModel, settings: Settings, *, accept_non_commercial: bool, sha256: str | None, folder: Path | None
) -> Path:
    """Return the file of a known model. On a terminal, ask for the confirmation of a hash that nobody has published."""
    from app.models.download import fetch  # noqa: PLC0415 - slow to import

    cache = settings.data_dir / "models"
    try:
        return fetch(known, cache, accept_non_commercial=accept_non_commercial, sha256=sha256, folder=folder)
    except Unusable as error:
        if error.code != "package_hash_unknown" or not sys.stdin.isatty():
            raise
        confirmed = str(error.details["found"])
        output.say(f"Nobody published the SHA-256 of {known.name}. The file from {known.url} has {confirmed}.")
        if not typer.confirm("Is it right?"):
            raise
        return fetch(known, cache, accept_non_commercial=accept_non_commercial, sha256=confirmed, folder=folder)


def _add_measured(
    model: MeasuredModel, settings: Settings, *, accept_non_commercial: bool, folder: Path | None, as_json: bool
) -> None:
    from app.models.measured import add_measured  # noqa: PLC0415 - slow to import

    made = add_measured(
        model,
        lambda: find_packages(settings.models_dir, settings.data_dir),
        settings.data_dir / OWN_FOLDER,
        settings.data_dir / "models",
        accept_non_commercial=accept_non_commercial,
        folder=folder,
    )
    name, licence = made.manifest.name, made.manifest.licence.name
    output.answer(
        {"model": made.id, "folder": str(made.folder), "licence": licence},
        f"{made.id}: {made.folder} ({licence}), measured; its templates are those that were measured.",
        f"LIKENESS_EMBEDDER={name} makes it the model of new galleries;",
        f"likeness reembed start GALLERY {name} moves one that is in use.",
        as_json=as_json,
    )


def _check_free(name: str, settings: Settings) -> None:
    installed = find_packages(settings.models_dir, settings.data_dir).values()
    if (folder := next((package.folder for package in installed if package.manifest.name == name), None)) is not None:
        raise Unusable(f"There is a package {name} already: {folder}.", code="package_exists", folder=str(folder))


def _new(file: Path, name: str, licence: Licence, settings: Settings) -> NewPackage:
    from app.models.add import NewPackage  # noqa: PLC0415 - slow to import

    _check_free(name, settings)
    return NewPackage(file, name, licence, settings.data_dir / OWN_FOLDER, settings.data_dir / "models")


def add(
    file: Annotated[
        Path,
        typer.Argument(
            help="ONNX file: a face embedder for 112×112 crops, a YuNet, or a liveness model; or the tar of a package."
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the new package: a-z, 0-9 and . _ -. The tar of a package contains it.")
    ] = None,
    task: Annotated[PackageTask, typer.Option(help="What the model does.")] = "embed",
    licence: Annotated[
        str | None, typer.Option(help="Licence of the weights, an SPDX identifier if there is one.")
    ] = None,
    non_commercial: Annotated[
        bool, typer.Option("--non-commercial", help="The licence forbids commercial use.")
    ] = False,
    preset: Annotated[
        Preset | None,
        typer.Option(help="The model whose form of input the file takes: colour order, mean, std and size together."),
    ] = None,
    colour: Annotated[Colour | None, typer.Option(help="Colour order of its input.")] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Subtracted from pixels 0-255: a number, or three with commas, in the order of the channels."
        ),
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Pixels are then divided by this: a number, or three with commas.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=16, max=512, help="Side of its input in pixels, if the file leaves it open.")
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(help="Folder with a folder of photos for each person, on which all presets are tried."),
    ] = None,
    cut: Annotated[
        CutShape | None,
        typer.Option(
            help="Liveness: what the model gets. square: a square with the box's longer side, mirrored beyond the"
            " photo's edge. box: a part in the box's proportions, moved into the photo."
        ),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(min=1, max=8, help="Liveness: sides of the cut, as a multiple of the box's sides.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Liveness: names of the outputs in order, one of them live: live,spoof.")
    ] = None,
    time_limit: Annotated[float, typer.Option(min=1, help="Maximum seconds to check the file.")] = TIME_LIMIT_S,
    as_json: options.AsJson = False,
) -> None:
    """Add an ONNX file as a model package, or the tar of an embedder's package: its folder.

    State the form of its input (--preset, or --colour, --mean, --std), or give --photos of people: then the preset that
    tells these people apart best is used. A running server finds the package at once. The package decides nothing until
    its operating points are measured.
    """
    from app.models.commands.sample_photos import crops_of_people  # noqa: PLC0415 - slow to import
    from app.models.presets import PRESETS, Stated  # noqa: PLC0415 - slow to import

    if archives.is_archive(file):
        _add_archive(file, load_settings(), time_limit, as_json=as_json)
        return
    if name is None:
        raise typer.BadParameter("an ONNX file does not have one: name the new package", param_hint="--name")
    check_name(name, "--name")
    given = Stated(colour, _channels(mean, "--mean"), _channels(std, "--std"), size)
    stated = given.over(PRESETS[preset]) if preset else given
    settings = load_settings()
    new = _new(file, name, Licence(name=licence or _ask_for_licence(), non_commercial=non_commercial), settings)
    if task == "detect":
        _add_detector(new, settings, time_limit, as_json=as_json)
    elif task == "liveness":
        _add_liveness(new, _stated_liveness(cut, scale, classes), stated, time_limit, as_json=as_json)
    else:
        crops = None if photos is None else crops_of_people(photos, settings)
        nothing = photos is not None and stated == Stated()
        _add(new, None if nothing else stated, time_limit, crops=crops, as_json=as_json)


def _add_archive(file: Path, settings: Settings, time_limit: float, *, as_json: bool) -> None:
    """Add the package in a tar. Its operating points are accepted without a check."""
    from app.models import add as adding  # noqa: PLC0415 - slow to import

    manifest, content = archives.read_package(file)
    _check_free(manifest.name, settings)
    made = adding.within(
        time_limit, adding.add_made, content, manifest, settings.data_dir / OWN_FOLDER, settings.data_dir / "models"
    )
    licence = made.manifest.licence.name
    output.answer(
        {"model": made.id, "folder": str(made.folder), "licence": licence},
        f"{made.id}: {made.folder} ({licence}), prepared; its templates are those that its manifest says.",
        as_json=as_json,
    )


def _channels(text: str | None, option: str) -> tuple[float, float, float] | None:
    """Return three numbers from a text with one or three numbers; None if there is no text. Raises BadParameter."""
    try:
        numbers = [float(number) for number in text.split(",")] if text else []
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)) or len(numbers) not in {0, 1, 3}:
        raise typer.BadParameter(f"{text!r} is not one number, or three with commas", param_hint=option)
    if not numbers:
        return None
    first, second, third = numbers * (3 // len(numbers))
    return first, second, third


def _ask_for_licence() -> str:
    if not sys.stdin.isatty():
        message = "which licence do the weights have? It is on the page that you have them from"
        raise typer.BadParameter(message, param_hint="--licence")
    return str(typer.prompt("Licence of the weights (an SPDX identifier where there is one)"))


def _add(
    new: NewPackage, stated: Stated | None, time_limit: float, *, crops: Crops | None = None, as_json: bool
) -> None:
    """Add an embedder's file, and print where its facts come from."""
    from app.models import add as adding  # noqa: PLC0415 - slow to import

    added = adding.within(time_limit, adding.add, new, stated, crops=crops)
    package, facts, form = added.package, added.facts, added.form
    if as_json:
        figures = {attempt.name: round(attempt.separation, 2) for attempt in added.tried}
        described = form.model_dump(mode="json", exclude_none=True)
        answer = {"model": package.id, "folder": str(package.folder), "input": described}
        output.say_json({**answer, "dimension": facts.dimension, "separation": figures})
        return
    length = " of length 1" if facts.normalised else ""
    output.say(f"Input {facts.shape} {facts.dtype} ({facts.layout}), output {facts.dimension} numbers{length}.")
    if added.tried:
        people = len(added.tried[0].separations)
        output.say(f"Tried on photos of {people} people; {added.tried[0].name} is used:")
        output.say_table(
            ["input", "separation"], [[attempt.name, f"{attempt.separation:.2f}"] for attempt in added.tried]
        )
    output.say(f"It is given {form.colour}, mean {_numbers(form.mean)}, std {_numbers(form.std)}.")
    output.say(f"{package.id}: {package.folder}, prepared; its templates equal the file's own.")
    output.say(NOT_MEASURED.format(name=package.manifest.name))


def _numbers(channels: tuple[float, float, float]) -> str:
    return ",".join(f"{value:g}" for value in (channels if len(set(channels)) > 1 else channels[:1]))


def _add_detector(new: NewPackage, settings: Settings, time_limit: float, *, as_json: bool) -> None:
    """Add a YuNet's file, and print in how many of the packaged photos it finds a face."""
    from app.models.add import within  # noqa: PLC0415 - slow to import

    made, seen = within(time_limit, _detector, new, settings)
    output.answer(
        {"model": made.id, "folder": str(made.folder), "found": sum(seen), "photos": len(seen)},
        f"{made.id}: {made.folder}, prepared; its numbers equal the file's own.",
        f"It finds faces in {sum(seen)} of {len(seen)} packaged photos.",
        f"LIKENESS_DETECTOR={new.name} makes it the detector.",
        as_json=as_json,
    )


def _detector(new: NewPackage, settings: Settings) -> tuple[Package, list[bool]]:
    """Return the detector's package, and for each packaged photo whether it finds a face."""
    from app.models.add import add_detector  # noqa: PLC0415 - slow to import
    from app.models.commands.sample_photos import SAMPLES, load, open_pipeline  # noqa: PLC0415 - slow to import

    seen: list[bool] = []

    def finds(package: Package) -> tuple[int, int]:
        pipeline = open_pipeline(settings, package)
        seen[:] = [bool(pipeline.detect(photo).faces) for photo in load(SAMPLES, PHOTOS_OF_FACES)]
        return sum(seen), len(seen)

    return add_detector(new, finds), seen


CUTS = {"square": {}, "box": {"shape": "box", "edge": "move", "resize": "linear"}}
"""Two ways to cut around a face: a square that is mirrored beyond the photo's edge, which facenox's models are trained
with, and a cut in the box's proportions that is moved into the photo, for minivision's models."""


def _stated_liveness(cut: str | None, scale: float | None, classes: str | None) -> LivenessContract:
    """Return a liveness model's contract from the options of `likeness models add`. Raises BadParameter."""
    if cut is None or scale is None or classes is None:
        message = "what the model is shown and answers is not in its file: give all three, as it was trained"
        raise typer.BadParameter(message, param_hint="--cut, --scale, --classes")
    names = tuple(name.strip() for name in classes.split(","))
    for name in names:
        check_name(name, "--classes")
    if names.count("live") != 1 or len(set(names)) != len(names):
        raise typer.BadParameter("give each output another name, one of them live", param_hint="--classes")
    return LivenessContract.model_validate({"cut": {"scale": scale, **CUTS[cut]}, "classes": names, "live": "live"})


def _add_liveness(
    new: NewPackage, contract: LivenessContract, stated: Stated, time_limit: float, *, as_json: bool
) -> None:
    """Add a file as a liveness package, and print where its facts come from. Raises Unusable without the feature."""
    from app.models.add import within  # noqa: PLC0415 - slow to import

    try:
        from app.features.liveness.adding import add_liveness  # noqa: PLC0415 - slow to import, and a feature
    except ModuleNotFoundError:
        raise Unusable("This installation does without liveness: app/features/liveness is missing.") from None

    added = within(time_limit, add_liveness, new, contract, stated)
    package, facts = added.package, added.facts
    answer = {"model": package.id, "folder": str(package.folder), "side": facts.side, "classes": list(contract.classes)}
    output.answer(
        {**answer, "input": added.form.model_dump(mode="json", exclude_none=True)},
        f"Input {facts.shape} {facts.dtype} ({facts.layout}), output {facts.dimension} "
        f"{'probabilities' if facts.normalised else 'logits'}.",
        f"{package.id}: {package.folder}, prepared; its probabilities equal the file's own.",
        "It decides nothing yet: docs/how-to/liveness.md measures its error rates on your camera.",
        as_json=as_json,
    )
