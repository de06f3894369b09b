"""Ids in paths: matched as they were sent, then percent-decoded, so that an id may hold slashes and anything else."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from urllib.parse import unquote

from fastapi import Path
from pydantic import BeforeValidator

from app.api.schemas import MAX_ID_LENGTH

_DECODED = BeforeValidator(unquote)
_HOW = "percent-encoded (`/` as `%2F`)"

GalleryId: TypeAlias = Annotated[
    str,
    Path(min_length=1, max_length=MAX_ID_LENGTH, description=f"The gallery's id, {_HOW}.", examples=["staff"]),
    _DECODED,
]
SubjectId: TypeAlias = Annotated[
    str,
    Path(min_length=1, max_length=MAX_ID_LENGTH, description=f"The subject's id, {_HOW}.", examples=["collins"]),
    _DECODED,
]
ReceiptId: TypeAlias = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="The receipt's id, as the erasure gave it.",
        examples=["0f5c1c2bb2dd4d0aa6a1e9b0c7c3de51"],
    ),
    _DECODED,
]
FaceId: TypeAlias = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="The face's id, as enrollment gave it.",
        examples=["6f1f2d5f0f0c4c3a9a3e0c6d7b8a9f10"],
    ),
    _DECODED,
]
