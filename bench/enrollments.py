"""Acknowledged enrollments a second of sixteen threads on SQLite: templates and no photos, so that the writing counts.

    nice -n 19 python -m bench.enrollments

Each enrollment is of one face for a subject of its own. A line a turn: enrollments a second, and the processor time of
each in milliseconds, which other programs on the machine change least. Run two versions' turns one after the other.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

import numpy as np

from app.gallery.records import NewFace
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.types import Box, Quality, Template

THREADS, DIMENSION, PACKAGE = 16, 128, "sface@1"
TURNS, SECONDS = 6, 4.0


def enrollments(seconds: float) -> tuple[float, float]:
    """Return the enrollments a second into a new gallery, and the processor time of each in milliseconds."""
    done: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        galleries = Galleries(Store(f"sqlite:///{Path(folder) / 'likeness.db'}"))
        galleries.create_gallery("many", PACKAGE, DIMENSION, store="none")
        begun, used = time.monotonic(), time.process_time()

        def work(thread: int) -> None:
            generator = np.random.default_rng(thread)
            for number in count():
                if time.monotonic() > begun + seconds:
                    return
                vector = generator.standard_normal(DIMENSION, dtype=np.float32)
                template = Template(vector / np.linalg.norm(vector), PACKAGE)
                face = NewFace(template, Quality(80.0, ()), Box(0, 0, 1, 1))
                done.append(galleries.enroll("many", f"s{thread}-{number}", [face]).subject.id)

        threads = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, used = time.monotonic() - begun, time.process_time() - used
        galleries.close()
    return len(done) / took, used / len(done) * 1000


if __name__ == "__main__":
    for _ in range(TURNS):
        rate, each_ms = enrollments(SECONDS)
        sys.stdout.write(f"{rate:.0f}/s  {each_ms:.3f} ms\n")
