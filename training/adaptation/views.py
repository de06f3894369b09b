"""Make random views of aligned crops on the training device, which uses crops faster than loaders can make them.

Everything takes and returns (B, 3, S, S) float32 RGB of 0-255 and draws from a `torch.Generator` on the same device, so
that a seed determines a step's views. `training.data.augment` and `training.data.preparation.blending` do the same for
single crops on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import Tensor

from app.errors import InvalidInput
from app.types import Pixels
from training.data.augment import dark_glasses, mask
from training.data.preparation.blending import CONTRAST, EVEN, PATCHES, SHARES, WARP_PIXELS
from training.model import area_matrix
from training.recipe import Probability

LUMA = (0.299, 0.587, 0.114)
"""ITU-R BT.601."""
YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
"""RGB to Y, Cb, Cr by JFIF 1.02, without adding 128 to Cb and Cr."""
LUMA_TABLE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMA_TABLE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
"""The quantisation tables of JPEG's Annex K (ITU-T T.81), which libjpeg scales by quality."""
BLOCK = 8
"""Pixels of JPEG's blocks."""
DrawCover: TypeAlias = Callable[[Pixels, np.random.Generator], Pixels]


@dataclass(frozen=True, slots=True)
class ViewConfig:
    """Probabilities (0-1) and ranges of a view that teacher and student share."""

    blend: float = 0.5
    """Mix two people's crops, as `training.data.preparation.blending` does."""
    turn: float = 5.0
    """Maximum turn to either side in degrees; the standard deviation is half of it."""
    zoom: float = 0.05
    """Scale 1 - zoom ... 1 + zoom."""
    shift: float = 2.5
    """Maximum shift in either direction, in pixels of a 112-pixel crop."""
    colour: float = 0.3
    grey: float = 0.03
    low_resolution: float = 0.1
    blur: float = 0.05
    sigma: ClassVar = (0.4, 2.2)
    """Blur in pixels; `training.data.augment` has about the same."""
    noise: float = 0.05
    grain: ClassVar = (2.0, 12.0)
    """Noise in levels."""
    cover: float = 0.05


def _rising(ends: tuple[float, float]) -> tuple[float, float]:
    if not 0 < ends[0] <= ends[1]:
        raise ValueError("must rise from above 0")
    return ends


Number = Annotated[float, Field(strict=True)]
Range = Annotated[tuple[Number, Number], AfterValidator(_rising)]


class ConditionConfig(BaseModel):
    """How a crop is degraded for `adapt`: each condition with its probability (0-1) and range."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    small: Probability = 0.7
    side: Range = (12, 48)
    """Side of a small face in pixels, drawn uniformly in its logarithm."""
    jpeg: Probability = 0.7
    quality: Range = (30, 95)
    blur: Probability = 0.15
    sigma: Range = (0.5, 2.5)
    dark: Probability = 0.15
    light: Range = (0.1, 0.7)
    noise: Probability = 0.15
    grain: Range = (2.0, 16.0)
    cover: Probability = 0.1
    grey: Probability = 0.0
    infrared: Probability = 0.0
    """The red channel replaces all three, brightened."""
    mask: Probability = 0.0
    glasses: Probability = 0.0
    clean: Probability = 0.25
    """Share of crops that stay unchanged."""


FOR: Mapping[str, Mapping[str, Any]] = {
    "grey": {"grey": 0.5},
    "infrared-like": {"infrared": 0.5, "noise": 0.3, "grain": (2.0, 8.0)},
    "mask": {"mask": 0.5},
    "dark-glasses": {"glasses": 0.5},
    "low-light": {"dark": 0.5, "light": (0.05, 0.5), "noise": 0.3},
    "blur": {"blur": 0.5, "sigma": (0.5, 4.0)},
    "jpeg-20": {"jpeg": 0.5, "quality": (8, 50)},
}
"""The conditions of `evaluate conditions` by name, as `adapt --for` draws them: shapes and strengths differ from the
evaluation's."""
PLAIN = ConditionConfig(small=0, jpeg=0, blur=0, dark=0, noise=0, cover=0)
VARIANTS = 64
"""Number of different masks, and of pairs of glasses; they are drawn only once."""


def conditions_for(names: Sequence[str]) -> ConditionConfig:
    """Return only the conditions with these names. Raises InvalidInput (`invalid_conditions`)."""
    if unknown := [name for name in names if name not in FOR]:
        raise InvalidInput(f"There is no condition {unknown[0]!r}: {', '.join(FOR)}.", code="invalid_conditions")
    return PLAIN.model_copy(update={key: value for name in names for key, value in FOR[name].items()})


