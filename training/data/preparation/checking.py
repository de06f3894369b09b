"""Find problems in a set of crops: broken files, duplicates, people with one image, images of another person.

Wrong labels are found by embedding. An image is *misplaced* if its score is below the threshold with the mean of its
person's other images, but above it with another person's; it is an *outlier* if its score is below the threshold with
everybody's. Two people are *alike* if their mean templates reach the threshold: one person under two names.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from app.inference.embedders import Embedder, unit
from app.types import Pixels
from training.data.dataset import FaceSet
from training.data.preparation.templates import ROWS, CropTemplates, embed_set, sums

THUMBNAIL = 24
"""Side in pixels of the grey thumbnails by which near duplicates are found."""
NEAR = 0.98
"""Correlation from which on two thumbnails show the same shot, encoded, resized or cropped again. Among 16,682 aligned
crops of 5,566 people 81 pairs reach it, and all of them have an SFace cosine above 0.86, even with two people's names;
between 0.95 and 0.97 there are pairs of different people."""
NEAR_LIMIT = 100_000
"""Up to this number of images, all pairs are compared for near duplicates; in larger sets only pairs of one person."""
LEAST_IMAGES = 3
"""Minimum images of a person for finding misplaced ones: the image and two others to compare it with."""


@dataclass(frozen=True, slots=True)
class Broken:
    image: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """An image that doesn't resemble its person's others; ``nearest`` is the person it resembles most."""

    image: str
    person: str
    own_score: float
    nearest: str
    nearest_score: float


@dataclass(frozen=True, slots=True)
class Alike:
    people: tuple[str, str]
    score: float


@dataclass(frozen=True, slots=True)
class Report:
    images: int
    people: int
    package: str
    threshold: float
    threshold_from: str
    images_per_person: dict[str, float]
    """Minimum, median and maximum."""
    broken: list[Broken]
    single: list[str]
    """People with one readable image or none, who give no mated pair."""
    exact_duplicates: list[list[str]]
    """Groups of images with the same pixels."""
    near_duplicates: list[list[str]]
    misplaced: list[Doubt]
    outliers: list[Doubt]
    alike: list[Alike]


def check_set(
    faces: FaceSet,
    embedder: Embedder,
    threshold: float,
    threshold_from: str,
    progress: Callable[[int], None] = lambda _images: None,
) -> Report:
    """Read every image once and report problems. ``threshold``: the cosine from which on two images show one person."""
    digests: dict[int, bytes] = {}
    thumbnails = np.zeros((len(faces), THUMBNAIL * THUMBNAIL), np.float32)

    def see(index: int, crop: Pixels) -> None:
        digests[index] = hashlib.sha256(crop.tobytes()).digest()
        thumbnails[index] = thumbnail(crop)

    templates = embed_set(faces, embedder, progress=progress, on_crop=see)
    counts = np.bincount(templates.labels[templates.readable], minlength=len(faces.people))
    exact = group_equal(digests)
    firsts = {group[0] for group in exact}
    repeats = {index for group in exact for index in group} - firsts
    distinct = np.array([index for index in templates.readable.tolist() if index not in repeats], np.int64)
    misplaced, outliers = doubts(templates, threshold)

    def named(groups: list[list[int]]) -> list[list[str]]:
        return [[faces.describe(index) for index in group] for group in groups]

    return Report(
        images=len(faces),
        people=len(faces.people),
        package=embedder.package_id,
        threshold=threshold,
        threshold_from=threshold_from,
        images_per_person={
            "least": float(counts.min()),
            "median": float(np.median(counts)),
            "most": float(counts.max()),
        },
        broken=[Broken(faces.describe(i), error.code, str(error)) for i, error in sorted(templates.broken.items())],
        single=[faces.people[label] for label in np.flatnonzero(counts < 2).tolist()],
        exact_duplicates=named(exact),
        near_duplicates=named(near_duplicates(thumbnails[distinct], distinct, templates.labels[distinct])),
        misplaced=[_doubt(faces, *facts) for facts in misplaced],
        outliers=[_doubt(faces, *facts) for facts in outliers],
        alike=alike_people(templates, threshold),
    )


def _doubt(faces: FaceSet, index: int, own_score: float, nearest: int, score: float) -> Doubt:
    person = faces.people[faces.labels[index]]
    return Doubt(faces.describe(index), person, round(own_score, 4), faces.people[nearest], round(score, 4))


def thumbnail(crop: Pixels) -> NDArray[np.float32]:
    """Return (576,) float32 with mean 0 and length 1 (zeros for one colour), so that a dot product is a correlation."""
    grey = cv2.cvtColor(cv2.resize(crop, (THUMBNAIL, THUMBNAIL), interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY)
    flat = grey.ravel().astype(np.float32)
    flat -= flat.mean()
    return np.asarray(flat / max(float(np.linalg.norm(flat)), 1.0), np.float32)


def group_equal(digests: dict[int, bytes]) -> list[list[int]]:
    """Return groups of two or more indices with the same digest."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in sorted(digests.items()):
        groups[digest].append(index)
    return [group for group in groups.values() if len(group) > 1]


