"""Templates of photos and of poor copies of them, made by the service's own stages and kept in files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.stages import pixels_of
from bench.review.corrupted import Faces
from training.commands.options import TemplateOptions, templates_of
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates, make_templates, open_photos
from training.evaluation.stages.degraded_copies import Degradation, png
from training.terminal import counted

WAYS = (Degradation("blur (σ px)", 4), Degradation("shrink (×)", 0.18), Degradation("motion (px)", 13))
"""Of the degradations of docs/explanation/quality.md those that cameras make, strong ones."""
DRAWN = 540
COPIED = 0.12
"""The share of photos that get a poor copy, more than are used at a time."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The folder that templates are kept in, and the package that makes them."""

    folder: Path
    package: str


def faces_of_lfw(images: Path, kept: Kept) -> Faces:
    """Return the most prominent face of every photo that shows one."""
    way = TemplateOptions(kept.package, kept.folder / f"{kept.package}.npz")
    plain = templates_of(images, [], way)
    poor = _poor_copies(images, plain, kept, way)
    rows = np.flatnonzero(plain.found)
    return Faces(
        [person_of(plain.names[row]) for row in rows.tolist()],
        plain.vectors[rows],
        plain.quality[rows],
        poor.vectors[rows],
        poor.quality[rows],
    )


def people_to_choose_on(faces: Faces) -> set[str]:
    """Return the people on whom the rules were chosen: every other one of DRAWN, two thirds of whom have several
    photos."""
    rng = np.random.default_rng(0)
    photos = Counter(faces.people)
    several = sorted(person for person, count in photos.items() if count > 1)
    single = sorted(person for person, count in photos.items() if count == 1)
    drawn = [*rng.choice(several, DRAWN * 2 // 3, replace=False), *rng.choice(single, DRAWN // 3, replace=False)]
    return set(np.random.default_rng(0).permutation(sorted(drawn))[::2].tolist())


def _poor_copies(images: Path, plain: Templates, kept: Kept, way: TemplateOptions) -> Templates:
    """Return rows like those of `plain`, zeros without a copy that shows a face."""
    file = kept.folder / f"{kept.package}-poor.npz"
    if file.is_file():
        return Templates.load(file)
    photos = open_photos(images)
    rng = np.random.default_rng(0)
    chosen = {name for name in plain.names if rng.random() < COPIED}
    place = {name: number for number, name in enumerate(plain.names)}
    with way.open_stages() as own:

        def embed(name: str) -> tuple[np.ndarray, float]:
            if name not in chosen:
                return np.zeros(own.embedder.dimension, np.float32), 0.0
            degradation = WAYS[place[name] % len(WAYS)]
            worse = degradation.apply(pixels_of(photos.read(name)), np.random.default_rng(place[name]))
            return own.embed_photo(png(worse))

        with counted("embedding poor copies", len(plain.names)) as advance:
            size = own.embedder.dimension
            poor = make_templates(plain.package, size, plain.names, embed, threads=way.workers, progress=advance)
    poor.save(file)
    return poor
