"""Draw poor conditions on photos that show a face, and measure the error rates under each.

A drawn mask is not a real one, and the red channel is not an infrared camera: the rates compare conditions and packages
with each other, but don't predict a given camera. Sizes follow the face: d is the distance between the eyes. A place on
the face is (across, down) from the point between the eyes, in units of d and of the distance from eyes to mouth.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from app.errors import Unalignable
from app.models.calibration.intervals import Interval, Ints, people_weights, percentile_interval, wilson
from app.models.calibration.operating_points import number_people
from app.models.stages import pixels_of
from app.package.cards import Condition, ConditionRate, RateInterval
from app.pipeline import Pipeline, choose_face
from app.types import Landmarks, Pixels
from training.evaluation.groups import rounded
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates

DrawCondition: TypeAlias = Callable[[Pixels, Landmarks, np.random.Generator], Pixels]
CLOTHS = ((150, 190, 222), (238, 238, 236), (38, 38, 42))
"""Colours of masks, RGB: light blue, white, black."""
MASK = ((-0.88, 0.40), (-0.35, 0.34), (0, 0.27), (0.35, 0.34), (0.88, 0.40), (0.80, 1.05), (0.45, 1.55), (0, 1.68),
        (-0.45, 1.55), (-0.80, 1.05))  # fmt: skip
"""Outline of a mask, (across, down): over the nose's bridge, along the cheeks, under the chin."""
FOLDS = (0.75, 1.0, 1.25)
LENS = (0.36, 0.30)
"""Half the width and height of a dark glass, in d."""
TEMPLES = 0.95
"""Distance of the frame's ends from the middle, on either side."""
GLASS = (22, 22, 26)
FRAME_WIDTH = 0.07
EDGE_BLUR = 0.7
"""Pixels by which the edges of drawn objects are softened, as a lens does."""
INFRARED_GAMMA, INFRARED_BLUR, INFRARED_GRAIN = 0.75, 0.02, 5.0
"""Skin is bright and soft in near infrared, and small sensors are noisy: exponent, blur in d, grey levels."""
READ_NOISE = 2.0
"""Standard deviation, in grey levels, of the noise that doesn't depend on light."""
LIGHT = 0.1
"""Share of the light that is left in a dark photo: the noise is then nearly half of the face's remaining contrast."""
OUT_OF_FOCUS = 0.07
"""Sigma of the blur in d: 3 pixels if the eyes are 42 apart."""
JPEG_QUALITY = 20


def clean(photo: Pixels, _landmarks: Landmarks, _rng: np.random.Generator) -> Pixels:
    """Return the photo unchanged: the condition with which the others are compared."""
    return photo


def grey(photo: Pixels, _landmarks: Landmarks, _rng: np.random.Generator) -> Pixels:
    """Replace all channels by the luma (BT.601)."""
    return _three(np.asarray(cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY), np.uint8))


def infrared_like(photo: Pixels, landmarks: Landmarks, rng: np.random.Generator) -> Pixels:
    """Return the red channel, brightened, softened and with noise. It is the channel that is closest to infrared."""
    bright = 255 * (photo[:, :, 0] / 255.0) ** INFRARED_GAMMA
    soft = cv2.GaussianBlur(bright.astype(np.uint8), (0, 0), INFRARED_BLUR * _Face.of(landmarks).eyes)
    return _three(_noisy(np.asarray(soft, np.uint8), INFRARED_GRAIN, rng))


def masked(photo: Pixels, landmarks: Landmarks, rng: np.random.Generator) -> Pixels:
    """Draw a surgical mask from the nose's bridge to under the chin, in one of three colours, with folds."""
    face, cloth = _Face.of(landmarks), np.zeros_like(photo)
    cloth[:] = CLOTHS[int(rng.integers(len(CLOTHS)))]
    for down in FOLDS:
        line = face.at([(-0.7, down - 0.05), (0, down), (0.7, down - 0.05)])
        shade = (0.8 * cloth[0, 0]).tolist()
        cv2.polylines(cloth, [line], False, shade, max(1, round(0.03 * face.eyes)), cv2.LINE_AA)
    cover = np.zeros(photo.shape[:2], np.uint8)
    cv2.fillPoly(cover, [face.at(MASK)], 255, cv2.LINE_AA)
    return _covered(photo, cloth, cover)


