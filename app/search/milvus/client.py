"""Milvus behind few calls: collections of faces, and of each the place in a change log that it holds.

Knows integers and vectors only. What comes back is what Milvus has, as Milvus scores it: `app.search.milvus.indexes`
makes
answers of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import numpy as np

from app.errors import Unusable
from app.gallery.records import FaceBlock, Position
from app.types import Vectors

TIMEOUT_S = 10
"""Of one call, with what pymilvus tries again inside it; an int, since some of its waits take no other."""
MAKE_TIMEOUT_S = 60
"""Of one that makes or loads a collection."""
DEFAULT_PORT = 19_530
FETCH_MAX = 16_384
"""Milvus takes no more as a search's or query's limit."""
BLOCK_BYTES = 8 * 1024 * 1024
"""Of vectors in one message; Milvus takes messages of up to 64 MiB."""
KEYS_AT_ONCE = 5_000
MARK = -1
"""Key of the row that says how far the collection has followed; faces' keys are positive."""
NOT_FOUND, NOT_LOADED, NOT_FULLY_LOADED = 100, 101, 103
"""Milvus's error codes of a collection that isn't there, or can't be searched as it is."""
HNSW = {"M": 32, "efConstruction": 256}
EF_MIN = 256
_DATABASE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class CollectionLost(Unusable):
    """The collection is not there any more, or not loaded."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Milvus is: `uri` as pymilvus takes it; ``name`` tells it apart from others and holds no secret."""

    uri: str
    database: str
    kind: Literal["FLAT", "HNSW"]
    name: str
    is_file: bool = False
    """Of milvus-lite, inside this process."""


@dataclass(frozen=True, slots=True)
class Found:
    """A row that a search found; `score` is Milvus's own float32."""

    face: int
    subject: int
    score: float


