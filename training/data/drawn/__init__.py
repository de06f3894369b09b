"""Drawn faces: a training set that needs no data, made on the fly and always the same.

Each person is a set of drawn features (`drawn_people.Person`: head, eyes, nose, mouth, hair, glasses, marks),
each image shows it in another pose, light and expression, against another background, and noisy. Learning to tell
these people apart exercises everything that learning faces does; what is learned says nothing about real faces.
"""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

from app.types import Pixels
from training.data.dataset import FaceSet
from training.data.drawn.drawing import draw
from training.data.drawn.people import Person, View

PERSON_STREAM, VIEW_STREAM = 0, 1
"""Separate random streams, so that a person looks the same whatever its images do."""


class ProceduralFaces(FaceSet):
    """``people`` drawn people numbered from ``first``, ``images_per_person`` each; image ``i`` is of person
    ``i // images_per_person``.

    Everything follows from (``seed``, person's number, image's number): two sets of one seed share exactly the people
    whose ranges overlap, so ``first=0`` trains and ``first=1_000_000`` tests.

    ``together`` neighbours share one label: classes that consist of so many clusters, ``people / together`` of them.
    """

    def __init__(
        self, people: int, images_per_person: int, seed: int = 0, *, first: int = 0, together: int = 1
    ) -> None:
        if people < 1 or images_per_person < 1 or first < 0 or seed < 0:
            raise ValueError("people and images_per_person are at least 1, seed and first at least 0")
        if together < 1 or people % together:
            raise ValueError("people is a multiple of together, which is at least 1")
        self.images_per_person = images_per_person
        self.seed = seed
        self.first = first
        names = [f"drawn-{first + number}" for number in range(people)]
        self.people = ["+".join(names[start : start + together]) for start in range(0, people, together)]
        self.labels: NDArray[np.int64] = np.repeat(np.arange(people, dtype=np.int64), images_per_person) // together
        self._known: dict[int, Person] = {}

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        position = operator.index(index)
        label = int(self.labels[position])  # raises IndexError beyond the end
        number, image = divmod(range(len(self))[position], self.images_per_person)
        view = View.random(self._stream(VIEW_STREAM, number, image))
        return draw(self.person(number), view), label

    def describe(self, index: int) -> str:
        number, image = divmod(range(len(self))[index], self.images_per_person)
        return f"drawn-{self.first + number} image {image} of seed {self.seed}"

    def stamp(self) -> str:
        return f"drawn: {len(self)} images, {len(self.people)} people, seed {self.seed}, from {self.first}"

    def person(self, number: int) -> Person:
        """The features of the set's person ``number``, from 0."""
        if number not in self._known:
            self._known[number] = Person.random(self._stream(PERSON_STREAM, number))
        return self._known[number]

    def _stream(self, kind: int, number: int, *image: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, kind, self.first + number, *image])
