"""Drawn faces: a training set that needs no data, made on the fly and always the same.

Each person is a set of drawn features. Each image shows the person in another pose, light and expression, with another
background and noise. Learning to tell these people apart exercises all of the training, but the result says nothing
about real faces.

A face is drawn as polygons in the head's coordinates: x to the right, y down, z towards the viewer, the unit a pixel of
the 112-pixel crop, the origin the head's centre. Features lie on an ellipsoid and turn with it; the outlines of head
and hair don't ("2.5-D"). The five landmarks are projected like everything else and mapped onto the canonical ones by
the service's own similarity transform, so a drawn crop is aligned exactly as a photo is. Ranges are chosen by eye.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Self, TypeAlias, get_type_hints

import cv2
import numpy as np
from numpy.typing import NDArray

from app.face.align import similarity_transform
from app.package.manifest import CROP_SIDE
from app.types import CANONICAL_LANDMARKS, Pixels
from training.data.dataset import FaceSet

SIDE = CROP_SIDE
SUBPIXEL = 4
"""Fractional bits of the coordinates that OpenCV draws with."""
VIEWER = 400.0
"""Distance of the viewer in crop pixels, about a metre for a head of this size."""
DEPTH = 0.85
"""The head's half depth in front of its centre, in half widths."""
DRAWING = 2
"""Version of the drawing: raise it when the same numbers are drawn differently, so that decoded copies are remade."""
PERSON_STREAM, VIEW_STREAM = 0, 1
"""Separate random streams, so that a person's features don't depend on its images."""

Colour: TypeAlias = tuple[float, float, float]
"""Red, green, blue, 0-255."""
Points: TypeAlias = NDArray[np.float64]
Random: TypeAlias = np.random.Generator
Lot: TypeAlias = Callable[[Random], Any]
"""Draws one random value."""

SKIN: tuple[Colour, ...] = (
    (246, 214, 190), (236, 192, 160), (222, 168, 132), (198, 140, 102), (158, 104, 72), (112, 72, 50), (74, 48, 36),
)  # fmt: skip
HAIR: tuple[Colour, ...] = (
    (28, 24, 24), (56, 38, 28), (92, 60, 36), (140, 98, 52), (204, 170, 104), (150, 66, 34), (150, 148, 146),
    (226, 222, 216),
)  # fmt: skip
IRIS: tuple[Colour, ...] = ((58, 36, 22), (96, 64, 30), (120, 110, 50), (76, 116, 82), (84, 128, 168), (120, 132, 140))
LIPS: tuple[Colour, ...] = ((176, 70, 74), (206, 96, 100))
DARK: Colour = (40, 20, 18)
HAIR_STYLES = ("bald", "cropped", "parted left", "parted right", "fringe", "long", "receding")
BEARDS = ("none", "none", "none", "moustache", "full")


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """Mix ``a`` with ``share`` (0-1) of ``b``."""
    return (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share)


def scaled(colour: Colour, factor: float) -> Colour:
    return (min(255.0, colour[0] * factor), min(255.0, colour[1] * factor), min(255.0, colour[2] * factor))


# ----------------------------------------------------------------------------- who is drawn, and how it is photographed


def near(mean: float, deviation: float) -> Lot:
    """Return a function that draws from a normal distribution, clipped at two and a half deviations."""
    return lambda random: mean + deviation * float(np.clip(random.standard_normal(), -2.5, 2.5))


def even(low: float, high: float) -> Lot:
    return lambda random: random.uniform(low, high)


def one_of(*choices: str) -> Lot:
    return lambda random: choices[int(random.integers(len(choices)))]


def between(palette: tuple[Colour, ...]) -> Lot:
    """Return a function that draws a mixture of two neighbouring colours of the palette, slightly changed."""

    def draw(random: Random) -> Colour:
        place = random.uniform(0, len(palette) - 1.001)
        colour = mix(palette[int(place)], palette[int(place) + 1], place % 1)
        r, g, b = np.clip(np.add(colour, random.uniform(-8, 8, 3)), 12, 250).tolist()
        return (r, g, b)

    return draw


