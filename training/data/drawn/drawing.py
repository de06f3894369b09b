"""How a drawn face is made: a person's features as polygons on a head, turned, aligned, lit and photographed.

In the head's coordinates x is to the right, y down, z towards the viewer, the unit a pixel of the 112-pixel crop, the
origin the head's centre. Features lie on an ellipsoid and turn with it; the outline of an ellipsoid does not, so the
outlines of head and hair stay ("2.5-D"). The five landmarks are projected like all else and brought onto the canonical
ones by the service's own similarity, so a drawn crop is aligned exactly as a photographed one is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from app.face.align import CANONICAL_LANDMARKS, similarity_transform
from app.types import Pixels
from training.data.drawn.people import (
    CREASE,
    GLASSES_OFF,
    SIDE,
    BeardStyle,
    Colour,
    GlassesStyle,
    HairStyle,
    Person,
    View,
    mix,
    scaled,
)

SUBPIXEL = 4
"""Fractional bits of the coordinates that OpenCV draws with."""
VIEWER = 400.0
"""Distance of the viewer in crop pixels: about a metre for a head of this size."""

DEPTH = 0.85
"""The head's half depth in front of its centre, in half widths."""

Points: TypeAlias = NDArray[np.float64]


@dataclass(slots=True)
class _Part:
    """One polygon or line in head coordinates, (N, 3); ``width`` 0 fills it."""

    points: Points
    colour: Colour
    width: float = 0.0
    flat: bool = False
    """Part of the outline: shifts and scales with the head but does not turn."""
    closed: bool = True


@dataclass(slots=True)
class _Sketch:
    """The parts in drawing order; the ``soft`` ones are blurred together before the others are drawn on them."""

    soft: list[_Part] = field(default_factory=list)
    crisp: list[_Part] = field(default_factory=list)


_ANGLES = np.linspace(0, 2 * math.pi, 40, endpoint=False)
_RING: Points = np.stack([np.cos(_ANGLES[::2]), np.sin(_ANGLES[::2])], 1)
_SPAN = np.linspace(-1, 1, 9)
_DOME = 1 - _SPAN**2


def draw(person: Person, view: View) -> Pixels:
    """Draw one image of ``person``: (112, 112, 3) uint8 RGB, the same for the same arguments."""
    sketch = _Sketch()
    _head(sketch, person, view)
    _eyes(sketch, person, view)
    _nose(sketch, person, view)
    _mouth(sketch, person, view)
    _marks(sketch, person)
    _hair(sketch, person)
    _glasses(sketch, person, view)
    return _photograph(_paint(sketch, person, view), view)


def _on_head(person: Person, xy: Points, lift: float = 0.0) -> Points:
    """Place (N, 2) points of the face's front on the ellipsoid, ``lift`` pixels above it: (N, 3)."""
    half = np.where(xy[:, 1] < 0, person.crown, person.chin)
    room = 1 - (xy[:, 0] / person.head_width) ** 2 - (xy[:, 1] / half) ** 2
    z = DEPTH * person.head_width * np.sqrt(np.maximum(room, 0.02)) + lift
    return np.column_stack([xy, z])


def _flat(xy: Points) -> Points:
    return np.column_stack([xy, np.zeros(len(xy))])


def _outline(person: Person, angles: NDArray[np.float64], more: float = 0.0) -> Points:
    """Return the head's outline at ``angles`` (0 is right, pi/2 the chin), ``more`` pixels outside of it: (N, 2)."""
    c, s = np.cos(angles), np.sin(angles)
    power = np.where(s > 0, 2 / person.jaw, 0.9)
    half = np.where(s > 0, person.chin, person.crown)
    x = np.sign(c) * np.abs(c) ** np.where(s > 0, np.minimum(power, 1.0), 1.0) * (person.head_width + more)
    y = np.sign(s) * np.abs(s) ** power * (half + more)
    return np.stack([x, y], 1)


def _ellipse(x: float, y: float, rx: float, ry: float) -> Points:
    return _RING * [rx, ry] + [x, y]