def parse_address(text: str) -> Address:
    """``milvus://host[:port][/database]``, ``milvus+tls://…``, or ``milvus:///path/file.db`` for milvus-lite; with
    ``?index=hnsw`` the search is approximate. Raises ValueError, which says what is wrong."""
    parts = urlsplit(text)
    options = parse_qs(parts.query, keep_blank_values=True)
    kinds = options.pop("index", ["flat"])
    if parts.scheme not in {"milvus", "milvus+tls"}:
        raise ValueError("`faiss` or milvus://host:port/database is due")
    if parts.username is not None or parts.password is not None:
        raise ValueError("what Milvus asks for goes into LIKENESS_INDEX_TOKEN, not into the address")
    if options or kinds not in (["flat"], ["hnsw"]) or parts.fragment:
        raise ValueError("after `?` only index=flat or index=hnsw is known")
    kind: Literal["FLAT", "HNSW"] = "HNSW" if kinds == ["hnsw"] else "FLAT"
    if not parts.hostname:
        if parts.scheme != "milvus" or not parts.path.endswith(".db"):
            raise ValueError("a host is due, or the path of a file that ends in .db, for milvus-lite")
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
    """One connection, safe to share between threads; it comes back by itself after an interruption.

    Every read is strongly consistent: it sees whatever was written before it began, by whomever.
    Every call raises Unusable ``index_unavailable`` where Milvus can't be reached or refuses, within `timeout_s`
    (calls that make a collection: MAKE_TIMEOUT_S); and those that name a collection CollectionLost.
    """

    def __init__(self, address: Address, token: str | None = None, *, timeout_s: int = TIMEOUT_S) -> None:
        """`token` is Milvus's: an API key or ``user:password``. Raises Unusable ``index_driver_missing`` too."""
        try:
            import pymilvus  # noqa: PLC0415 - an extra, and slow to import

            if address.is_file:
                import milvus_lite  # noqa: F401, PLC0415 - pymilvus needs it then
        except ModuleNotFoundError as error:
            message = f"Milvus needs {error.name}: pip install 'likeness[milvus]', and milvus-lite for a file."
            raise Unusable(message, code="index_driver_missing") from error
        # It logs what we raise, and with it whatever the server said.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL + 1)
        self.name = address.name
        self._kind = address.kind
        self._timeout_s = timeout_s
        self._module = pymilvus
        self._available = True
        with self._translated():
            self._client = pymilvus.MilvusClient(
                uri=address.uri, token=token or "", db_name=address.database, timeout=timeout_s
            )

    def close(self) -> None:
        self._client.close()

    @property
    def version(self) -> str:
        """As Milvus calls it."""
        with self._translated():
            return str(self._client.get_server_version(timeout=self._timeout_s))

    @property
    def available(self) -> bool:
        """Whether Milvus answered when last asked by `ping`. Where it didn't, every other call fails at once."""
        return self._available

    def ping(self, timeout_s: float) -> None:
        """Finds out whether Milvus answers."""
        try:
            with self._translated(whatever=True):
                self._client.list_collections(timeout=timeout_s)
            self._available = True
        except Unusable:
            self._available = False

    # Collections

    def make(self, name: str, dimension: int) -> None:
        """An empty collection, ready to be searched; one shard, so that all of a write is seen at once."""
        types = self._module.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("face", types.INT64, is_primary=True)
        schema.add_field("subject", types.INT64)
        schema.add_field("position", types.VARCHAR, max_length=64)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=dimension)
        indexes = self._client.prepare_index_params()
        indexes.add_index("vector", index_type=self._kind, metric_type="IP", params=self._index_params)
        indexes.add_index("subject", index_type="INVERTED")
        with self._translated():
            self._client.create_collection(
                name, schema=schema, num_shards=1, consistency_level="Strong", timeout=MAKE_TIMEOUT_S
            )
            # There is nothing to be indexed yet, so nothing to wait for.
            self._client.create_index(name, indexes, timeout=MAKE_TIMEOUT_S, sync=False)
            self._client.load_collection(name, timeout=MAKE_TIMEOUT_S)

    def open(self, name: str, dimension: int) -> bool:
        """Makes the collection ready to be searched; False where there is none, or one of another form."""
        with self._translated():
            if not self._client.has_collection(name, timeout=self._timeout_s):
                return False
            fields = self._client.describe_collection(name, timeout=self._timeout_s)["fields"]
            forms = {field["name"]: (field["type"].name, field["params"].get("dim")) for field in fields}
            wanted = {"face": "INT64", "subject": "INT64", "position": "VARCHAR", "vector": "FLOAT_VECTOR"}
            if forms != {key: (kind, dimension if key == "vector" else None) for key, kind in wanted.items()}:
                return False
            self._client.load_collection(name, timeout=MAKE_TIMEOUT_S)
            return True

    def drop(self, name: str) -> None:
        """Removes the collection, where there is one."""
        with self._translated():
            self._client.drop_collection(name, timeout=MAKE_TIMEOUT_S)

    def purge(self, name: str) -> None:
        """Asks for what was removed to be dropped from Milvus's files too: done some time later."""
        with self._translated():
            self._client.flush(name, timeout=self._timeout_s)
            self._client.compact(name, timeout=self._timeout_s)

    # Rows

    def add(self, name: str, block: FaceBlock) -> None:
        """Adds faces; those that are in already are replaced."""
        step = max(1, BLOCK_BYTES // max(1, block.vectors.shape[1] * 4))
        for start in range(0, len(block.faces), step):
            some = slice(start, start + step)
            columns = (block.faces[some].tolist(), block.subjects[some].tolist(), block.vectors[some])
            self._upsert(name, [_row(*values) for values in zip(*columns, strict=True)])

    def remove(self, name: str, faces: Sequence[int]) -> None:
        """Removes faces; those that aren't in are none the worse for it."""
        for start in range(0, len(faces), KEYS_AT_ONCE):
            some = [int(key) for key in faces[start : start + KEYS_AT_ONCE]]
            with self._translated():
                self._client.delete(name, ids=some, timeout=self._timeout_s)

    def remove_subjects(self, name: str, subjects: Sequence[int]) -> None:
        """Removes all faces of these subjects."""
        for start in range(0, len(subjects), KEYS_AT_ONCE):
            some = [int(key) for key in subjects[start : start + KEYS_AT_ONCE]]
            with self._translated():
                self._client.delete(
                    name, filter=f"subject in {some}", consistency_level="Strong", timeout=self._timeout_s
                )

    def which(self, name: str, faces: Sequence[int]) -> set[int]:
        """Those of `faces` that are in."""
        found: set[int] = set()
        for start in range(0, len(faces), KEYS_AT_ONCE):
            some = [int(key) for key in faces[start : start + KEYS_AT_ONCE]]
            found |= {row["face"] for row in self._query(name, f"face in {some}", ["face"])}
        return found

    def blocks(self, name: str, after: int, until: int | None, dimension: int) -> Iterator[FaceBlock]:
        """Faces with keys above `after`, up to `until`, in order of their keys, as many at a time as fit a message;
        without their qualities, which Milvus doesn't hold."""
        upto = "" if until is None else f" and face <= {until}"
        with self._translated():
            rows = self._client.query_iterator(
                name,
                batch_size=max(1, min(FETCH_MAX, BLOCK_BYTES // (dimension * 4))),
                filter=f"face > {after}{upto}",
                output_fields=["face", "subject", "vector"],
                consistency_level="Strong",
                timeout=self._timeout_s,
            )
        try:
            while some := self._next(rows):
                yield FaceBlock(
                    np.array([row["face"] for row in some], np.int64),
                    np.array([row["subject"] for row in some], np.int64),
                    np.zeros(len(some), np.float32),
                    np.array([row["vector"] for row in some], np.float32).reshape(len(some), dimension),
                )
        finally:
            rows.close()

    def search(self, name: str, probes: Vectors, fetch: int, without: Sequence[int] = ()) -> list[list[Found]]:
        """For each probe, (Q, D) float32, the `fetch` faces with the highest scores, or one more, best first; none of
        the subjects `without`. Fewer than `fetch` (less than FETCH_MAX) only where there are no others."""
        params = {"ef": max(EF_MIN, 2 * fetch)} if self._kind == "HNSW" else {}
        with self._translated():
            results = self._client.search(
                name,
                data=list(probes),
                anns_field="vector",
                filter=f"subject not in {[int(key) for key in without]}" if len(without) else "",
                limit=fetch + 1,  # the mark may be among them
                output_fields=["subject"],
                search_params={"metric_type": "IP", "params": params},
                consistency_level="Strong",
                timeout=self._timeout_s,
            )
        return [
            [Found(int(hit.id), int(hit["entity"]["subject"]), float(hit.distance)) for hit in hits if hit.id != MARK]
            for hits in results
        ]

    # How far it has followed

    def position(self, name: str) -> Position | None:
        """The place in the change log up to which the collection holds everything; None where it doesn't say."""
        rows = self._query(name, f"face in [{MARK}]", ["position"])
        match = re.fullmatch("([0-9]+):([0-9]+)", rows[0]["position"]) if rows else None
        return Position(int(match[1]), int(match[2])) if match else None

    def mark(self, name: str, position: Position, dimension: int) -> None:
        """Says that the collection holds everything up to `position`."""
        row = _row(MARK, 0, np.zeros(dimension, np.float32)) | {"position": f"{position.number}:{position.stamp}"}
        self._upsert(name, [row])

    # Inside

    @property
    def _index_params(self) -> dict[str, int]:
        return dict(HNSW) if self._kind == "HNSW" else {}

    def _upsert(self, name: str, rows: list[dict[str, object]]) -> None:
        with self._translated():
            self._client.upsert(name, rows, timeout=self._timeout_s)

    def _query(self, name: str, which: str, fields: list[str]) -> list[dict[str, Any]]:
        with self._translated():
            found = self._client.query(
                name, filter=which, output_fields=fields, consistency_level="Strong", timeout=self._timeout_s
            )
        return list(found)

    def _next(self, rows: Any) -> list[dict[str, Any]]:
        with self._translated():
            return list(rows.next())

    @contextmanager
    def _translated(self, *, whatever: bool = False) -> Iterator[None]:
        """Milvus's troubles as errors of ours; its own text stays in the cause, for the log. Nothing is tried, but with
        `whatever`, while Milvus doesn't answer: callers would queue up behind each other's waiting."""
        import grpc  # noqa: PLC0415 - comes with pymilvus

        if not self._available and not whatever:
            raise _unavailable()
        try:
            yield
        except self._module.MilvusException as error:
            if error.code in {NOT_FOUND, NOT_LOADED, NOT_FULLY_LOADED}:
                raise CollectionLost("Milvus has lost a collection.", code="index_unavailable") from error
            raise _unavailable() from error
        except (grpc.RpcError, grpc.FutureTimeoutError, OSError) as error:
            raise _unavailable() from error


def _row(face: int, subject: int, vector: object) -> dict[str, object]:
    return {"face": face, "subject": subject, "position": "", "vector": vector}


def _unavailable() -> Unusable:
    return Unusable("Milvus, where vectors are searched, can't be used at the moment.", code="index_unavailable")
