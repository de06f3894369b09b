"""Generate people for galleries of any size, and put them into a server."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Sequence

import httpx
import numpy as np

from app.errors import Unusable
from app.types import Vectors
from bench.server import Server

AT_ONCE = 100_000
"""Templates in one import."""
KNOWN = 200
"""Number of people in the gallery whose photos are sent; each is enrolled by a request."""
POLL_S = 0.05
MATED_COSINE = 0.6
"""Cosine of a mated probe and its enrolled face, about what SFace gives for two photos of a person."""


def people(count: int, dimension: int, seed: int = 1) -> Vectors:
    """Return (count, dimension) random unit vectors, which don't resemble each other."""
    generator = np.random.default_rng(seed)
    made: Vectors = generator.standard_normal((count, dimension), dtype=np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def probes(enrolled: Vectors, count: int, seed: int = 2) -> Vectors:
    """Return (count, D) probes: every other one resembles an enrolled face as another photo of that person would; the
    rest resemble none.
    """
    strangers = people(count, enrolled.shape[1], seed)
    whose = np.random.default_rng(seed).integers(0, len(enrolled), count)
    alike = MATED_COSINE * enrolled[whose] + np.sqrt(1 - MATED_COSINE**2, dtype=np.float32) * strangers
    alike /= np.linalg.norm(alike, axis=1, keepdims=True)
    return np.ascontiguousarray(np.where(np.arange(count)[:, None] % 2 == 0, alike, strangers), np.float32)


def create(client: httpx.Client, gallery: str, *, store: str = "none", **more: object) -> None:
    client.post("/v1/galleries", json={"id": gallery, "store": store, **more}).raise_for_status()


def enroll_photos(client: httpx.Client, gallery: str, photos: Sequence[bytes]) -> None:
    """Enroll each photo's first face as a separate subject, with any quality."""
    for number, photo in enumerate(photos):
        path = f"/v1/galleries/{gallery}/subjects/person-{number}/faces"
        client.post(path, params={"quality": "none", "face": 0}, files={"images": photo}).raise_for_status()


def enroll_strangers(client: httpx.Client, gallery: str, package: str, templates: Vectors) -> float:
    """Enroll each template as a subject by bulk imports; return the seconds until the last one could be found."""
    begin = time.perf_counter()
    for start in range(0, len(templates), AT_ONCE):
        part = templates[start : start + AT_ONCE]
        ids = "".join(f"stranger-{start + number}\n" for number in range(len(part)))
        answer = client.post(
            f"/v1/galleries/{gallery}/import",
            params={"content": "templates", "package": package},
            headers={"content-type": "application/x-tar"},
            content=_tar({"templates.npy": _npy(part), "ids.txt": ids.encode()}),
        ).raise_for_status()
        finish(client, answer.json()["id"])
    return time.perf_counter() - begin


def finish(client: httpx.Client, job: str) -> dict[str, object]:
    """Wait for a job. Raises Unusable ``bench_failed`` if it doesn't succeed."""
    while (found := client.get(f"/v1/jobs/{job}").raise_for_status().json())["state"] in {"queued", "running"}:
        time.sleep(POLL_S)
    if found["state"] != "done" or found.get("counts", {}).get("refused"):
        raise Unusable(f"a job of the benchmark ended as {found['state']}: {found}", code="bench_failed")
    result: dict[str, object] = found
    return result


def filled(server: Server, gallery: str, package: str, photos: Sequence[bytes], templates: Vectors) -> None:
    """Create a gallery with a person per template: the first `KNOWN` are from photos, the others are strangers."""
    known = photos[:KNOWN]
    with server.client() as client:
        create(client, gallery)
        enroll_photos(client, gallery, known)
        enroll_strangers(client, gallery, package, templates[len(known) :])


def _npy(vectors: Vectors) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, vectors)
    return buffer.getvalue()


def _tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