def _head(sketch: _Sketch, person: Person, view: View) -> None:
    skin, flat = person.skin, sketch.soft
    neck = np.array([[-26, 30], [26, 30], [30, 90], [-30, 90]], float)
    shirt = np.array([[-95, 130], [-80, 84], [-28, 66], [0, 78], [28, 66], [80, 84], [95, 130]], float)
    if person.hair_style is HairStyle.LONG:
        back = _outline(person, np.linspace(math.pi, 2 * math.pi, 14), person.hair_volume + 4)
        edge = person.head_width + person.hair_volume + 2
        fall = np.array([[edge, 90], [-edge, 90]])
        flat.append(_Part(_flat(np.vstack([back, fall])), scaled(person.hair, 0.75), flat=True))
    flat.append(_Part(_flat(neck), scaled(skin, 0.72), flat=True))
    flat.append(_Part(_flat(shirt), view.clothes, flat=True))
    for side in (-1, 1):
        ear = _ellipse(side * (person.head_width - 0.5), 2, person.ear, 12)
        flat.append(_Part(np.column_stack([ear, np.full(len(ear), -4.0)]), scaled(skin, 0.88)))
    flat.append(_Part(_flat(_outline(person, _ANGLES)), skin, flat=True))
    for side in (-1, 1):
        cheek = _ellipse(side * 24, 12 + person.nose_y * 0.3, 9, 7)
        flat.append(_Part(_on_head(person, cheek), mix(skin, (220, 90, 80), 0.14)))
    _beard(sketch, person)


def _beard(sketch: _Sketch, person: Person) -> None:
    style = person.beard
    cover = person.beard_density * (0.35 if style is BeardStyle.STUBBLE else 0.9)
    colour = mix(person.skin, scaled(person.hair, 0.85), cover)
    top, wide = person.mouth_y, person.mouth_width
    if style in (BeardStyle.FULL, BeardStyle.STUBBLE):
        jaw = _outline(person, np.linspace(-0.05, math.pi + 0.05, 20), 0.5)
        inner = np.array([[-wide - 9, top - 8], [-wide * 0.6, top - 9], [wide * 0.6, top - 9], [wide + 9, top - 8]])
        sketch.soft.append(_Part(np.vstack([_flat(jaw), _on_head(person, inner)]), colour, flat=True))
    if style in (BeardStyle.MOUSTACHE, BeardStyle.FULL, BeardStyle.GOATEE):
        x = _SPAN * wide * 1.05
        upper = np.stack([x, top - person.upper_lip - 5 + 4 * _SPAN**2], 1)
        lower = np.stack([x[::-1], top - person.upper_lip + 1.5 * np.abs(_SPAN)], 1)
        sketch.crisp.append(_Part(_on_head(person, np.vstack([upper, lower]), 2), colour))
    if style is BeardStyle.GOATEE:
        sketch.soft.append(_Part(_on_head(person, _ellipse(0, top + 14, wide * 0.75, 10)), colour))


def _almond(person: Person, side: int, openness: float) -> tuple[Points, Points]:
    """Return the upper and lower lid of the eye at ``side`` (-1 left, 1 right), each (9, 2), corner to corner."""
    x = _SPAN * person.eye_width
    tilt = -side * person.eye_tilt * x
    upper = np.stack([x, -person.eye_height * openness * _DOME**0.8 + tilt], 1)
    lower = np.stack([x, person.eye_height * 0.75 * min(openness, 1.0) * _DOME + tilt], 1)
    return upper, lower


def _eyes(sketch: _Sketch, person: Person, view: View) -> None:
    for index, side in enumerate((-1, 1)):
        centre = np.array([side * person.eye_x, person.eye_y + person.asymmetry[index]])
        socket = _ellipse(centre[0], centre[1], person.eye_width + 2.5, person.eye_height + 3.5)
        shadow = mix(person.skin, (60, 30, 30), 0.1 + 0.1 * person.wrinkles)
        sketch.soft.append(_Part(_on_head(person, socket), shadow))
        _eye(sketch, person, view, side, centre)
        _brow(sketch, person, view, side, centre + np.array([0, person.asymmetry[2 + index]]))


