"""Draw heads that turn and come nearer, as a camera would see them."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from functools import cache

import cv2
import numpy as np
from PIL import Image

from app.choices import Step
from tests.support.service import COLLINS, HOPPER, encoded
from training.data.drawn import ProceduralFaces, View, draw

HEIGHT, WIDTH = 480, 640
GREY = 200
TURN = 28.0
"""Degrees of yaw to the person's right or left."""
FAR, NEAR = 1.6, 2.4
"""Size of the head, in crops of 112 pixels."""
SOMEBODY, ANOTHER = 25, 28
"""Drawn people whose turned heads YuNet finds. SFace takes them for two people (0.30; default threshold 0.42)."""
_PEOPLE = ProceduralFaces(40, 1, 3)
_STILL = replace(
    View.random(np.random.default_rng(5)),
    yaw=0.0,
    pitch=0.0,
    roll=0.0,
    jitter=np.zeros((5, 2)),
    smile=0.1,
    open_mouth=0.0,
    open_eyes=1.0,
    gaze=np.zeros(2),
    light=np.array([0.0, 0.0, 1.0]),
    contrast=0.2,
    background=np.full((1, 1, 3), GREY, np.uint8),
    blur=0.0,
    noise=1.0,
)


@cache
def frame(step: Step, person: int = SOMEBODY) -> bytes:
    """Return a PNG of the person as the step of a challenge requires."""
    yaw = {"right": -TURN, "left": TURN}.get(step, 0.0)
    side = int(112 * (NEAR if step == "nearer" else FAR))
    crop = draw(_PEOPLE.person(person), replace(_STILL, yaw=math.radians(yaw)))
    seen = np.full((HEIGHT, WIDTH, 3), GREY, np.uint8)
    top, left = (HEIGHT - side) // 2, (WIDTH - side) // 2
    seen[top : top + side, left : left + side] = cv2.resize(crop, (side, side), interpolation=cv2.INTER_CUBIC)
    return encoded(seen)


def blank() -> bytes:
    """Return a PNG of nobody."""
    return encoded(np.full((HEIGHT, WIDTH, 3), GREY, np.uint8))


def rolled(step: Step) -> bytes:
    """Return a PNG of a real photo, turned in its plane so that its made-up landmarks are those of a turned head."""
    with Image.open(io.BytesIO(HOPPER)) as photo:
        print_ = np.array(photo.convert("RGB").resize((320, 320)))
    matrix = cv2.getRotationMatrix2D(
        (160, 160), {"right": -46, "left": 43}.get(step, 0), 1.4 if step == "nearer" else 1
    )
    matrix[:, 2] += np.array([WIDTH / 2 - 160, HEIGHT / 2 - 160])
    seen = cv2.warpAffine(print_, matrix, (WIDTH, HEIGHT), borderValue=(GREY, GREY, GREY))
    return encoded(np.asarray(seen, np.uint8))


def held_up(step: Step) -> bytes:
    """Return a PNG of a real photo tilted and moved as the step requires, from a camera two of its widths away."""
    with Image.open(io.BytesIO(COLLINS)) as photo:
        print_ = np.array(photo.convert("RGB").resize((320, 320)))
    tilt = math.radians({"right": 45, "left": -45}.get(step, 0))
    size = 1.4 if step == "nearer" else 1.0
    corners = np.array([[-160, -160], [160, -160], [160, 160], [-160, 160]], np.float32)
    depth = 640 / (640 + corners[:, :1] * math.sin(tilt))
    turned = np.hstack([corners[:, :1] * math.cos(tilt), corners[:, 1:]]) * depth * size + (WIDTH / 2, HEIGHT / 2)
    matrix = cv2.getPerspectiveTransform(corners + 160, turned.astype(np.float32))
    seen = cv2.warpPerspective(print_, matrix, (WIDTH, HEIGHT), borderValue=(GREY, GREY, GREY))
    return encoded(np.asarray(seen, np.uint8))
