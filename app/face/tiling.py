"""At which scales a photo is searched, and in which overlapping pieces: any face lies whole in one of them, at a width
that the detector judges well.

The arithmetic. Let two neighbouring levels differ by a factor r. Of what is seen in the coarser one, sights from
KEPT_WIDTH on are kept; so a face may be lost there if it is less than SAFE_WIDTH wide, as sights are up to a tenth
narrower than the face. It is then less than r × SAFE_WIDTH wide in the finer level, and TALLEST times that high.
Where the finer level's pieces overlap by so much and a seam on either side, such a face lies whole in one of them:
the interval between two neighbouring pieces' middles belongs to one of the two, with everything that reaches no further
than the overlap around it. A face that is wider than that is kept in the coarser level, or in one coarser still, and
the coarsest is one piece. With r at most COARSER = 8 the overlap is at most 8 × 39 × 1.58 + 5 = 497 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

HINT_WIDTH: Final = 10
"""Pixels of the network's input that a face must be wide to raise a hint."""
SURE_WIDTH: Final = 40
"""From this width on, score and landmarks are as good as they get (landmarks' error falls from 4.4 % of the
width at 20 pixels to 2.7 % at 40)."""
LARGEST_WIDTH: Final = 280
"""Up to this width they stay good; at 400 scores begin to fall, at 512 a twentieth is lost."""
COARSEST_SIDE: Final = 192
"""Longer side of the coarsest level: a face that fills the photo, or is cut by its edge, is found at 96 to 320."""
COARSER: Final = 8
"""Most that one level may be coarser than the one before: what is 280 wide in one is 35 in the next."""
KEPT_WIDTH: Final = LARGEST_WIDTH / COARSER
"""Narrower sights in a coarser level were seen better in the one before."""
SAFE_WIDTH: Final = KEPT_WIDTH / 0.9
"""Width of a face whose sight is kept: of 300 faces of LFW View 1, a hundredth is seen a tenth narrower at most."""
CHEAP_AREA: Final = 320 * 320
"""Pixels up to which the photo is looked at in full, as that costs no more than a few closer looks."""

MAX_INPUT: Final = 1536
"""Longest side of one network input; larger levels are cut into overlapping pieces, so that memory stays bounded."""
TALLEST: Final = 1.58
"""Height of a face over its width: 1.3 in the middle, at most 1.58 in 99 of 100 faces of LFW View 1 at any size."""
SEAM: Final = 2
"""Pixels from a piece's inner edge within which a sight counts as cut by it."""

Piece: TypeAlias = tuple[int, int, int, int]
"""Left, top, right and bottom (exclusive) in a level's pixels."""


@dataclass(frozen=True, slots=True)
class Level:
    """One scale at which the photo is searched: input pixels per photo pixel, and the size of that input."""

    scale: float
    width: int
    height: int
    overlap: int
    """Pixels that its pieces share, if it has several."""

    def pieces(self) -> Iterator[Piece]:
        """Yield overlapping rectangles, no side longer than MAX_INPUT, that cover the level."""
        for top, bottom in _spans(self.height, self.overlap):
            for left, right in _spans(self.width, self.overlap):
                yield left, top, right, bottom


def levels(width: int, height: int, min_face: float) -> list[Level]:
    """Return the scales at which a photo is searched for faces from ``min_face`` pixels wide, finest first."""
    cheap = math.sqrt(CHEAP_AREA / (width * height))
    finest = min(1.0, max(HINT_WIDTH / min_face, cheap))
    longest = max(width, height) * finest
    steps = math.ceil(math.log(longest / COARSEST_SIDE, COARSER) - 1e-9) if longest > LARGEST_WIDTH else 0
    ratio = (longest / COARSEST_SIDE) ** (1 / steps) if steps else 1.0
    overlap = math.ceil(TALLEST * SAFE_WIDTH * ratio) + 2 * SEAM + 1
    scales = [finest / ratio**step for step in range(steps + 1)]
    return [Level(s, max(1, round(width * s)), max(1, round(height * s)), overlap) for s in scales]


def _spans(length: int, overlap: int) -> list[tuple[int, int]]:
    count = max(1, math.ceil((length - overlap) / (MAX_INPUT - overlap)))
    size = math.ceil((length + (count - 1) * overlap) / count)
    starts = [round(i * (length - size) / max(1, count - 1)) for i in range(count)]
    return [(start, min(length, start + size)) for start in starts]