def _eye(sketch: _Sketch, person: Person, view: View, side: int, centre: NDArray[np.float64]) -> None:
    upper, lower = _almond(person, side, view.open_eyes)
    white = np.vstack([upper, lower[::-1]]) + centre
    sketch.crisp.append(_Part(_on_head(person, white), (236, 232, 228)))
    for radius, colour in ((person.iris_radius, person.iris), (person.iris_radius * 0.45, (14.0, 12.0, 12.0))):
        ring = _RING * radius + np.array(view.gaze)
        # the iris goes under the lids
        top, bottom = (np.interp(ring[:, 0], lid[:, 0], lid[:, 1]) for lid in (upper, lower))
        ring[:, 1] = np.clip(ring[:, 1], top, bottom)
        sketch.crisp.append(_Part(_on_head(person, ring + centre), colour))
    dark = mix(person.skin, (30, 18, 16), 0.75)
    sketch.crisp.append(_Part(_on_head(person, upper + centre), dark, 1.3, closed=False))
    if person.lid > 0.8:
        fold = upper[1:-1] + centre - [0, person.lid]
        sketch.crisp.append(_Part(_on_head(person, fold), mix(person.skin, (50, 30, 30), 0.4), 0.8, closed=False))


def _brow(sketch: _Sketch, person: Person, view: View, side: int, centre: NDArray[np.float64]) -> None:
    x = _SPAN * person.brow_length
    y = -person.brow_gap - view.brow - person.brow_arch * _DOME - side * person.brow_tilt * x
    taper = person.brow_thickness * (0.75 - 0.4 * side * _SPAN)
    shape = np.vstack([np.stack([x, y - taper], 1), np.stack([x, y + taper * 0.4], 1)[::-1]]) + centre
    sketch.crisp.append(_Part(_on_head(person, shape, 1), mix(scaled(person.hair, 0.8), person.skin, 0.2)))


def _nose(sketch: _Sketch, person: Person, view: View) -> None:
    skin, width, tip = person.skin, person.nose_width, person.nose_y
    top = person.eye_y + 2
    shade = 0.16 + 0.1 * view.contrast
    for side, tone in ((-1, 1.0), (1, 0.55)):
        x = np.array([person.nose_bridge, width * 0.5, width, width * 0.5, person.nose_bridge * 0.5])
        y = np.array([top, tip - 5, tip + 1, tip + 3, tip - 4])
        points = _on_head(person, np.stack([side * x, y], 1))
        points[:, 2] += np.array([1, 0.5, 0.1, 0.3, 0.9]) * person.nose_height * 0.5
        sketch.soft.append(_Part(points, mix(skin, (50, 26, 20), shade * tone)))
    ball = _on_head(person, _ellipse(0, tip - 1.5, width * 0.55, width * 0.5), person.nose_height)
    sketch.soft.append(_Part(ball, mix(skin, (255, 244, 236), 0.14)))
    for side in (-1, 1):
        hole = _on_head(person, _ellipse(side * width * 0.45, tip + 3, width * 0.24, 1.3), person.nose_height * 0.6)
        sketch.crisp.append(_Part(hole, mix(skin, (30, 14, 12), 0.65)))
        wing = np.array([[width * 0.95, tip - 2.5], [width + 0.9, tip + 0.6], [width * 0.8, tip + 3.2]]) * [side, 1]
        sketch.crisp.append(_Part(_on_head(person, wing, 2), mix(skin, CREASE, 0.4), 0.9, closed=False))


def _mouth_corner(person: Person, view: View, side: int) -> tuple[float, float]:
    x = side * person.mouth_width * (1 + 0.13 * max(0.0, view.smile))
    return x, person.mouth_y - 2.6 * view.smile + person.asymmetry[4 + (side > 0)]


