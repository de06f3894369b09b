"""Which preset a file was trained with: the one with which it tells the people in photos apart best.

Each preset is run on the same crops. A person's separation is how far the mean score of their own photos lies above the
mean score with other people's, in standard deviations of all scores of different people. Presets are compared by a sign
test over people: chance would let the better one win with half of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import Unusable
from app.types import Pixels, Vectors

LEAST_SEPARATION = 1.0
"""Mean over people below which a file tells nobody apart. On four photos each of 64 people of CelebA a network with
random weights had 0.4, the small packaged one 3.2, 2.4 with the other colour order and 1.4 with another range too."""
CHANCE = 0.025
"""One-sided: a preset is worse if chance alone would put it behind the best as clearly as this rarely."""
SAME_TEMPLATES = 0.995
"""Mean cosine from which on two presets make the same templates: either will do, so they are no tie."""


@dataclass(frozen=True, slots=True)
class Crops:
    """Aligned crops, (N, 112, 112, 3) uint8 RGB, and who each shows: (N,) numbers from 0."""

    pixels: Pixels
    people: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tried:
    """One preset: the separation of each person, (P,), and the templates of the crops, (N, D) unit vectors."""

    name: str
    separations: NDArray[np.float64]
    templates: Vectors

    @property
    def separation(self) -> float:
        return float(self.separations.mean())


def separations(templates: Vectors, people: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the separation of each person, (P,), by (N, D) unit vectors and (N,) numbers from 0 of who they show."""
    scores = (templates @ templates.T).astype(np.float64)
    same = people[:, None] == people
    spread = max(float(scores[~same].std()), 1e-9)
    own = same & ~np.eye(len(people), dtype=bool)
    rows = [people == person for person in range(int(people.max()) + 1)]
    return np.array([(scores[row][own[row]].mean() - scores[row][~same[row]].mean()) / spread for row in rows])


def choose(templates: Mapping[str, Vectors], people: NDArray[np.int64], stated: str | None = None) -> list[Tried]:
    """Return what was tried, the preset to use first: the best, or the ``stated`` one unless that is clearly worse.

    Raises Unusable: model_separates_nothing, model_input_ambiguous (several are as good and make other templates),
    model_input_contradicted (the stated one is clearly worse than another).
    """
    tried = [Tried(name, separations(vectors, people), vectors) for name, vectors in templates.items()]
    tried.sort(key=lambda one: -one.separation)
    best, *others = tried
    count = len(best.separations)
    details = {"people": count, "separation": {one.name: round(one.separation, 2) for one in tried}}
    if best.separation < LEAST_SEPARATION:
        message = (
            f"The file tells nobody apart: its best separation is {best.separation:.2f} ({best.name}), "
            f"{LEAST_SEPARATION:g} is needed, measured on {count} people. Is it a trained face embedder?"
        )
        raise Unusable(message, code="model_separates_nothing", **details)
    tied = [one for one in others if not _is_worse(one, best) and not _is_same(one, best)]
    if stated is not None:
        (chosen,) = (one for one in tried if one.name == stated)
        if chosen is not best and _is_worse(chosen, best) and not _is_same(chosen, best):
            message = f"What was stated has separation {chosen.separation:.2f}, {best.name} {best.separation:.2f}."
            raise Unusable(message, code="model_input_contradicted", **details)
        return [chosen, *(one for one in tried if one is not chosen)]
    if tied:
        figures = ", ".join(f"{one.name} {one.separation:.2f}" for one in (best, *tied))
        message = (
            f"The photos of {count} people can't tell these presets apart: separation {figures}. State the right one "
            "(--preset, or --colour, --mean, --std), or give photos of more people."
        )
        raise Unusable(message, code="model_input_ambiguous", **details)
    return tried


def _is_worse(one: Tried, best: Tried) -> bool:
    """Return whether the best one wins with more people than chance allows."""
    differences = (best.separations - one.separations)[best.separations != one.separations]
    wins = int((differences > 0).sum())
    chance = sum(math.comb(len(differences), more) for more in range(wins, len(differences) + 1))
    return chance <= CHANCE * 2.0 ** len(differences)


def _is_same(one: Tried, other: Tried) -> bool:
    return float((one.templates * other.templates).sum(axis=1).mean()) >= SAME_TEMPLATES
