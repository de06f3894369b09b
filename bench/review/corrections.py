"""What corrections change: strangers who were taken for somebody come again, and so do the people themselves.

Half of the people with several photos are enrolled by the first half of their photos; the rest of those come as mated
probes. The others are strangers. Whoever is wrongly known by one of a stranger's first photos gets it as a correction;
then the stranger's other photos come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from app.gallery.records import Candidate
from app.inference.thresholds import Thresholds
from app.recognition.corrections import MOST, Wrong, rule_out
from app.recognition.decisions import IdentifyPoint, decide, identify_point
from app.types import Template, Vector, Vectors
from bench.review.corrupted import Faces

NEAREST = 5
"""Candidates of a probe, as `identify` answers by default."""


@dataclass(slots=True)
class Counted:
    """Counts of one draw; each probe by the name of the person it shows."""

    enrolled: int = 0
    corrections: int = 0
    still_wrong: list[str] = field(default_factory=list)
    put_right: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    newly_missed: list[str] = field(default_factory=list)
    as_before: list[str] = field(default_factory=list)


class _Gallery:
    """Subjects' templates, (N, D) each, and their wrong probes."""

    def __init__(self, subjects: Mapping[str, Vectors], thresholds: Thresholds, fpir: float) -> None:
        self._names = list(subjects)
        self._vectors = np.concatenate(list(subjects.values()))
        self._starts = np.cumsum([0, *(len(one) for one in subjects.values())])[:-1]
        self._package = thresholds.package
        self.point: IdentifyPoint = identify_point(thresholds, None, fpir, fpir, len(subjects))
        self.wrong: dict[str, Wrong] = {}

    def identify(self, probe: Vector, *, corrected: bool) -> str | None:
        """Return as whom the probe is known."""
        scores = np.maximum.reduceat(self._vectors @ probe, self._starts)
        nearest = np.argsort(-scores)[:NEAREST].tolist()
        ranking = [Candidate(self._names[at], None, "", float(scores[at]), float(scores[at])) for at in nearest]
        if corrected:
            ranking, _ = rule_out(Template(probe, self._package), ranking, self.wrong, self.point.uncertain)
        known = ranking and decide(ranking[0].score, self.point) == "known"
        return ranking[0].subject if known else None

    def correct(self, subject: str, probe: Vector) -> None:
        old = self.wrong.get(subject)
        vectors = probe[None] if old is None else np.concatenate([old.vectors, probe[None]])[-MOST:]
        self.wrong[subject] = Wrong(("",) * len(vectors), vectors)


def count(faces: Faces, thresholds: Thresholds, fpir: float, seed: int) -> Counted:
    """Count what corrections change for one draw of who is enrolled."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(faces.people):
        rows[name].append(row)
    several = np.random.default_rng(seed).permutation(sorted(name for name, own in rows.items() if len(own) > 1))
    first, later = ({name: _halves(rows[name])[part] for name in several.tolist()} for part in (0, 1))
    enrolled, strangers = several[::2].tolist(), several[1::2].tolist()
    gallery = _Gallery({name: faces.vectors[first[name]] for name in enrolled}, thresholds, fpir)
    counted = Counted(len(enrolled))
    alike: set[tuple[str, str | None]] = set()
    for name in strangers:
        for probe in faces.vectors[first[name]]:
            if (taken_for := gallery.identify(probe, corrected=True)) is not None:
                gallery.correct(taken_for, probe)
                alike.add((name, taken_for))
                counted.corrections += 1
    for name in strangers:
        for probe in faces.vectors[later[name]]:
            if (name, gallery.identify(probe, corrected=False)) in alike:
                now = gallery.identify(probe, corrected=True)
                (counted.still_wrong if (name, now) in alike else counted.put_right).append(name)
                (counted.unknown if now is None else counted.known).append(name)
    for name in set(enrolled) & set(gallery.wrong):
        for probe in faces.vectors[later[name]]:
            before, after = (gallery.identify(probe, corrected=one) == name for one in (False, True))
            (counted.newly_missed if before and not after else counted.as_before).append(name)
    return counted


def _halves(rows: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = (len(rows) + 1) // 2
    return rows[:middle], rows[middle:]
