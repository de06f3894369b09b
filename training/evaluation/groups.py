"""False match rates within groups of people, at the thresholds of a package's operating points.

Every pair of photos of a group counts as non-mated, unless both are known to show one person. In a set without names
some people appear twice, and their pairs look like false matches, so the rates are upper bounds. Two rules find such
pairs: photos that are near copies of each other, and scores that two different people hardly ever reach.

Since pairs share photos, intervals come from a bootstrap over people. They are never narrower than Wilson's for
independent pairs, which also work if no pair passed.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.models.calibration.intervals import Bools, Interval, Ints
from app.models.calibration.operating_points import Measurement, false_match_rates, number_people
from app.models.calibration.pairs import all_pairs
from app.package.cards import BiasCard, Group, GroupRate
from app.package.manifest import Manifest
from app.types import Vectors

EVERYBODY = "all"
GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?")
"""A group's name as a manifest allows it."""
AGES = (
    (3, "children-0-3"),
    (12, "children-4-12"),
    (17, "youths-13-17"),
    (59, "adults-18-59"),
    (199, "adults-60-plus"),
)
"""Each age group with its last year of age."""
UTKFACE = re.compile(r"(\d{1,3})_([01])_([0-4])_")
SEXES = ("male", "female")
ETHNIC_GROUPS = ("white", "black", "asian", "indian", None)
"""The names of the set's authors; their fifth, "others", is not used as a group."""
Reader: TypeAlias = Callable[[str], Sequence[str]]
"""A photo's name → its groups; none if the name has another form."""


@dataclass(frozen=True, slots=True)
class GroupLabels:
    """The photos of each group by name, and the person on each photo; an unknown person counts as a new one."""

    groups: Mapping[str, tuple[str, ...]]
    people: Mapping[str, str]
    unlabelled: int
    """Photos without a group."""


def utkface(photo: str) -> Sequence[str]:
    """Return the groups of a photo named ``AGE_SEX_GROUP_TIME``: by age, and by age, sex and ethnic group."""
    match = UTKFACE.match(photo.rpartition("/")[2])
    if match is None:
        return ()
    years, sex, ethnic = (int(number) for number in match.groups())
    of_age = next((name for last, name in AGES if years <= last), None)
    if of_age is None:
        return ()
    ethnic_group = ETHNIC_GROUPS[ethnic]
    return (of_age,) if ethnic_group is None else (of_age, f"{of_age}/{SEXES[sex]}-{ethnic_group}")


def age(photo: str) -> int | None:
    """Return the years in ``AGE_SEX_GROUP_TIME``, None if the name has another form or the age is impossible."""
    match = UTKFACE.match(photo.rpartition("/")[2])
    return int(match[1]) if match and int(match[1]) <= AGES[-1][0] else None


def folder(photo: str) -> Sequence[str]:
    """Return the photo's folder as its group."""
    return (photo.rpartition("/")[0],)


LAYOUTS: Mapping[str, Reader] = {"utkface": utkface, "folder": folder}