def dark_glasses(photo: Pixels, landmarks: Landmarks, _rng: np.random.Generator) -> Pixels:
    """Draw sunglasses: an ellipse over each eye, the bridge between them and the temples."""
    face, cover = _Face.of(landmarks), np.zeros(photo.shape[:2], np.uint8)
    size = (round(LENS[0] * face.eyes), round(LENS[1] * face.eyes))
    for eye in np.round(landmarks[:2]).astype(int).tolist():
        cv2.ellipse(cover, eye, size, face.degrees, 0, 360, 255, -1, cv2.LINE_AA)
    frame = face.at([(-TEMPLES, -0.05), (TEMPLES, -0.05)])
    cv2.polylines(cover, [frame], False, 255, max(1, round(FRAME_WIDTH * face.eyes)), cv2.LINE_AA)
    return _covered(photo, np.full_like(photo, GLASS), cover)


def dark(photo: Pixels, _landmarks: Landmarks, rng: np.random.Generator) -> Pixels:
    """Darken the photo, which leaves noise and few grey levels."""
    return _noisy(photo.astype(np.float32) * LIGHT, READ_NOISE, rng)


def out_of_focus(photo: Pixels, landmarks: Landmarks, _rng: np.random.Generator) -> Pixels:
    """Blur the photo in proportion to the face."""
    return np.asarray(cv2.GaussianBlur(photo, (0, 0), OUT_OF_FOCUS * _Face.of(landmarks).eyes), np.uint8)


def jpeg(photo: Pixels, _landmarks: Landmarks, _rng: np.random.Generator) -> Pixels:
    """Compress the photo strongly as JPEG."""
    data = io.BytesIO()
    Image.fromarray(photo).save(data, "JPEG", quality=JPEG_QUALITY)
    return np.asarray(Image.open(data).convert("RGB"), np.uint8)


CONDITIONS: Mapping[str, DrawCondition] = MappingProxyType(
    {
        "clean": clean,
        "grey": grey,
        "infrared-like": infrared_like,
        "mask": masked,
        "dark-glasses": dark_glasses,
        "low-light": dark,
        "blur": out_of_focus,
        "jpeg-20": jpeg,
    }
)


@dataclass(frozen=True, slots=True)
class _Face:
    middle: NDArray[np.float64]
    across: NDArray[np.float64]
    down: NDArray[np.float64]

    @classmethod
    def of(cls, landmarks: Landmarks) -> _Face:
        left, right, _, *mouth = landmarks.astype(np.float64)
        middle = (left + right) / 2
        return cls(middle, right - left, np.mean(mouth, axis=0) - middle)

    @property
    def eyes(self) -> float:
        return float(np.linalg.norm(self.across))

    @property
    def degrees(self) -> float:
        return float(np.degrees(np.arctan2(self.across[1], self.across[0])))

    def at(self, places: Sequence[tuple[float, float]]) -> NDArray[np.int32]:
        points = [self.middle + across * self.across + down * self.down for across, down in places]
        return np.round(points).astype(np.int32)


def _covered(photo: Pixels, over: Pixels, cover: NDArray[np.uint8]) -> Pixels:
    share = cv2.GaussianBlur(cover, (0, 0), EDGE_BLUR)[:, :, None] / 255.0
    return np.asarray(np.round(photo * (1 - share) + over * share), np.uint8)


def _noisy(light: ArrayLike, sigma: float, rng: np.random.Generator) -> Pixels:
    """Add noise, clip and round down to 8 bits as a camera does."""
    levels = np.asarray(light, np.float64)
    return np.asarray(np.clip(levels + rng.normal(0, sigma, levels.shape), 0, 255), np.uint8)