def _mouth(sketch: _Sketch, person: Person, view: View) -> None:
    (x0, y0), (x1, y1) = _mouth_corner(person, view, -1), _mouth_corner(person, view, 1)
    x = (x0 + x1) / 2 + _SPAN * (x1 - x0) / 2
    corners = (y0 + y1) / 2 + _SPAN * (y1 - y0) / 2
    middle = corners + (2.2 * view.smile + 0.4) * _DOME
    gap = 4.5 * view.open_mouth * _DOME
    upper = middle - gap * 0.3
    lower = middle + gap * 0.7
    bow = person.upper_lip * _DOME**0.6 * (1 - 0.35 * np.exp(-((_SPAN / 0.22) ** 2)))

    def between(a: NDArray[np.float64], b: NDArray[np.float64]) -> Points:
        return _on_head(person, np.vstack([np.stack([x, a], 1), np.stack([x, b], 1)[::-1]]), 1)

    if view.open_mouth > 0.15:
        sketch.crisp.append(_Part(between(upper, lower), (70, 22, 24)))
        sketch.crisp.append(_Part(between(upper, np.minimum(lower, upper + 2.2 * _DOME)), (236, 230, 220)))
    sketch.crisp.append(_Part(between(upper - bow, upper + 0.3), scaled(person.lip, 0.92)))
    sketch.crisp.append(_Part(between(lower - 0.3, lower + person.lower_lip * _DOME**0.7), person.lip))
    line = _on_head(person, np.stack([x, upper], 1), 1)
    sketch.crisp.append(_Part(line, mix(person.lip, (40, 10, 14), 0.6), 0.9, closed=False))
    if view.smile > 0.25 or person.wrinkles > 0.5:
        crease = mix(person.skin, CREASE, 0.12 + 0.2 * person.wrinkles + 0.1 * max(0.0, view.smile))
        for side, cx, cy in ((-1, x0, y0), (1, x1, y1)):
            start = [side * (person.nose_width + 2), person.nose_y + 1]
            fold = np.array([start, [cx + side * 2.5, cy - 8], [cx + side * 3.5, cy]])
            sketch.crisp.append(_Part(_on_head(person, fold), crease, closed=False, width=1.0))


def _marks(sketch: _Sketch, person: Person) -> None:
    brown = mix(person.skin, (60, 28, 20), 0.7)
    for x, y, radius in person.moles:
        spot = _ellipse(x * person.head_width, y * person.chin, radius, radius)
        sketch.crisp.append(_Part(_on_head(person, spot), brown))
    for x, y in person.freckles:
        freckle = _on_head(person, _ellipse(x, y, 0.6, 0.6)[::3])
        sketch.crisp.append(_Part(freckle, mix(person.skin, (110, 50, 24), 0.4)))
    if person.wrinkles > 0.3:
        crease = mix(person.skin, CREASE, 0.3 * person.wrinkles)
        for row in (0.42, 0.52):
            furrow = np.stack([_SPAN * 18, np.full(9, -person.crown * row) - 2 * _DOME], 1)
            sketch.crisp.append(_Part(_on_head(person, furrow), crease, closed=False, width=0.9))


def _hairline(person: Person) -> Points:
    """Return the lower edge of the hair from the left temple to the right: (N, 2) on the face's front."""
    x = np.linspace(-0.97, 0.97, 13)
    high = -person.crown * person.hairline
    style = person.hair_style
    y = {
        HairStyle.CROPPED: high + 8 * np.abs(x) ** 3,
        HairStyle.PARTED_LEFT: high + 16 * np.clip(x + 0.35, 0, 2) ** 2 - 4 * np.exp(-(((x + 0.45) / 0.2) ** 2)),
        HairStyle.PARTED_RIGHT: high + 16 * np.clip(0.35 - x, 0, 2) ** 2 - 4 * np.exp(-(((x - 0.45) / 0.2) ** 2)),
        HairStyle.FRINGE: np.full(13, person.eye_y - person.brow_gap - 6.0) + 3 * x**2,
        HairStyle.LONG: high + 26 * np.abs(x) ** 2.5,
        HairStyle.CURLY: high + 10 * np.abs(x) ** 2 + 2.5 * np.cos(np.arange(13) * math.pi),
        HairStyle.RECEDING: high - 9 + 14 * np.exp(-((x / 0.3) ** 2)) + 9 * np.abs(x) ** 4,
    }[style]
    sides = {HairStyle.LONG: 30, HairStyle.CURLY: 14}.get(style, 4)
    y = np.maximum(y, -0.93 * person.crown * np.sqrt(1 - x**2))  # never beyond the outline
    points = np.stack([x * person.head_width, y], 1)
    temple = person.head_width * 0.97
    return np.vstack([[[-temple, sides]], points, [[temple, sides]]])


