"""A small client of Milvus: collections of faces, and the position in the change log up to which each is complete.

It stores only integers, positions and vectors, and returns Milvus's rows and scores; `app.features.milvus.search` turns
them into answers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import numpy as np

from app.errors import Unusable
from app.search.types import FaceBlock, LogPosition
from app.types import Vectors

TIMEOUT_S = 10
"""Maximum seconds of a call, including pymilvus's retries. An int, since some of pymilvus's functions accept nothing
else."""
MAKE_TIMEOUT_S = 60
"""Maximum seconds of a call that makes or loads a collection."""
DEFAULT_PORT = 19_530
FETCH_MAX = 16_384
"""The highest limit that Milvus accepts for a search or query."""
BLOCK_BYTES = 8 * 1024 * 1024
"""Maximum bytes of vectors in one message; Milvus accepts messages of up to 64 MiB."""
KEYS_AT_ONCE = 5_000
MARK = -1
"""Key of the row that stores the collection's log position; faces' keys are positive."""
NOT_FOUND, NOT_LOADED, NOT_FULLY_LOADED = 100, 101, 103
"""Milvus's error codes for a collection that is missing or not ready for searches."""
HNSW = {"M": 32, "efConstruction": 256}
EF_MIN = 256
_DATABASE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class CollectionLost(Unusable):
    """The collection doesn't exist in Milvus, or is not loaded."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a Milvus. ``uri`` is pymilvus's form of it; ``name`` identifies it and contains no secrets."""

    uri: str
    database: str
    kind: Literal["FLAT", "HNSW"]
    name: str
    is_file: bool = False
    """Whether it is milvus-lite, which runs in this process."""


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row that a search found; `score` is Milvus's float32."""

    face: int
    subject: int
    score: float


def parse_address(text: str) -> Address:
    """Return the address in ``text``: ``milvus://host[:port][/database]``, ``milvus+tls://…``, or
    ``milvus:///path/file.db`` for milvus-lite. With ``?index=hnsw``, the search is approximate. Raises ValueError with
    a message for the operator."""
    parts = urlsplit(text)
    options = parse_qs(parts.query, keep_blank_values=True)
    kinds = options.pop("index", ["flat"])
    if parts.scheme not in {"milvus", "milvus+tls"}:
        raise ValueError("use `faiss` or milvus://host:port/database")
    if parts.username is not None or parts.password is not None:
        raise ValueError("put Milvus's token or password into LIKENESS_INDEX_TOKEN, not into the address")
    if options or kinds not in (["flat"], ["hnsw"]) or parts.fragment:
        raise ValueError("after `?` only index=flat or index=hnsw is known")
    kind: Literal["FLAT", "HNSW"] = "HNSW" if kinds == ["hnsw"] else "FLAT"
    if not parts.hostname:
        if parts.scheme != "milvus" or not parts.path.endswith(".db"):
            raise ValueError("give a host or, for milvus-lite, the path of a file that ends in .db")
        path = str(Path(parts.path).absolute())
        return Address(path, "", kind, f"milvus://{path}", is_file=True)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    database = parts.path.strip("/")
    if database and not _DATABASE.fullmatch(database):
        raise ValueError("a Milvus database's name has letters, digits and underscores")
    where = f"{host}:{parts.port or DEFAULT_PORT}"
    scheme = "https" if parts.scheme == "milvus+tls" else "http"
    return Address(f"{scheme}://{where}", database, kind, f"{parts.scheme}://{where}/{database}")


