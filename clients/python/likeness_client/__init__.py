"""Sync and async clients for a Likeness server, with the same methods.

>>> with Client("http://127.0.0.1:8000", key) as client:
...     faces = client.identify("crew", Path("photo.jpg")).faces

A server may be newer than its clients: fields that a client does not know are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from likeness_client.errors import ApiError, ClientError, Unreachable, UnreadableAnswer

if TYPE_CHECKING:
    from likeness_client.client import AsyncClient, Client

__all__ = ["ApiError", "AsyncClient", "Client", "ClientError", "Unreachable", "UnreadableAnswer"]


def __getattr__(name: str) -> Any:
    """Import the clients and httpx only when they are used: programs that only handle errors start faster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from likeness_client import client  # noqa: PLC0415

    return getattr(client, name)


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return sorted(__all__)