class Drawn:
    """Random parameters, drawn in the order of the fields by the functions in the fields' annotations.

    The same seed gives other values if fields are added, removed or moved.
    """

    @classmethod
    def random(cls, random: Random) -> Self:
        return cls(**{name: lot(random) for name, lot in _lots(cls).items()})  # type: ignore[arg-type]  # types are hashable


@cache
def _lots(kind: type[Drawn]) -> dict[str, Lot]:
    hints = get_type_hints(kind, globals(), include_extras=True)
    return {name: annotated.__metadata__[0] for name, annotated in hints.items()}


@dataclass(frozen=True, slots=True)
class Person(Drawn):
    """The features that all images of one person share: lengths in crop pixels, tilts as slopes."""

    head_width: Annotated[float, near(46, 2.6)]
    crown: Annotated[float, near(60, 3)]
    chin: Annotated[float, near(54, 3.4)]
    jaw: Annotated[float, even(1.6, 3.2)]
    """Exponent of the superellipse below the ears: 2 is round, 3.2 square, 1.5 pointed."""
    skin: Annotated[Colour, between(SKIN)]
    ear: Annotated[float, even(2, 7)]
    eye_x: Annotated[float, near(17.6, 1.3)]
    eye_y: Annotated[float, near(-10.5, 1.5)]
    eye_width: Annotated[float, near(7.4, 0.8)]
    eye_height: Annotated[float, near(3.4, 0.65)]
    eye_tilt: Annotated[float, near(0.04, 0.09)]
    iris_radius: Annotated[float, near(3.2, 0.25)]
    iris: Annotated[Colour, between(IRIS)]
    brow_gap: Annotated[float, near(9.0, 1.4)]
    brow_length: Annotated[float, near(9.5, 1.1)]
    brow_thickness: Annotated[float, even(0.8, 3.4)]
    brow_arch: Annotated[float, even(-0.3, 3.4)]
    brow_tilt: Annotated[float, near(0.02, 0.1)]
    nose_y: Annotated[float, near(9.8, 1.9)]
    nose_width: Annotated[float, near(7.2, 1.2)]
    nose_bridge: Annotated[float, even(1.8, 3.8)]
    nose_height: Annotated[float, near(12, 2.4)]
    mouth_y: Annotated[float, near(30.3, 1.8)]
    mouth_width: Annotated[float, near(14.4, 1.7)]
    upper_lip: Annotated[float, even(1.0, 4.4)]
    lower_lip: Annotated[float, even(1.8, 5.4)]
    lips: Annotated[Colour, between(LIPS)]
    hair_style: Annotated[str, one_of(*HAIR_STYLES)]
    hair: Annotated[Colour, between(HAIR)]
    hair_volume: Annotated[float, even(2, 11)]
    hairline: Annotated[float, even(0.5, 0.82)]
    beard: Annotated[str, one_of(*BEARDS)]
    moles: Annotated[
        NDArray[np.float64],
        lambda random: random.random((int(random.integers(0, 4)), 3)) * [1.5, 1.4, 0.9] + [-0.75, -0.5, 0.5],
    ]
    """(M, 3): x and y as shares of the head's half axes, radius in pixels."""
    uneven: Annotated[NDArray[np.float64], lambda random: random.normal(0, 0.45, 6)]
    """(6,) offsets in pixels: of the left and the right eye, brow and mouth corner."""


