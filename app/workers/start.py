"""Start and end workers from the server: the parent of all workers, and a single worker."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import app
from app.errors import Unusable
from app.face.align import Cut
from app.workers import wire
from app.workers.parent import NONE, End, PipelineSettings, Start
from app.workers.worker import WorkerAnswer, WorkerLimits

START_S = 60.0
"""Seconds for the parent to load its libraries, which takes one second on an idle machine."""
FORK_S = 10.0
"""Seconds for the parent to start or end a worker, which takes milliseconds unless the machine swaps."""
START_TRIES = 3
"""Maximum attempts to start a worker before requests are refused."""
LOOK_S = 0.1
"""Seconds between checks whether a thread should still wait for a worker."""
PARENT_ENDED = "its parent ended"
VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
"""Variables kept from the environment, which may also hold passwords."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Keep libraries from starting threads when they are loaded, since a process with threads can't be forked safely."""
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(8 * 2**20)}
"""Settings of malloc that return a photo's memory to the system when it is freed."""


class Ended(Exception):
    """A worker has ended, or was ended, while it had a photo; the text says how."""


class Parent:
    """The process that workers are forked from. Safe to share between threads; it is restarted when it has ended."""

    def __init__(self, settings: PipelineSettings) -> None:
        """Start the parent. Raises Unusable ``workers_unusable`` if it does not start."""
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self.threads = 0
        """Number of its threads; forking is safe only with one."""
        with self._lock:
            self._begin()

    @property
    def process(self) -> int:
        """Return its process id."""
        return self._process.pid if self._process else NONE

    def start(self, limits: WorkerLimits) -> PhotoWorker:
        """Return a new worker; one that ends before it is ready is replaced. Raises Unusable ``workers_unusable``."""
        for _ in range(START_TRIES - 1):
            with suppress(wire.Broken, OSError):
                return self._start(limits)
        try:
            return self._start(limits)
        except (wire.Broken, OSError) as error:
            raise _unusable(f"none becomes ready: {error}") from error

    def _start(self, limits: WorkerLimits) -> PhotoWorker:
        ours, theirs = socket.socketpair()
        process = NONE
        try:
            with theirs:
                process = self._ask(Start(limits), theirs)
            ours.settimeout(FORK_S)
            return PhotoWorker(process, ours, wire.decode(tuple[str, ...], *wire.receive(ours)))
        except (wire.Broken, OSError, Unusable):
            ours.close()
            if process != NONE:
                self.end(process)
            raise

    def end(self, process: int) -> str:
        """Kill a worker unless it has ended, and return how it ended."""
        try:
            code = self._ask(End(process))
        except Unusable:  # its parent has ended, and the worker with it
            return PARENT_ENDED
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def close(self) -> None:
        """End the parent, and with it its workers."""
        with self._lock:
            self._closed = True
            self._stop()

    def _ask(self, request: Start | End, descriptor: socket.socket | None = None) -> int:
        with self._lock:
            if self._closed:
                raise _unusable("the service is shutting down")
            for attempt in (1, 2):
                if self._process is None:
                    if isinstance(request, End):
                        raise _unusable("it is the child of another parent")
                    self._begin()
                try:
                    descriptors = [descriptor.fileno()] if descriptor else []
                    socket.send_fds(self._control, [pickle.dumps(request)], descriptors)
                    return self._hear()
                except (OSError, EOFError, wire.Broken) as error:
                    self._stop()
                    if attempt == 2 or isinstance(request, End):
                        raise _unusable(f"their parent ended: {error}") from error
        raise AssertionError

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_S)
        places = [str(Path(app.__file__).parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environ = {name: value for name, value in os.environ.items() if name in VARIABLES} | ONE_THREAD | MALLOC
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-m", "app.workers", str(theirs.fileno())],
                env=environ | {"PYTHONPATH": os.pathsep.join(filter(None, places)), "PYTHONSAFEPATH": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        try:
            self._control.send(pickle.dumps(self._settings))
            self.threads = self._hear()
        except (OSError, EOFError, wire.Broken) as error:
            self._stop()
            raise _unusable(f"their parent did not start: {error}") from error
        self._control.settimeout(FORK_S)

    def _hear(self) -> int:
        if not (message := self._control.recv(1 << 10)):
            raise wire.Broken("its socket was closed")
        return int(pickle.loads(message))  # noqa: S301 - the parent reads only its own photos

    def _stop(self) -> None:
        if self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
            self._process = None


def _unusable(reason: str) -> Unusable:
    return Unusable(f"Photo workers can't be used: {reason}.", code="workers_unusable")


@dataclass(slots=True, eq=False)
class PhotoWorker:
    """One process that reads photos, and the socket to it; for one thread at a time."""

    process: int
    _peer: socket.socket
    held: tuple[str, ...]
    """Which of `landlock` and `seccomp` confine it."""

    def is_alive(self) -> bool:
        """Return whether it waits for a photo; a worker that has ended has closed its socket."""
        return not self._readable(0)

    def ask(self, image: bytes, cuts: Sequence[Cut], check: Callable[[], None]) -> WorkerAnswer:
        """Return the worker's answer. ``check`` is called regularly, and ends the wait by raising.

        Raises Ended if the worker ends, or doesn't send an answer; after this, and after an error of ``check``, the
        caller must end it.
        """
        try:
            self._peer.settimeout(FORK_S)
            wire.send(self._peer, pickle.dumps(tuple(cuts)), [image])
            while not self._readable(LOOK_S):
                check()
            return wire.decode(WorkerAnswer, *wire.receive(self._peer))
        except (wire.Broken, OSError) as error:
            raise Ended(str(error)) from error

    def _readable(self, seconds: float) -> bool:
        poll = select.poll()  # `select` doesn't accept descriptors above 1023
        poll.register(self._peer, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close the socket, so that the worker ends when it next reads."""
        self._peer.close()
