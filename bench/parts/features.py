"""The cost of single features: bulk import and export, encryption at rest, AWS signatures."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping

from app.compat.rekognition import sigv4
from app.compat.rekognition.sigv4 import SignedRequest
from app.db.encryption import Sealer, new_key
from app.db.sealed_columns import Blobs
from bench import galleries
from bench.figures import Figure, compared
from bench.run import Run
from training.evaluation.speed.contest import Speeds

PART, GALLERY = "features", "bench"
BLOBS = 256
"""Templates encrypted or decrypted per call."""
MIB = 1 << 20
SECRET, ACCESS_KEY, REGION = "bench", "AKIABENCH", "eu-west-1"
SIGNED = "content-type;host;x-amz-date;x-amz-target"


def measure(run: Run) -> None:
    _many(run)
    _sealing(run)
    _signatures(run)


def _many(run: Run) -> None:
    """Measure templates per second through an import and an export, as jobs over HTTP."""
    faces = run.effort.rival_faces
    templates = galleries.people(faces, run.stages.dimension)
    with run.server() as server, server.client() as client:
        galleries.create(client, GALLERY)
        run.say(f"an import of {faces:,}")
        imported = galleries.enroll_strangers(client, GALLERY, run.stages.package.id, templates)
        peak = server.peak_memory()
        run.say("an export of all")
        begin = time.perf_counter()
        job = client.post(f"/v1/galleries/{GALLERY}/export").raise_for_status().json()["id"]
        galleries.finish(client, job)
        exported = time.perf_counter() - begin
    work = f"{faces:,} templates over HTTP, SQLite"
    run.add(
        Figure(PART, f"import of {work}, searchable", faces / imported, "faces/s", details={"seconds": imported}),
        Figure(PART, "the server's peak memory after it", peak / 1e6, "MB"),
        Figure(PART, f"export of {work}", faces / exported, "faces/s", details={"seconds": exported}),
    )


def _sealing(run: Run) -> None:
    """Measure storing a template as plain bytes and encrypted with AES-256-GCM."""
    template = galleries.people(1, run.stages.dimension)[0].tobytes()
    names = [f"{number:032x}" for number in range(BLOBS)]
    blobs = Blobs(Sealer([new_key()]))
    sealed = [blobs.pack("template", name, template) for name in names]

    def seal() -> int:
        return len([blobs.pack("template", name, template) for name in names])

    def unseal() -> int:
        return len([blobs.unpack("template", name, each) for name, each in zip(names, sealed, strict=True)])

    def plain() -> int:
        empty = Blobs()
        return len([empty.unpack("template", name, template) for name in names])

    speeds = run.contest({"seal": seal, "open": unseal, "plain": plain})
    details = {"bytes_plain": len(template), "bytes_sealed": len(sealed[0])}
    run.add(
        _each("sealing a template", speeds, "seal", details),
        _each("opening a sealed template", speeds, "open", details),
        compared(PART, "opening a sealed template", speeds, "open", "plain", unit="templates/s"),
    )


def _signatures(run: Run) -> None:
    """Measure reading and checking the AWS Signature Version 4 of a Rekognition request, on one thread with the key in
    memory.
    """
    small, large = b"{}", bytes(MIB)
    request, now = signed(small)
    key = sigv4.signing_key(SECRET, time.strftime("%Y%m%d", time.gmtime(now)), REGION)

    def check(body: bytes) -> Callable[[], int]:
        whole, at = signed(body)

        def once() -> int:
            hashed = hashlib.sha256(body).hexdigest()
            claim = sigv4.read_claim(whole, at)
            sigv4.check_body(whole, hashed)
            return int(sigv4.is_signed_with(key, claim, whole, hashed))

        return once

    def derive() -> int:
        return len(sigv4.signing_key(SECRET, "20260101", REGION)) // 32

    speeds = run.contest({"small": check(small), "large": check(large), "derive": derive})
    run.add(
        _each("checking a signature", speeds, "small", {"headers": len(request.headers)}),
        _each("checking a signature over 1 MiB", speeds, "large", {}),
        _each("deriving a signing key", speeds, "derive", {}),
    )


def signed(body: bytes) -> tuple[SignedRequest, float]:
    """Return a request with a valid signature, and the time it was signed."""
    now = float(int(time.time()))
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    headers = [
        (b"content-type", b"application/x-amz-json-1.1"),
        (b"host", b"localhost"),
        (b"x-amz-date", stamp.encode()),
        (b"x-amz-target", b"RekognitionService.SearchFacesByImage"),
    ]
    plain = SignedRequest.of("POST", "/", b"", headers)
    canonical = sigv4.canonical_request(plain, SIGNED.split(";"), hashlib.sha256(body).hexdigest())
    scope = f"{stamp[:8]}/{REGION}/{sigv4.SERVICE}/{sigv4.TERMINATOR}"
    text = f"{sigv4.ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical).hexdigest()}"
    signature = hmac.new(sigv4.signing_key(SECRET, stamp[:8], REGION), text.encode(), "sha256").hexdigest()
    fields = f"Credential={ACCESS_KEY}/{scope}, SignedHeaders={SIGNED}, Signature={signature}"
    authorization = (b"authorization", f"{sigv4.ALGORITHM} {fields}".encode())
    return SignedRequest.of("POST", "/", b"", [*headers, authorization]), now


def _each(work: str, speeds: Speeds, name: str, details: Mapping[str, object]) -> Figure:
    return Figure(PART, work, 1e6 / speeds.of(name).median, "µs", details=details)
