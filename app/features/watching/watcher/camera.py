"""Read frames from films and cameras: RTSP, HTTP (MJPEG, HLS, or a JPEG at an address), a USB device, a file.

Films are read as fast as their frames are processed; times count from the film's beginning. Cameras are read as fast as
they send, and only the newest frame is kept. A camera that goes away is tried again after growing pauses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final
from urllib.parse import urlsplit

import av
import httpx
import numpy as np
from av.error import FFmpegError

from app.concurrency.threads import Worker
from app.errors import FileMissing, InvalidInput, LikenessError
from app.face.formats import Limits
from app.face.image import decode
from app.types import Pixels

SCHEMES: Final = frozenset({"http", "https", "rtsp", "rtsps", "rtmp", "udp", "tcp"})
DEVICES: Final = "/dev/video"
OPEN_S: Final = 10.0
"""Maximum seconds until a camera answers, and between two of its frames, before it counts as gone."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""The first and the longest wait, in seconds, before a camera is tried again; doubled each time."""
STEADY_S: Final = 30.0
"""Seconds of frames after which the wait before the next attempt is FIRST_WAIT_S again."""
SNAPSHOT: Final = Limits(max_bytes=16 * 1024 * 1024)
MOST_PIXELS: Final = 3840 * 2160 * 4
"""Maximum pixels of a frame; larger frames are rejected before they are converted."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture, (H, W, 3) uint8 RGB, and its time in seconds: on the monotonic clock for a camera, since the beginning
    for a film."""

    pixels: Pixels
    at: float


def is_film(source: str) -> bool:
    """Return whether the source is a file."""
    return urlsplit(source).scheme not in SCHEMES and not source.startswith(DEVICES)


def shown(source: str) -> str:
    """Return the source without user, password and query, which may be secret."""
    parts = urlsplit(source)
    if parts.scheme not in SCHEMES:
        return source
    port = f":{parts.port}" if parts.port else ""
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def read_film(path: str, fps: float) -> Iterator[Frame]:
    """Yield the film's frames, at most ``fps`` per second of film.

    Raises FileMissing, InvalidInput (``invalid_source``) for a file that is not a film.
    """
    if not Path(path).is_file():
        raise FileMissing(f"There is no file {path}.")
    try:
        yield from _decoded(path, fps, live=False)
    except FFmpegError as error:
        raise InvalidInput(f"{path} is no film that can be read.", code="invalid_source") from error


def read_camera(source: str, fps: float) -> Iterator[Frame]:
    """Yield the camera's frames as they come, at most ``fps`` per second. Raises FFmpegError, OSError, httpx.HTTPError
    or LikenessError when it goes away."""
    if urlsplit(source).scheme in {"http", "https"} and _is_snapshot(source):
        yield from _snapshots(source, fps)
    else:
        yield from _decoded(source, fps, live=True)


def _decoded(source: str, fps: float, *, live: bool) -> Iterator[Frame]:
    is_rtsp = urlsplit(source).scheme.startswith("rtsp")
    options = {"rtsp_transport": "tcp"} if is_rtsp else {}  # with UDP, lost packets would cause grey blocks
    kind = "v4l2" if source.startswith(DEVICES) else None
    timeout = (OPEN_S, OPEN_S) if live else None
    with av.open(source, format=kind, options=options, timeout=timeout) as container:
        if not container.streams.video:
            raise InvalidInput("The source has no pictures.", code="invalid_source")
        stream = container.streams.video[0]
        stream.thread_type = "NONE" if live else "AUTO"  # a decoding thread would delay frames
        due = -1.0
        for frame in container.decode(stream):
            at = time.monotonic() if live else float(frame.time or 0.0)
            if at < due - 1e-6:
                continue
            due = max(due, at - 1 / fps) + 1 / fps if due >= 0 else at + 1 / fps
            if frame.width * frame.height > MOST_PIXELS:
                raise InvalidInput("The source's pictures are too large.", code="invalid_source")
            # phones store films turned, and say by how much
            turned = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
            yield Frame(np.ascontiguousarray(turned, np.uint8), at)


def _is_snapshot(source: str) -> bool:
    """Return whether the address answers with a single picture."""
    with httpx.Client(timeout=OPEN_S, follow_redirects=True) as client, client.stream("GET", source) as answer:
        answer.raise_for_status()
        kind = str(answer.headers.get("content-type", "")).lower()
        return kind.startswith(("image/jpeg", "image/png", "image/webp"))


def fetch_picture(client: httpx.Client, address: str, query: Mapping[str, Any] | None = None) -> Pixels:
    """Return the picture at the address, (H, W, 3) uint8 RGB. Raises httpx.HTTPError, InvalidInput ``invalid_source``
    for a file above SNAPSHOT's limit, and what `decode` raises."""
    data = b""
    with client.stream("GET", address, params=query) as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            data += piece
            if len(data) > SNAPSHOT.max_bytes:
                raise InvalidInput("The picture is too large.", code="invalid_source")
    return decode(data, SNAPSHOT).pixels


def _snapshots(source: str, fps: float) -> Iterator[Frame]:
    with httpx.Client(timeout=OPEN_S, follow_redirects=True) as client:
        while True:
            began = time.monotonic()
            yield Frame(fetch_picture(client, source), time.monotonic())
            time.sleep(max(0.0, 1 / fps - (time.monotonic() - began)))


class Camera:
    """A thread that keeps a camera's newest frame, for one other thread, and reconnects when the camera goes away."""

    def __init__(self, source: str, fps: float, read: Callable[[str, float], Iterator[Frame]] = read_camera) -> None:
        self._newest = Queue[Frame](1)
        self.problem: str | None = None
        """Why there are no frames now."""
        self._source, self._fps, self._read = source, fps, read
        self._wait_s = FIRST_WAIT_S
        self._stopping = threading.Event()
        self._worker = Worker("camera", self._follow)
        self._worker.wake()

    def take(self, timeout_s: float) -> Frame | None:
        """Return the newest frame, or None if no new one comes within the time."""
        with suppress(Empty):
            return self._newest.get(timeout=timeout_s)
        return None

    def close(self) -> None:
        self._stopping.set()
        self._worker.close(0)

    def _follow(self) -> float:
        """Take frames until the camera goes away; return the seconds until the next attempt."""
        began = time.monotonic()
        try:
            for frame in self._read(self._source, self._fps):
                if self._stopping.is_set():
                    return 0.0
                if self.problem is not None:
                    _log.warning("%s: is there again", shown(self._source))
                    self.problem = None
                with suppress(Empty):
                    self._newest.get_nowait()
                self._newest.put(frame)
            problem = "it ended"
        except (FFmpegError, OSError, httpx.HTTPError, LikenessError) as error:
            problem = type(error).__name__  # the error's text may contain the address with its password
        if problem != self.problem:
            _log.warning("%s: %s; it is tried again", shown(self._source), problem)
        self.problem = problem
        wait_s = FIRST_WAIT_S if time.monotonic() - began > STEADY_S else self._wait_s
        self._wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        return wait_s
