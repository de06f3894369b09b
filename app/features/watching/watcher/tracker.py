"""Follow people from frame to frame: faces become tracks, one for each person's visit.

A face continues a track if its place fits and its template doesn't contradict, or if its template alone matches, even
after a gap of seconds. A person is in a frame only once, so the best pairs of tracks and faces are taken first.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.features.watching.watcher.looks import KEPT, Look, keep_best
from app.types import Box, Vector

GAP_S: Final = 10.0
"""Seconds without the person's face after which a visit has ended. Shorter gaps are caused by hands, turned heads and
the like."""
NEAR_S: Final = 1.0
"""Longest time, in seconds, between two faces that may be one person's because of their places."""
REACH: Final = 0.6
"""Distance that a face may move at once, and again in each 0.2 s, as a multiple of its width."""
GROWTH: Final = 1.6
"""Largest factor by which a face grows or shrinks within NEAR_S."""
SURE_S: Final = 1.0
"""Seconds after a track's last template during which a face in its place is taken for the same person's without being
embedded, if the track has KEPT usable looks. Embedding takes most of a frame's time."""
REMEMBERED: Final = 20
"""About how many of the newest usable looks make a track's mean, since light and pose change during a visit."""


@dataclass(slots=True, eq=False)
class Track:
    """One person in front of one camera: from when to when, and the best looks."""

    last: Look
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = 0.0
    usable: int = 0
    """Number of usable looks so far."""
    best: list[Look] = field(default_factory=list)
    """The best few looks, best first."""
    zone: str | None = None
    """The camera's zone in which the face was last."""
    mean: Vector | None = None
    """Mean of the recent usable looks' vectors, scaled to a unit vector, (D,)."""
    sure_until: float = 0.0
    """Time until which the only face near the track's place counts as this person's without a template."""
    told: int = 0
    """Number of usable looks when the service was last asked to decide."""
    told_at: float = 0.0
    settled: bool = False
    """Whether the service has decided twice."""

    def add(self, look: Look) -> None:
        self.last = look
        if look.usable and look.vector is not None:
            self.usable += 1
            self.sure_until = look.at + SURE_S if self.usable >= KEPT else 0.0
            self.best = keep_best(self.best, look)
            share = 1 / min(self.usable, REMEMBERED)
            mixed = look.vector if self.mean is None else self.mean * (1 - share) + look.vector * share
            self.mean = np.asarray(mixed / np.linalg.norm(mixed), np.float32)


class Tracker:
    """Follows people in the frames of one camera. Not safe to share between threads."""

    def __init__(self, same: float, other: float) -> None:
        """``same``: cosine from which on two looks are of one person at any distance; ``other``: cosine below which
        they are of two people even in the same place."""
        self._same, self._other = same, other
        self.tracks: list[Track] = []

    def knows(self, look: Look, looks: Sequence[Look]) -> bool:
        """Return whether a face belongs to a track by its place alone: the track is sure, and no other face or track is
        near."""
        near = [track for track in self.tracks if is_near(track, look)]
        return len(near) == 1 and look.at <= near[0].sure_until and sum(is_near(near[0], other) for other in looks) == 1

    def update(self, looks: Sequence[Look], at: float) -> tuple[list[Track], list[Track]]:
        """Assign the faces of a frame to tracks; return the tracks that got a face, and those that have ended.

        A face that is not usable may continue a track, but doesn't begin a new one.
        """
        pairs = [
            (fit, number, place)
            for number, track in enumerate(self.tracks)
            for place, look in enumerate(looks)
            if (fit := self._fit(track, look)) is not None
        ]
        given: dict[int, Track] = {}
        taken: set[int] = set()
        for _, number, place in sorted(pairs, reverse=True):
            if number not in taken and place not in given:
                taken.add(number)
                given[place] = self.tracks[number]
        for place, look in enumerate(looks):
            if place in given:
                given[place].add(look)
            elif look.usable:
                given[place] = track = Track(look, began=look.at)
                track.add(look)
                self.tracks.append(track)
        ended = [track for track in self.tracks if at - track.last.at > GAP_S]
        self.tracks = [track for track in self.tracks if track not in ended]
        return list(given.values()), ended

    def finish(self) -> list[Track]:
        """End all tracks and return them."""
        ended, self.tracks = self.tracks, []
        return ended

    def _fit(self, track: Track, look: Look) -> float | None:
        """Return how well the face fits the track, higher is better; None if it is another person's or too far away."""
        alike = None if track.mean is None or look.vector is None else float(np.dot(track.mean, look.vector))
        near = nearness(track.last.box, look.box, look.at - track.last.at)
        if alike is None:
            return near
        if alike >= self._same:
            return 1 + alike + (near or 0)
        return near + alike if near is not None and alike >= self._other else None


def is_near(track: Track, look: Look) -> bool:
    """Return whether the face's place allows it to be the track's person."""
    return nearness(track.last.box, look.box, look.at - track.last.at) is not None


def nearness(before: Box, now: Box, seconds: float) -> float | None:
    """Return how near two boxes are, 0 to 1 (the same place); None if a face can't move from one to the other in
    ``seconds``."""
    if seconds > NEAR_S:
        return None
    width = math.sqrt(before.width * now.width)
    grown = now.width / before.width
    moved = math.hypot(
        now.x + now.width / 2 - before.x - before.width / 2, now.y + now.height / 2 - before.y - before.height / 2
    )
    reach = REACH * (1 + seconds / 0.2) * width
    if moved > reach or not 1 / GROWTH <= grown <= GROWTH:
        return None
    return 1 - moved / reach
