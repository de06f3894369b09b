"""Measure whole photos from sixteen clients over HTTP, in turns with the stages alone and with other software."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import galleries
from bench.callers import Reel
from bench.contenders import embedding, recognising
from bench.figures import PEER, PEER_IDENTIFY, PEER_VERIFY, Goal, compared
from bench.load import Target, closed_loop
from bench.run import CLIENTS, Run
from bench.stages import EMBEDDER

PART, GALLERY = "serve", "bench"
BOUNDARY = b"likeness-bench"
RAW, NAIVE = "the stages alone (raw limit)", "one photo, face and search at a time"
RAW_MAIN = "the stages alone, a face a photo (raw limit)"
SAMPLE = "OpenCV's own sample"


def measure(run: Run) -> None:
    stages, effort = run.stages, run.effort
    generated = galleries.people(effort.gallery, stages.dimension)
    batch = embedding.best_batch(run)
    own_cpu: dict[str, list[float]] = {"identify": [], "verify": []}
    with run.server() as server, tempfile.TemporaryDirectory() as folder:
        run.say(f"a gallery of {effort.gallery:,}")
        galleries.filled(server, GALLERY, stages.package.id, stages.photos, generated)
        identify = [identification(server.target, GALLERY, photo) for photo in stages.photos]
        pairs = zip(stages.photos, [*stages.photos[1:], stages.photos[0]], strict=True)
        verify = [verification(server.target, *pair) for pair in pairs]
        ways = {
            "identify": sent(server.target, identify, effort.seconds, own_cpu["identify"]),
            "verify": sent(server.target, verify, effort.seconds, own_cpu["verify"]),
            RAW: recognising.raw_limit(stages, batch, effort.seconds),
            RAW_MAIN: recognising.raw_limit(stages, batch, effort.seconds, wanted=recognising.main_face),
            NAIVE: recognising.naive(stages, generated),
        }
        if stages.package.manifest.name == EMBEDDER:
            ways[SAMPLE] = recognising.opencv_sample(stages, Path(folder))
        else:
            run.note(f"{SAMPLE}: it runs SFace alone")
        speeds = run.contest(ways, effort.seconds)
    photos_a_s = speeds.times("verify", 2)  # a pair is two
    details = {name: {"generator_cores": sum(spent) / len(spent)} for name, spent in own_cpu.items()}
    who = f"identify, {CLIENTS} clients, {effort.gallery:,} people"
    both = f"verify, {CLIENTS} clients"
    about, pair = details["identify"] | {"batch": batch}, details["verify"] | {"batch": batch}
    run.add(
        compared(PART, who, speeds, "identify", RAW, unit="photos/s", goal=Goal(0.85), details=about),
        compared(PART, who, speeds, "identify", NAIVE, unit="photos/s", goal=Goal(2), details=about),
        *(
            compared(PART, who, speeds, "identify", name, unit="photos/s", details=about)
            for name in ways
            if name == SAMPLE
        ),
        compared(PART, both, photos_a_s, "verify", RAW_MAIN, unit="photos/s", goal=Goal(0.85), details=pair),
        compared(
            PART,
            who,
            speeds,
            "identify",
            PEER,
            published=PEER_IDENTIFY,
            unit="photos/s",
            goal=Goal(4),
            details={"their_gallery": 1000},
        ),
        compared(PART, both, speeds, "verify", PEER, published=PEER_VERIFY, unit="pairs/s", goal=Goal(4)),
    )


def identification(target: Target, gallery: str, photo: bytes) -> bytes:
    return target.request("POST", f"/v1/galleries/{gallery}/identify", photo)


def verification(target: Target, first: bytes, second: bytes) -> bytes:
    line = b"--" + BOUNDARY
    part = b'\r\nContent-Disposition: form-data; name="%s"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n%s\r\n'
    body = line + part % (b"image1", first) + line + part % (b"image2", second) + line + b"--\r\n"
    return target.request("POST", "/v1/verify", body, f"multipart/form-data; boundary={BOUNDARY.decode()}")


def sent(target: Target, requests: list[bytes], seconds: float, own_cpu: list[float]) -> Callable[[], int]:
    """Let all clients send the same requests in turn; ``own_cpu`` gets the processor time, in cores, of the load
    generator.
    """
    reel = Reel(requests)

    def turn() -> int:
        load = closed_loop(target, lambda _client: reel.endless(), CLIENTS, seconds).checked()
        own_cpu.append(load.own_cpu_s / load.elapsed_s)
        return len(load.seconds)

    return turn
