"""The workers' parent: a process that has loaded everything a worker needs, and forks one when the server asks.

It is a separate program, so that it has no threads, no connections, and none of the server's secrets. Workers share its
memory until they change it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from app.errors import LikenessError
from app.face.detect import Detector
from app.face.formats import Limits, heif_reader
from app.pipeline import Pipeline
from app.workers.worker import WorkerLimits, serve_photos

SAMPLES = "JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"
"""Formats that Pillow can also write; a sample of each is read before the first worker starts."""
SIDE = 64
"""Width and height of these samples, in pixels."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The files and settings of a worker's pipeline."""

    detector: Path
    """YuNet's prepared file."""
    min_face: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Start:
    """A request to fork a worker; its end of a socket comes with this message. The answer is its process id."""

    limits: WorkerLimits


@dataclass(frozen=True, slots=True)
class End:
    """A request to kill a worker, unless it has ended. The answer is what `os.waitstatus_to_exitcode` returns."""

    process: int


NONE = -1
"""In place of a process id if no worker could be started."""


def main() -> None:
    """Serve the server's requests from the socket whose descriptor is this program's argument."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals are for the server; when it ends, its sockets close
    server = socket.socket(fileno=int(sys.argv[1]))
    pipeline = _prepared(pickle.loads(server.recv(1 << 16)))  # noqa: S301 - from the server
    gc.collect()
    gc.freeze()
    with suppress(ConnectionError):  # the server ended before it got an answer
        server.send(pickle.dumps(_threads()))
        while True:
            message, descriptors, _, _ = socket.recv_fds(server, 1 << 16, 1)
            if not message:
                return
            request: Start | End = pickle.loads(message)  # noqa: S301 - from the server
            if isinstance(request, Start):
                server.send(pickle.dumps(_start(server, descriptors[0], pipeline, request.limits)))
            else:
                server.send(pickle.dumps(_end(request.process)))


def _threads() -> int:
    """Return how many threads this process has."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _prepared(settings: PipelineSettings) -> Pipeline:
    """Load the detector and every reader, since workers can't open files."""
    cv2.setNumThreads(1)
    pipeline = Pipeline(Detector(settings.detector, min_face=settings.min_face), settings.limits)
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    for name in SAMPLES:
        file = BytesIO()
        Image.fromarray(pixels).save(file, name)
        with suppress(LikenessError):
            pipeline.detect(file.getvalue())
    with suppress(LikenessError):  # it is not installed
        heif_reader()
    return pipeline


def _start(server: socket.socket, descriptor: int, pipeline: Pipeline, limits: WorkerLimits) -> int:
    parent = os.getpid()
    try:
        process = os.fork()
    except OSError:  # no memory or no process is left; the server notices its socket's closed end
        process = NONE
    if process:
        os.close(descriptor)
        return process
    try:
        server.close()
        with suppress(ConnectionError):  # the server has ended
            serve_photos(socket.socket(fileno=descriptor), pipeline, limits, parent)
    except BaseException:  # noqa: BLE001 - it must not continue as a second parent
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _end(process: int) -> int:
    try:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(process, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except ChildProcessError:  # forked by an earlier parent, with which it ended
        return -signal.SIGKILL
