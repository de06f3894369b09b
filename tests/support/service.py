"""The service in this process, with its lifespan, a data folder of its own and the real model packages."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.api.route import Router, install
from app.config import Settings
from app.error_codes import BY_CODE
from app.main import create_app
from app.server.data_folder import load_key
from app.server.local import InProcess
from tests.conftest import PROJECT
from tests.support.ready import give_database, give_models

SAMPLES = PROJECT / "docs" / "samples"
COLLINS, AGAIN, HOPPER, BOTH = (
    (SAMPLES / name).read_bytes() for name in ("collins.jpg", "collins_again.jpg", "hopper.jpg", "both.jpg")
)


@contextmanager
def running(data_dir: Path, *, routers: Iterable[Router] = (), **settings: Any) -> Iterator[httpx.Client]:
    """A client, holding the key, of a service that runs as long as the block does. It has these further operations."""
    give_models(data_dir)
    if "database_url" not in settings:
        give_database(data_dir)
    app = create_app(Settings(data_dir=data_dir, **settings))
    install(app, routers)
    with httpx.Client(transport=InProcess(app), base_url="http://service", timeout=60) as client:
        client.headers["x-api-key"] = load_key(data_dir)[0]
        yield client


def encoded(pixels: NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    """(H, W, 3) uint8 RGB as an image file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error's details, after making sure that the answer is this error in the one shape, and is in the table."""
    body = response.json()
    assert code in BY_CODE, "app/error_codes.py does not say what this code is"
    assert (response.status_code, body["error"]["code"]) == (status, code), body
    assert set(body) == {"error", "request_id"}
    assert set(body["error"]) == {"code", "message", "details"}
    assert response.headers["x-request-id"] == body["request_id"]
    details: dict[str, Any] = body["error"]["details"]
    return details
