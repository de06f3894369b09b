"""Run the server: its socket, its event loop, and its greeting when it is ready."""

from __future__ import annotations

import asyncio
import shlex
import socket
import ssl
import sys
from pathlib import Path

import uvloop
from fastapi import FastAPI

from app.api.components import Components
from app.config import Settings
from app.db.encryption import ADMIN_KEY_FILE
from app.errors import LikenessError, Unusable
from app.machine import raise_descriptors, resume_collector
from app.server import data_folder, http

BACKLOG = 2048
"""Maximum connections that wait to be accepted."""
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with here, not listened on
"""Wildcard addresses to listen on, and the address at which such a server is called."""
SAMPLE_PHOTO = Path("docs/samples/collins.jpg")
"""The photo of the printed example, if the server was started in the project's folder."""
SWITCH_S = 0.0005
"""Seconds that a Python thread runs while others wait. Python's own 5 ms would let a thread that returns from a model,
or the one that answers HTTP, wait while a core is idle. Sixteen clients get 5 % (± 3) more photos identified a second
on two busy cores (136 paired windows of two seconds)."""


def run(settings: Settings, app: FastAPI) -> None:
    """Answer requests with ``app`` until SIGINT or SIGTERM, then finish those in progress. The data folder must exist.

    Raises Unusable with one clear sentence if the settings, the models, the data folder or the port can't be used.
    """
    sys.setswitchinterval(SWITCH_S)
    tls = settings.tls_cert and settings.tls_key and http.tls_context(settings.tls_cert, settings.tls_key)
    with listen(settings.host, settings.port) as listener:
        url = _url(listener, "https" if tls else "http")
        loops = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        with data_folder.announce(settings.data_dir, url), loops as runner:
            runner.run(_serve(settings, app, listener, url, tls or None))


async def _serve(
    settings: Settings, app: FastAPI, listener: socket.socket, url: str, tls: ssl.SSLContext | None
) -> None:
    """Answer requests from the start, with `not_ready` until the service is built."""
    key, is_new = data_folder.load_key(settings.data_dir)
    waits = http.Waits(
        head_s=settings.header_timeout,
        idle_s=settings.keep_alive,
        answer_s=settings.request_timeout,
        drain_s=settings.drain_seconds,
    )
    config = http.server_config(
        app, waits, trusted_proxies=settings.trusted_proxies, tls=tls, descriptors=raise_descriptors()
    )
    server = http.Server(config, app, settings.drain_seconds)
    http.ignore_signals()
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with app.router.lifespan_context(app):
            resume_collector()
            if not server.should_exit:
                greeting = await asyncio.to_thread(_greeting, settings, app, url, key=key, is_new=is_new)
                sys.stdout.write(greeting)
                sys.stdout.flush()
            await answering
    finally:
        server.should_exit = True
        await answering


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; `::` takes IPv4 callers too if the system can. Raises Unusable (``port_unusable``)."""
    family, both = socket.AF_INET6 if ":" in host else socket.AF_INET, host == "::" and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        reason = error.strerror or error
        message = f"Cannot listen on {host}:{port}: {reason}. Choose another LIKENESS_HOST or LIKENESS_PORT."
        raise Unusable(message, code="port_unusable") from None
    # Connections inherit TCP_NODELAY, which asyncio doesn't set for this kind of socket. Without it, the body of an
    # answer waits for the acknowledgement of its head: 40 ms on a connection that is used again.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    host = WILDCARDS.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _greeting(settings: Settings, app: FastAPI, url: str, *, key: str, is_new: bool) -> str:
    """Return the lines printed at the start: the URL, the page, where the key is, and an example to paste.

    On a terminal, the page's link signs in, and a new key is printed on its own line.
    """
    path = settings.data_dir / ADMIN_KEY_FILE
    photo = SAMPLE_PHOTO if SAMPLE_PHOTO.exists() else Path("photo.jpg")
    where, page = f"The admin key is in {path}", f"{url}/"
    program = sys.argv[0] if Path(sys.argv[0]).name == "likeness" else "likeness"  # it may not be on the PATH
    if sys.stdout.isatty():
        if is_new:
            where = f"The admin key was made: {key}\nIt is kept in {path}"
        page = _sign_in_link(app, url, key) or page
    return (
        f"Likeness {app.version} answers at {url}, described at {url}/docs (whose password is the key)\n"
        f"The page: {page}\nA link that signs in, whenever you need one: {program} keys link\n{where}\nTry it:\n"
        f'  curl -H "x-api-key: $(cat {shlex.quote(str(path))})" -F image=@{photo} {url}/v1/detect\n'
    )


def _sign_in_link(app: FastAPI, url: str, key: str) -> str | None:
    """Return a link that signs in with the key, and a note about it; None if the database can't be written or the
    feature is missing."""
    components: Components = app.state.components
    if (link := components.parts.get("sign_in_link")) is None:
        return None
    try:
        with components.audit.recorded("create_sign_in_code"):
            return f"{link(url, key)}\n(It signs you in as admin, once, within a minute.)"
    except LikenessError:
        return None
