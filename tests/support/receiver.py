"""Run a receiver of webhooks that accepts events, fails, hangs, or is away for a while, as a test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """A receiver. It answers every request with ``status`` unless it ``hangs``, and returns on the same ``port``."""

    port: int
    status: int = 204
    hangs: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    asked: int = 0
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """When each event arrived, by the performance counter."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events?of=faces"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.taken]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block runs."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.asked += 1
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.hangs.is_set():
                    receiver.released.wait(60)
                if receiver.status < 300:
                    receiver.at.append(time.perf_counter())
                    receiver.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        ThreadingHTTPServer.allow_reuse_address = True
        with ThreadingHTTPServer(("127.0.0.1", self.port), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield
            finally:
                self.released.set()
                server.shutdown()