def _hair(sketch: _Sketch, person: Person) -> None:
    if person.hair_style is HairStyle.BALD:
        return
    arc = np.linspace(0.12, -math.pi - 0.12, 24)
    wave = 1.8 * np.cos(np.arange(24) * math.pi) if person.hair_style is HairStyle.CURLY else 0.0
    outer = _outline(person, arc, person.hair_volume)
    outer *= 1 + (wave / 50 if isinstance(wave, np.ndarray) else np.zeros(24))[:, None]
    line = _on_head(person, _hairline(person))
    line[[0, -1], 2] = 0
    cap = np.vstack([_flat(outer), line])
    sketch.crisp.append(_Part(cap, person.hair))
    middle = line[1:-1]
    for place, length, shade in person.strands:
        root = middle[int(place * (len(middle) - 1))]
        away = np.array([root[0] * 0.6, -person.crown - person.hair_volume * 0.5, 0.0])
        lock = np.stack([root, root + (away - root) * (0.3 + 0.6 * length)])
        sketch.crisp.append(_Part(lock, scaled(person.hair, 0.75 + 0.6 * shade), 1.2, closed=False))


def _glasses(sketch: _Sketch, person: Person, view: View) -> None:
    style = person.glasses
    if style is GlassesStyle.NONE:
        if view.other_glasses > GLASSES_OFF / 2:
            return
        style = GlassesStyle(1 + int(view.other_glasses * 1e6) % 3)
    elif view.other_glasses < GLASSES_OFF:
        return
    power, rx, ry = {
        GlassesStyle.ROUND: (1.0, 1.0, 0.95),
        GlassesStyle.SQUARE: (0.5, 1.0, 0.8),
        GlassesStyle.WIDE: (0.65, 1.12, 0.6),
    }[style]
    ring = np.sign(_RING) * np.abs(_RING) ** power * [person.lens * rx, person.lens * ry]
    depth = DEPTH * person.head_width + 3.0
    width, top = person.frame_thickness, person.eye_y - 1
    for side in (-1, 1):
        rim = ring + np.array([side * (person.eye_x + 0.5), person.eye_y + 0.5])
        sketch.crisp.append(_Part(np.column_stack([rim, np.full(len(rim), depth - 5)]), person.frame, width))
        hinge = side * (person.eye_x + 0.5 + person.lens * rx)
        arm = np.array([[hinge, top, depth - 6], [side * person.head_width, top, 4]])
        sketch.crisp.append(_Part(arm, person.frame, width, closed=False))
    inner = person.eye_x + 0.5 - person.lens * rx
    bridge = np.array([[-inner, top, depth], [0, top - 1.5, depth + 1], [inner, top, depth]])
    sketch.crisp.append(_Part(bridge, person.frame, width, closed=False))


def _rotation(view: View) -> NDArray[np.float64]:
    """(3, 3), row vectors on the left: yaw about y, then pitch about x."""
    cy, sy, cp, sp = math.cos(view.yaw), math.sin(view.yaw), math.cos(view.pitch), math.sin(view.pitch)
    yaw = np.array([[cy, 0, -sy], [0, 1, 0], [sy, 0, cy]])
    pitch = np.array([[1, 0, 0], [0, cp, sp], [0, -sp, cp]])
    turned: NDArray[np.float64] = yaw @ pitch
    return turned


