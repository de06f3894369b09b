"""Who is drawn, and how it is photographed: the parameters behind `training.data.drawn`, drawn by lot.

Lengths are pixels of the 112-pixel crop, coordinates have their origin at the head's centre. Ranges are chosen by eye;
distances between features follow the canonical landmarks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

SIDE = 112
Colour: TypeAlias = tuple[float, float, float]
"""Red, green, blue, 0-255."""
Random: TypeAlias = np.random.Generator

SKIN: tuple[Colour, ...] = (
    (246, 214, 190), (236, 192, 160), (222, 168, 132), (198, 140, 102), (158, 104, 72), (112, 72, 50), (74, 48, 36),
)  # fmt: skip
HAIR: tuple[Colour, ...] = (
    (28, 24, 24), (56, 38, 28), (92, 60, 36), (140, 98, 52), (204, 170, 104), (150, 66, 34), (150, 148, 146),
    (226, 222, 216),
)  # fmt: skip
IRIS: tuple[Colour, ...] = ((58, 36, 22), (96, 64, 30), (120, 110, 50), (76, 116, 82), (84, 128, 168), (120, 132, 140))
LIPS: tuple[Colour, ...] = ((176, 70, 74), (206, 96, 100))
CREASE: Colour = (60, 30, 26)
FRAMES: tuple[Colour, ...] = ((20, 20, 22), (90, 50, 28), (150, 30, 36), (40, 60, 120), (170, 150, 90), (190, 192, 196))


class HairStyle(Enum):
    BALD = 0
    CROPPED = 1
    PARTED_LEFT = 2
    PARTED_RIGHT = 3
    FRINGE = 4
    LONG = 5
    CURLY = 6
    RECEDING = 7


class BeardStyle(Enum):
    NONE = 0
    STUBBLE = 1
    MOUSTACHE = 2
    GOATEE = 3
    FULL = 4


class GlassesStyle(Enum):
    NONE = 0
    ROUND = 1
    SQUARE = 2
    WIDE = 3


BEARD_ODDS = (0.6, 0.12, 0.1, 0.08, 0.1)
GLASSES_ODDS = (0.72, 0.1, 0.1, 0.08)
GLASSES_OFF = 0.1
"""How often people with glasses take them off, and (half as often) others put some on."""


def _near(random: Random, mean: float, deviation: float) -> float:
    """Return a normal draw, cut off at two and a half deviations."""
    return mean + deviation * float(np.clip(random.standard_normal(), -2.5, 2.5))


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """Mix ``a`` with ``share`` (0-1) of ``b``."""
    return (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share)


def scaled(colour: Colour, factor: float) -> Colour:
    return (min(255.0, colour[0] * factor), min(255.0, colour[1] * factor), min(255.0, colour[2] * factor))


def _between(random: Random, palette: tuple[Colour, ...]) -> Colour:
    """Return a colour between two neighbours of the palette, slightly changed."""
    place = random.uniform(0, len(palette) - 1.001)
    colour = mix(palette[int(place)], palette[int(place) + 1], place % 1)
    off = random.uniform(-8, 8, 3)
    r, g, b = np.clip(np.add(colour, off), 12, 250).tolist()
    return (r, g, b)


@dataclass(frozen=True, slots=True)
class Person:
    """What stays the same in all images of one person. Lengths in crop pixels, angles in radians, colours RGB 0-255."""

    head_width: float
    crown: float
    chin: float
    jaw: float
    """Exponent of the superellipse below the ears: 2 is round, 3.2 square, 1.5 pointed."""
    skin: Colour
    eye_x: float
    eye_y: float
    eye_width: float
    eye_height: float
    eye_tilt: float
    iris_radius: float
    iris: Colour
    lid: float
    brow_gap: float
    brow_length: float
    brow_thickness: float
    brow_arch: float
    brow_tilt: float
    nose_y: float
    nose_width: float
    nose_bridge: float
    nose_height: float
    mouth_y: float
    mouth_width: float
    upper_lip: float
    lower_lip: float
    lip: Colour
    ear: float
    hair_style: HairStyle
    hair: Colour
    hair_volume: float
    hairline: float
    strands: NDArray[np.float64]
    """(S, 3) places and shades of locks, each in 0-1."""
    beard: BeardStyle
    beard_density: float
    glasses: GlassesStyle
    frame: Colour
    frame_thickness: float
    lens: float
    moles: NDArray[np.float64]
    """(M, 3) x and y as shares of the head's half axes, radius in pixels."""
    freckles: NDArray[np.float64]
    """(F, 2) x and y in pixels from the head's centre."""
    wrinkles: float
    asymmetry: NDArray[np.float64]
    """(6,) offsets in pixels: eyes, brows, mouth corners, each left and right."""

    @classmethod
    def random(cls, random: Random) -> Person:
        """Return a person from a random stream; the order of draws is part of what a seed means."""
        hair = _between(random, HAIR)
        skin = _between(random, SKIN)
        return cls(
            head_width=_near(random, 46, 2.6), crown=_near(random, 60, 3), chin=_near(random, 54, 3.4),
            jaw=random.uniform(1.6, 3.2), skin=skin,
            eye_x=_near(random, 17.6, 1.3), eye_y=_near(random, -10.5, 1.5), eye_width=_near(random, 7.4, 0.8),
            eye_height=_near(random, 3.4, 0.65), eye_tilt=_near(random, 0.04, 0.09),
            iris_radius=_near(random, 3.2, 0.25), iris=_between(random, IRIS), lid=random.uniform(0, 2.6),
            brow_gap=_near(random, 9.0, 1.4), brow_length=_near(random, 9.5, 1.1),
            brow_thickness=random.uniform(0.8, 3.4), brow_arch=random.uniform(-0.3, 3.4),
            brow_tilt=_near(random, 0.02, 0.1),
            nose_y=_near(random, 9.8, 1.9), nose_width=_near(random, 7.2, 1.2), nose_bridge=random.uniform(1.8, 3.8),
            nose_height=_near(random, 12, 2.4),
            mouth_y=_near(random, 30.3, 1.8), mouth_width=_near(random, 14.4, 1.7),
            upper_lip=random.uniform(1.0, 4.4), lower_lip=random.uniform(1.8, 5.4),
            lip=mix(skin, _between(random, LIPS), random.uniform(0.3, 0.9)),
            ear=random.uniform(2, 7),
            hair_style=HairStyle(int(random.integers(len(HairStyle)))), hair=hair,
            hair_volume=random.uniform(2, 11),
            hairline=random.uniform(0.5, 0.82), strands=random.random((7, 3)),
            beard=BeardStyle(int(random.choice(len(BEARD_ODDS), p=BEARD_ODDS))), beard_density=random.uniform(0.35, 1),
            glasses=GlassesStyle(int(random.choice(len(GLASSES_ODDS), p=GLASSES_ODDS))),
            frame=_between(random, FRAMES),
            frame_thickness=random.uniform(0.7, 2.2), lens=random.uniform(8.6, 11.5),
            moles=random.random((int(random.integers(0, 4)), 3)) * [1.5, 1.4, 0.9] + [-0.75, -0.5, 0.5],
            freckles=random.normal(0, 1, (int(random.choice([0, 0, 0, 18])), 2)) * [16, 5] + [0, 6],
            wrinkles=max(0.0, random.uniform(-0.8, 1)), asymmetry=random.normal(0, 0.45, 6),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """What differs between images of one person: pose, expression, light, background, camera."""

    yaw: float
    pitch: float
    roll: float
    jitter: NDArray[np.float64]
    """(5, 2) errors of the landmarks in pixels: detectors make them too."""
    smile: float
    open_mouth: float
    open_eyes: float
    gaze: tuple[float, float]
    brow: float
    light: NDArray[np.float64]
    """(3,) direction towards the lamp."""
    contrast: float
    exposure: float
    tint: NDArray[np.float64]
    """(3,) gains of red, green, blue."""
    background: NDArray[np.uint8]
    """(h, w, 3) uint8, stretched over the crop."""
    clothes: Colour
    other_glasses: float
    blur: float
    shrink: int
    """Pixels that the crop is shrunk to before it is enlarged again; 112 leaves it alone."""
    noise: float
    grain: int
    """Seed of the noise."""

    @classmethod
    def random(cls, random: Random) -> View:
        """Return a view from a random stream; the order of draws is part of what a seed means."""
        height, width = random.integers(1, 6, 2)
        r, g, b = random.uniform(20, 235, 3).tolist()
        light = random.normal(0, 1, 3) * [1, 0.7, 0.3] + [0, -0.35, 1]
        return cls(
            yaw=_near(random, 0, math.radians(16)), pitch=_near(random, 0, math.radians(9)),
            roll=_near(random, 0, math.radians(3)), jitter=random.normal(0, 0.7, (5, 2)),
            smile=float(np.clip(random.normal(0.15, 0.5), -0.5, 1.2)), open_mouth=max(0.0, random.normal(-0.6, 1)),
            open_eyes=0.12 if random.random() < 0.05 else random.uniform(0.75, 1.15),
            gaze=(random.uniform(-2.2, 2.2), random.uniform(-0.8, 0.8)), brow=_near(random, 0, 1.0),
            light=light / np.linalg.norm(light), contrast=random.uniform(0.1, 0.75), exposure=_near(random, 1.0, 0.16),
            tint=1 + np.clip(random.normal(0, 0.06, 3), -0.15, 0.15),
            background=random.integers(20, 236, (height, width, 3), np.uint8), clothes=(r, g, b),
            other_glasses=random.random(),
            blur=random.uniform(0.5, 1.6) if random.random() < 0.25 else 0.0,
            shrink=int(random.integers(32, 80)) if random.random() < 0.15 else SIDE,
            noise=random.uniform(1, 9), grain=int(random.integers(2**32)),
        )  # fmt: skip
