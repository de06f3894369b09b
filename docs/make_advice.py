"""Make the small photos of the page's advice from docs/samples, and a sheet of them: `python docs/make_advice.py`.

They are good photos, and the same photos made poor in one way each, which the page names. A test checks the server's
decision about each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from PIL import Image, ImageEnhance, ImageFilter

PROJECT = Path(__file__).resolve().parent.parent
SAMPLES = PROJECT / "docs" / "samples"
FOLDER = PROJECT / "app" / "page" / "samples"
SHEET = PROJECT / "docs" / "pictures" / "photos.webp"
COLUMNS, GAP = 3, 6
"""Photos in a row of the sheet, and pixels between them."""
SIDE = 240
"""Width and height of a photo, in pixels."""
WEBP_QUALITY = 80
GREY = "#8a8d92"

Box: TypeAlias = tuple[int, int, int, int]
FACE: Box = (130, 0, 330, 200)
"""Head and shoulders in collins.jpg: left, upper, right, lower."""


def sample(name: str, box: Box | None = None) -> Image.Image:
    with Image.open(SAMPLES / f"{name}.jpg") as photo:
        whole = photo.convert("RGB")
    square = whole.crop(box) if box else _middle(whole)
    return square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _middle(photo: Image.Image) -> Image.Image:
    side = min(photo.size)
    left = (photo.width - side) // 2
    return photo.crop((left, 0, left + side, side))


def small() -> Image.Image:
    far = Image.new("RGB", (SIDE, SIDE), GREY)
    far.paste(sample("collins", FACE).resize((36, 36), Image.Resampling.LANCZOS), (102, 102))
    return far


def pair() -> Image.Image:
    """Return a photo of two people of the same size."""
    both, half = Image.new("RGB", (SIDE, SIDE), GREY), SIDE // 2 - 2
    for left, photo in ((0, sample("collins", FACE)), (half + 4, sample("hopper"))):
        both.paste(photo.resize((half, half), Image.Resampling.LANCZOS), (left, SIDE // 4))
    return both


def brightened(factor: float) -> Image.Image:
    return ImageEnhance.Brightness(sample("collins", FACE)).enhance(factor)


MADE: Mapping[str, Callable[[], Image.Image]] = MappingProxyType(
    {
        "portrait": lambda: sample("collins", FACE),
        "again": lambda: sample("collins_again"),
        "everyday": lambda: sample("hopper"),
        "small": small,
        "blurred": lambda: sample("collins", FACE).filter(ImageFilter.BoxBlur((8, 0))),
        "dark": lambda: brightened(0.08),
        "bright": lambda: brightened(1.8),
        "cut": lambda: sample("collins", (219, 0, 419, 200)),
        "pair": pair,
    }
)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    photos = {name: make() for name, make in MADE.items()}
    for name, photo in photos.items():
        photo.save(FOLDER / f"{name}.webp", quality=WEBP_QUALITY, method=6)
    sheet(list(photos.values())).save(SHEET, quality=WEBP_QUALITY, method=6)


def sheet(photos: Sequence[Image.Image]) -> Image.Image:
    """Return the photos in rows, from left to right and from top to bottom."""
    rows, step = -(-len(photos) // COLUMNS), SIDE + GAP
    whole = Image.new("RGB", (COLUMNS * step - GAP, rows * step - GAP), "white")
    for number, photo in enumerate(photos):
        whole.paste(photo, (number % COLUMNS * step, number // COLUMNS * step))
    return whole


if __name__ == "__main__":
    main()
