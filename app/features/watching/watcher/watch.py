"""Turn a camera's frames into reports: detect motion, find faces, follow people, and decide when to report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from app.concurrency.threads import Worker
from app.features.watching.watcher.camera import Camera, Frame
from app.features.watching.watcher.looks import KEPT, Look, Looker
from app.features.watching.watcher.motion import MotionGate
from app.features.watching.watcher.reporter import Report, Reporter
from app.features.watching.watcher.tally import Tally
from app.features.watching.watcher.tracker import Track, Tracker, is_near
from app.types import Box, Pixels

AGAIN_S: Final = 1.0
"""Seconds after the first decision until a second one is asked for, with the best looks so far."""
HEARD_S: Final = 15.0
"""Seconds between two reports that a track goes on."""
IDLE_S: Final = 1.0
TURNED_S, SOON_S = 1.0, 0.3
"""Minimum seconds between searches that also find people who lie: usually, and when a new face has appeared."""
NARROW: Final = 10
NARROW_S: Final = 60.0
"""Minimum seconds between searches for faces from NARROW pixels on, in frames without wider ones. They are too small to
be recognised, and the camera's tally can say so."""


class Area(NamedTuple):
    """A part of a frame, as shares of its width and height, 0-1."""

    left: float
    top: float
    right: float
    bottom: float

    def cut(self, frame: Pixels) -> Pixels:
        """Return this area of a (H, W, 3) frame."""
        height, width = frame.shape[:2]
        rows = slice(int(self.top * height), max(1, int(self.bottom * height)))
        return frame[rows, int(self.left * width) : max(1, int(self.right * width))]

    def holds(self, box: Box, frame: Pixels, part: Area) -> bool:
        """Return whether the middle of a box is in this area. The box is in pixels, counted from the corner of the
        frame's ``part``."""
        height, width = frame.shape[:2]
        across = int(part.left * width) + box.x + box.width / 2
        down = int(part.top * height) + box.y + box.height / 2
        inside = self.left * width <= across < self.right * width
        return inside and bool(self.top * height <= down < self.bottom * height)


WHOLE: Final = Area(0.0, 0.0, 1.0, 1.0)


@dataclass(slots=True, eq=False)
class Watch:
    """Follows people in front of one camera, and reports them. Not safe to share between threads."""

    camera: str
    looker: Looker
    tracker: Tracker
    reporter: Reporter
    roi: Area = WHOLE
    zones: Mapping[str, Area] = field(default_factory=dict)
    rotate: int = 0
    """Degrees, a multiple of 90, by which frames are first turned clockwise; areas refer to turned frames."""
    began: float | None = None
    """The time when a film began, in seconds since 1970; None for a camera."""
    tally: Tally = field(default_factory=Tally)
    frames: int = 0
    """Number of frames so far, with or without a search for faces."""
    _gate: MotionGate = field(default_factory=MotionGate)
    _now: float = 0.0
    _turned_at: float = -TURNED_S
    _narrow_at: float = 0.0

    def see(self, frame: Frame) -> None:
        """Process the next frame."""
        whole = np.ascontiguousarray(np.rot90(frame.pixels, -self.rotate // 90))
        pixels = self.roi.cut(whole)
        self._now = frame.at
        self.frames += 1
        if not self._gate.passes(pixels, frame.at) and not self.tracker.tracks:
            return
        looks = self._find(pixels, frame.at)
        self.tally.add(looks or self._narrow(pixels, frame.at), frame.at)
        known = [self.tracker.knows(look, looks) for look in looks]
        others = self.looker.embed([look for look, is_known in zip(looks, known, strict=True) if not is_known])
        looks = [look for look, is_known in zip(looks, known, strict=True) if is_known] + others
        seen, ended = self.tracker.update(looks, frame.at)
        for track in seen:
            inside = (name for name, area in self.zones.items() if area.holds(track.last.box, whole, self.roi))
            track.zone = next(inside, track.zone)
            self._tell(track, frame.at)
        for track in ended:
            self._end(track)

    def idle(self, seconds: float) -> None:
        """Note that no frame came for ``seconds``, and end the tracks that are over."""
        self._now += seconds
        for track in self.tracker.update([], self._now)[1]:
            self._end(track)

    def finish(self) -> None:
        """End all tracks."""
        for track in self.tracker.finish():
            self._end(track)

    def _tell(self, track: Track, at: float) -> None:
        """Ask for a decision at the first look and once more later, and report every HEARD_S that the track goes on."""
        is_due = not track.told or at - track.told_at >= AGAIN_S or len(track.best) == KEPT
        if is_due and track.usable > track.told and not track.settled:
            track.settled = track.told > 0
            track.told, track.told_at = track.usable, at
            self._report(track, track.best)
        elif at - track.told_at >= HEARD_S:
            track.told_at = at
            self._report(track, [])

    def _end(self, track: Track) -> None:
        better = track.usable > track.told and not track.settled
        self._report(track, track.best if better else [], ended=True)

    def _report(self, track: Track, looks: Iterable[Look], *, ended: bool = False) -> None:
        # Computed each time, since the clock may have been corrected.
        zero = time.time() - time.monotonic() if self.began is None else self.began
        began, last = zero + track.began, zero + track.last.at
        self.reporter.tell(Report(track.id, self.camera, began, last, ended, tuple(looks), track.zone))

    def _find(self, pixels: Pixels, at: float) -> list[Look]:
        """Return the faces of a frame. People who lie are searched for every TURNED_S, in every frame while one of them
        has too few looks, and SOON_S after the last search if a new face appears: the detector may take a lying
        person's face for an upright one."""
        tracks = self.tracker.tracks
        lying = [track for track in tracks if track.last.lies]
        if at - self._turned_at < TURNED_S and all(track.usable >= KEPT for track in lying):
            seen = self.looker.detect(pixels, at)
            seen = [look for look in seen if not any(is_near(track, look) for track in lying)]
            looks = [look for look in seen if not look.usable or any(is_near(track, look) for track in tracks)]
            if len(looks) == len(seen) or at - self._turned_at < SOON_S:
                return looks
        self._turned_at = at
        return self.looker.detect(pixels, at, turned=True)

    def _narrow(self, pixels: Pixels, at: float) -> list[Look]:
        """Return the faces from NARROW pixels on; nothing if the last search is less than NARROW_S ago."""
        if at < self._narrow_at:
            return []
        self._narrow_at = at + NARROW_S
        return self.looker.detect(pixels, at, NARROW)


class Watcher:
    """Watches cameras, each in its own thread, until it is closed."""

    def __init__(self) -> None:
        self._cameras: list[tuple[Camera, Watch, Worker]] = []

    def add(self, camera: Camera, watch: Watch) -> None:
        def take_frame() -> float:
            frame = camera.take(IDLE_S)
            if frame is None:
                watch.idle(IDLE_S)
            else:
                watch.see(frame)
            return 0.0

        worker = Worker(f"watch {watch.camera}", take_frame, retry_s=0.0)  # one frame is lost, not the camera
        self._cameras.append((camera, watch, worker))
        worker.wake()

    def reports(self) -> list[dict[str, Any]]:
        """Return each camera's state, in the form of `app.features.watching.schemas.CameraTold`."""
        now = time.monotonic()
        return [
            {"name": watch.camera, "problem": camera.problem} | watch.tally.report(now)
            for camera, watch, _ in self._cameras
        ]

    def close(self) -> None:
        """Stop, and end all tracks."""
        for camera, watch, worker in self._cameras:
            camera.close()
            worker.close()
            watch.finish()
