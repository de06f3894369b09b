"""Run clients that enroll, identify and delete all the time, each its own people."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from likeness_client import ApiError, AsyncClient

from tests.conftest import PROJECT

CLIENTS = 16
GALLERY = "load"
MOST_PEOPLE = 50
"""Above this number a client deletes people, so that memory stays flat unless something leaks."""
SAMPLES = PROJECT / "docs" / "samples"
PHOTOS = [(SAMPLES / name).read_bytes() for name in ("collins.jpg", "collins_again.jpg", "hopper.jpg")]


@dataclass
class Person:
    photo: bytes
    faces: list[str]


@dataclass
class Worker:
    """One client, and the people whose enrollment the server has acknowledged to it."""

    number: int
    random: random.Random
    seconds: dict[str, list[float]]
    """Durations of each step, for all clients that share this dictionary."""
    people: dict[str, Person] = field(default_factory=dict)
    made: int = 0

    async def run(self, client: AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            step = self._next()
            begin = time.monotonic()
            await step(client)
            self.seconds[step.__name__].append(time.monotonic() - begin)

    def _next(self) -> Callable[[AsyncClient], Awaitable[None]]:
        if not self.people:
            return self.enroll
        if len(self.people) > MOST_PEOPLE:
            return self.delete
        steps = (self.enroll, self.enroll, self.add_face, self.identify, self.verify, self.delete, self.delete_face)
        return self.random.choice(steps)

    def anyone(self) -> str:
        return self.random.choice(list(self.people))

    async def enroll(self, client: AsyncClient) -> None:
        self.made += 1
        subject, photo = f"{self.number}/{self.made}", self.random.choice(PHOTOS)
        answer = await client.enroll(GALLERY, subject, [photo])
        assert answer.created
        self.people[subject] = Person(photo, [face.face_id for face in answer.enrolled])

    async def add_face(self, client: AsyncClient) -> None:
        subject = self.anyone()
        answer = await client.enroll(GALLERY, subject, [self.people[subject].photo])
        assert not answer.created
        self.people[subject].faces += [face.face_id for face in answer.enrolled]

    async def identify(self, client: AsyncClient) -> None:
        subject = self.anyone()
        (face,) = (await client.identify(GALLERY, self.people[subject].photo, limit=1)).faces
        assert face.decision == "known", "somebody with this very photo is enrolled"
        assert face.candidates[0].score > 0.999

    async def verify(self, client: AsyncClient) -> None:
        subject = self.anyone()
        assert (await client.verify_subject(GALLERY, subject, self.people[subject].photo)).score == pytest.approx(
            1, abs=1e-3
        )

    async def delete(self, client: AsyncClient) -> None:
        subject = self.anyone()
        del self.people[subject]
        await client.delete_subject(GALLERY, subject)
        with pytest.raises(ApiError, match="subject") as gone:
            await client.verify_subject(GALLERY, subject, PHOTOS[0])
        assert gone.value.code == "subject_not_found"

    async def delete_face(self, client: AsyncClient) -> None:
        subject = self.anyone()
        person = self.people[subject]
        if len(person.faces) > 1:
            await client.delete_face(GALLERY, subject, person.faces.pop())
