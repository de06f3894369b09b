"""`likeness models quantize`: a package computed in 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli import output
from app.config import load_settings
from app.errors import InvalidImage
from app.runtime.package import CROP_SIDE, find_packages, select
from app.types import Pixels

PHOTOS = 2000
"""Most photos that are looked through for faces."""


def quantize(
    name: Annotated[str, typer.Argument(help="The package: `name` or `name@version`.")],
    *,
    photos: Annotated[
        Path | None,
        typer.Option(help="Folder or tar of photos with faces, 256 or more like yours; by default the packaged ones."),
    ] = None,
    aligned: Annotated[
        bool, typer.Option("--aligned", help="They are aligned 112×112 crops already: take them as they are.")
    ] = False,
) -> None:
    """Make NAME-int8 of an embedder: quicker where processors multiply 8-bit integers, slightly less exact.

    A package of its own: its templates do not compare with NAME's. It decides nothing before its operating points are
    measured (docs/how-to/int8.md).
    """
    import numpy as np  # noqa: PLC0415 (the other commands start quicker without)

    from app.bench.photos import SAMPLES, load  # noqa: PLC0415 (the same)
    from app.face.detect import open_detector  # noqa: PLC0415 (the same)
    from app.face.image import Limits  # noqa: PLC0415 (the same)
    from app.pipeline import Pipeline  # noqa: PLC0415 (the same)
    from app.runtime.quantize import CALIBRATION_CROPS, quantize_package  # noqa: PLC0415 (the same)

    settings = load_settings()
    packages, cache = find_packages(settings.models_dir), settings.data_dir / "models"
    package = select(packages, name)
    pipeline = Pipeline(open_detector(select(packages, settings.detector), cache), Limits())
    crops = []
    for photo in load(photos or SAMPLES, CALIBRATION_CROPS if aligned else PHOTOS):
        crops += [_crop(photo)] if aligned else [face.crop for face in pipeline.detect(photo).faces]
        if len(crops) >= CALIBRATION_CROPS:
            break
    source = "the packaged photos" if photos is None else "photos given"
    stacked = np.stack(crops) if crops else np.empty((0, 112, 112, 3), np.uint8)
    made = quantize_package(package, stacked, settings.models_dir, cache, ranges_from=f"{len(crops)} faces of {source}")
    figures = made.manifest.provenance.figures
    output.say(f"{made.id}: {made.folder}, from {len(crops)} faces")
    output.say(
        f"Cosine to {package.id}'s vectors: mean {figures['cosine_to_source_mean']}, "
        f"lowest {figures['cosine_to_source_lowest']}"
    )
    output.say("Measure its operating points before you use it: docs/how-to/int8.md says how.")


def _crop(image: bytes) -> Pixels:
    """Raises InvalidImage where it is none."""
    from app.face.image import Limits, decode  # noqa: PLC0415 (the other commands start quicker without)

    pixels = decode(image, Limits()).pixels
    if pixels.shape != (CROP_SIDE, CROP_SIDE, 3):
        found = f"{pixels.shape[1]}×{pixels.shape[0]}"
        raise InvalidImage(f"An aligned crop is {CROP_SIDE}×{CROP_SIDE} pixels, this is {found}.")
    return pixels
