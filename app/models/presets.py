"""The forms of input of published embedders (colour order, mean, scale and size), by name.

A model tells people in photos apart best with the preset that it was trained with. So each preset is run on the same
crops. A person's separation is the mean score among their own photos minus the mean score with other people's photos,
in standard deviations of all scores of different people. Presets are compared by a sign test over people: of two
equally good presets, each would win for half of the people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.choices import Preset
from app.errors import Unusable
from app.package.manifest import Colour, Dtype, Layout, SourceInput
from app.types import Pixels, Vectors

Channels: TypeAlias = tuple[float, float, float]
LEAST_SEPARATION = 1.0
"""Mean separation below which a model counts as not telling people apart. On four photos each of 64 people of CelebA, a
network with random weights had 0.3. `sface-slim`, which was trained on these people, had 4.8, and 4.2 with the other
colour order, but at most 0.5 with the range of `sface` or `imagenet`."""
CHANCE = 0.025
"""Level of the one-sided sign test: a preset is worse than the best if a difference as large would be by chance with at
most this probability."""
SAME_TEMPLATES = 0.995
"""Mean cosine from which on two presets make the same templates. Either may then be used, so this is not a tie."""


@dataclass(frozen=True, slots=True)
class Stated:
    """The caller's facts about a file's input. ``mean`` and ``std`` are for pixels 0-255, in the order of the input's
    channels."""

    colour: Colour | None = None
    mean: Channels | None = None
    std: Channels | None = None
    size: int | None = None
    """Side in pixels, for graphs that don't declare one."""

    def over(self, preset: Stated) -> Stated:
        """Return these facts; those that are None are taken from the preset."""
        return replace(preset, **{name: value for name, value in asdict(self).items() if value is not None})


def _same(mean: float, std: float) -> tuple[Channels, Channels]:
    return (mean,) * 3, (std,) * 3


PRESETS: Mapping[Preset, Stated] = {
    "insightface": Stated("rgb", *_same(127.5, 127.5)),
    "adaface": Stated("bgr", *_same(127.5, 127.5)),
    "sface": Stated("rgb", *_same(0.0, 1.0)),
    "facenet": Stated("rgb", *_same(127.5, 128.0), size=160),
    "imagenet": Stated("rgb", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "unit": Stated("rgb", *_same(0.0, 255.0)),
    "opencv": Stated("bgr", *_same(0.0, 1.0)),
}
"""Forms of input, taken from the preprocessing in InsightFace's ArcFaceONNX, AdaFace's to_input, OpenCV's
FaceRecognizerSF, facenet-pytorch's fixed_image_standardization and torchvision's ImageNet. `unit` is RGB from 0 to 1;
`opencv` is cv2.imread's pixels, unchanged."""


def input_form(stated: Stated, layout: Layout, dtype: Dtype) -> SourceInput:
    """Return the form of input for these facts.

    Raises Unusable: model_facts_missing (more must be stated), model_input_contradicted (the graph contradicts what is
    stated).
    """
    if dtype == "uint8":
        if stated.mean not in {None, (0.0,) * 3} or stated.std not in {None, (1.0,) * 3}:
            message = "The file takes uint8 pixels, so its normalisation is inside: state --colour alone."
            raise Unusable(message, code="model_input_contradicted")
        stated = Stated(stated.colour, (0.0,) * 3, (1.0,) * 3)
    if stated.colour is None or stated.mean is None or stated.std is None:
        wanted = "--colour" if dtype == "uint8" else f"--preset ({', '.join(PRESETS)}), or --colour, --mean, --std"
        message = f"State how the file's input is made: {wanted}. The page that you have the file from says it."
        raise Unusable(message, code="model_facts_missing")
    return SourceInput(layout=layout, dtype=dtype, colour=stated.colour, mean=stated.mean, std=stated.std)


@dataclass(frozen=True, slots=True)
class Crops:
    """Aligned crops, (N, 112, 112, 3) uint8 RGB, and the person on each, (N,), numbered from 0."""

    pixels: Pixels
    people: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tried:
    """A preset's results: each person's separation, (P,), and the templates of the crops, (N, D) of unit length."""

    name: str
    separations: NDArray[np.float64]
    templates: Vectors

    @property
    def separation(self) -> float:
        return float(self.separations.mean())


def separations(templates: Vectors, people: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the separation of each person, (P,). ``templates``: (N, D), unit length; ``people``: (N,), numbered from
    0."""
    scores = (templates @ templates.T).astype(np.float64)
    same = people[:, None] == people
    spread = max(float(scores[~same].std()), 1e-9)
    others = same & ~np.eye(len(people), dtype=bool)
    rows = [people == person for person in range(int(people.max()) + 1)]
    return np.array([(scores[row][others[row]].mean() - scores[row][~same[row]].mean()) / spread for row in rows])


def choose(templates: Mapping[str, Vectors], people: NDArray[np.int64], stated: str | None = None) -> list[Tried]:
    """Return the tried presets, the one to use first: the best one or, if given, the ``stated`` one.

    Raises Unusable: model_separates_nothing, model_input_ambiguous (several are equally good but make different
    templates), model_input_contradicted (the stated one is clearly worse than the best).
    """
    tried = [Tried(name, separations(vectors, people), vectors) for name, vectors in templates.items()]
    tried.sort(key=lambda attempt: -attempt.separation)
    best, *others = tried
    count = len(best.separations)
    details = {"people": count, "separation": {attempt.name: round(attempt.separation, 2) for attempt in tried}}
    if best.separation < LEAST_SEPARATION:
        message = (
            f"The file tells nobody apart: its best separation is {best.separation:.2f} ({best.name}), "
            f"{LEAST_SEPARATION:g} is needed, measured on {count} people. Is it a trained face embedder?"
        )
        raise Unusable(message, code="model_separates_nothing", **details)
    tied = [attempt for attempt in others if not _is_worse(attempt, best) and not _is_same(attempt, best)]
    if stated is not None:
        (chosen,) = (attempt for attempt in tried if attempt.name == stated)
        if chosen is not best and _is_worse(chosen, best) and not _is_same(chosen, best):
            message = f"What was stated has separation {chosen.separation:.2f}, {best.name} {best.separation:.2f}."
            raise Unusable(message, code="model_input_contradicted", **details)
        return [chosen, *(attempt for attempt in tried if attempt is not chosen)]
    if tied:
        figures = ", ".join(f"{attempt.name} {attempt.separation:.2f}" for attempt in (best, *tied))
        message = (
            f"The photos of {count} people can't tell these presets apart: separation {figures}. State the right one "
            "(--preset, or --colour, --mean, --std), or give photos of more people."
        )
        raise Unusable(message, code="model_input_ambiguous", **details)
    return tried


def _is_worse(attempt: Tried, best: Tried) -> bool:
    """Return whether ``best`` is better for more people than chance (CHANCE) explains."""
    differences = (best.separations - attempt.separations)[best.separations != attempt.separations]
    wins = int((differences > 0).sum())
    chance = sum(math.comb(len(differences), more) for more in range(wins, len(differences) + 1))
    return chance <= CHANCE * 2.0 ** len(differences)


def _is_same(attempt: Tried, other: Tried) -> bool:
    return float((attempt.templates * other.templates).sum(axis=1).mean()) >= SAME_TEMPLATES
