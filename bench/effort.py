"""How much work a run does to measure: the whole run and the quick one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """``rounds`` of each comparison, ``turn_s`` of each turn in one, ``seconds`` of each load on a server; how many
    ``photos`` are sent, so many that few are enrolled twice; people in the ``gallery`` that is searched by photos;
    ``faces`` in the largest index; ``growth``, the sizes of gallery at which costs are compared; ``starts`` of a
    server; ``widths`` of the photos that faces are found in, in pixels; ``batches`` of faces that a device gets."""

    rounds: int
    turn_s: float
    seconds: float
    photos: int
    gallery: int
    faces: int
    growth: tuple[int, ...]
    starts: int
    widths: tuple[int, ...]
    batches: tuple[int, ...]


WHOLE = Effort(
    rounds=7,
    turn_s=0.3,
    seconds=4.0,
    photos=2_500,
    gallery=10_000,
    faces=1_000_000,
    growth=(1_000, 10_000, 100_000, 1_000_000),
    starts=7,
    widths=(250, 640, 1280, 4000),
    batches=(1, 4, 16, 64, 256),
)
QUICK = Effort(
    rounds=3,
    turn_s=0.1,
    seconds=1.5,
    photos=60,
    gallery=10_000,
    faces=200_000,
    growth=(1_000, 10_000, 50_000),
    starts=3,
    widths=(250, 640, 1280),
    batches=(1, 4, 16),
)