def near_duplicates(
    thumbnails: NDArray[np.float32], indices: NDArray[np.int64], labels: NDArray[np.int64], limit: int = NEAR_LIMIT
) -> list[list[int]]:
    """Return groups of ``indices`` (N,) whose thumbnails, (N, 576) float32, correlate by ``NEAR`` or more, directly
    or through others."""
    pairs: list[tuple[int, int]] = []
    parts = (
        [np.arange(len(indices))] if len(indices) <= limit else [np.flatnonzero(labels == p) for p in np.unique(labels)]
    )
    for part in parts:
        for start in range(0, len(part), ROWS):
            rows = part[start : start + ROWS]
            i, j = np.nonzero(thumbnails[rows] @ thumbnails[part[start:]].T >= NEAR)
            later = j > i
            pairs += zip(indices[rows[i[later]]].tolist(), indices[part[start + j[later]]].tolist(), strict=True)
    return linked(pairs)


def linked(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected groups, each ascending (disjoint sets with path halving)."""
    parent: dict[int, int] = {}

    def root(x: int) -> int:
        parent.setdefault(x, x)
        while parent[x] != x:
            parent[x] = x = parent[parent[x]]
        return x

    for a, b in pairs:
        parent[root(a)] = root(b)
    groups: dict[int, list[int]] = defaultdict(list)
    for index in sorted(parent):
        groups[root(index)].append(index)
    return list(groups.values())


_Facts = tuple[int, float, int, float]


def doubts(templates: CropTemplates, threshold: float) -> tuple[list[_Facts], list[_Facts]]:
    """Return misplaced images and outliers (index, own score, nearest other person, score with that), worst first.

    The own score is against the mean of the person's *other* images, so that a wrong one does not support itself.
    """
    totals = sums(templates)
    centres = unit(totals)
    counts = np.bincount(templates.labels[templates.readable], minlength=len(templates.people))
    judged = templates.readable[counts[templates.labels[templates.readable]] >= LEAST_IMAGES]
    misplaced: list[_Facts] = []
    outliers: list[_Facts] = []
    for start in range(0, len(judged), ROWS):
        rows = judged[start : start + ROWS]
        vectors, labels = templates.vectors[rows], templates.labels[rows]
        own_scores = (vectors * unit(totals[labels] - vectors)).sum(1)
        others = vectors @ centres.T
        others[np.arange(len(rows)), labels] = -1
        nearest = others.argmax(1)
        for row in np.flatnonzero(own_scores < threshold).tolist():
            score = float(others[row, nearest[row]])
            facts = (int(rows[row]), float(own_scores[row]), int(nearest[row]), score)
            (misplaced if score >= threshold else outliers).append(facts)
    return sorted(misplaced, key=lambda facts: -facts[3]), sorted(outliers, key=lambda facts: facts[1])


def alike_people(templates: CropTemplates, threshold: float) -> list[Alike]:
    """Return pairs of people whose mean templates reach the threshold, highest score first."""
    centres = unit(sums(templates))
    pairs = []
    for start in range(0, len(centres), ROWS):
        block = centres[start : start + ROWS] @ centres[start:].T
        i, j = np.nonzero(block >= threshold)
        for a, b in zip(i.tolist(), j.tolist(), strict=True):
            if b > a:
                names = (templates.people[start + a], templates.people[start + b])
                pairs.append(Alike(names, round(float(block[a, b]), 4)))
    return sorted(pairs, key=lambda alike: -alike.score)
