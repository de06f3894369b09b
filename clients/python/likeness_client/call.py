"""A REST call as a value: what to send, and the type of the answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from likeness_client.errors import ClientError

Answer = TypeVar("Answer")

TAR_TYPE = "application/x-tar"
Image: TypeAlias = bytes | os.PathLike[str]
"""The bytes of an image file, or its path."""
Tar: TypeAlias = bytes | os.PathLike[str] | Callable[[], Iterator[bytes]]
"""The bytes of a tar, its path, or a callable that yields it in pieces each time it is called."""
PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. ``answer`` is the pydantic model of the JSON, ``bytes`` for the body itself, None for no body."""

    method: str
    path: str
    answer: type[Answer]
    params: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[tuple[str, tuple[str, bytes]]] = ()
    json: Mapping[str, Any] | None = None
    content: Callable[[], Iterator[bytes]] | None = None
    """A body that is produced while it is sent."""

    def after(self, cursor: str) -> Call[Answer]:
        """Return the same call for the page at ``cursor``."""
        return replace(self, params={**self.params, "cursor": cursor})


def call(
    method: str,
    path: str,
    answer: type[Answer],
    *,
    params: Mapping[str, Any] | None = None,
    files: Sequence[tuple[str, tuple[str, bytes]]] = (),
    json: Mapping[str, Any] | None = None,
    content: Callable[[], Iterator[bytes]] | None = None,
    **ids: str,
) -> Call[Answer]:
    """Return a call with these ids, percent-encoded, in its path: ``/v1/galleries/{gallery}``.

    Raises ClientError (``invalid_id``) for the ids ``""``, ``"."`` and ``".."``, which would make it another path:
    URLs lose such segments, percent-encoded or not, and with ``..`` the one before.
    """
    for name, value in ids.items():
        if not value:
            raise ClientError(f"{name}: the id is empty; give at least one character.", code="invalid_id")
        if value in {".", ".."}:
            raise ClientError(f"{name}: an id can't be {value!r}: no URL can hold it.", code="invalid_id")
    filled = path.format(**{name: quote(value, safe="") for name, value in ids.items()})
    return Call(method, filled, answer, params or {}, files, json, content)


def part(name: str, image: Image) -> tuple[str, tuple[str, bytes]]:
    """Return a multipart field. The file's own name is not sent: it may hold personal data."""
    content = image if isinstance(image, bytes) else Path(image).read_bytes()
    return (name, ("image", content))


def parts(name: str, images: Image | Sequence[Image]) -> list[tuple[str, tuple[str, bytes]]]:
    """Return a multipart field for each image."""
    return [part(name, image) for image in ([images] if isinstance(images, (bytes, os.PathLike)) else images)]


def tar_of(source: Tar) -> Callable[[], Iterator[bytes]]:
    """Return a callable that yields the tar in pieces, whatever form it came in."""
    if isinstance(source, bytes):
        return lambda: iter([source])
    if callable(source):
        return source

    def pieces() -> Iterator[bytes]:
        with Path(source).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    return pieces


def given(**params: Any) -> dict[str, Any]:
    """Return the parameters that aren't None, in the form that JSON and queries need."""
    return {name: _plain(value) for name, value in params.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
