"""Which files and functions of `app` one request calls: `python tests/support/trace.py enroll|identify|verify`.

The service runs in this process, and a second request of its kind is traced, so that nothing is counted that happens
once. Functions that other threads call for the request count; what the scheduler's threads do meanwhile doesn't.
Lambdas count as functions; comprehensions are counted apart, since they are frames of their own only until Python 3.12.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

PROJECT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

import httpx  # noqa: E402 - below the path, as the next ones

from app.access import keys  # noqa: E402 - the same
from tests.support import ready  # noqa: E402
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, running  # noqa: E402

APP = f"{PROJECT / 'app'}/"
BACKGROUND = ("background", "jobs", "webhook", "mqtt", "MainThread")
"""Beginnings of the names of threads whose work is no request's. The main thread is the client."""
AUDIT = "audit"
"""The thread that writes the audit log. A request that changes something waits for it; what others did is written
later, when the next one may already be traced."""
TRANSPORT = f"{APP}server/local.py"
"""Stands where the network would."""
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
Function: TypeAlias = tuple[str, str]
"""File below `app`, and qualified name."""


class Trace:
    """The functions of `app` that were called while it recorded, in the order of their first calls."""

    def __init__(self, background: tuple[str, ...] = BACKGROUND) -> None:
        """``background`` are beginnings of the names of threads that are left out."""
        self.calls: Counter[Function] = Counter()
        self._background = background
        self._recording = False
        self._known: dict[CodeType, Function | None] = {}

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.calls))

    def __str__(self) -> str:
        lines = []
        for file in self.files:
            called = [(function, count) for (where, function), count in self.calls.items() if where == file]
            lines += [
                file,
                *(f"    {function}" + (f" ({count} times)" if count > 1 else "") for function, count in called),
            ]
        return "".join(f"{line}\n" for line in lines)

    @contextmanager
    def record(self) -> Iterator[None]:
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call, in a thread that began after `threading.setprofile` with this."""
        if event != "call" or not self._recording:
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _function_of(code)
        if (found := self._known[code]) and not threading.current_thread().name.startswith(self._background):
            self.calls[found] += 1


def _function_of(code: CodeType) -> Function | None:
    if not code.co_filename.startswith(APP) or code.co_filename == TRANSPORT:
        return None
    return code.co_filename.removeprefix(APP), code.co_qualname


def enroll(client: httpx.Client) -> httpx.Response:
    files = [("images", COLLINS), ("images", AGAIN)]
    return client.post("/v1/galleries/traced/subjects/eileen/faces", files=files)


def identify(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/galleries/traced/identify", files={"image": BOTH})


def verify(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/verify", files={"image1": COLLINS, "image2": HOPPER})


REQUESTS: dict[str, Callable[[httpx.Client], httpx.Response]] = {
    "enroll": enroll,
    "identify": identify,
    "verify": verify,
}


def traced(name: str, data_dir: Path, **settings: Any) -> Trace:
    """Return what the second request of its kind calls, in a service with a key that is not the data folder's."""
    trace = Trace(BACKGROUND if name == "enroll" else (*BACKGROUND, AUDIT))
    cached_s = keys.CACHE_S
    keys.CACHE_S = 60.0  # on a slow machine too, the request's key was looked up before
    threading.setprofile(trace.profile)
    try:
        with running(data_dir, **settings) as client:
            client.post("/v1/galleries", json={"id": "traced"}).raise_for_status()
            made = client.post("/v1/keys", json={"id": "tracer", "scopes": ["enroll", "recognize"]})
            client.headers["x-api-key"] = made.raise_for_status().json()["secret"]
            enroll(client).raise_for_status()
            REQUESTS[name](client).raise_for_status()
            with trace.record():
                REQUESTS[name](client).raise_for_status()
    finally:
        threading.setprofile(None)
        keys.CACHE_S = cached_s
    return trace


def main(name: str) -> None:
    ready.begin()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trace = traced(name, Path(folder))
    finally:
        ready.end()
    functions = [function for _, function in trace.calls if not function.endswith(COMPREHENSIONS)]
    more = len(trace.calls) - len(functions)
    sys.stdout.write(f"{trace}{name}: {len(trace.files)} files, {len(functions)} functions, {more} comprehensions\n")


if __name__ == "__main__":
    main(sys.argv[1])