def covers(draw: DrawCover, side: int) -> Tensor:
    """Return (VARIANTS, 4, S, S) float32: masks or glasses that `draw` makes with different seeds.

    A crop is multiplied by the fourth channel (0-1); the other three (0-255) are added to it.
    """
    made = []
    for seed in range(VARIANTS):
        ends = (np.full((side, side, 3), level, np.uint8) for level in (0, 255))
        black, white = (draw(end, np.random.default_rng(seed)).astype(np.float32) for end in ends)
        made.append(np.dstack([black, (white - black).mean(axis=2) / 255]))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).float()


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Draw float32 of this shape, uniformly between low and high, on the generator's device."""
    return torch.rand(*shape, generator=generator, device=generator.device) * (high - low) + low


def happens(generator: torch.Generator, probability: float, count: int) -> Tensor:
    """Draw (count, 1, 1, 1) bool that are true with this probability."""
    return torch.rand(count, 1, 1, 1, generator=generator, device=generator.device) < probability


class Views:
    """Draws fresh views; holds the tables that resizing, blurring and JPEG need, on one device."""

    def __init__(self, side: int, device: torch.device) -> None:
        self.side, self.device = side, device
        self._resize = resize_tables(side).to(device)
        self._dct = block_dct(side).to(device)
        self._half_dct = block_dct(side // 2).to(device)
        self._tables = torch.tensor([LUMA_TABLE, CHROMA_TABLE], dtype=torch.float32, device=device)
        self._ycc = torch.tensor(YCC, device=device)
        self._covers: dict[DrawCover, Tensor] = {}

    # ------------------------------------------------------------------------------------------- shared views

    def fresh(self, first: Tensor, second: Tensor, config: ViewConfig, generator: torch.Generator) -> Tensor:
        """Return a view of each first crop, some blended with the second; (B, 3, S, S) each, rounded to integers."""
        count = len(first)
        blended = happens(generator, config.blend, count)
        x = torch.where(blended, self.blend(first, second, generator), first)
        x = self.moved(x, config, generator, blended)
        x = torch.where(happens(generator, config.colour, count), self.coloured(x, generator), x)
        x = torch.where(happens(generator, config.grey, count), grey(x), x)
        if config.low_resolution:
            sides = (self.side * uniform(generator, 0.2, 1.0, count)).round().long()
            x = torch.where(happens(generator, config.low_resolution, count), self.shrunk(x, sides, generator), x)
        return self._spoilt(x, config, generator).clamp(0, 255).round()

    def blend(self, first: Tensor, second: Tensor, generator: torch.Generator) -> Tensor:
        """Mix two crops by a constant or a smooth mask, after giving the second one the first's mean colour."""
        count = len(first)
        matched = second + first.mean((2, 3), keepdim=True) - second.mean((2, 3), keepdim=True)
        even = uniform(generator, *SHARES, count, 1, 1, 1)
        mask = torch.sigmoid(CONTRAST * self._smooth(generator, count, 1))
        share = torch.where(happens(generator, EVEN, count), even, mask)
        return first + share * (matched - first)

    def moved(self, x: Tensor, config: ViewConfig, generator: torch.Generator, warped: Tensor) -> Tensor:
        """Mirror half of the crops; turn, zoom and shift all of them slightly; warp blends gently."""
        count = len(x)
        angle = torch.randn(count, generator=generator, device=self.device) * math.radians(config.turn / 2)
        scale = 1 + uniform(generator, -config.zoom, config.zoom, count)
        mirror = torch.where(uniform(generator, 0, 1, count) < 0.5, -1.0, 1.0)
        cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
        shift = uniform(generator, -1, 1, count, 2) * (2 * config.shift / self.side)
        theta = torch.stack(
            [torch.stack([cos * mirror, -sin, shift[:, 0]], 1), torch.stack([sin * mirror, cos, shift[:, 1]], 1)], 1
        )
        grid = F.affine_grid(theta, [count, 3, self.side, self.side], align_corners=False)
        strength = uniform(generator, 0, WARP_PIXELS, count, 1, 1, 1) * (2 / self.side) * warped
        grid = grid + (self._smooth(generator, count, 2) * strength).permute(0, 2, 3, 1)
        moved: Tensor = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        return moved

    def coloured(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Multiply brightness, contrast and saturation by random factors of 0.5-1.5."""
        light, contrast, saturation = uniform(generator, 0.5, 1.5, 3, len(x), 1, 1, 1)
        x = x * light
        mean = grey(x).mean((1, 2, 3), keepdim=True)
        x = (x - mean) * contrast + mean
        luma = grey(x)
        coloured: Tensor = luma + (x - luma) * saturation
        return coloured

    # --------------------------------------------------------------------------------------------- conditions

    def degraded(self, x: Tensor, config: ConditionConfig, generator: torch.Generator) -> Tensor:
        """Make poor copies: dark, out of focus, noisy, covered, or shrunk and compressed."""
        count = len(x)
        light = uniform(generator, *config.light, count, 1, 1, 1)
        y = self._worn(x, config.mask, mask, generator)
        y = self._worn(y, config.glasses, dark_glasses, generator)
        if config.grey:
            y = torch.where(happens(generator, config.grey, count), grey(y), y)
        if config.infrared:
            red = 255 * (y[:, :1] / 255) ** uniform(generator, 0.5, 0.9, count, 1, 1, 1)
            y = torch.where(happens(generator, config.infrared, count), red.expand_as(y), y)
        y = torch.where(happens(generator, config.dark, count), y * light, y)
        y = self._spoilt(y, config, generator)
        low, high = math.log(config.side[0]), math.log(config.side[1])
        sides = torch.exp(uniform(generator, low, high, count)).round().long()
        sides = torch.where(happens(generator, config.small, count).view(-1), sides, self.side)
        quality = uniform(generator, *config.quality, count)
        pressed = happens(generator, config.jpeg, count)
        y = self.small_file(y.clamp(0, 255).round(), sides, quality, pressed, generator)
        return torch.where(happens(generator, config.clean, count), x, y).clamp(0, 255).round()

    def _worn(self, x: Tensor, share: float, draw: DrawCover, generator: torch.Generator) -> Tensor:
        if not share:
            return x
        if draw not in self._covers:
            self._covers[draw] = covers(draw, self.side).to(self.device)
        cover = self._covers[draw][torch.randint(VARIANTS, (len(x),), generator=generator, device=self.device)]
        return torch.where(happens(generator, share, len(x)), cover[:, :3] + x * cover[:, 3:], x)

    def small_file(
        self, x: Tensor, sides: Tensor, quality: Tensor, pressed: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Shrink crops to (B,) `sides` pixels, compress those that are `pressed` as JPEG of (B,) `quality`, and enlarge
        all of them."""
        small = self._separable(x, self._resize[0][sides])  # the small crop is in the upper left corner, edges repeated
        files = torch.where(pressed, self.jpeg(small.clamp(0, 255).round(), quality), small)
        way = torch.where(uniform(generator, 0, 1, len(x)) < 0.7, 1, 2)
        return self._separable(files, self._resize[way, sides])

    def shrunk(self, x: Tensor, sides: Tensor, generator: torch.Generator) -> Tensor:
        """Reduce crops to (B,) `sides` pixels by averaging, and enlarge them by bilinear or bicubic interpolation."""
        way = torch.where(uniform(generator, 0, 1, len(x)) < 0.5, 1, 2)
        return self._separable(x, self._resize[way, sides] @ self._resize[0][sides])

    def jpeg(self, x: Tensor, quality: Tensor) -> Tensor:
        """Quantise crops as JPEG does with (B,) `quality` 1-100, colour at half resolution; S a multiple of 16."""
        percent = torch.where(quality < 50, 5000 / quality, 200 - 2 * quality)[:, None, None, None]
        tables = ((self._tables * percent + 50) / 100).floor().clamp(1, 255)  # (B, 2, 8, 8)
        ycc = torch.einsum("ij,bjhw->bihw", self._ycc, x)
        luma = _quantised(ycc[:, :1] - 128, self._dct, tables[:, :1]) + 128
        chroma = _quantised(F.avg_pool2d(ycc[:, 1:], 2), self._half_dct, tables[:, 1:])
        chroma = F.interpolate(chroma, scale_factor=2, mode="bilinear", align_corners=False)
        back = torch.linalg.inv(self._ycc.double()).float()
        rgb = torch.einsum("ij,bjhw->bihw", back, torch.cat([luma, chroma], 1))
        return rgb.clamp(0, 255).round()

    # ------------------------------------------------------------------------------------------------ helpers

    def _spoilt(self, x: Tensor, config: ViewConfig | ConditionConfig, generator: torch.Generator) -> Tensor:
        """Put some crops out of focus, make some noisy, cover some."""
        count = len(x)
        if config.blur:
            width = uniform(generator, *config.sigma, count)
            x = torch.where(happens(generator, config.blur, count), self._separable(x, self._gaussian(width)), x)
        if config.noise:
            level = uniform(generator, *config.grain, count, 1, 1, 1)
            dust = torch.randn(x.shape, generator=generator, device=self.device) * level
            x = torch.where(happens(generator, config.noise, count), x + dust, x)
        if config.cover:
            x = torch.where(happens(generator, config.cover, count) & self._rectangle(generator, count), 128.0, x)
        return x

    def _gaussian(self, sigma: Tensor) -> Tensor:
        """Return (B, S, S) matrices that blur along one axis."""
        places = torch.arange(self.side, device=self.device, dtype=torch.float32)
        weights = torch.exp(-((places[:, None] - places[None]) ** 2) / (2 * sigma[:, None, None] ** 2))
        return weights / weights.sum(2, keepdim=True)

    def _separable(self, x: Tensor, matrices: Tensor) -> Tensor:
        """Apply the same (B, S, S) matrix along height and width."""
        changed: Tensor = matrices[:, None] @ x @ matrices[:, None].transpose(2, 3)
        return changed

    def _rectangle(self, generator: torch.Generator, count: int) -> Tensor:
        """Return (B, 1, S, S) bool: inside a rectangle of 2 to 25 % of the area."""
        area = uniform(generator, 0.02, 0.25, count, 1, 1, 1) * self.side**2
        ratio = torch.exp(uniform(generator, -math.log(3), math.log(3), count, 1, 1, 1))
        tall, wide = (area * ratio).sqrt(), (area / ratio).sqrt()
        top = uniform(generator, 0, 1, count, 1, 1, 1) * (self.side - tall)
        left = uniform(generator, 0, 1, count, 1, 1, 1) * (self.side - wide)
        places = torch.arange(self.side, device=self.device, dtype=torch.float32)
        rows, columns = places[None, None, :, None], places[None, None, None, :]
        return (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)

    def _smooth(self, generator: torch.Generator, count: int, channels: int) -> Tensor:
        """Draw (count, channels, S, S) smooth noise, about normally distributed."""
        grid = torch.randn(count, channels, PATCHES, PATCHES, generator=generator, device=self.device)
        return F.interpolate(grid, size=(self.side, self.side), mode="bicubic", align_corners=False)


def grey(x: Tensor) -> Tensor:
    """Replace all three channels by the luma."""
    luma = torch.tensor(LUMA, device=x.device).view(1, 3, 1, 1)
    return (x * luma).sum(1, keepdim=True).expand_as(x)


@cache
def resize_tables(side: int) -> Tensor:
    """Return (3, side + 1, side, side) matrices for each n: one averages `side` pixels into the first n (the others
    repeat the last), two enlarge the first n to `side`, by bilinear and by bicubic interpolation."""
    tables = torch.zeros(3, side + 1, side, side)
    unit = torch.eye(side)
    for n in range(1, side + 1):
        down = area_matrix(n, side)
        tables[0, n, :n] = down
        tables[0, n, n:] = down[-1]
        for way, mode in ((1, "bilinear"), (2, "bicubic")):  # enlarges each column of the unit matrix along its rows
            square = unit[None, None, :n, :n]
            tables[way, n, :, :n] = F.interpolate(square, size=(side, n), mode=mode, align_corners=False)[0, 0]
    return tables


def block_dct(side: int) -> Tensor:
    """Return (side, side): the orthonormal DCT-II of each block of 8 along one axis; `side` a multiple of 8."""
    k, n = torch.arange(BLOCK, dtype=torch.float64)[:, None], torch.arange(BLOCK, dtype=torch.float64)[None]
    basis = torch.cos(math.pi * (2 * n + 1) * k / (2 * BLOCK)) * math.sqrt(2 / BLOCK)
    basis[0] /= math.sqrt(2)
    return torch.kron(torch.eye(side // BLOCK), basis.float())


def _quantised(x: Tensor, dct: Tensor, tables: Tensor) -> Tensor:
    """Transform (B, C, S, S) by the DCT, round to multiples of (B, 1, 8, 8) `tables`, and transform back."""
    blocks = dct.shape[0] // BLOCK
    steps = tables.repeat(1, 1, blocks, blocks)
    coefficients = ((dct @ x @ dct.T) / steps).round() * steps
    return dct.T @ coefficients @ dct
