"""What the service should hold, in plain Python: galleries, subjects and faces, and a search that compares all."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from app.package.folders import load_package
from app.package.thresholds import Thresholds
from app.types import Vector
from tests.support.ready import MODELS

UNNAMED = "~"


@dataclass(eq=False)
class Probe:
    """A face or a correction: its id, its template by package, its crop if that is kept, and the id it came with."""

    id: str
    templates: dict[str, Vector]
    crop: bytes | None = None
    came_as: str = ""
    order: int = field(default_factory=itertools.count().__next__)
    """Archives hold the oldest first, whosever they are by now."""

    def pieces(self) -> set[bytes]:
        """Return what must be in no file once it is erased: a piece of each template, and of the crop."""
        found = {template.astype("<f4").tobytes()[64:96] for template in self.templates.values()}
        return found | ({self.crop[700:740]} if self.crop else set())


@dataclass
class Subject:
    name: str | None = None
    faces: list[Probe] = field(default_factory=list)
    corrections: list[Probe] = field(default_factory=list)


@dataclass
class Gallery:
    """`package` answers; while the gallery moves, each new face also gets a template of `other`."""

    package: str
    keeps_crops: bool
    other: str | None = None
    switched: bool = False
    subjects: dict[str, Subject] = field(default_factory=dict)

    def copy(self) -> Gallery:
        return copy.deepcopy(self)

    def without(self, subject: str) -> Gallery:
        """Return a view of the gallery without one of its subjects."""
        return replace(self, subjects={name: kept for name, kept in self.subjects.items() if name != subject})

    @property
    def packages(self) -> list[str]:
        return [self.package, *([self.other] if self.other else [])]

    def probes(self) -> Iterator[Probe]:
        for subject in self.subjects.values():
            yield from (*subject.faces, *subject.corrections)

    def faces(self) -> dict[str, tuple[str, Probe]]:
        """Return each face with its subject's id, by its own id."""
        return {face.id: (name, face) for name, subject in self.subjects.items() for face in subject.faces}

    def subject(self, name: str) -> Subject:
        return self.subjects.setdefault(name, Subject())

    def tidy(self) -> None:
        """Unnamed subjects go with their last face."""
        for name in [name for name, subject in self.subjects.items() if name.startswith(UNNAMED) and not subject.faces]:
            del self.subjects[name]

    def move(self, faces: list[str], target: str) -> None:
        everybody = self.faces()
        for name, face in (everybody[face_id] for face_id in faces):
            if name != target:
                self.subjects[name].faces.remove(face)
                self.subject(target).faces.append(face)
        self.tidy()

    def merge(self, source: str, target: str) -> None:
        gone, kept = self.subjects.pop(source), self.subjects[target]
        kept.faces += gone.faces
        kept.name = gone.name if kept.name is None else kept.name
        kept.corrections.clear()

    def rename(self, source: str, target: str) -> None:
        if target in self.subjects:
            self.merge(source, target)
        else:
            self.subjects[target] = self.subjects.pop(source)

    def erase(self, name: str, lenient: dict[str, float]) -> tuple[list[Probe], int]:
        """Return all that showed the subject, and how many corrections of others that was; `lenient` are the scores by
        package from which two faces may be of one person."""
        gone = self.subjects.pop(name)
        erased, dropped = [*gone.faces, *gone.corrections], 0
        for other in self.subjects.values():
            for correction in [
                correction for correction in other.corrections if self._shows(correction, gone, other, lenient)
            ]:
                other.corrections.remove(correction)
                erased.append(correction)
                dropped += 1
        return erased, dropped

    def _shows(self, probe: Probe, gone: Subject, taken_for: Subject, lenient: dict[str, float]) -> bool:
        for package, vector in probe.templates.items():
            mine, others = best(gone.faces, package, vector), best(taken_for.faces, package, vector)
            if mine > -1 and (mine > others or mine >= lenient[package]):
                return True
        return False

    def switch(self) -> None:
        assert self.other
        self.package, self.other, self.switched = self.other, self.package, not self.switched

    def finish(self) -> None:
        """Faces without a template of the package go; corrections too."""
        self.other, self.switched = None, False
        for subject in self.subjects.values():
            for probes in (subject.faces, subject.corrections):
                probes[:] = [probe for probe in probes if self.package in probe.templates]
                for probe in probes:
                    probe.templates = {self.package: probe.templates[self.package]}
        self.tidy()

    def take(self, archive: Gallery) -> list[tuple[str, Probe]]:
        """Import it; return the faces that are new, whose ids here are not known, with their subjects' ids."""
        known = {known for _, face in self.faces().values() for known in (face.id, face.came_as)}
        corrected = {
            known
            for subject in self.subjects.values()
            for correction in subject.corrections
            for known in (correction.id, correction.came_as)
        }
        for name, subject in archive.subjects.items():
            mine = self.subject(name)
            mine.name = mine.name if subject.name is None else subject.name
            mine.corrections += [
                self._taken(correction, archive.package)
                for correction in subject.corrections
                if correction.id not in corrected and archive.package in correction.templates
            ]
        return [
            (name, self._taken(face, archive.package))
            for name, face in sorted(archive.faces().values(), key=lambda named_face: named_face[1].order)
            if face.id not in known and archive.package in face.templates
        ]

    def _taken(self, probe: Probe, package: str) -> Probe:
        crop = probe.crop if self.keeps_crops else None
        return Probe("", {package: probe.templates[package]}, crop, came_as=probe.id)

    def ranking(self, probe: Vector, uncertain: float) -> list[tuple[str, float]]:
        """Return each subject with the score of its faces, best first, without those that corrections rule out."""
        found = []
        for name, subject in self.subjects.items():
            score = fused(subject.faces, self.package, probe)
            wrong = best(subject.corrections, self.package, probe)
            if score > -1 and not (score >= uncertain and wrong > score):
                found.append((name, score))
        return sorted(found, key=lambda ranked: -ranked[1])


def best(probes: list[Probe], package: str, vector: Vector) -> float:
    """Return the highest cosine of any of them; -1 without one."""
    return max(
        (float(probe.templates[package] @ vector) for probe in probes if package in probe.templates), default=-1.0
    )


def fused(probes: list[Probe], package: str, vector: Vector) -> float:
    """Return the cosine with their mean, reduced to that of one photo; the highest if the package has no `fusion`."""
    power, vectors = fusion_of(package), [probe.templates[package] for probe in probes if package in probe.templates]
    if power is None or not vectors:
        return best(probes, package, vector)
    mean = np.mean(vectors, axis=0, dtype=np.float64)
    return float((mean @ vector) * np.linalg.norm(mean) ** (power - 1))


@cache
def fusion_of(package: str) -> float | None:
    folder = MODELS / package.split("@", maxsplit=1)[0]
    return Thresholds(load_package(folder).manifest).fusion if folder.is_dir() else None


def near(vector: Vector, alike: float, generator: np.random.Generator) -> Vector:
    """Return a unit vector that has the cosine `alike` with this one."""
    across = generator.standard_normal(vector.size)
    across -= (across @ vector) * vector
    found = alike * vector + np.sqrt(1 - alike**2) * across / np.linalg.norm(across)
    return np.asarray(found / np.linalg.norm(found), np.float32)