@dataclass(frozen=True, slots=True)
class View(Drawn):
    """The features that differ between images of one person: pose in radians, expression, light, background, camera."""

    yaw: Annotated[float, near(0, math.radians(16))]
    pitch: Annotated[float, near(0, math.radians(9))]
    roll: Annotated[float, near(0, math.radians(3))]
    jitter: Annotated[NDArray[np.float64], lambda random: random.normal(0, 0.7, (5, 2))]
    """(5, 2) errors of the landmarks in pixels, as detectors make them."""
    smile: Annotated[float, lambda random: float(np.clip(random.normal(0.15, 0.5), -0.5, 1.2))]
    open_mouth: Annotated[float, lambda random: max(0.0, random.normal(-0.6, 1))]
    open_eyes: Annotated[float, lambda random: 0.12 if random.random() < 0.05 else random.uniform(0.75, 1.15)]
    gaze: Annotated[NDArray[np.float64], lambda random: random.uniform(-1, 1, 2) * [2.2, 0.8]]
    brow: Annotated[float, near(0, 1.0)]
    light: Annotated[NDArray[np.float64], lambda random: random.normal(0, 1, 3) * [1, 0.7, 0.3] + [0, -0.35, 1]]
    """(3,) direction towards the lamp."""
    contrast: Annotated[float, even(0.1, 0.75)]
    exposure: Annotated[float, near(1.0, 0.16)]
    tint: Annotated[NDArray[np.float64], lambda random: 1 + np.clip(random.normal(0, 0.06, 3), -0.15, 0.15)]
    """(3,) gains of red, green, blue."""
    background: Annotated[
        NDArray[np.uint8], lambda random: random.integers(20, 236, (*random.integers(1, 6, 2), 3), np.uint8)
    ]
    """(h, w, 3) uint8, stretched over the crop."""
    clothes: Annotated[Colour, lambda random: tuple(random.uniform(20, 235, 3).tolist())]
    blur: Annotated[float, lambda random: random.uniform(0.5, 1.6) if random.random() < 0.25 else 0.0]
    shrink: Annotated[int, lambda random: int(random.integers(32, 80)) if random.random() < 0.15 else SIDE]
    """Pixels that the crop is shrunk to before it is enlarged again; 112 leaves it unchanged."""
    noise: Annotated[float, even(1, 9)]
    grain: Annotated[int, lambda random: int(random.integers(2**32))]
    """Seed of the noise."""


class ProceduralFaces(FaceSet):
    """``people`` drawn people numbered from ``first``, ``images_per_person`` each; image ``i`` is of person
    ``i // images_per_person``.

    Everything follows from (``seed``, person's number, image's number): two sets with one seed share exactly the people
    whose ranges overlap, so ``first=0`` trains and ``first=1_000_000`` tests.
    """

    def __init__(self, people: int, images_per_person: int, seed: int = 0, *, first: int = 0) -> None:
        if people < 1 or images_per_person < 1 or first < 0 or seed < 0:
            raise ValueError("people and images_per_person are at least 1, seed and first at least 0")
        self.images_per_person, self.seed, self.first = images_per_person, seed, first
        self.people = [f"drawn-{first + number}" for number in range(people)]
        self.labels: NDArray[np.int64] = np.repeat(np.arange(people, dtype=np.int64), images_per_person)
        self._known: dict[int, Person] = {}

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        position = operator.index(index)
        label = int(self.labels[position])  # raises IndexError beyond the end
        number, image = divmod(range(len(self))[position], self.images_per_person)
        return draw(self.person(number), View.random(self._stream(VIEW_STREAM, number, image))), label

    def person(self, number: int) -> Person:
        """Return the features of the set's person ``number``, from 0."""
        if number not in self._known:
            self._known[number] = Person.random(self._stream(PERSON_STREAM, number))
        return self._known[number]

    def describe(self, index: int) -> str:
        number, image = divmod(range(len(self))[index], self.images_per_person)
        return f"drawn-{self.first + number} image {image} of seed {self.seed}"

    def stamp(self) -> str:
        people = f"{len(self)} images, {len(self.people)} people, seed {self.seed}, from {self.first}"
        return f"drawn, way {DRAWING}: {people}"

    def _stream(self, kind: int, number: int, *image: int) -> Random:
        return np.random.default_rng([self.seed, kind, self.first + number, *image])


# --------------------------------------------------------------------------------------------------------- the drawing


@dataclass(frozen=True, slots=True)
class _Part:
    """A polygon or line in head coordinates, (N, 3). A ``width`` of 0 fills it. All ``soft`` parts are blurred
    together. A ``flat`` part belongs to the outline, which shifts and scales with the head but does not turn."""

    points: Points
    colour: Colour
    width: float = 0.0
    flat: bool = False
    soft: bool = False
    closed: bool = True