def _landmarks(person: Person, view: View) -> Points:
    """Return (5, 3) in head coordinates, in the canonical order."""
    eyes = [[side * person.eye_x, person.eye_y] for side in (-1, 1)]
    mouth = [list(_mouth_corner(person, view, side)) for side in (-1, 1)]
    points = _on_head(person, np.array([*eyes, [0, person.nose_y], *mouth]))
    points[2, 2] += person.nose_height
    return points


def _project(points: Points, matrix: NDArray[np.float64]) -> Points:
    """Project (N, 3) to (N, 2) in perspective: nearer points are larger."""
    turned = points @ matrix
    xy: Points = turned[:, :2] * (VIEWER / (VIEWER - turned[:, 2:]))
    return xy


def _paint(sketch: _Sketch, person: Person, view: View) -> Pixels:
    """Draw all parts onto the background, aligned: (112, 112, 3) uint8 RGB."""
    matrix = _rotation(view)
    found = _project(_landmarks(person, view), matrix) + view.jitter
    # A little roll is left in, as alignment leaves some in photographs.
    aligned = similarity_transform(found, CANONICAL_LANDMARKS)
    roll = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), math.degrees(view.roll), 1.0)
    aligned = roll @ np.vstack([aligned, [0, 0, 1]])
    parts = sketch.soft + sketch.crisp
    stacked = np.vstack([part.points for part in parts])
    flat = np.repeat([part.flat for part in parts], [len(part.points) for part in parts])
    xy = np.where(flat[:, None], stacked[:, :2], _project(stacked, matrix))
    xy = np.rint((xy @ aligned[:, :2].T + aligned[:, 2]) * 2**SUBPIXEL).astype(np.int32)
    canvas = cv2.resize(view.background, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    start = 0
    for index, part in enumerate(parts):
        if index == len(sketch.soft):
            canvas = cv2.GaussianBlur(canvas, (5, 5), 1.3)
        stop = start + len(part.points)
        _stroke(canvas, xy[start:stop], part)
        start = stop
    return np.asarray(canvas, np.uint8)


def _stroke(canvas: cv2.typing.MatLike, xy: NDArray[np.int32], part: _Part) -> None:
    if part.width:
        # thin lines are whole pixels wide: lighter ones stand for thinner
        width = max(1, round(part.width))
        cv2.polylines(canvas, [xy], part.closed, part.colour, width, cv2.LINE_AA, SUBPIXEL)
    else:
        cv2.fillPoly(canvas, [xy], part.colour, cv2.LINE_AA, SUBPIXEL)


def _normals() -> NDArray[np.float32]:
    """(28 * 28, 3) directions of a head's surface over the crop, coarse: light is smooth."""
    axis = (np.arange(28, dtype=np.float32) - 13.5) / 13.5
    x, y = np.meshgrid(axis * 0.85, axis * 0.75)
    z = np.sqrt(np.maximum(0.05, 1 - x**2 - y**2))
    normals = np.stack([x, y, z], 2).reshape(-1, 3)
    return np.asarray(normals / np.linalg.norm(normals, axis=1, keepdims=True), np.float32)


_SURFACE = _normals()


def _photograph(canvas: Pixels, view: View) -> Pixels:
    """Apply light, exposure, colour, sharpness and noise of one shot."""
    lit = 1 - view.contrast + view.contrast * 1.25 * np.maximum(0, _SURFACE @ view.light.astype(np.float32))
    light = cv2.resize(lit.reshape(28, 28), (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    image = canvas.astype(np.float32) * light[:, :, None] * (view.exposure * view.tint).astype(np.float32)
    if view.shrink < SIDE:
        small = cv2.resize(image, (view.shrink, view.shrink), interpolation=cv2.INTER_AREA)
        image = np.asarray(cv2.resize(small, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), np.float32)
    if view.blur:
        image = np.asarray(cv2.GaussianBlur(image, (0, 0), view.blur), np.float32)
    grain = np.random.default_rng(view.grain).standard_normal(image.shape, np.float32)
    return np.clip(image + grain * view.noise, 0, 255).astype(np.uint8)
