"""Find people that two sets share, by embedding: nobody in a training set may be in its evaluation set."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.inference.embedders import unit
from training.data.preparation.templates import ROWS, CropTemplates, sums


@dataclass(frozen=True, slots=True)
class SharedPerson:
    """A person of A who seems to be one of B. ``score`` is the cosine of their mean templates, ``best_pair`` that of
    their two most similar images, ``images`` the indices of these."""

    drop: str
    matches: str
    score: float
    best_pair: float
    images: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Overlap:
    """The people of A who seem to be in B too: whose mean template reaches the threshold with that of a person in B, or
    one of whose images reaches the threshold for pairs."""

    package: str
    threshold: float
    threshold_from: str
    pair_threshold: float
    people_a: int
    people_b: int
    best_scores: list[float]
    """Each person's best mean-template score in B, ascending, to compare with the threshold."""
    matches: list[SharedPerson]

    @property
    def drop(self) -> list[str]:
        """Return the people of A to leave out."""
        return [match.drop for match in self.matches]


def find_overlap(a: CropTemplates, b: CropTemplates, threshold: float, pair_threshold: float) -> list[SharedPerson]:
    """Return matches, highest score first. A person of A matches if its mean template reaches ``threshold`` with a
    person of B, or one of its images reaches ``pair_threshold`` with one of B's."""
    means, best_mean = best_means(a, b)
    pair_score, pair_image, own_image = _best_pairs(a, b)
    shared = np.flatnonzero((means >= threshold) | (pair_score >= pair_threshold))
    matches = []
    for person in shared.tolist():
        mean, pair = float(means[person]), float(pair_score[person])
        # take the person of B for whom the evidence is stronger
        other = int(best_mean[person]) if mean >= threshold else int(b.labels[pair_image[person]])
        images = (int(own_image[person]), int(pair_image[person]))
        matches.append(SharedPerson(a.people[person], b.people[other], round(mean, 4), round(pair, 4), images))
    return sorted(matches, key=lambda match: -max(match.score, match.best_pair))


def best_means(a: CropTemplates, b: CropTemplates) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """For each person of A, return the best cosine of mean templates with B's, and whose: (P,) float32, (P,) int64."""
    means, others = unit(sums(a)), unit(sums(b))
    scores = np.full(len(means), -1, np.float32)
    places = np.zeros(len(means), np.int64)
    for start in range(0, len(means), ROWS):
        block = means[start : start + ROWS] @ others.T
        places[start : start + ROWS] = block.argmax(1)
        scores[start : start + ROWS] = block.max(1)
    scores[~means.any(axis=1)] = -1  # none of the person's images could be read
    return scores, places


def _best_pairs(a: CropTemplates, b: CropTemplates) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """For each person of A, return the best score of one image with any of B's, B's image, and A's; (P,) each."""
    score = np.full(len(a.people), -1, np.float32)
    theirs = np.zeros(len(a.people), np.int64)
    ours = np.zeros(len(a.people), np.int64)
    rows, columns = a.readable, b.readable
    for start in range(0, len(rows) if len(columns) else 0, ROWS):
        part = rows[start : start + ROWS]
        block = a.vectors[part] @ b.vectors[columns].T
        best = block.max(1)
        order = np.argsort(best, kind="stable")  # ascending, so that each person's best image is written last
        people = a.labels[part][order]
        better = best[order] > score[people]
        people, chosen = people[better], order[better]
        score[people] = best[chosen]
        theirs[people] = columns[block.argmax(1)[chosen]]
        ours[people] = part[chosen]
    return score, theirs, ours


def write_overlap(path: Path, overlap: Overlap) -> None:
    """Write the overlap: ``.csv`` has one row per match, any other extension is JSON with everything. A recipe's
    ``data.drop`` takes both."""
    rows = [asdict(match) for match in overlap.matches]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["drop", "matches", "score", "best_pair"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        return
    facts = asdict(overlap) | {"best_scores": [round(score, 4) for score in overlap.best_scores]}
    path.write_text(json.dumps({"drop": overlap.drop, **facts}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
