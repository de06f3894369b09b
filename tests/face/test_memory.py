"""The memory that a photo takes, format by format: its peak in a process of its own, against what it counts as."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from app.face.formats import BYTES_A_PIXEL, UNBOUNDED, format_of
from tests.support.images import encoded, every_kind

pytestmark = pytest.mark.long
SIDE = 2100
"""So many pixels that a photo is costly, and what finding faces takes of any is in what it counts as."""
PHOTOS = {name: make for name, make in every_kind(SIDE).items() if not name.startswith(("heic", "avif"))}

PROGRAM = """
import os, re, sys
from pathlib import Path
from app.face.detect import Detector
from app.face.formats import Limits
from app.face.image import decode
from app.pipeline import Pipeline

LIMITS = Limits(max_bytes=1 << 30)
def memory(what):
    return int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
def finding(path, min_face):
    pipeline = Pipeline(Detector(Path(sys.argv[2]), min_face=min_face), LIMITS)
    pipeline.detect(path.with_name("small PNG").read_bytes())
    data = path.read_bytes()
    before = memory("VmRSS")
    pipeline.detect(data)
    return memory("VmHWM") - before
files = sorted(Path(sys.argv[1]).iterdir())
for path in files:  # what libraries load and keep when they are first used
    if path.name.startswith("small"):
        decode(path.read_bytes(), LIMITS)
def measure(path):
    if not os.fork():  # which begins with a peak of its own
        print(path.name, finding(path, 20), sep="\\t", flush=True)
        os._exit(0)
    os.wait()
for path in files:
    if not path.name.startswith("small"):
        measure(path)
"""


@pytest.fixture(scope="module")
def peaks(yunet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The bytes that each photo took, from its file to its faces."""
    folder = tmp_path_factory.mktemp("photos")
    for name, make in PHOTOS.items():
        (folder / name).write_bytes(photo := make())
        assert format_of(photo) not in UNBOUNDED
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "GIF"):
        (folder / f"small {kind}").write_bytes(encoded(Image.new("RGB", (64, 64)), kind))
    command = [sys.executable, "-c", PROGRAM, str(folder), str(yunet)]
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # what is freed counts no longer
    done = subprocess.run(command, env=at_once, capture_output=True, text=True, check=True, timeout=1800)
    return {name: int(size) for name, _, size in (line.partition("\t") for line in done.stdout.splitlines())}


@pytest.mark.parametrize("name", PHOTOS)
def test_a_photo_takes_no_more_than_it_counts_as(name: str, peaks: dict[str, int]) -> None:
    assert peaks[name] <= BYTES_A_PIXEL * SIDE**2
