"""False match rates within groups of people, at the thresholds of a package's operating points.

Every pair of two photos of a group counts as non-mated, unless both are known to show one person. In a set without
names some people appear twice, and their pairs look like false matches; so the rates are upper bounds. Two rules find
such pairs: photos that are near copies of each other, and scores that two different people hardly reach.

Pairs share photos. So intervals come from a bootstrap over people, and are never narrower than Wilson's for
independent pairs, which also holds where no pair passed.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from app.calibration.intervals import Bools, Interval, Ints
from app.calibration.operating_points import Measurement, false_match_rates, numbered
from app.calibration.pairs import all_pairs
from app.inference.cards import BiasCard, Group, GroupRate
from app.inference.manifest import Manifest
from app.types import Vectors

EVERYBODY = "all"
GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?")
"""As in a manifest."""
AGES = (
    (3, "children-0-3"),
    (12, "children-4-12"),
    (17, "youths-13-17"),
    (59, "adults-18-59"),
    (199, "adults-60-plus"),
)
"""The last year of each age group."""
UTKFACE = re.compile(r"(\d{1,3})_([01])_([0-4])_")
SEXES = ("male", "female")
ETHNIC_GROUPS = ("white", "black", "asian", "indian", None)
"""In the words of those who labelled the set; its fifth, "others", is no group."""
Reader: TypeAlias = Callable[[str], Sequence[str]]
"""A photo's name → its groups; none if the name has another form."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The photos of each group by name, and the person on each photo; a photo of nobody known is a person alone."""

    groups: Mapping[str, tuple[str, ...]]
    people: Mapping[str, str]
    unlabelled: int
    """Photos without a group."""


def utkface(photo: str) -> Sequence[str]:
    """Read ``AGE_SEX_GROUP_TIME``: an age group, and within it sex and ethnic group."""
    found = UTKFACE.match(photo.rpartition("/")[2])
    if found is None:
        return ()
    years, sex, ethnic = (int(number) for number in found.groups())
    age = next((name for last, name in AGES if years <= last), None)
    if age is None:
        return ()
    ethnic_group = ETHNIC_GROUPS[ethnic]
    return (age,) if ethnic_group is None else (age, f"{age}/{SEXES[sex]}-{ethnic_group}")


def folder(photo: str) -> Sequence[str]:
    """Return the photo's folder as its group."""
    return (photo.rpartition("/")[0],)


LAYOUTS: Mapping[str, Reader] = {"utkface": utkface, "folder": folder}


def read_labels(rule: str, photos: Sequence[str]) -> Labels:
    """Label the photos by a layout of LAYOUTS, or by a CSV file with the columns file, group and, optional, person.

    Raises ValueError if the rule labels none of them, or a group has no proper name.
    """
    if rule in LAYOUTS:
        groups_of = {photo: tuple(LAYOUTS[rule](photo)) for photo in photos}
        people: dict[str, str] = {}
    else:
        groups_of, people = _read_csv(Path(rule), photos)
    found: dict[str, list[str]] = {}
    for photo in photos:
        for group in (EVERYBODY, *groups_of[photo]) if groups_of[photo] else ():
            found.setdefault(group, []).append(photo)
    if not found:
        raise ValueError(f"{rule} names the group of none of the {len(photos)} photos")
    wrong = next((name for name in found if GROUP_NAME.fullmatch(name) is None), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no group: a name has a-z, 0-9 and . _ - with one / before the name of a part")
    unlabelled = sum(not groups for groups in groups_of.values())
    return Labels({name: tuple(found[name]) for name in sorted(found)}, people, unlabelled)


def _read_csv(path: Path, photos: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the groups of each photo, and the person on it where the file names one."""
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
"""A group of fewer photos is not measured: 100 make 4,950 pairs."""
COPY_SIDE = 24
"""Pixels of the grey thumbnails that near copies are found by."""
DIGITS = 3
"""Significant digits of a rate in a card."""


@dataclass(frozen=True, slots=True)
class FoundRate:
    """How many pairs reached the threshold whose stated rate is ``fmr``, and the rate with its 95 % interval."""

    fmr: float
    threshold: float
    false_matches: int
    rate: Interval

    @property
    def exceeds(self) -> bool:
        """Whether the whole interval lies above the stated rate."""
        return self.rate.low > self.fmr


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group; ``same_person`` pairs scored so high that they count as one person's, and were left out."""

    name: str
    photos: int
    comparisons: int
    same_person: int
    rates: tuple[FoundRate, ...]


def thumbnail(photo: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return (H, W, 3) RGB as a vector of length 1 and mean 0, whose product with another is their correlation."""
    grey = cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (COPY_SIDE, COPY_SIDE), interpolation=cv2.INTER_AREA).astype(np.float32).ravel()
    small -= small.mean()
    unit: NDArray[np.float32] = small / max(float(np.linalg.norm(small)), 1e-6)
    return unit


def near_copies(thumbnails: NDArray[np.float32], above: float) -> Bools:
    """Return (N,) True for each photo whose correlation with an earlier one is at or above ``above``."""
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
    same_above: float | None,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _groups: None,
) -> list[GroupFigures]:
    """Measure each group of ``rows`` of (N, D) unit ``vectors``; ``people`` (N,) says who each row shows.

    ``thresholds``: by stated FMR. Pairs that score ``same_above`` or more count neither as mated nor as non-mated.
    """
    floor = min(thresholds.values())
    found = []
    for name, members in rows.items():
        who = numbered([people[row] for row in members])
        pairs = all_pairs(vectors[members], who, floor=floor)
        left_out: Bools = pairs.top.score >= (math.inf if same_above is None else same_above)
        measured = Measurement(pairs, (), left_out, pairs.nonmated_count - int(left_out.sum()))
        if measured.comparisons < 1:
            raise ValueError(f"{name}: no pair is left to compare: all are of one person or score {same_above}")
        rates = false_match_rates(measured, who, list(thresholds.values()), floor=floor, rounds=rounds, seed=seed)
        kept = pairs.top.score[~left_out]
        found.append(
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
    return found


def with_doubt(figures: Sequence[GroupFigures], strict: Sequence[GroupFigures]) -> list[GroupFigures]:
    """Return the figures with the lower ends of ``strict``, which took more pairs for one person, where those are
    lower: a rate exceeds the stated one only if it does so under both rules.
    """
    lower = {(one.name, rate.fmr): rate.rate.low for one in strict for rate in one.rates}
    return [
        replace(
            one,
            rates=tuple(
                replace(rate, rate=replace(rate.rate, low=min(rate.rate.low, lower[one.name, rate.fmr])))
                for rate in one.rates
            ),
        )
        for one in figures
    ]


def bias_card(
    manifest: Manifest, figures: Sequence[GroupFigures], *, measured_on: str, calibration: str, repeats: str
) -> BiasCard:
    """Return the figures as the card of this manifest's model."""
    groups = tuple(
        Group(name=one.name, photos=one.photos, comparisons=one.comparisons, rates=tuple(map(_rate, one.rates)))
        for one in figures
    )
    return BiasCard(
        measured_on=measured_on,
        calibration=calibration,
        repeats=repeats,
        groups=groups,
        measured_with=manifest.recipe_digest,
    )


def _rate(one: FoundRate) -> GroupRate:
    low, found, high = (float(f"{value:.{DIGITS}g}") for value in (one.rate.low, one.rate.value, one.rate.high))
    return GroupRate(fmr=one.fmr, threshold=one.threshold, found=found, low=min(low, found), high=max(high, found))
