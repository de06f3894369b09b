"""A client of the page's own server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.live import LiveServer


@pytest.fixture(scope="module")
def api(live_server: LiveServer) -> Iterator[httpx.Client]:
    with live_server.client("/v1") as client:
        yield client
