"""Choose how much each member of a fused embedder counts, and which see the mirror image too, on photos of people.

All weights in steps of a tenth are tried with every choice of mirror images. The least mean FNMR at the measured false
match rates wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput
from app.inference.embedder import unit
from app.types import Vectors

RATES = (1e-3, 1e-4)
"""False match rates that are compared at; 1e-4 is the service's default."""
LEAST_FALSE_MATCHES = 10
"""Fewer say nothing of a rate: it is left out."""
STEPS = 10
MIRROR_GAIN = 0.05
"""Relative fall of the FNMR that each mirror image must bring, since it doubles the member's time."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One choice: each member's weight and whether it sees the mirror image, and the FNMR at each of the rates."""

    weights: tuple[float, ...]
    mirrors: tuple[bool, ...]
    rates: tuple[float, ...]
    fnmr: tuple[float, ...]

    @property
    def cost(self) -> float:
        return float(np.mean(self.fnmr)) * (1 + MIRROR_GAIN) ** sum(self.mirrors)


def weigh(plain: Sequence[Vectors], mirrored: Sequence[Vectors], people: NDArray[np.int64]) -> list[Weighed]:
    """Return the best weights for every choice of mirror images, the choice to take first.

    ``plain`` and ``mirrored`` hold each member's (N, D) unit vectors of the crops and of their mirror images;
    ``people`` (N,) says who each crop shows. Raises InvalidInput ``too_few_people``.
    """
    one, other = np.triu_indices(len(people), 1)
    same = people[one] == people[other]
    rates = tuple(rate for rate in RATES if (~same).sum() * rate >= LEAST_FALSE_MATCHES)
    if not rates or not same.any():
        needed = round(LEAST_FALSE_MATCHES / RATES[0])
        message = (
            f"{int((~same).sum())} pairs of different people and {int(same.sum())} of the same are too few to choose "
            f"by: {needed} and 1 are the least. Give more photos, or state --weight for each package."
        )
        raise InvalidInput(message, code="too_few_people", needed=needed)
    both = [unit(straight + turned) for straight, turned in zip(plain, mirrored, strict=True)]

    def scores(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        found = (vectors @ vectors.T)[one, other]
        return found[same], found[~same]

    known = [[scores(vectors) for vectors in variants] for variants in zip(plain, both, strict=True)]
    chosen = []
    for mirrors in product((False, True), repeat=len(plain)):
        parts = [known[place][mirror] for place, mirror in enumerate(mirrors)]
        tried = (
            Weighed(weights, mirrors, rates, _errors(weights, parts, rates)) for weights in _all_weights(len(plain))
        )
        chosen.append(min(tried, key=lambda each: each.cost))
    return sorted(chosen, key=lambda each: each.cost)


def _all_weights(members: int) -> Iterator[tuple[float, ...]]:
    """Yield all weights above 0 in steps of a tenth that add up to 1, the most equal first."""
    whole = [parts for parts in product(range(1, STEPS), repeat=members) if sum(parts) == STEPS]
    for parts in sorted(whole, key=np.var):
        yield tuple(part / STEPS for part in parts)


def _errors(
    weights: Sequence[float],
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
    rates: Sequence[float],
) -> tuple[float, ...]:
    """Return the FNMR at each rate: the share of mated scores that do not exceed the first one not allowed to match."""
    nothing = np.zeros(1, np.float32)
    mated, nonmated = (
        sum((np.float32(weight) * part[kind] for weight, part in zip(weights, parts, strict=True)), nothing)
        for kind in (0, 1)
    )
    places = [len(nonmated) - 1 - int(len(nonmated) * rate) for rate in rates]
    limits = np.partition(nonmated, places)[places]
    return tuple(float((mated <= limit).mean()) for limit in limits)
