"""How a liveness model's answer depends on the face's box, and what it says of prints that are only simulated.

All photos are taken as live. Half of the people choose a threshold, the other half is reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from app.calibration.intervals import Bools, Floats, Interval, people_weights, percentile_interval, wilson
from app.face.liveness import Scorer, cut_face
from app.pipeline import Pipeline, choose_face
from app.types import Box, Pixels
from training.evaluation.stages.degraded_copies import png

JITTER = 0.1
"""By how much a box is made larger or smaller and moved along each axis, at most, in its own sides."""
DRAWS = 4
"""Jittered boxes of each face."""
TARGET = 0.05
"""BPCER on the choosing half, by which the threshold is taken."""


@dataclass(frozen=True, slots=True)
class FaceScores:
    """The scores of one photo: as detected, with jittered boxes, and of its simulated print; None: no face in it."""

    name: str
    plain: float
    jittered: tuple[float, ...]
    printed: float | None


@dataclass(frozen=True, slots=True)
class Study:
    """Figures of the reporting half at the threshold that the other half chose."""

    threshold: float
    chosen_on: int
    reported_on: int
    bpcer: Interval
    bpcer_jittered: Interval
    """Of single answers: each face has `DRAWS` of them, in a bootstrap over faces."""
    flipped: Interval
    """Share of faces that have both answers among the plain box and the jittered ones."""
    prints: int
    apcer_printed: Interval
    """Simulated prints taken for live."""


def study_face(name: str, pixels: Pixels, pipeline: Pipeline, scorer: Scorer, seed: int) -> FaceScores | None:
    """Score one (H, W, 3) uint8 RGB photo; None if no face is found in it."""
    rng = np.random.default_rng([seed, *name.encode()])
    box = _face_box(pixels, pipeline)
    if box is None:
        return None
    boxes = [box, *(jittered(box, rng) for _ in range(DRAWS))]
    plain, *others = scorer.score([[cut_face(pixels, each, cut) for cut in scorer.cuts] for each in boxes])
    copy = printed(pixels, rng)
    found = _face_box(copy, pipeline)
    again = None if found is None else scorer.score([[cut_face(copy, found, cut) for cut in scorer.cuts]])[0]
    return FaceScores(name, plain, tuple(others), again)


def _face_box(pixels: Pixels, pipeline: Pipeline) -> Box | None:
    photo = pipeline.detect(png(pixels))
    return photo.faces[choose_face(photo).index].detection.box if photo.faces else None


def jittered(box: Box, rng: np.random.Generator) -> Box:
    """Return a box of up to `JITTER` more or less size, moved by up to `JITTER` of its sides."""
    larger, across, down = rng.uniform(-JITTER, JITTER, 3)
    width, height = box.width * (1 + larger), box.height * (1 + larger)
    centre_x, centre_y = box.x + box.width * (0.5 + across), box.y + box.height * (0.5 + down)
    return Box(centre_x - width / 2, centre_y - height / 2, width, height)


PAPER, INK = 0.93, 0.12
"""Reflectance of white paper and of black ink: a print's contrast is lower than a screen's or a face's."""
DOTS = 1.9
"""Pitch of the halftone in pixels of the photographed print: near the camera's grid, so that moiré appears."""
LEAN = 0.06
"""By how much of a side each corner of the paper is off, at most: the paper is held at an angle."""


def printed(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Simulate a photo of a print of (H, W, 3) uint8 RGB: halftone, paper, perspective, blur, noise.

    A simulation: no print was made and no camera used, so that real prints may be judged otherwise.
    """
    rows, columns = pixels.shape[:2]
    ink = pixels.astype(np.float32) / 255
    dots = np.stack([_screen(rows, columns, math.radians(angle)) for angle in (15, 75, 0)], axis=2)
    screened = np.clip(ink + 0.16 * dots, 0, 1)  # the printer's dots, softened as paper softens them
    paper = 1 + 0.03 * _grain(rows, columns, rng)[:, :, None]
    sheet = (INK + (PAPER - INK) * screened) * paper * (1.0, 0.985, 0.955)  # paper under room light is warmer
    corners = np.array([[0, 0], [columns, 0], [columns, rows], [0, rows]], np.float32)
    shift = rng.uniform(-LEAN, LEAN, (4, 2)) * (columns, rows)
    matrix = cv2.getPerspectiveTransform(corners, (corners + shift).astype(np.float32))
    held = cv2.warpPerspective(sheet.astype(np.float32), matrix, (columns, rows), borderMode=cv2.BORDER_REPLICATE)
    light = np.linspace(0.92, 1.05, columns, dtype=np.float32)[None, :, None]
    seen = cv2.GaussianBlur(held * light, (0, 0), 0.7) + rng.normal(0, 0.008, held.shape)
    return np.asarray(np.clip(seen * 255, 0, 255), np.uint8)


def _screen(rows: int, columns: int, angle: float) -> Floats:
    """Return one colour's halftone pattern, -1 to 1."""
    y, x = np.mgrid[0:rows, 0:columns]
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    pattern: Floats = np.cos(2 * np.pi * along / DOTS) * np.cos(2 * np.pi * across / DOTS)
    return pattern


def _grain(rows: int, columns: int, rng: np.random.Generator) -> Floats:
    smooth = np.asarray(cv2.GaussianBlur(rng.normal(0, 1, (rows, columns)), (0, 0), 1.2), np.float64)
    grain: Floats = smooth / smooth.std()
    return grain


def halves(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return one photo of every person, people dealt alternately in the order of their names."""
    first = {name.partition("/")[0]: name for name in sorted(names, reverse=True)}
    people = [first[person] for person in sorted(first)]
    return people[::2], people[1::2]


def conclude(chosen: Sequence[FaceScores], reported: Sequence[FaceScores], *, rounds: int, seed: int) -> Study:
    """Choose the threshold with BPCER `TARGET` on one half; return the figures of the other."""
    rising = np.sort([one.plain for one in chosen])
    threshold = float(rising[math.floor(TARGET * len(rising))])
    plain = np.array([one.plain for one in reported]) < threshold
    draws = np.array([one.jittered for one in reported]) < threshold
    prints = np.array([one.printed for one in reported if one.printed is not None]) >= threshold
    both = (draws != plain[:, None]).any(axis=1)
    return Study(
        threshold=threshold,
        chosen_on=len(chosen),
        reported_on=len(reported),
        bpcer=_share(plain),
        bpcer_jittered=_mean_share(draws, rounds=rounds, seed=seed),
        flipped=_share(both),
        prints=len(prints),
        apcer_printed=_share(prints),
    )


def _share(happened: Bools) -> Interval:
    return wilson(int(happened.sum()), len(happened))


def _mean_share(happened: Bools, *, rounds: int, seed: int) -> Interval:
    """Return the share of (N, D) answers with its interval over N faces."""
    by_face = happened.mean(axis=1)
    weights = people_weights(len(by_face), rounds, seed)
    return percentile_interval(float(by_face.mean()), weights @ by_face / len(by_face))