_ANGLES = np.linspace(0, 2 * math.pi, 40, endpoint=False)
_RING: Points = np.stack([np.cos(_ANGLES[::2]), np.sin(_ANGLES[::2])], 1)
_SPAN = np.linspace(-1, 1, 9)
_DOME = 1 - _SPAN**2


def draw(person: Person, view: View) -> Pixels:
    """Draw one image of ``person``: (112, 112, 3) uint8 RGB, the same for the same arguments."""
    parts = [*_head(person, view), *_eyes(person, view), *_nose(person, view), *_mouth(person, view)]
    parts += _hair(person)
    parts.sort(key=lambda part: not part.soft)  # soft parts first; the sort is stable
    return _photograph(_paint(parts, person, view), view)


def _on_head(person: Person, xy: Points, lift: float = 0.0) -> Points:
    """Place (N, 2) points of the face's front on the ellipsoid, ``lift`` pixels above it: (N, 3)."""
    half = np.where(xy[:, 1] < 0, person.crown, person.chin)
    room = 1 - (xy[:, 0] / person.head_width) ** 2 - (xy[:, 1] / half) ** 2
    return np.column_stack([xy, DEPTH * person.head_width * np.sqrt(np.maximum(room, 0.02)) + lift])


def _flat(xy: Points, z: float = 0.0) -> Points:
    return np.column_stack([xy, np.full(len(xy), z)])


def _outline(person: Person, angles: NDArray[np.float64], more: float = 0.0) -> Points:
    """Return the head's outline at ``angles`` (0 is right, pi/2 the chin), ``more`` pixels outwards: (N, 2)."""
    c, s = np.cos(angles), np.sin(angles)
    power = np.where(s > 0, 2 / person.jaw, 0.9)
    half = np.where(s > 0, person.chin, person.crown)
    x = np.sign(c) * np.abs(c) ** np.where(s > 0, np.minimum(power, 1.0), 1.0) * (person.head_width + more)
    return np.stack([x, np.sign(s) * np.abs(s) ** power * (half + more)], 1)


def _ellipse(x: float, y: float, rx: float, ry: float) -> Points:
    return _RING * [rx, ry] + [x, y]


def _band(upper: Points, lower: Points) -> Points:
    """Return the polygon between two lines of the same direction."""
    return np.vstack([upper, lower[::-1]])


def _head(person: Person, view: View) -> list[_Part]:
    skin, wide, top = person.skin, person.mouth_width, person.mouth_y
    neck = np.array([[-26, 30], [26, 30], [30, 90], [-30, 90]], float)
    shirt = np.array([[-95, 130], [-80, 84], [-28, 66], [0, 78], [28, 66], [80, 84], [95, 130]], float)
    parts = []
    if person.hair_style == "long":
        edge = person.head_width + person.hair_volume + 2
        back = _outline(person, np.linspace(math.pi, 2 * math.pi, 14), person.hair_volume + 4)
        fall = np.vstack([back, [[edge, 90], [-edge, 90]]])
        parts.append(_Part(_flat(fall), scaled(person.hair, 0.75), flat=True, soft=True))
    parts.append(_Part(_flat(neck), scaled(skin, 0.72), flat=True, soft=True))
    parts.append(_Part(_flat(shirt), view.clothes, flat=True, soft=True))
    for side in (-1, 1):
        ear = _ellipse(side * (person.head_width - 0.5), 2, person.ear, 12)
        parts.append(_Part(_flat(ear, -4.0), scaled(skin, 0.88), soft=True))
    parts.append(_Part(_flat(_outline(person, _ANGLES)), skin, flat=True, soft=True))
    for side in (-1, 1):
        cheek = _ellipse(side * 24, 12 + person.nose_y * 0.3, 9, 7)
        parts.append(_Part(_on_head(person, cheek), mix(skin, (220, 90, 80), 0.14), soft=True))
    for x, y, radius in person.moles:
        spot = _ellipse(x * person.head_width, y * person.chin, radius, radius)
        parts.append(_Part(_on_head(person, spot), mix(skin, DARK, 0.7)))
    stubble = mix(skin, scaled(person.hair, 0.85), 0.8)
    if person.beard == "full":
        jaw = _outline(person, np.linspace(-0.05, math.pi + 0.05, 20), 0.5)
        inner = np.array([[-wide - 9, top - 8], [-wide * 0.6, top - 9], [wide * 0.6, top - 9], [wide + 9, top - 8]])
        parts.append(_Part(np.vstack([_flat(jaw), _on_head(person, inner)]), stubble, flat=True, soft=True))
    if person.beard != "none":
        x = _SPAN * wide * 1.05
        upper = np.stack([x, top - person.upper_lip - 5 + 4 * _SPAN**2], 1)
        lower = np.stack([x, top - person.upper_lip + 1.5 * np.abs(_SPAN)], 1)
        parts.append(_Part(_on_head(person, _band(upper, lower), 2), stubble))
    return parts


