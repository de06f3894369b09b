"""Training data: crops decoded a second, and what a set's size costs a rank up to its first step."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from app.config import PROJECT
from bench.figures import Curve, Figure, Goal, compared
from bench.run import Run
from training.evaluation.speed.contest import Spread

PART = "data"
BATCH = 64
PEOPLE = 10_000
"""In every generated set, so that the head of the run has the same size."""
FLAT = Goal(1.25, at_most=True)
AT_ONCE = 100_000
ALONE, OPENCV = "decoding the JPEGs alone (Pillow)", "decoding the JPEGs alone (OpenCV)"


def measure(run: Run) -> None:
    try:
        from training.data import open_dataset  # noqa: PLC0415 - training is an extra of its own
        from training.data.crops import Crops, open_pixels  # noqa: PLC0415
        from training.data.loader import BatchKey, BatchSource  # noqa: PLC0415
    except ImportError:
        run.note("data: training is not installed (likeness[train])")
        return
    with tempfile.TemporaryDirectory() as folder:
        run.say("crops a second")
        jpegs = [_jpeg(crop) for crop in run.stages.crops]
        _write_tar(Path(folder, "crops.tar"), jpegs)
        faces = open_dataset(Path(folder, "crops.tar"))
        source = BatchSource(
            Crops(open_pixels(faces, None), np.arange(len(faces)), faces.labels, faces.people), 1, None
        )
        places = cycle(range(len(faces)))
        speeds = run.contest(
            {
                "ours": lambda: len(source[BatchKey(0, 0, tuple(next(places) for _ in range(BATCH)))].labels),
                ALONE: _decoding(jpegs, lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))),
                OPENCV: _decoding(jpegs, lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)),
            }
        )
        work = "crops read from a tar, decoded, mirrored, as batches, on one core"
        for against in (ALONE, OPENCV):
            run.add(compared(PART, work, speeds, "ours", against, unit="crops/s"))
        _growth(run, Path(folder))


def _jpeg(crop: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "JPEG", quality=95)
    return file.getvalue()


def _write_tar(path: Path, jpegs: list[bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, data in enumerate(jpegs):
            info = tarfile.TarInfo(f"{number}/0.jpg")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def _decoding(jpegs: list[bytes], decode: Callable[[bytes], np.ndarray | None]) -> Callable[[], int]:
    places = cycle(jpegs)

    def work() -> int:
        for _ in range(BATCH):
            decode(next(places))
        return BATCH

    return work


def _growth(run: Run, folder: Path) -> None:
    """Measure a rank on sets of growing size, in turns: seconds and memory to the first step, once they are indexed."""
    sizes = run.effort.records
    indexed: dict[int, float] = {}
    for size in sizes:
        run.say(f"a set of {size:,} records")
        write_records(folder / f"{size}.rec", size)
        indexed[size] = _rank(folder, size)["open_s"]
    rounds = [{size: _rank(folder, size) for size in sizes} for _ in range(run.effort.rounds)]
    for name, what, unit in (("first_step_s", "time to the first step", "s"), ("memory_mb", "own memory", "MB")):
        costs = {size: [one[size][name] for one in rounds] for size in sizes}
        middle = [float(np.median(costs[size])) for size in sizes]
        work, against = f"{what} of a rank on {sizes[-1]:,} records", f"the same on {sizes[0]:,}"
        ratios = Spread.of(np.divide(costs[sizes[-1]], costs[sizes[0]]))
        details = {f"{name}_at_{size}": value for size, value in zip(sizes, middle, strict=True)}
        details |= {f"index_s_at_{size}": seconds for size, seconds in indexed.items()}
        details |= {f"open_s_at_{size}": float(np.median([one[size]["open_s"] for one in rounds])) for size in sizes}
        run.add(Figure(PART, work, middle[-1], unit, against, ratios, FLAT, details))
        run.draw(Curve(f"data-{name}", what, sizes, middle, "records in the set", unit))


def _rank(folder: Path, size: int) -> dict[str, float]:
    source, indexes = folder / f"{size}.rec", folder / f"indexes-{size}"
    command = [sys.executable, "-m", "bench.contenders.rank", str(source), str(indexes)]
    done = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)  # noqa: S603 - our own module
    costs: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return costs


def write_records(rec: Path, count: int) -> None:
    """Write a `.rec` file with its `.idx`: one tiny grey image again and again, of PEOPLE people in turn."""
    file = io.BytesIO()
    Image.new("L", (16, 16), 128).save(file, "PNG")
    image = file.getvalue()
    length = 24 + len(image)
    record = struct.pack("<IIIfQQ", 0xCED7230A, length, 0, 0.0, 0, 0) + image + bytes(-length % 4)
    with rec.open("wb") as records, rec.with_suffix(".idx").open("w", encoding="ascii") as index:
        for start in range(0, count, AT_ONCE):
            numbers = np.arange(start, min(start + AT_ONCE, count))
            rows = np.tile(np.frombuffer(record, np.uint8), (len(numbers), 1))
            rows[:, 12:16] = (numbers % PEOPLE).astype("<f4").view(np.uint8).reshape(-1, 4)
            rows.tofile(records)
            index.writelines(f"{number + 1}\t{number * len(record)}\n" for number in numbers.tolist())
