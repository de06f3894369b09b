"""Blend new faces from two, to have more training crops for a student than a small set holds.

A distilled student needs no labels, only crops that its teacher can embed. It memorises the crops of a small set, which
it sees again and again. Mixtures of two crops, shown to both teacher and student, help (Beyer et al., "Knowledge
distillation: A good teacher is patient and consistent", CVPR 2022; mixup: Zhang et al., ICLR 2018). Aligned crops have
the same landmarks, so a mixture is again a face.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from app.files import PUBLIC, replacing
from app.types import Pixels
from training.data.crops import Crops
from training.data.preparation.aligning import crop_jpeg
from training.terminal import Advance

SHARES = (0.25, 0.75)
"""Range of the second crop's share in a constant mixture."""
EVEN = 0.5
"""Probability of a constant mixture; otherwise the share varies over the face."""
PATCHES = 4
"""Masks and warps are drawn on a grid of 4 x 4 and enlarged smoothly: a patch has about the size of an eye, a mouth or
a cheek."""
CONTRAST = 6.0
"""Contrast of a mask: so high that at most places only one of the two crops is visible."""
WARP_PIXELS = 4.0
"""Standard deviation of the strongest warp at its grid points; each blend draws its own strength from 0 up to this."""
BLENDS = "blends"


def blend(first: Pixels, second: Pixels, generator: np.random.Generator) -> Pixels:
    """Blend two aligned crops, (S, S, 3) uint8 RGB each, into one of the same shape, gently warped.

    The second crop's mean colour is matched to the first's, so that the mask leaves no seam.
    """
    side = len(first)
    matched = second.astype(np.float32) + (first.mean(axis=(0, 1)) - second.mean(axis=(0, 1))).astype(np.float32)
    if generator.random() < EVEN:
        share: NDArray[np.float32] = np.full((side, side, 1), generator.uniform(*SHARES), np.float32)
    else:
        share = 1 / (1 + np.exp(-CONTRAST * _smooth(generator, side, 1)))
    mixed = first * (1 - share) + matched * share
    y, x = np.mgrid[0:side, 0:side].astype(np.float32)
    moved = _smooth(generator, side, 2) * np.float32(generator.uniform(0, WARP_PIXELS) * side / 112)
    warped = cv2.remap(mixed, x + moved[..., 0], y + moved[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(np.clip(np.rint(warped), 0, 255), np.uint8)


def write_blends(
    crops: Crops, target: Path, count: int, seed: int, progress: Advance = lambda _n, _of=None: None
) -> None:
    """Write a tar file of JPEGs: the set's own crops, one folder per person, then `count` blends of two people's
    crops each, in a folder of their own. The same seed and set give the same file. Raises what reading a damaged
    crop raises."""
    labels = crops.labels
    progress(0, len(crops) + count)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, PUBLIC) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for index, label in enumerate(labels.tolist()):
            _add(archive, f"{crops.people[label]}/{index:07d}.jpg", crops.images([index])[0])
            progress(1)
        for number in range(count):
            generator = np.random.default_rng((seed, number))
            first, other = crops.images(pick_two(labels, generator))
            _add(archive, f"{BLENDS}/{number:07d}.jpg", blend(first, other, generator))
            progress(1)


def pick_two(labels: NDArray[np.int64], generator: np.random.Generator) -> tuple[int, int]:
    """Pick the indices of two crops of different people from (N,) labels, every crop equally likely; of the same person
    if there is only one."""
    first = int(generator.integers(len(labels)))
    others = np.flatnonzero(labels != labels[first])
    return first, int(generator.choice(others)) if len(others) else first


def _smooth(generator: np.random.Generator, side: int, channels: int) -> NDArray[np.float32]:
    """Return (side, side, channels) float32 smooth noise, about normally distributed."""
    grid = generator.standard_normal((PATCHES, PATCHES, channels)).astype(np.float32)
    enlarged = cv2.resize(grid, (side, side), interpolation=cv2.INTER_CUBIC)
    return np.asarray(enlarged, np.float32).reshape(side, side, channels)


def _add(archive: tarfile.TarFile, name: str, crop: Pixels) -> None:
    content = crop_jpeg(crop)
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
