"""Print the files and functions of `app` that a request calls: `python tests/support/trace.py enroll|identify|verify`.

The service runs in this process. The second request of its kind is traced, so that one-time work is not counted.
Functions that other threads call for the request count; the work of the scheduler's threads does not. Lambdas count
as functions; comprehensions are counted separately, since they have frames of their own only before Python 3.12.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import tomllib
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
from app.inference import embedders  # noqa: E402
from tests.support import ready  # noqa: E402
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, running  # noqa: E402

APP = f"{PROJECT / 'app'}/"
BACKGROUND = ("background", "jobs", "webhook", "mqtt", "MainThread")
"""Beginnings of the names of threads that work for no request. The main thread is the client."""
AUDIT = "audit"
"""The thread that writes the audit log. A request that changes something waits for it. Entries of other requests are
written later, when the next request may already be traced."""
TRANSPORT = f"{APP}server/local.py"
"""Replaces the network, so its functions don't count."""
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
Function: TypeAlias = tuple[str, str]
"""File below `app`, and qualified name."""


class Trace:
    """A record of the functions of `app` that were called, in the order of their first calls."""

    def __init__(self, background: tuple[str, ...] = BACKGROUND) -> None:
        """Leave out threads with names that begin with one of ``background``."""
        self.calls: Counter[Function] = Counter()
        self.upward: Counter[tuple[Function, Function]] = Counter()
        """Calls from a room to one above it, against the direction of the imports: caller and called function."""
        self._layers = layers()
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
            above: FrameType | None = frame.f_back
            while above is not None and not above.f_code.co_filename.startswith(APP):
                above = above.f_back
            caller = above and self._known.get(above.f_code)
            if caller and self._layers[room_of(found)] < self._layers[room_of(caller)]:
                self.upward[caller, found] += 1


def layers() -> dict[str, int]:
    """Return the place of each room, or module, of `app` in the order of the imports, the uppermost first."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(contract["layers"] for contract in contracts if contract["name"] == "data flows one way")
    return {name.strip().removeprefix("app."): place for place, line in enumerate(listed) for name in line.split("|")}


def room_of(function: Function) -> str:
    return function[0].partition("/")[0].removesuffix(".py")


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
    """Return the calls of the second request of its kind, in a service with a key that is not the data folder's."""
    trace = Trace(BACKGROUND if name == "enroll" else (*BACKGROUND, AUDIT))
    cached_s, bound_s = keys.CACHE_S, embedders.BOUND_S
    keys.CACHE_S = embedders.BOUND_S = 600.0  # so that key and package are cached, on a slow machine too
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
        keys.CACHE_S, embedders.BOUND_S = cached_s, bound_s
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
    for (caller, called), count in trace.upward.items():
        sys.stdout.write(f"up: {' '.join(caller)} -> {' '.join(called)} ({count} times)\n")
    sys.stdout.write(f"{trace}{name}: {len(trace.files)} files, {len(functions)} functions, {more} comprehensions\n")


if __name__ == "__main__":
    main(sys.argv[1])