class Milvus:
    """One connection, which reconnects by itself; safe to share between threads.

    Every read is strongly consistent: it sees everything that any server wrote before the read began. Every call raises
    Unusable ``index_unavailable`` if Milvus can't be reached or refuses, after TIMEOUT_S at most (MAKE_TIMEOUT_S if it
    makes a collection). Calls that name a collection may also raise CollectionLost.
    """

    def __init__(self, address: Address, token: str | None = None) -> None:
        """`token` is an API key or ``user:password``. Also raises Unusable ``index_driver_missing``."""
        try:
            import pymilvus  # noqa: PLC0415 - an extra, and slow to import

            if address.is_file:
                import milvus_lite  # noqa: F401, PLC0415 - pymilvus needs it for files
        except ModuleNotFoundError as error:
            message = f"Milvus needs {error.name}: pip install 'likeness-server[milvus]', and milvus-lite for a file."
            raise Unusable(message, code="index_driver_missing") from error
        # pymilvus would also log the errors that are raised, with Milvus's messages.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)
        self.name = address.name
        self._kind = address.kind
        self._timeout_s = TIMEOUT_S
        self._module = pymilvus
        self._available = True
        options: dict[str, Any] = {"uri": address.uri, "token": token or "", "db_name": address.database}
        self._client = self._call(pymilvus.MilvusClient, **options, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._client.close()

    @property
    def version(self) -> str:
        return str(self._call(self._client.get_server_version, timeout=self._timeout_s))

    @property
    def available(self) -> bool:
        """Return whether Milvus answered the last `ping`. If it did not, all calls but `ping` fail at once."""
        return self._available

    def ping(self, timeout_s: float) -> None:
        """Ask Milvus for an answer, and update `available`."""
        try:
            self._call(self._client.list_collections, timeout=timeout_s, always=True)
            self._available = True
        except Unusable:
            self._available = False

    # Collections

    def make(self, name: str, dimension: int) -> None:
        """Make an empty collection, ready to be searched. It has one shard, so that a write becomes visible at once."""
        types = self._module.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("face", types.INT64, is_primary=True)
        schema.add_field("subject", types.INT64)
        schema.add_field("position", types.VARCHAR, max_length=64)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=dimension)
        indexes = self._client.prepare_index_params()
        params = dict(HNSW) if self._kind == "HNSW" else {}
        indexes.add_index("vector", index_type=self._kind, metric_type="IP", params=params)
        indexes.add_index("subject", index_type="INVERTED")
        form: dict[str, Any] = {"schema": schema, "num_shards": 1, "consistency_level": "Strong"}
        self._call(self._client.create_collection, name, **form, timeout=MAKE_TIMEOUT_S)
        # An empty collection is indexed at once, so there is nothing to wait for.
        self._call(self._client.create_index, name, indexes, timeout=MAKE_TIMEOUT_S, sync=False)
        self._call(self._client.load_collection, name, timeout=MAKE_TIMEOUT_S)

    def open(self, name: str, dimension: int) -> bool:
        """Load the collection so that it can be searched; return False if it is missing or has another schema."""
        if not self._call(self._client.has_collection, name, timeout=self._timeout_s):
            return False
        fields = self._call(self._client.describe_collection, name, timeout=self._timeout_s)["fields"]
        forms = {field["name"]: (field["type"].name, field["params"].get("dim")) for field in fields}
        wanted = {"face": "INT64", "subject": "INT64", "position": "VARCHAR", "vector": "FLOAT_VECTOR"}
        if forms != {key: (kind, dimension if key == "vector" else None) for key, kind in wanted.items()}:
            return False
        self._call(self._client.load_collection, name, timeout=MAKE_TIMEOUT_S)
        return True

    def drop(self, name: str) -> None:
        self._call(self._client.drop_collection, name, timeout=MAKE_TIMEOUT_S)

    def purge(self, name: str) -> None:
        """Ask Milvus to also delete removed rows from its files, which it does some time later."""
        self._call(self._client.flush, name, timeout=self._timeout_s)
        self._call(self._client.compact, name, timeout=self._timeout_s)

    # Rows

    def add(self, name: str, block: FaceBlock) -> None:
        """Add faces; faces that exist already are replaced."""
        step = max(1, BLOCK_BYTES // max(1, block.vectors.shape[1] * 4))
        for start in range(0, len(block.faces), step):
            part = slice(start, start + step)
            columns = (block.faces[part].tolist(), block.subjects[part].tolist(), block.vectors[part])
            self._upsert(name, [_row(*values) for values in zip(*columns, strict=True)])

    def remove(self, name: str, faces: Sequence[int]) -> None:
        """Remove faces, by key; missing ones are ignored."""
        for part in _in_pieces(faces):
            self._call(self._client.delete, name, ids=part, timeout=self._timeout_s)

    def remove_subjects(self, name: str, subjects: Sequence[int]) -> None:
        for part in _in_pieces(subjects):
            options: dict[str, Any] = {"filter": f"subject in {part}", "consistency_level": "Strong"}
            self._call(self._client.delete, name, **options, timeout=self._timeout_s)

    def owners(self, name: str, faces: Sequence[int]) -> dict[int, int]:
        """Return the subjects' keys by the faces' keys, for the faces that exist."""
        rows = [row for part in _in_pieces(faces) for row in self._query(name, f"face in {part}", ["face", "subject"])]
        return {int(row["face"]): int(row["subject"]) for row in rows}

    def blocks(self, name: str, after: int, until: int | None, dimension: int) -> Iterator[FaceBlock]:
        """Yield the faces with keys above `after`, up to `until`, in the order of their keys, in blocks that fit a
        message. Qualities are 0, since Milvus doesn't store them."""
        upto = "" if until is None else f" and face <= {until}"
        rows = self._call(
            self._client.query_iterator,
            name,
            batch_size=max(1, min(FETCH_MAX, BLOCK_BYTES // (dimension * 4))),
            filter=f"face > {after}{upto}",
            output_fields=["face", "subject", "vector"],
            consistency_level="Strong",
            timeout=self._timeout_s,
        )
        try:
            while batch := self._call(rows.next):
                yield FaceBlock(
                    np.array([row["face"] for row in batch], np.int64),
                    np.array([row["subject"] for row in batch], np.int64),
                    np.zeros(len(batch), np.float32),
                    np.array([row["vector"] for row in batch], np.float32).reshape(len(batch), dimension),
                )
        finally:
            rows.close()

    def search(self, name: str, probes: Vectors, fetch: int, without: Sequence[int] = ()) -> list[list[FoundRow]]:
        """Return for each probe the `fetch` faces with the highest scores, or one more, best first. `probes`: (Q, D)
        float32.

        `fetch` must be less than FETCH_MAX. Subjects in `without` are left out. Fewer faces are returned only if there
        are no more.
        """
        params = {"ef": max(EF_MIN, 2 * fetch)} if self._kind == "HNSW" else {}
        results = self._call(
            self._client.search,
            name,
            data=list(probes),
            anns_field="vector",
            filter=f"subject not in {[int(key) for key in without]}" if len(without) else "",
            limit=fetch + 1,  # one more, since the row MARK may be among them
            output_fields=["subject"],
            search_params={"metric_type": "IP", "params": params},
            consistency_level="Strong",
            timeout=self._timeout_s,
        )
        return [
            [
                FoundRow(int(hit.id), int(hit["entity"]["subject"]), float(hit.distance))
                for hit in hits
                if hit.id != MARK
            ]
            for hits in results
        ]

    # Log positions

    def position(self, name: str) -> LogPosition | None:
        """Return the log position up to which the collection is complete; None if none is recorded."""
        rows = self._query(name, f"face in [{MARK}]", ["position"])
        match = re.fullmatch("([0-9]+):([0-9]+)", rows[0]["position"]) if rows else None
        return LogPosition(int(match[1]), int(match[2])) if match else None

    def mark(self, name: str, position: LogPosition, dimension: int) -> None:
        """Record that the collection is complete up to this log position."""
        row = _row(MARK, 0, np.zeros(dimension, np.float32)) | {"position": f"{position.number}:{position.stamp}"}
        self._upsert(name, [row])

    # Internals

    def _upsert(self, name: str, rows: list[dict[str, object]]) -> None:
        self._call(self._client.upsert, name, rows, timeout=self._timeout_s)

    def _query(self, name: str, which: str, fields: list[str]) -> list[dict[str, Any]]:
        options: dict[str, Any] = {"filter": which, "output_fields": fields, "consistency_level": "Strong"}
        return list(self._call(self._client.query, name, **options, timeout=self._timeout_s))

    def _call(self, call: Callable[..., Any], *args: object, always: bool = False, **options: object) -> Any:
        """Call Milvus and translate its errors; they stay their cause, so that the log has their text.

        While Milvus doesn't answer, fail at once unless `always` is set, since callers would wait for each other's
        timeouts.
        """
        import grpc  # noqa: PLC0415 - comes with pymilvus

        if not self._available and not always:
            raise _unavailable()
        try:
            return call(*args, **options)
        except self._module.MilvusException as error:
            if error.code in {NOT_FOUND, NOT_LOADED, NOT_FULLY_LOADED}:
                raise CollectionLost("A collection is missing in Milvus.", code="index_unavailable") from error
            raise _unavailable() from error
        except (grpc.RpcError, grpc.FutureTimeoutError, OSError) as error:
            raise _unavailable() from error


def _in_pieces(keys: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(keys), KEYS_AT_ONCE):
        yield [int(key) for key in keys[start : start + KEYS_AT_ONCE]]


def _row(face: int, subject: int, vector: object) -> dict[str, object]:
    return {"face": face, "subject": subject, "position": "", "vector": vector}


def _unavailable() -> Unusable:
    return Unusable(
        "Milvus, where vectors are searched, can't be used at the moment. Try again later.", code="index_unavailable"
    )