def _eyes(person: Person, view: View) -> list[_Part]:
    parts = []
    for index, side in enumerate((-1, 1)):
        centre = np.array([side * person.eye_x, person.eye_y + person.uneven[index]])
        socket = _RING * [person.eye_width + 2.5, person.eye_height + 3.5] + centre
        parts.append(_Part(_on_head(person, socket), mix(person.skin, DARK, 0.15), soft=True))
        x = _SPAN * person.eye_width
        tilt = -side * person.eye_tilt * x
        upper = np.stack([x, -person.eye_height * view.open_eyes * _DOME**0.8 + tilt], 1)
        lower = np.stack([x, person.eye_height * 0.75 * min(view.open_eyes, 1.0) * _DOME + tilt], 1)
        parts.append(_Part(_on_head(person, _band(upper, lower) + centre), (236, 232, 228)))
        for radius, colour in ((person.iris_radius, person.iris), (person.iris_radius * 0.45, (14.0, 12.0, 12.0))):
            ring = _RING * radius + view.gaze
            top, bottom = (np.interp(ring[:, 0], lid[:, 0], lid[:, 1]) for lid in (upper, lower))
            ring[:, 1] = np.clip(ring[:, 1], top, bottom)  # the lids cover the iris's upper and lower ends
            parts.append(_Part(_on_head(person, ring + centre), colour))
        parts.append(_Part(_on_head(person, upper + centre), mix(person.skin, DARK, 0.75), 1.3, closed=False))
        x = _SPAN * person.brow_length
        y = -person.brow_gap - view.brow - person.brow_arch * _DOME - side * person.brow_tilt * x
        taper = person.brow_thickness * (0.75 - 0.4 * side * _SPAN)
        brow = _band(np.stack([x, y - taper], 1), np.stack([x, y + taper * 0.4], 1)) + centre
        brow[:, 1] += person.uneven[2 + index]
        parts.append(_Part(_on_head(person, brow, 1), mix(scaled(person.hair, 0.8), person.skin, 0.2)))
    return parts


def _nose(person: Person, view: View) -> list[_Part]:
    skin, width, tip = person.skin, person.nose_width, person.nose_y
    parts = []
    for side, tone in ((-1, 1.0), (1, 0.55)):
        x = np.array([person.nose_bridge, width * 0.5, width, width * 0.5, person.nose_bridge * 0.5])
        y = np.array([person.eye_y + 2, tip - 5, tip + 1, tip + 3, tip - 4])
        points = _on_head(person, np.stack([side * x, y], 1))
        points[:, 2] += np.array([1, 0.5, 0.1, 0.3, 0.9]) * person.nose_height * 0.5
        parts.append(_Part(points, mix(skin, DARK, (0.16 + 0.1 * view.contrast) * tone), soft=True))
    ball = _on_head(person, _ellipse(0, tip - 1.5, width * 0.55, width * 0.5), person.nose_height)
    parts.append(_Part(ball, mix(skin, (255, 244, 236), 0.14), soft=True))
    for side in (-1, 1):
        hole = _on_head(person, _ellipse(side * width * 0.45, tip + 3, width * 0.24, 1.3), person.nose_height * 0.6)
        parts.append(_Part(hole, mix(skin, DARK, 0.65)))
        wing = np.array([[width * 0.95, tip - 2.5], [width + 0.9, tip + 0.6], [width * 0.8, tip + 3.2]]) * [side, 1]
        parts.append(_Part(_on_head(person, wing, 2), mix(skin, DARK, 0.4), 0.9, closed=False))
    return parts


