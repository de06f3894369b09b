"""Milvus as a feature of the service: galleries' vectors in a server of their own, in place of FAISS in memory."""

from __future__ import annotations

from app.api.feature import Feature
from app.db.engine import Database
from app.milvus.client import Milvus, parse_address
from app.milvus.indexes import MilvusBackend
from app.search.types import FaceSource


def _open(where: str, token: str | None, source: FaceSource, database: Database) -> MilvusBackend:
    return MilvusBackend(source, database, Milvus(parse_address(where), token))


FEATURE = Feature(open_index=_open)
