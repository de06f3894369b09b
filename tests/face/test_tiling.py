"""Scales and pieces: every face lies whole in one, at a width that is kept."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from app.face.detect import COARSER, HINT_WIDTH, LARGEST_WIDTH, MAX_INPUT, SAFE_WIDTH, SEAM, TALLEST, Level, levels

sides = st.integers(1, 20_000)
large_sides = st.integers(1000, 20_000)
min_faces = st.floats(5, 1000)
shares = st.floats(0, 1)


@given(sides, sides, min_faces)
def test_levels_together_cover_every_width(width: int, height: int, min_face: float) -> None:
    found = levels(width, height, min_face)
    scales = [level.scale for level in found]
    assert scales[0] <= 1
    assert scales[0] == 1 or scales[0] * min_face >= HINT_WIDTH - 1e-9
    assert scales == sorted(scales, reverse=True)
    assert all(fine / coarse <= COARSER + 1e-9 for fine, coarse in pairwise(scales))
    assert max(width, height) * scales[-1] <= LARGEST_WIDTH + 1e-9
    assert all(level.width >= 1 and level.height >= 1 for level in found)


def test_a_small_photo_is_looked_at_once_and_whole() -> None:
    (level,) = levels(250, 250, 20)
    assert list(level.pieces()) == [(0, 0, 250, 250)]


def test_a_large_one_is_never_looked_at_in_full() -> None:
    assert levels(4000, 3000, 20)[0].scale == 0.5


@given(sides, sides, st.integers(8, 497))
def test_pieces_cover_all_of_a_level_and_overlap(width: int, height: int, overlap: int) -> None:
    found = list(Level(1.0, width, height, overlap).pieces())
    assert all(right - left <= MAX_INPUT and bottom - top <= MAX_INPUT for left, top, right, bottom in found)
    for low, high, length in ((0, 2, width), (1, 3, height)):
        spans = sorted({(piece[low], piece[high]) for piece in found})
        assert (spans[0][0], spans[-1][1]) == (0, length)
        assert all(b[0] <= a[1] - overlap for a, b in pairwise(spans))


@given(st.tuples(large_sides, large_sides), st.floats(10, 40), shares, st.floats(1, TALLEST), st.data())
@settings(max_examples=300)
def test_every_face_lies_whole_in_a_piece_at_a_width_that_is_kept(
    size: tuple[int, int], min_face: float, share: float, tall: float, data: st.DataObject
) -> None:
    """Any photo; any face in it, from the smallest one looked for to one that fills the photo; about any seam."""
    width, height = size
    found = levels(width, height, min_face)
    largest = min(width, height / tall)
    if largest < min_face:
        return
    face = min_face * (largest / min_face) ** share  # every order of magnitude alike
    left, right = across(found[0], 0, width, face, data)
    top, bottom = across(found[0], 1, height, face * tall, data)
    assert any(
        holds(level, piece, (left, top, right, bottom))
        for finer, level in zip([None, *found], found, strict=False)
        if (finer is None or face * level.scale >= SAFE_WIDTH)
        and (level is found[-1] or face * level.scale <= SAFE_WIDTH * COARSER)
        for piece in level.pieces()
    )


def across(level: Level, axis: int, length: int, face: float, data: st.DataObject) -> tuple[float, float]:
    """Draw where a face of that size lies along an axis of the photo, about a seam of the level if there is one."""
    spans = sorted({(piece[axis], piece[axis + 2]) for piece in level.pieces()})
    seams = [(a[1] + b[0]) / 2 / level.scale for a, b in pairwise(spans)]
    centre = data.draw(st.sampled_from(seams)) if seams else length / 2
    start = centre + data.draw(st.floats(-1, 1)) * level.overlap / level.scale - face / 2
    start = min(max(0.0, start), length - face)
    return start, start + face


def holds(level: Level, piece: tuple[int, int, int, int], face: tuple[float, float, float, float]) -> bool:
    """Whether the face, in photo pixels, reaches no inner edge of the piece."""
    low = all(edge == 0 or side * level.scale > edge + SEAM for edge, side in zip(piece[:2], face[:2], strict=True))
    ends = (level.width, level.height)
    return low and all(
        edge == end or side * level.scale < edge - SEAM
        for edge, side, end in zip(piece[2:], face[2:], ends, strict=True)
    )