def _three(levels: NDArray[np.uint8]) -> Pixels:
    return np.repeat(levels[:, :, None], 3, axis=2)


def one_photo_each(clean_templates: Templates) -> list[str]:
    """Return the photos to draw conditions on: the first photo of each person who has more than one."""
    return [clean_templates.names[rows[0]] for rows in clean_templates.rows_by_person().values() if len(rows) > 1]


def drawn(data: bytes, pipeline: Pipeline, draw: DrawCondition, name: str, seed: int = 0) -> bytes:
    """Return the photo as PNG, with a condition drawn on its most prominent face. ``name`` and ``seed`` determine the
    random numbers. Raises NoFace and Unalignable."""
    detected = pipeline.detect(data)
    face = detected.faces[choose_face(detected).index]
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    if face.landmarks is None:
        raise Unalignable(f"{name}: the face has no landmarks to draw at.")
    worse = draw(pixels_of(data), face.landmarks, rng)
    return cv2.imencode(".png", worse[:, :, ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()


def measure(
    name: str,
    probes: Templates,
    gallery: Templates,
    thresholds: Mapping[float, float],
    *,
    rounds: int,
    seed: int = 0,
) -> Condition:
    """Compare photos under a condition with all other untouched photos; ``thresholds`` by stated FMR.

    A photo whose face is no longer found matches nobody: its mated pairs are errors. Intervals are over people.
    """
    gallery = gallery.with_face()
    shown, mates = _mated(probes, gallery)
    people = number_people([person_of(photo) for photo in (*probes.names, *gallery.names)])
    probe_of, other_of = people[: len(probes.names)], people[len(probes.names) :]
    weights = people_weights(int(people.max()) + 1, rounds, seed)
    faces = [np.bincount(who, minlength=weights.shape[1]) for who in (probe_of[probes.found], other_of)]
    compared = int(faces[0].sum() * faces[1].sum() - (faces[0] * faces[1]).sum())
    totals = (weights @ faces[0]) * (weights @ faces[1]) - weights**2 @ (faces[0] * faces[1])
    scores = np.where(probes.found[:, None], probes.vectors @ gallery.vectors.T, -np.inf)
    strangers = probe_of[:, None] != other_of[None, :]
    drawn, rates = weights[:, probe_of[shown]], []
    for fmr, threshold in thresholds.items():
        probe, other = np.nonzero(strangers & (scores >= threshold))
        false = (weights[:, probe_of[probe]] * weights[:, other_of[other]]).sum(axis=1) / np.maximum(totals, 1)
        failed = scores[shown, mates] < threshold
        missed = (drawn * failed).sum(axis=1) / np.maximum(drawn.sum(axis=1), 1)
        passed = _interval(len(probe), compared, false, compared)
        fnmr = _interval(int(failed.sum()), len(failed), missed, len(probes.names))
        rates.append(ConditionRate(fmr=fmr, threshold=threshold, found=passed, fnmr=fnmr))
    return Condition(
        name=name,
        photos=len(probes.names),
        without_face=int((~probes.found).sum()),
        mated=len(shown),
        comparisons=compared,
        rates=tuple(rates),
    )


def _mated(probes: Templates, gallery: Templates) -> tuple[Ints, Ints]:
    """Return the rows of probes and of the gallery for each mated pair: two different photos of one person."""
    rows = gallery.rows_by_person()
    pairs = [
        (probe, row)
        for probe, name in enumerate(probes.names)
        for row in rows[person_of(name)]
        if gallery.names[row] != name
    ]
    first, second = np.array(pairs, np.int64).T
    return first, second


def _interval(events: int, trials: int, samples: NDArray[np.float64], independent: int) -> RateInterval:
    """Return the bootstrap's interval, at least as wide as Wilson's of ``independent`` trials, rounded for a card."""
    value = events / trials
    drawn, plain = percentile_interval(value, samples), wilson(round(value * independent), independent)
    low, value, high = rounded(Interval(value, min(drawn.low, plain.low), max(drawn.high, plain.high)))
    return RateInterval(value=value, low=low, high=high)
