"""models, tune: model packages, and how they run best on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli import options, output
from app.cli.connect import Data, connect
from app.config import PREFIX, PROJECT, load_settings
from app.errors import InvalidImage, InvalidInput

if TYPE_CHECKING:
    from app.inference.package import Package
    from app.tuning.contest import Speeds
    from app.types import Pixels

CALIBRATION_PHOTOS = 2000
"""Photos that are searched for calibration faces, at most."""
TUNE_PHOTOS = 100
"""Photos that are measured with, drawn evenly from the folder."""
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
            model.sha256[:12],
        ]
        for model in found.models
    ]
    output.say_table(["model", "task", "dimension", "licence", "runs on", "sha256"], rows)


@models.command(epilog="Example: likeness models pull arcface --accept-non-commercial")
def pull(
    name: options.Package,
    accept_non_commercial: Annotated[
        bool, typer.Option("--accept-non-commercial", help="Accept weights whose licence forbids commercial use.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Download a package's file from the URL in its manifest, and check its SHA-256."""
    from app.inference import package  # noqa: PLC0415 - slow to import

    settings = load_settings()
    chosen = package.select(package.find_packages(settings.models_dir), name)
    path = package.pull(chosen, settings.data_dir / "models", accept_non_commercial=accept_non_commercial)
    if as_json:
        output.say_json({"model": chosen.id, "path": str(path), "licence": chosen.manifest.licence.name})
    else:
        output.say(f"{chosen.id}: {path} ({chosen.manifest.licence.name})")


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
    from app.face.image import Limits  # noqa: PLC0415 - slow to import
    from app.inference.manifest import CROP_SIDE  # noqa: PLC0415 - slow to import
    from app.inference.package import find_packages, select  # noqa: PLC0415 - slow to import
    from app.inference.quantize import CALIBRATION_CROPS, quantize_package  # noqa: PLC0415 - slow to import
    from app.pipeline import Pipeline  # noqa: PLC0415 - slow to import
    from app.tuning.sample_photos import SAMPLES, load  # noqa: PLC0415 - slow to import

    settings = load_settings()
    packages, cache = find_packages(settings.models_dir), settings.data_dir / "models"
    package = select(packages, name)
    pipeline = Pipeline(open_detector(select(packages, settings.detector), cache), Limits())
    crops: list[Pixels] = []
    for photo in load(photos or SAMPLES, CALIBRATION_CROPS if aligned else CALIBRATION_PHOTOS):
        crops += [_crop(photo)] if aligned else [face.crop for face in pipeline.detect(photo).faces]
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
    output.say("Measure its operating points before you use it: docs/how-to/int8.md says how.")


def _crop(image: bytes) -> Pixels:
    """Return the pixels of an aligned crop, (112, 112, 3). Raises InvalidImage for any other size."""
    from app.face.image import Limits, decode  # noqa: PLC0415 - slow to import
    from app.inference.manifest import CROP_SIDE  # noqa: PLC0415 - slow to import

    pixels = decode(image, Limits()).pixels
    if pixels.shape != (CROP_SIDE, CROP_SIDE, 3):
        found = f"{pixels.shape[1]}×{pixels.shape[0]}"
        raise InvalidImage(f"An aligned crop has {CROP_SIDE}×{CROP_SIDE} pixels; this one has {found}.")
    return pixels


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

    from app.inference import tuned  # noqa: PLC0415 - slow to import
    from app.inference.package import find_packages, select  # noqa: PLC0415 - slow to import
    from app.inference.session import resolve_device  # noqa: PLC0415 - slow to import
    from app.machine import cores  # noqa: PLC0415 - slow to import
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