def _mouth_corner(person: Person, view: View, side: int) -> tuple[float, float]:
    x = side * person.mouth_width * (1 + 0.13 * max(0.0, view.smile))
    return x, person.mouth_y - 2.6 * view.smile + person.uneven[4 + (side > 0)]


def _mouth(person: Person, view: View) -> list[_Part]:
    (x0, y0), (x1, y1) = _mouth_corner(person, view, -1), _mouth_corner(person, view, 1)
    x = (x0 + x1) / 2 + _SPAN * (x1 - x0) / 2
    middle = (y0 + y1) / 2 + _SPAN * (y1 - y0) / 2 + (2.2 * view.smile + 0.4) * _DOME
    gap = 4.5 * view.open_mouth * _DOME
    upper, lower = middle - gap * 0.3, middle + gap * 0.7
    bow = person.upper_lip * _DOME**0.6 * (1 - 0.35 * np.exp(-((_SPAN / 0.22) ** 2)))
    lips = mix(person.skin, person.lips, 0.6)

    def strip(a: NDArray[np.float64], b: NDArray[np.float64], colour: Colour) -> _Part:
        return _Part(_on_head(person, _band(np.stack([x, a], 1), np.stack([x, b], 1)), 1), colour)

    parts = []
    if view.open_mouth > 0.15:
        parts.append(strip(upper, lower, (70, 22, 24)))
        parts.append(strip(upper, np.minimum(lower, upper + 2.2 * _DOME), (236, 230, 220)))
    parts.append(strip(upper - bow, upper + 0.3, scaled(lips, 0.92)))
    parts.append(strip(lower - 0.3, lower + person.lower_lip * _DOME**0.7, lips))
    line = _on_head(person, np.stack([x, upper], 1), 1)
    return [*parts, _Part(line, mix(lips, DARK, 0.6), 0.9, closed=False)]


def _hair(person: Person) -> list[_Part]:
    if person.hair_style == "bald":
        return []
    x = np.linspace(-0.97, 0.97, 13)
    high = -person.crown * person.hairline
    y = {
        "cropped": high + 8 * np.abs(x) ** 3,
        "parted left": high + 16 * np.clip(x + 0.35, 0, 2) ** 2 - 4 * np.exp(-(((x + 0.45) / 0.2) ** 2)),
        "parted right": high + 16 * np.clip(0.35 - x, 0, 2) ** 2 - 4 * np.exp(-(((x - 0.45) / 0.2) ** 2)),
        "fringe": np.full(13, person.eye_y - person.brow_gap - 6.0) + 3 * x**2,
        "long": high + 26 * np.abs(x) ** 2.5,
        "receding": high - 9 + 14 * np.exp(-((x / 0.3) ** 2)) + 9 * np.abs(x) ** 4,
    }[person.hair_style]
    y = np.maximum(y, -0.93 * person.crown * np.sqrt(1 - x**2))  # never beyond the outline
    temple, sides = person.head_width * 0.97, 30 if person.hair_style == "long" else 4
    edge = np.vstack([[[-temple, sides]], np.stack([x * person.head_width, y], 1), [[temple, sides]]])
    line = _on_head(person, edge)
    line[[0, -1], 2] = 0
    outer = _outline(person, np.linspace(0.12, -math.pi - 0.12, 24), person.hair_volume)
    return [_Part(np.vstack([_flat(outer), line]), person.hair)]


