"""models, tune: model packages, and how they run best on this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli import add_liveness, options, output
from app.cli.connect import Data, connect
from app.config import PREFIX, PROJECT, load_settings
from app.errors import InvalidInput, Unusable

if TYPE_CHECKING:
    from app.adding.add import Added, Crops
    from app.adding.catalogue import KnownModel
    from app.api import schemas
    from app.config import Settings
    from app.inference.package import Package
    from app.tuning.contest import Speeds
    from app.types import Pixels, Vector

CALIBRATION_PHOTOS = 2000
"""Photos that are searched for calibration faces, at most."""
TUNE_PHOTOS = 100
"""Photos that are measured with, drawn evenly from the folder."""
NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,99}"
"""Of a package's name, as in its manifest."""
LEAST_PEOPLE, PEOPLE_COMPARED, PHOTOS_A_PERSON = 8, 64, 4
"""People whose photos tell forms of input apart, and how many of a folder's are looked at."""
commands = typer.Typer()
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


def _groups(model: schemas.Model) -> str:
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


def _say_bias_card(card: schemas.BiasCard) -> None:
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


@models.command(epilog="Example: likeness models pull arcface --accept-non-commercial")
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
    path = package.pull(chosen, settings.data_dir / "models", accept_non_commercial=accept_non_commercial)
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
    from app.adding.add import Description, Stated  # noqa: PLC0415 - slow to import
    from app.adding.add import add as add_file  # noqa: PLC0415 - slow to import
    from app.face.align import CANONICAL_LANDMARKS  # noqa: PLC0415 - slow to import

    if known.task == "liveness":
        add_liveness.add_known(known, path, settings, as_json=as_json)
        return
    added = add_file(
        path,
        Description(known.name, known.licence, CANONICAL_LANDMARKS.tolist()),
        settings.models_dir,
        settings.data_dir / "models",
        stated=Stated(known.colour, known.normalisation),
    )
    _say_added(added, as_json=as_json)