def read_labels(rule: str, photos: Sequence[str]) -> GroupLabels:
    """Label the photos by a layout of LAYOUTS, or by a CSV file with the columns file, group and, optional, person.

    Raises ValueError if the rule labels no photo, or a group has no proper name.
    """
    if rule in LAYOUTS:
        groups_of = {photo: tuple(LAYOUTS[rule](photo)) for photo in photos}
        people: dict[str, str] = {}
    else:
        groups_of, people = _read_csv(Path(rule), photos)
    by_group: dict[str, list[str]] = {}
    for photo in photos:
        for group in (EVERYBODY, *groups_of[photo]) if groups_of[photo] else ():
            by_group.setdefault(group, []).append(photo)
    if not by_group:
        raise ValueError(f"{rule} names the group of none of the {len(photos)} photos")
    wrong = next((name for name in by_group if GROUP_NAME.fullmatch(name) is None), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no group: a name has a-z, 0-9 and . _ - with one / before the name of a part")
    unlabelled = sum(not groups for groups in groups_of.values())
    return GroupLabels({name: tuple(by_group[name]) for name in sorted(by_group)}, people, unlabelled)


def _read_csv(path: Path, photos: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the groups of each photo, and the person on it if the file names one."""
    if not path.is_file():
        raise ValueError(f"{path} is neither {', '.join(LAYOUTS)} nor a CSV file")
    groups_of: dict[str, tuple[str, ...]] = dict.fromkeys(photos, ())
    people: dict[str, str] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {"file", "group"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} needs the columns file and group, and has {rows.fieldnames}")
        for row in rows:
            named = PurePosixPath((row["file"] or "").strip())
            photo = f"{named.parent.name}/{named.stem}"
            if photo not in groups_of:
                raise ValueError(f"{path}, line {rows.line_num}: {named} is not among the photos (folder/file.jpg)")
            groups_of[photo] += ((row["group"] or "").strip(),)
            if row.get("person"):
                people[photo] = str(row["person"]).strip()
    return groups_of, people


FMRS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
ROUNDS = 200
LEAST_PHOTOS = 100
"""Minimum photos of a group to measure: 100 make 4,950 pairs."""
DIGITS = 3
"""Significant digits of a rate in a card."""


@dataclass(frozen=True, slots=True)
class FoundRate:
    """How many pairs reached the threshold that states the rate ``fmr``, and the rate found, with its 95 % interval."""

    fmr: float
    threshold: float
    false_matches: int
    rate: Interval

    @property
    def exceeds(self) -> bool:
        """Return whether the whole interval is above the stated rate."""
        return self.rate.low > self.fmr


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The figures of a group; ``same_person`` pairs were left out, since their scores are too high for two people."""

    name: str
    photos: int
    comparisons: int
    same_person: int
    rates: tuple[FoundRate, ...]


def near_copies(thumbnails: NDArray[np.float32], above: float) -> Bools:
    """Return whether each photo's correlation with an earlier one is at least ``above``, (N,) bool."""
    copy = np.zeros(len(thumbnails), bool)
    for start in range(0, len(thumbnails), 1024):
        alike = thumbnails[start : start + 1024] @ thumbnails.T >= above
        earlier = np.arange(len(thumbnails))[None, :] < np.arange(start, start + len(alike))[:, None]
        copy[start : start + len(alike)] = (alike & earlier).any(axis=1)
    return copy


def measure_groups(
    vectors: Vectors,
    rows: Mapping[str, Ints],
    people: Sequence[str],
    thresholds: Mapping[float, float],
    *,
    same_above: float,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _groups: None,
) -> list[GroupFigures]:
    """Measure each group of ``rows`` of (N, D) unit ``vectors``; ``people`` (N,) says who each row shows.

    ``thresholds``: by stated FMR. Pairs that score ``same_above`` or more count neither as mated nor as non-mated.
    Raises ValueError if a group has no pair left.
    """
    floor = min(thresholds.values())
    figures = []
    for name, members in rows.items():
        who = number_people([people[row] for row in members])
        pairs = all_pairs(vectors[members], who, floor=floor)
        left_out: Bools = pairs.top.score >= same_above
        measured = Measurement(pairs, (), left_out, pairs.nonmated_count - int(left_out.sum()))
        if measured.comparisons < 1:
            raise ValueError(f"{name}: no pair is left to compare: all are of one person or score {same_above}")
        rates = false_match_rates(measured, who, list(thresholds.values()), floor=floor, rounds=rounds, seed=seed)
        kept = pairs.top.score[~left_out]
        figures.append(
            GroupFigures(
                name=name,
                photos=len(members),
                comparisons=measured.comparisons,
                same_person=int(left_out.sum()),
                rates=tuple(
                    FoundRate(fmr, threshold, int((kept >= threshold).sum()), rate)
                    for (fmr, threshold), rate in zip(thresholds.items(), rates, strict=True)
                    if rate is not None
                ),
            )
        )
        progress(1)
    return figures


SPREAD_FMR = 1e-3
SPREAD_PHOTOS = 4000
"""Maximum photos of a group to compare: 8 million pairs."""
SPREAD_STEPS = 24
"""Number of halvings of the score range, down to 1e-7."""


def spread(
    packages: Mapping[str, Vectors], rows: Mapping[str, Ints], *, same_above: float
) -> dict[str, dict[str, float]]:
    """Return each package's FMR within each group of ``rows`` at the threshold where the groups' mean is `SPREAD_FMR`,
    which shows how much groups differ, independently of operating points. Pairs that score ``same_above`` or more with
    the first package don't count."""
    scores_of: dict[str, dict[str, NDArray[np.float32]]] = {package: {} for package in packages}
    for name, members in rows.items():
        sample = members[:: max(1, -(-len(members) // SPREAD_PHOTOS))]
        kept: Bools | None = None
        for package, vectors in packages.items():
            scores = vectors[sample] @ vectors[sample].T
            if kept is None:
                kept = np.triu(np.ones(scores.shape, bool), 1) & (scores < same_above)
            if kept.any():
                scores_of[package][name] = scores[kept]
    return {package: _at_mean(of) if of else {} for package, of in scores_of.items()}


def _at_mean(scores: Mapping[str, NDArray[np.float32]]) -> dict[str, float]:
    low, high = -1.0, 1.0
    for _ in range(SPREAD_STEPS):
        middle = (low + high) / 2
        mean = np.mean([(of_group >= middle).mean() for of_group in scores.values()])
        low, high = (middle, high) if mean > SPREAD_FMR else (low, middle)
    return {name: float((of_group >= high).mean()) for name, of_group in scores.items()}


YEARS = (2, 5, 10, 20, 200)
"""Upper bounds, in years, of the age differences that are counted together."""
CHILD = 12
"""Age in years of the younger person up to which a pair counts as children."""
ROWS = 2048


def by_years(
    vectors: Vectors, ages: Ints, thresholds: Mapping[float, float], *, same_above: float
) -> dict[str, dict[str, list[float]]]:
    """Return the FMR at each of ``thresholds`` by a pair's difference in years, for children and for others.

    Pairs that score ``same_above`` or more don't count.
    """
    cuts = [*thresholds.values()]
    counts = np.zeros((2, len(YEARS), 1 + len(cuts)))
    for start in range(0, len(vectors), ROWS):
        block = vectors[start : start + ROWS] @ vectors[start:].T
        later = np.triu(np.ones(block.shape, bool), 1) & (block < same_above)
        first, second = ages[start : start + ROWS, None], ages[None, start:]
        younger, apart = np.minimum(first, second), abs(first - second)
        cell = (younger > CHILD) * len(YEARS) + np.searchsorted(YEARS, apart, side="right")
        for place, cut in enumerate((-math.inf, *cuts)):
            passed = np.bincount(cell[later & (block >= cut)], minlength=counts[..., 0].size)
            counts[..., place] += passed.reshape(2, len(YEARS))
    shares = counts[..., 1:] / np.maximum(counts[..., :1], 1)
    return {
        who: {f"less than {years} years apart": shares[row, column].tolist() for column, years in enumerate(YEARS)}
        for row, who in enumerate(("children", "others"))
    }


def with_doubt(figures: Sequence[GroupFigures], strict: Sequence[GroupFigures]) -> list[GroupFigures]:
    """Return the figures with the lower ends of ``strict``, which counted more pairs as one person's, if those are
    lower: so a rate exceeds the stated one only if it does under both rules."""
    lower = {(group.name, rate.fmr): rate.rate.low for group in strict for rate in group.rates}
    return [
        replace(
            group,
            rates=tuple(
                replace(rate, rate=replace(rate.rate, low=min(rate.rate.low, lower[group.name, rate.fmr])))
                for rate in group.rates
            ),
        )
        for group in figures
    ]


def bias_card(
    manifest: Manifest, figures: Sequence[GroupFigures], *, measured_on: str, calibration: str, repeats: str
) -> BiasCard:
    """Return the figures as the card of this manifest's model."""
    groups = tuple(
        Group(name=group.name, photos=group.photos, comparisons=group.comparisons, rates=tuple(map(_rate, group.rates)))
        for group in figures
    )
    return BiasCard(
        measured_on=measured_on,
        calibration=calibration,
        repeats=repeats,
        groups=groups,
        measured_with=manifest.recipe_digest,
    )


def _rate(measured: FoundRate) -> GroupRate:
    low, value, high = rounded(measured.rate)
    return GroupRate(fmr=measured.fmr, threshold=measured.threshold, found=value, low=low, high=high)


def rounded(rate: Interval) -> tuple[float, float, float]:
    """Return low end, value and high end with as many digits as a card holds. They are in this order even if a
    bootstrap's interval doesn't contain its value."""
    low, value, high = (float(f"{number:.{DIGITS}g}") for number in (rate.low, rate.value, rate.high))
    return min(low, value), value, max(high, value)
