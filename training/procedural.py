"""Drawn faces: a training set that needs no data, made on the fly and always the same.

Each person is a set of drawn features (`training.drawn_people.Person`: head, eyes, nose, mouth, hair, glasses, marks),
each image shows it in another pose, light and expression, against another background, and noisy. Learning to tell
these people apart exercises everything that learning faces does; what is learned says nothing about real faces.
"""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

from app.types import Pixels
from training.data.dataset import FaceSet
from training.drawing import draw
from training.drawn_people import Person, View

PERSON_STREAM, VIEW_STREAM = 0, 1
"""Separate random streams, so that a person looks the same whatever its images do."""


class ProceduralFaces(FaceSet):
    """``people`` drawn people numbered from ``first``, ``images_per_person`` each; image ``i`` is of person
    ``i // images_per_person``.

    Everything follows from (``seed``, person's number, image's number): two sets of one seed share exactly the people
    whose ranges overlap, so ``first=0`` trains and ``first=1_000_000`` tests.
    """

    def __init__(self, people: int, images_per_person: int, seed: int = 0, *, first: int = 0) -> None:
        if people < 1 or images_per_person < 1 or first < 0 or seed < 0:
            raise ValueError("people and images_per_person are at least 1, seed and first at least 0")
        self.images_per_person = images_per_person
        self.seed = seed
        self.first = first
        self.people = [f"drawn-{first + number}" for number in range(people)]
        self.labels: NDArray[np.int64] = np.repeat(np.arange(people, dtype=np.int64), images_per_person)
        self._known: dict[int, Person] = {}

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        position = operator.index(index)
        label = int(self.labels[position])  # raises IndexError beyond the end
        view = View.random(self._stream(VIEW_STREAM, label, position % self.images_per_person))
        return draw(self.person(label), view), label

    def describe(self, index: int) -> str:
        place = range(len(self))[index]
        image = place % self.images_per_person
        return f"{self.people[self.labels[place]]} image {image} of seed {self.seed}"

    def person(self, label: int) -> Person:
        """The features of the person with this label."""
        if label not in self._known:
            self._known[label] = Person.random(self._stream(PERSON_STREAM, label))
        return self._known[label]

    def _stream(self, kind: int, label: int, *image: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, kind, self.first + label, *image])
