"""Run the service in this process, with its lifespan, a data folder of its own and the real model packages."""

from __future__ import annotations

import io
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from PIL import Image

from app.api.route import Router, add_operations
from app.config import Settings
from app.error_codes import BY_CODE
from app.main import create_app
from app.server.data_folder import load_key
from app.server.local import InProcess
from tests.conftest import PROJECT
from tests.support.postgres import new_database
from tests.support.ready import give_database, give_models

SAMPLES = PROJECT / "docs" / "samples"
COLLINS, AGAIN, HOPPER, BOTH = (
    (SAMPLES / name).read_bytes() for name in ("collins.jpg", "collins_again.jpg", "hopper.jpg", "both.jpg")
)


def covered() -> bytes:
    """Return a PNG of Eileen Collins with a bar over eyes and nose.

    The detector finds a face, but its landmarks can't be confirmed.
    """
    photo = np.array(Image.open(io.BytesIO(COLLINS)).convert("RGB"))
    photo[85:131, 178:268] = (120, 110, 100)
    return encoded(photo)


def made(data_dir: Path, *, routers: Iterable[Router] = (), **settings: Any) -> FastAPI:
    """Return a service with these further operations. It is not started yet."""
    give_models(data_dir)
    if "database_url" not in settings:
        give_database(data_dir)
    app = create_app(Settings(data_dir=data_dir, **settings))
    add_operations(app, routers)
    return app


@contextmanager
def running(data_dir: Path, *, routers: Iterable[Router] = (), **settings: Any) -> Iterator[httpx.Client]:
    """Yield a client, with the admin key, of a service that runs until the block ends."""
    app = made(data_dir, routers=routers, **settings)
    with httpx.Client(transport=InProcess(app), base_url="http://service", timeout=60) as client:
        client.headers["x-api-key"] = load_key(data_dir)[0]
        yield client


@contextmanager
def two_running(folder: Path, postgresql: Path, **settings: Any) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Yield the clients of two services that share a new PostgreSQL database; each has a folder below ``folder``."""
    settings["database_url"] = new_database(postgresql)
    with running(folder / "one", **settings) as one:
        (folder / "two").mkdir(0o700)
        for file in (folder / "one").glob("*.key"):  # servers share the admin key and the vault key
            shutil.copy(file, folder / "two")
        with running(folder / "two", **settings) as two:
            yield one, two


@asynccontextmanager
async def running_here(data_dir: Path, **settings: Any) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """Yield a service on the test's own event loop, so that tests can examine its parts, and a client with the key."""
    app = made(data_dir, **settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        client.headers["x-api-key"] = load_key(data_dir)[0]
        yield app, client


def scope_of(method: str, path: str, key: str, **headers: str) -> dict[str, Any]:
    """Return a request as an ASGI server hands it to the service."""
    fields = [
        (name.replace("_", "-").encode(), value.encode()) for name, value in {"x_api_key": key, **headers}.items()
    ]
    about = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": fields}
    return {**about, "query_string": b"", "root_path": ""}


def encoded(pixels: NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    """Return (H, W, 3) uint8 RGB as an image file. A PNG is compressed quickly unless the options say otherwise."""
    file = io.BytesIO()
    if kind == "PNG":
        options.setdefault("compress_level", 1)
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def enroll(
    api: httpx.Client, gallery: str, subject: str, *images: bytes, key: str = "", **params: Any
) -> httpx.Response:
    """Enroll photos in the gallery at this path, with the client's key or another. Return the answer."""
    files, headers = [("images", image) for image in images], {"x-api-key": key} if key else {}
    return api.post(f"{gallery}/subjects/{subject}/faces", files=files, params=params, headers=headers)


def enrolled(
    api: httpx.Client, gallery: str, subject: str, *images: bytes, quality: str = "none", **params: Any
) -> list[dict[str, Any]]:
    """Enroll these photos, even poor ones, and return the faces."""
    answer = enroll(api, gallery, subject, *images, quality=quality, **params).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["enrolled"]
    return found


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that the answer is this error, has the shape of all errors, and is in the table. Return its details."""
    body = response.json()
    assert code in BY_CODE, "app/error_codes.py does not say what this code is"
    assert (response.status_code, body["error"]["code"]) == (status, code), body
    assert set(body) == {"error", "request_id"}
    assert set(body["error"]) == {"code", "message", "details"}
    assert response.headers["x-request-id"] == body["request_id"]
    details: dict[str, Any] = body["error"]["details"]
    return details
