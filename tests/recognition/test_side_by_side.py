"""A request's photos are read side by side where there is room, and one by one where there is none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from app.concurrency.tasks import Task, current_task, working
from app.errors import InvalidImage, NoFace
from app.face.align import Cut
from app.recognition.gate import OFF
from app.recognition.photos import Photos
from app.types import Photo

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
        self.tasks.append(current_task())
        if self.together:
            self.together.wait(SOON_S)
        self.now -= 1
        if image == b"damaged":
            raise InvalidImage("It is damaged.")
        return Photo(10, 10, (), 0, {})


def both(room: Room, first: bytes, second: bytes) -> str:
    with working(task := Task("key")), pytest.raises((InvalidImage, NoFace)) as caught:
        Photos(room, lambda _: None).choose_each({"one": (first, OFF, None), "two": (second, OFF, None)})
    assert all(each is task for each in room.tasks)
    return f"{caught.value.code} {caught.value.details['image']}"


def test_two_photos_are_read_at_the_same_time_where_there_is_room_and_the_firsts_error_counts() -> None:
    assert both(Room(2, threading.Barrier(2)), b"", b"damaged") == "no_face one"
    assert both(Room(2, threading.Barrier(2)), b"damaged", b"") == "invalid_image one"


def test_they_are_read_one_by_one_where_there_is_none() -> None:
    room = Room(1)
    assert both(room, b"damaged", b"") == "invalid_image one"
    assert (room.most, len(room.tasks)) == (1, 1)