def _rotation(view: View) -> NDArray[np.float64]:
    """Return the (3, 3) rotation for row vectors on its left: yaw about y, then pitch about x."""
    cy, sy, cp, sp = math.cos(view.yaw), math.sin(view.yaw), math.cos(view.pitch), math.sin(view.pitch)
    turned: NDArray[np.float64] = np.array([[cy, 0, -sy], [0, 1, 0], [sy, 0, cy]]) @ [
        [1, 0, 0],
        [0, cp, sp],
        [0, -sp, cp],
    ]
    return turned


def _project(points: Points, matrix: NDArray[np.float64]) -> Points:
    """Project (N, 3) to (N, 2) in perspective: nearer points are larger."""
    turned = points @ matrix
    xy: Points = turned[:, :2] * (VIEWER / (VIEWER - turned[:, 2:]))
    return xy


def _paint(parts: list[_Part], person: Person, view: View) -> Pixels:
    """Draw all parts onto the background, aligned by the landmarks: (112, 112, 3) uint8 RGB."""
    matrix = _rotation(view)
    eyes = [[side * person.eye_x, person.eye_y] for side in (-1, 1)]
    mouth = [_mouth_corner(person, view, side) for side in (-1, 1)]
    landmarks = _on_head(person, np.array([*eyes, [0, person.nose_y], *mouth]))
    landmarks[2, 2] += person.nose_height
    aligned = similarity_transform(_project(landmarks, matrix) + view.jitter, CANONICAL_LANDMARKS)
    # Leave a little roll, as alignment does in photos.
    roll = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), math.degrees(view.roll), 1.0)
    aligned = roll @ np.vstack([aligned, [0, 0, 1]])
    canvas = cv2.resize(view.background, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    last_soft = sum(part.soft for part in parts)
    for index, part in enumerate(parts):
        if index == last_soft:
            canvas = cv2.GaussianBlur(canvas, (5, 5), 1.3)
        xy = part.points[:, :2] if part.flat else _project(part.points, matrix)
        places = np.rint((xy @ aligned[:, :2].T + aligned[:, 2]) * 2**SUBPIXEL).astype(np.int32)
        if part.width:
            cv2.polylines(canvas, [places], part.closed, part.colour, max(1, round(part.width)), cv2.LINE_AA, SUBPIXEL)
        else:
            cv2.fillPoly(canvas, [places], part.colour, cv2.LINE_AA, SUBPIXEL)
    return np.asarray(canvas, np.uint8)


def _normals() -> NDArray[np.float32]:
    """Return the surface normals of a head over the crop, (28 * 28, 3): coarse, since light is smooth."""
    axis = (np.arange(28, dtype=np.float32) - 13.5) / 13.5
    x, y = np.meshgrid(axis * 0.85, axis * 0.75)
    normals = np.stack([x, y, np.sqrt(np.maximum(0.05, 1 - x**2 - y**2))], 2).reshape(-1, 3)
    return np.asarray(normals / np.linalg.norm(normals, axis=1, keepdims=True), np.float32)


_SURFACE = _normals()


def _photograph(canvas: Pixels, view: View) -> Pixels:
    """Apply one shot's light, exposure, colour, sharpness and noise."""
    lamp = (view.light / np.linalg.norm(view.light)).astype(np.float32)
    lit = 1 - view.contrast + view.contrast * 1.25 * np.maximum(0, _SURFACE @ lamp)
    light = cv2.resize(lit.reshape(28, 28), (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    image = canvas.astype(np.float32) * light[:, :, None] * (view.exposure * view.tint).astype(np.float32)
    if view.shrink < SIDE:
        small = cv2.resize(image, (view.shrink, view.shrink), interpolation=cv2.INTER_AREA)
        image = np.asarray(cv2.resize(small, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), np.float32)
    if view.blur:
        image = np.asarray(cv2.GaussianBlur(image, (0, 0), view.blur), np.float32)
    grain = np.random.default_rng(view.grain).standard_normal(image.shape, np.float32)
    return np.asarray(np.clip(image + grain * view.noise, 0, 255), np.uint8)
