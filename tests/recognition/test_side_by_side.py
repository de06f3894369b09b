"""A request's photos are read side by side where there is room, and one by one where there is none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from app.concurrency.threads import TASK, Task
from app.errors import InvalidImage, NoFace
from app.face.align import Cut
from app.package.thresholds import Thresholds
from app.recognition.gate import Gates
from app.recognition.operations import Operations
from app.types import Photo
from tests.support.packages import calibration, manifest
from tests.support.tasks import working

SOON_S = 30


@dataclass
class Room:
    """Reads photos without a face; with ``together``, each only beside another."""

    free: int
    together: threading.Barrier | None = None
    tasks: list[Task] = field(default_factory=list)
    most: int = 0
    now: int = 0

    def detect(self, image: bytes, cuts: Sequence[Cut] = ()) -> Photo:  # noqa: ARG002 - as a pipeline
        self.now += 1
        self.most = max(self.most, self.now)
        self.tasks.append(TASK.get())
        if self.together:
            self.together.wait(SOON_S)
        self.now -= 1
        if image == b"damaged":
            raise InvalidImage("It is damaged.")
        return Photo(10, 10, (), 0, {})


def both(room: Room, first: bytes, second: bytes) -> str:
    thresholds = Thresholds(manifest(calibrations=(calibration({1e-2: 0.25, 1e-4: 0.5}),)))
    used = SimpleNamespace(id="toy@1", thresholds=thresholds)
    packages: Any = SimpleNamespace(choose=lambda _: used, use=lambda _: nullcontext(used))
    unused: Any = SimpleNamespace(store=None)
    operations = Operations(room, packages, unused, gates=Gates(), fmr=1e-4, fpir=0.01)
    with working(task := Task("key")), pytest.raises((InvalidImage, NoFace)) as caught:
        operations.verify([first], [second])
    assert all(current is task for current in room.tasks)
    return f"{caught.value.code} {caught.value.details['image']}"


def test_two_photos_are_read_at_the_same_time_where_there_is_room_and_the_firsts_error_counts() -> None:
    assert both(Room(2, threading.Barrier(2)), b"", b"damaged") == "no_face image1"
    assert both(Room(2, threading.Barrier(2)), b"damaged", b"") == "invalid_image image1"


def test_they_are_read_one_by_one_where_there_is_none() -> None:
    room = Room(1)
    assert both(room, b"damaged", b"") == "invalid_image image1"
    assert (room.most, len(room.tasks)) == (1, 1)