@models.command(epilog="Example: likeness models add glintr100.onnx --name auraface --licence Apache-2.0")
def add(
    file: Annotated[Path, typer.Argument(help="ONNX file: a face embedder for 112×112 crops, or a liveness model.")],
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
    from app.adding.add import Description, Stated  # noqa: PLC0415 - slow to import
    from app.adding.add import add as add_file  # noqa: PLC0415 - slow to import
    from app.face.align import CANONICAL_LANDMARKS  # noqa: PLC0415 - slow to import
    from app.inference.manifest import Licence  # noqa: PLC0415 - slow to import

    if task == "detect":
        raise typer.BadParameter("detectors can't be added; write a manifest for them", param_hint="--task")
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise typer.BadParameter("must be up to 100 of a-z, 0-9 and . _ -", param_hint="--name")
    settings = load_settings()
    if task == "liveness":
        from app.adding.liveness import LivenessDescription, StatedLiveness  # noqa: PLC0415 - slow to import

        if cut is None or scale is None:
            message = "what the model is shown can't be measured: give --cut and --scale, as it was trained"
            raise typer.BadParameter(message, param_hint="--cut, --scale")
        about = LivenessDescription(name, Licence(name=licence or _ask_for_licence(), non_commercial=non_commercial))
        named = None if classes is None else tuple(one.strip() for one in classes.split(","))
        if named is not None and not all(re.fullmatch(NAME_PATTERN, one) for one in named):
            raise typer.BadParameter("names are of a-z, 0-9 and . _ -, separated by commas", param_hint="--classes")
        stated = StatedLiveness(add_liveness.cut_of(cut, scale), named, colour, normalisation)
        add_liveness.add(file, about, stated, settings, photos=photos, as_json=as_json)
        return
    added = add_file(
        file,
        Description(
            name,
            Licence(name=licence or _ask_for_licence(), non_commercial=non_commercial),
            CANONICAL_LANDMARKS.tolist(),
        ),
        settings.models_dir,
        settings.data_dir / "models",
        crops=None if photos is None else _crops_of_people(photos, settings),
        stated=Stated(colour, normalisation),
    )
    _say_added(added, as_json=as_json)


def _ask_for_licence() -> str:
    if not sys.stdin.isatty():
        message = "which licence do the weights have? It is on the page that you have them from"
        raise typer.BadParameter(message, param_hint="--licence")
    return str(typer.prompt("Licence of the weights (an SPDX identifier where there is one)"))


def _crops_of_people(folder: Path, settings: Settings) -> Crops:
    """Return aligned crops of the people in a folder: the face that each photo is about."""
    import numpy as np  # noqa: PLC0415 - slow to import

    from app.adding.add import Crops  # noqa: PLC0415 - slow to import
    from app.face.detect import open_detector  # noqa: PLC0415 - slow to import
    from app.face.formats import Limits  # noqa: PLC0415 - slow to import
    from app.inference.package import find_packages, select  # noqa: PLC0415 - slow to import
    from app.pipeline import Pipeline, choose_face  # noqa: PLC0415 - slow to import

    detector = select(find_packages(settings.models_dir), settings.detector)
    pipeline = Pipeline(open_detector(detector, settings.data_dir / "models"), Limits())
    people: list[list[Pixels]] = []
    for person in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []:
        crops = []
        for path in sorted(path for path in person.iterdir() if path.is_file()):
            try:
                photo = pipeline.detect(path.read_bytes())
                crops.append(photo.faces[choose_face(photo).index].crop)
            except InvalidInput as error:
                output.warn(f"{path}: left out: {error.message}")
            if len(crops) == PHOTOS_A_PERSON:
                break
        people += [crops] if len(crops) > 1 else []
        if len(people) == PEOPLE_COMPARED:
            break
    if len(people) < LEAST_PEOPLE:
        message = f"{folder} has {len(people)} people with two usable photos; at least {LEAST_PEOPLE} are needed."
        raise InvalidInput(message, code="too_few_people", found=len(people), needed=LEAST_PEOPLE)
    who = np.repeat(np.arange(len(people)), [len(crops) for crops in people])
    return Crops(np.stack([crop for crops in people for crop in crops]), who, "people in the photos given")


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


@models.command(epilog="Example: likeness models measure auraface --photos people/")
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
    """Measure a package's operating points on photos of people, and write them into its manifest.

    Each threshold has a 95 % interval over people. A running server decides by them at once.
    """
    from app.calibration.operating_points import rising  # noqa: PLC0415 - slow to import
    from app.cli.photos import each, people  # noqa: PLC0415 - slow to import
    from app.inference.package import find_packages, select, write_manifest  # noqa: PLC0415 - slow to import
    from app.machine import cores  # noqa: PLC0415 - slow to import
    from app.measuring import charts  # noqa: PLC0415 - slow to import
    from app.measuring import people as measuring  # noqa: PLC0415 - slow to import

    if re.fullmatch(NAME_PATTERN, calibration) is None:
        raise typer.BadParameter("must be up to 100 of a-z, 0-9 and . _ -", param_hint="--name")
    settings = load_settings()
    packages = find_packages(settings.models_dir)
    package = select(packages, name)
    files = [(person, path) for person, paths in people(photos).items() for path in paths]
    with measuring.opened(package, select(packages, settings.detector), settings.data_dir / "models") as tools:
        embed = tools.template_of_crop if aligned else tools.template_of
        rows = each(lambda file: _unless_refused(embed, file[1]), files, "embed", jobs=cores())
        found = measuring.Photographed.of([(*file, vector) for file, vector in rows if vector is not None])
        manifest = tools.with_golden(package.manifest)
    done = measuring.measure_package(found, same_above=same_above)
    on = f"{len(found.paths)} photos of {found.count} people, {datetime.now(UTC):%Y-%m-%d}"
    about = f"all pairs of {len(found.paths)} photos, without {done.left_out} that show one person"
    manifest = measuring.with_points(manifest, done, name=calibration, measured_on=on, about=about, default=default)
    write_manifest(package.folder, manifest)
    written = next(each for each in manifest.calibrations if each.name == calibration)
    if draw is not None:
        draw.write_text(charts.svg(written, f"{package.id}, {calibration}: {on}"), encoding="utf-8")
    if as_json:
        output.say_json({"model": package.id, "calibration": written.model_dump(mode="json", exclude={"scores"})})
        return
    output.say(f"{package.id}, {calibration}: {on}: {written.comparisons:,} non-mated, {written.mated:,} mated pairs")
    output.say_table(measuring.HEADS, measuring.rows(rising(done.measurement.points)))
    for line in measuring.remarks(done, found.count, settings.fpir):
        output.say(line)
    output.say(f"Written to {package.folder}/manifest.json; a running server decides by it at once." if default else "")


def _unless_refused(embed: Callable[[bytes], Vector], path: Path) -> Vector | None:
    try:
        return embed(path.read_bytes())
    except InvalidInput as error:
        output.warn(f"{path}: left out: {error.message}")
        return None


@models.command(epilog="Example: likeness models quantize sface --photos photos/")
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

    from app.face.detect import open_detector  # noqa: PLC0415 - slow to import
    from app.face.formats import Limits  # noqa: PLC0415 - slow to import
    from app.inference.manifest import CROP_SIDE  # noqa: PLC0415 - slow to import
    from app.inference.package import find_packages, select  # noqa: PLC0415 - slow to import
    from app.inference.quantize import CALIBRATION_CROPS, quantize_package  # noqa: PLC0415 - slow to import
    from app.measuring.people import aligned_crop  # noqa: PLC0415 - slow to import
    from app.pipeline import Pipeline  # noqa: PLC0415 - slow to import
    from app.tuning.sample_photos import SAMPLES, load  # noqa: PLC0415 - slow to import

    settings = load_settings()
    packages, cache = find_packages(settings.models_dir), settings.data_dir / "models"
    package = select(packages, name)
    pipeline = Pipeline(open_detector(select(packages, settings.detector), cache), Limits())
    crops: list[Pixels] = []
    for photo in load(photos or SAMPLES, CALIBRATION_CROPS if aligned else CALIBRATION_PHOTOS):
        crops += [aligned_crop(photo)] if aligned else [face.crop for face in pipeline.detect(photo).faces]
        if len(crops) >= CALIBRATION_CROPS:
            break
    source = "the packaged photos" if photos is None else "photos given"
    stacked = np.stack(crops) if crops else np.empty((0, CROP_SIDE, CROP_SIDE, 3), np.uint8)
    made = quantize_package(package, stacked, settings.models_dir, cache, ranges_from=f"{len(crops)} faces of {source}")
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


@commands.command(epilog="Examples: likeness tune\n\nlikeness tune --photos camera/ --dry-run")
def tune(
    *,
    device: Annotated[
        Literal["cpu", "cuda", "auto"] | None, typer.Option(help="Device of the models. Default: LIKENESS_DEVICE.")
    ] = None,
    photos: Annotated[Path, typer.Option(help="Folder or tar of photos with faces, best like yours.")] = PROJECT
    / "docs"
    / "samples",
    rounds: Annotated[int, typer.Option(min=2, max=1000, help="Rounds; each measures every way once.")] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only; write nothing.")] = False,
) -> None:
    """Measure ways of running the models, and store the fastest in the data folder.

    Leave the machine idle meanwhile. The server uses the result from its next start.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import

    from app.inference.package import find_packages, select  # noqa: PLC0415 - slow to import
    from app.inference.session import resolve_device  # noqa: PLC0415 - slow to import
    from app.machine import cores  # noqa: PLC0415 - slow to import
    from app.tuning import tuned  # noqa: PLC0415 - slow to import
    from app.tuning.measure import Setting  # noqa: PLC0415 - slow to import
    from app.tuning.measure import tune as measure  # noqa: PLC0415 - slow to import
    from app.tuning.sample_photos import load  # noqa: PLC0415 - slow to import

    given = {} if device is None else {"device": device}
    settings = load_settings(**given)
    packages = find_packages(settings.models_dir)
    embedder, detector = select(packages, settings.embedder), select(packages, settings.detector)
    target = resolve_device(settings.device)
    found = load(photos, TUNE_PHOTOS)
    setting = Setting(embedder, detector, settings.data_dir / "models", target, cores())
    with Console(stderr=True).status("measuring") as status:
        try:
            tried = measure(setting, found, rounds, say=status.update)
        except ValueError as error:
            raise InvalidInput(f"{photos}: {error}.", code="no_face") from error
    output.say(f"{embedder.id} and {detector.id} on {target}, {setting.cores} cores, {rounds} rounds\n")
    _show("faces/s", tried.faces, str(tried.embedding))
    _show("photos/s", tried.photos, str(tried.photo))
    for name, value in tried.choice:
        output.say(f"{PREFIX}{name.upper()}={value}")
    if dry_run:
        return
    where = tuned.here(target, embedder.id, detector.id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    path = tuned.write(settings.data_dir, tuned.Tuned(measured_at=now, where=where, choice=tried.choice))
    output.say(f"Written to {path}; the server uses it from its next start. Settings made by hand take precedence.")


def _show(unit: str, speeds: Speeds, best: str) -> None:
    rows = []
    for name in speeds.rounds:
        speed, ratio = speeds.of(name), speeds.ratio(name, best)
        rows.append(
            [
                name,
                f"{speed.median:.1f}",
                f"{speed.low:.1f}-{speed.high:.1f}",
                f"{ratio.median:.2f}",
                f"{ratio.low:.2f}-{ratio.high:.2f}",
                "chosen" if name == best else "",
            ]
        )
    output.say_table(["way", unit, "middle half", "ratio to the fastest", "middle half", ""], rows)
    output.say("")
