"""Golden vectors: the templates that a package makes of two known crops, kept in its manifest.

They are compared when the package is opened. A processor, driver or ONNX Runtime that computes the graph wrongly makes
other templates without any error, for which the package's operating points do not hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from app.errors import PackageTemplatesDiffer, Unusable
from app.package.folders import Package
from app.package.manifest import CROP_SIDE, Golden
from app.types import Pixels, Vectors

CROPS_FILE = Path(__file__).with_name("golden.png")
"""The crops side by side: Eileen Collins and Grace Hopper, as the pipeline cuts them from the photos in docs/samples,
which are in the public domain."""
LEAST_COSINE = 0.999
"""Minimum cosine. Float32 graphs have 0.99999 between processors. Integer graphs are equal to the bit if their sums are
exact, and had 0.94 and 0.89 with saturated sums (SFace with 8-bit weights on AVX2 without VNNI)."""
DECIMALS = 6
"""Decimals of the numbers in a manifest."""


@cache
def golden_crops() -> Pixels:
    """Return the (2, 112, 112, 3) uint8 RGB aligned crops. They must not be changed."""
    image = cv2.imread(str(CROPS_FILE), cv2.IMREAD_COLOR_RGB)
    if image is None:
        raise Unusable(f"{CROPS_FILE} is missing or damaged: install Likeness again.", code="installation_damaged")
    crops: Pixels = np.stack(np.split(image, image.shape[1] // CROP_SIDE, axis=1)).astype(np.uint8)
    crops.flags.writeable = False
    return crops


@cache
def crops_digest() -> str:
    """Return the SHA-256 of the crops' pixels, which identifies them in a manifest."""
    return hashlib.sha256(golden_crops().tobytes()).hexdigest()


def record(run: Callable[[Pixels], Vectors]) -> Golden:
    """Return an embedder's golden vectors. ``run``: (N, 112, 112, 3) uint8 RGB crops -> (N, D) unit vectors."""
    rows = np.round(run(golden_crops()).astype(np.float64), DECIMALS)
    return Golden(crops=crops_digest(), templates=tuple(tuple(row) for row in rows.tolist()))


def check(package: Package, vectors: Vectors, device: str) -> None:
    """Compare (2, D) ``vectors``, made here from `golden_crops`, with the manifest's, if it has any of these crops.

    Raises PackageTemplatesDiffer below `LEAST_COSINE`.
    """
    golden = package.manifest.golden
    if golden is None or golden.crops != crops_digest():
        return
    expected = np.array(golden.templates, np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    cosine = float((vectors * expected).sum(axis=1).min())
    if not cosine >= LEAST_COSINE:
        message = (
            f"{package.id} makes other templates here ({device}) than its manifest was written with: cosine "
            f"{cosine:.4f} on known crops, at least {LEAST_COSINE} is needed. Scores and thresholds would not hold. "
            "Install the tested ONNX Runtime (constraints.txt), run the package on another device "
            "(LIKENESS_DEVICE) or machine, or export it anew."
        )
        raise PackageTemplatesDiffer(
            message, package=package.id, device=device, cosine=round(cosine, 6), needed=LEAST_COSINE
        )


def check_crops(side: int = CROP_SIDE) -> Pixels:
    """Return (4, side, side, 3) uint8 test crops, always the same: from coarse blocks of colour to noise."""
    generator = np.random.default_rng(0)
    crops = []
    for block in (side // 2, max(1, side // 7), 4, 1):
        count = -(-side // block)
        coarse = generator.integers(0, 256, (count, count, 3), np.uint8)
        crops.append(coarse.repeat(block, axis=0).repeat(block, axis=1)[:side, :side])
    return np.stack(crops)
