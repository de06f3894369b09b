"""Image intake: what is read, how it looks then, and what is refused."""

from __future__ import annotations

import io
import random
import re
import resource
import struct
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import cv2
import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from app.errors import EmptyImage, ImageTooLarge, ImageTooSmall, InvalidImage, InvalidInput, UnsupportedImage
from app.face import formats
from app.face.formats import Limits, TooCostly, heif_reader, open_image
from app.face.image import Decoded, decode, decode_opened
from tests.support import images
from tests.support.images import EVERY_KIND, ORIENTATION, encoded, grey16, heic, lab, photo, pixels, turned

LIMITS = Limits()


def difference(decoded: Decoded, image: Image.Image) -> float:
    """Mean absolute difference, 0-255."""
    assert decoded.pixels.shape == (image.height, image.width, 3)
    return float(np.abs(decoded.pixels - pixels(image)).mean())


one_picture = pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind != "jpeg of two pictures"])
kinds = pytest.mark.parametrize("kind", EVERY_KIND)


class TestFormats:
    @pytest.mark.parametrize(
        ("kind", "tolerance"), [("PNG", 0), ("BMP", 0), ("TIFF", 0), ("JPEG", 8), ("WEBP", 8), ("GIF", 8), ("AVIF", 8)]
    )
    def test_each_format_is_read(self, kind: str, tolerance: float) -> None:
        decoded = decode(encoded(photo(), kind), LIMITS)
        assert (decoded.width, decoded.height) == (96, 64)
        assert difference(decoded, photo()) <= tolerance

    @pytest.mark.parametrize("options", [{}, {"tile_size": 64}, {"chroma": 444}], ids=str)
    def test_heic_is_read(self, options: dict[str, Any]) -> None:
        image = photo(200, 150)
        decoded = decode(heic(image, **options), LIMITS)
        assert (decoded.width, decoded.height) == (200, 150)
        assert difference(decoded, image) <= 8

    def test_heic_of_ten_bits_keeps_its_upper_bits(self) -> None:
        wide = np.asarray(photo(), np.uint16) << 8
        file = io.BytesIO()
        pillow_heif.encode("RGB;16", (96, 64), wide.tobytes(), file, quality=90)
        assert difference(decode(file.getvalue(), LIMITS), photo()) <= 8

    def test_heic_is_refused_where_its_reader_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        heif_reader.cache_clear()
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        with pytest.raises(UnsupportedImage, match="heic"):
            decode(heic(photo()), LIMITS)

    def test_heif_brands_are_told_apart(self) -> None:
        for brand, kind in ((b"mif1", "HEIF"), (b"heix", "HEIF")):
            assert open_image(patched(heic(photo()), 8, brand), LIMITS).format == kind
        assert open_image(patched(encoded(photo(), "AVIF"), 8, b"mif1"), LIMITS).format == "AVIF"

    def test_pixels_are_contiguous_rgb_bytes_that_nobody_may_change(self) -> None:
        decoded = decode(turned(photo(), "PNG", 6), LIMITS)
        assert decoded.pixels.dtype == np.uint8
        assert decoded.pixels.flags.c_contiguous
        assert not decoded.pixels.flags.writeable

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr"])
    def test_each_colour_mode_becomes_rgb(self, mode: str) -> None:
        image = photo().convert("P").convert("PA") if mode == "PA" else photo().convert(mode)
        assert difference(decode(encoded(image, "TIFF"), LIMITS), image) <= 1

    def test_lab_becomes_rgb(self) -> None:
        assert difference(decode(encoded(lab(photo()), "TIFF"), LIMITS), photo()) <= 2

    def test_cmyk_jpegs_inverted_by_adobes_convention_keep_their_colours(self) -> None:
        data = encoded(photo().convert("CMYK"), "JPEG", quality=95)
        assert b"Adobe" in data
        assert difference(decode(data, LIMITS), photo()) <= 8

    @pytest.mark.parametrize("mode", ["I", "F"])
    def test_values_of_no_declared_range_are_stretched(self, mode: str) -> None:
        grey = photo().convert("L")
        values = np.asarray(grey, np.float64) * 1000 - 7
        image = Image.fromarray(values.astype(np.int32 if mode == "I" else np.float32))
        low, high = values.min(), values.max()
        wanted = Image.fromarray(np.rint((values - low) / (high - low) * 255).astype(np.uint8))
        assert difference(decode(encoded(image, "TIFF"), LIMITS), wanted) == 0

    def test_floats_that_are_not_finite_are_black(self) -> None:
        values = np.full((32, 32), 5.0, np.float32)
        values[0, :3], values[1, 0] = (np.nan, np.inf, -np.inf), 9.0
        values.view(np.uint32)[2, 0] = 0x7F800001  # a signalling NaN, at which plain conversion warns
        decoded = decode(encoded(Image.fromarray(values), "TIFF"), LIMITS)
        assert decoded.pixels[0, :3].max() == decoded.pixels[2, 0].max() == 0
        assert decoded.pixels[1, 0].min() == 255

    def test_nothing_but_nans_is_no_picture(self) -> None:
        with pytest.raises(InvalidImage):
            decode(encoded(Image.fromarray(np.full((32, 32), np.nan, np.float32)), "TIFF"), LIMITS)

    @pytest.mark.parametrize("kind", ["PNG", "TIFF"])
    def test_sixteen_bit_grey_keeps_its_upper_bits(self, kind: str) -> None:
        grey = np.asarray(photo().convert("L"), np.uint16)
        decoded = decode(encoded(grey16(grey * 256 + 77), kind), LIMITS)
        assert (decoded.pixels == grey[:, :, None]).all()

    @pytest.mark.parametrize("bits", [10, 12, 14, 16])
    def test_grey_values_of_fewer_bits_in_sixteen_are_as_bright_as_the_picture(self, bits: int) -> None:
        grey = np.asarray(photo().convert("L"), np.uint16)
        grey[0, 0] = 255
        decoded = decode(encoded(grey16(grey << bits - 8), "PNG"), LIMITS)
        assert (decoded.pixels == grey[:, :, None]).all()

    def test_colours_of_ten_bits_in_sixteen_are_refused_not_black(self) -> None:
        _, data = cv2.imencode(".png", np.asarray(photo(), np.uint16)[:, :, ::-1] << 2)
        with pytest.raises(UnsupportedImage, match="upper bits"):
            decode(data.tobytes(), LIMITS)
        _, black = cv2.imencode(".png", np.zeros((32, 32, 3), np.uint16))
        assert decode(black.tobytes(), LIMITS).pixels.max() == 0

    @pytest.mark.parametrize("bits", [10, 16])
    def test_a_tiff_whose_white_is_zero_is_no_negative(self, bits: int) -> None:
        grey = np.asarray(photo().convert("L"), np.uint16)
        grey[0, 0] = 0
        white_is_zero = images.white_is_zero((255 - grey) << bits - 8)
        assert (decode(white_is_zero, LIMITS).pixels == grey[:, :, None]).all()

    def test_a_bmp_whose_fourth_byte_is_always_zero_is_no_white_page(self) -> None:
        for size in ((96, 64), (400, 300)):
            image = photo(*size)
            assert difference(decode(images.bmp_without_alpha(image), LIMITS), image) == 0

    @pytest.mark.parametrize(
        ("make", "said"), [(images.float_colours, "kind of pixels"), (images.preview_first, "preview")]
    )
    def test_whole_files_of_kinds_that_are_not_read_are_not_called_damaged(
        self, make: Callable[[], bytes], said: str
    ) -> None:
        with pytest.raises(UnsupportedImage, match=said):
            decode(make(), LIMITS)

    def test_sixteen_bit_colour_keeps_its_upper_bits(self) -> None:
        rgb = np.asarray(photo(), np.uint16)
        _, data = cv2.imencode(".png", rgb[:, :, ::-1] * 256 + 200)
        assert (decode(data.tobytes(), LIMITS).pixels == rgb).all()

    def test_transparency_is_composited_on_white(self) -> None:
        rgba = np.zeros((32, 32, 4), np.uint8)
        rgba[:8] = (200, 100, 0, 255)
        rgba[8:16] = (200, 100, 0, 51)  # a fifth of it
        for kind, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})):
            decoded = decode(encoded(Image.fromarray(rgba), kind, **options), LIMITS)
            assert decoded.pixels[0, 0].tolist() == [200, 100, 0]
            assert np.abs(decoded.pixels[10, 0].astype(int) - (244, 224, 204)).max() <= 1
            assert decoded.pixels[20, 0].tolist() == [255, 255, 255]

    @pytest.mark.parametrize("kind", ["PNG", "GIF"])
    def test_a_transparent_palette_entry_is_white(self, kind: str) -> None:
        image = Image.new("P", (32, 32), 1)
        image.putpalette([0, 0, 0, 10, 20, 30, 200, 0, 0])
        image.paste(2, (0, 0, 16, 16))
        decoded = decode(encoded(image, kind, transparency=2), LIMITS)
        assert decoded.pixels[0, 0].tolist() == [255, 255, 255]
        assert decoded.pixels[20, 20].tolist() == [10, 20, 30]

    def test_a_transparent_grey_value_of_16_bits_is_white(self) -> None:
        values = np.full((32, 32), 300, np.uint16)
        values[0, 0], values[0, 1] = 301, 65535
        chunk = png_chunk(b"tRNS", struct.pack(">H", 301))
        data = encoded(grey16(values), "PNG")
        decoded = decode(data[:33] + chunk + data[33:], LIMITS)
        assert decoded.pixels[0, 0].tolist() == [255, 255, 255]
        assert decoded.pixels[1, 1].tolist() == [1, 1, 1]

    @pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
    def test_only_the_first_of_several_pictures_is_read(self, kind: str) -> None:
        frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue", "blue")]
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        assert difference(decode(data, LIMITS), frames[0]) <= 2


class TestOrientation:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
    def test_each_exif_orientation_is_turned_upright(self, kind: str, orientation: int) -> None:
        data = turned(photo(), kind, orientation)
        wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        decoded = decode(data, LIMITS)
        assert difference(decoded, wanted) == 0
        assert (decoded.width, decoded.height) == wanted.size

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_each_turn_of_a_heic_is_undone_once(self, orientation: int) -> None:
        """libheif turns the picture itself; the EXIF orientation beside it says the same and must not count again."""
        wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(turned(photo(), "PNG", orientation))))
        data = heic(photo(), orientation)
        decoded = decode(data, LIMITS)
        assert difference(decoded, wanted) <= 8
        assert (decoded.width, decoded.height) == wanted.size

    def test_orientation_behind_a_pngs_pixels_counts(self) -> None:
        data = turned(photo(), "PNG", 6)
        at = data.index(b"eXIf") - 4
        end = at + 12 + struct.unpack_from(">I", data, at)[0]
        moved = data[:at] + data[end:-12] + data[at:end] + data[-12:]
        assert [(decoded.width, decoded.height) for decoded in (decode(moved, LIMITS), decode(data, LIMITS))] == [
            (64, 96)
        ] * 2

    @pytest.mark.parametrize("orientation", [0, 9, 60000])
    def test_an_orientation_out_of_range_is_upright(self, orientation: int) -> None:
        decoded = decode(turned(photo(), "JPEG", orientation), LIMITS)
        assert (decoded.width, decoded.height) == photo().size

    def test_damaged_exif_does_not_spoil_the_picture(self) -> None:
        data = turned(photo(), "JPEG", 6)
        at = data.index(b"Exif\0\0")
        for position in range(6, 24):
            damaged = bytearray(data)
            damaged[at + position] ^= 0xFF
            decoded = decode(bytes(damaged), LIMITS)
            assert sorted(decoded.pixels.shape) == [3, 64, 96]


def reduced_by(factor: int, data: bytes) -> Decoded:
    return decode_opened(open_image(data, LIMITS), data, LIMITS, 1 / factor)


class TestReduction:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("factor", [2, 4, 8])
    def test_a_reduced_jpeg_shows_the_same_places(self, orientation: int, factor: int) -> None:
        """Each pixel is about the mean of the block that scale, left and top say it stands for."""
        data = turned(photo(301, 203), "JPEG", orientation)
        whole, reduced = decode(data, LIMITS), reduced_by(factor, data)
        assert reduced.scale == factor
        assert (reduced.width, reduced.height) == (whole.width, whole.height)
        for row in range(1, reduced.pixels.shape[0] - 1, 5):
            for column in range(1, reduced.pixels.shape[1] - 1, 5):
                y, x = reduced.top + row * factor, reduced.left + column * factor
                block = whole.pixels[y : y + factor, x : x + factor].mean(axis=(0, 1))
                assert np.abs(reduced.pixels[row, column] - block).max() < 25

    def test_other_formats_come_at_full_size(self) -> None:
        decoded = reduced_by(8, encoded(photo(), "PNG"))
        assert (decoded.scale, decoded.left, decoded.top) == (1, 0, 0)
        assert difference(decoded, photo()) == 0

    def test_in_between_the_next_smaller_factor_is_taken(self) -> None:
        assert reduced_by(7, encoded(photo(), "JPEG")).scale == 4


class TestRefusals:
    def test_nothing(self) -> None:
        with pytest.raises(EmptyImage):
            decode(b"", LIMITS)

    @pytest.mark.parametrize(
        "data",
        [b"hello", b"BMW is a car maker, and this no bitmap at all", b"%PDF-1.7", b"\0" * 100, b"\xff\xd8", b"B"],
    )
    def test_what_is_no_image(self, data: bytes) -> None:
        with pytest.raises(UnsupportedImage):
            decode(data, LIMITS)

    def test_readable_by_pillow_but_not_on_the_list(self) -> None:
        for kind in ("PPM", "ICO", "TGA", "JPEG2000"):
            with pytest.raises(UnsupportedImage):
                decode(encoded(photo(), kind), LIMITS)

    def test_one_pixel(self) -> None:
        with pytest.raises(ImageTooSmall) as caught:
            decode(encoded(photo(1, 1), "PNG"), LIMITS)
        assert caught.value.details == {"width": 1, "height": 1, "min_side": LIMITS.min_side}

    def test_too_many_bytes(self) -> None:
        data = encoded(photo(), "PNG")
        assert decode(data, Limits(max_bytes=len(data))).width == 96
        with pytest.raises(ImageTooLarge):
            decode(data, Limits(max_bytes=len(data) - 1))

    def test_too_many_pixels_or_too_long_a_side(self) -> None:
        data = turned(photo(), "JPEG", 6)
        assert decode(data, Limits(max_pixels=96 * 64, max_side=96)).height == 96
        for limits in (Limits(max_pixels=96 * 64 - 1), Limits(max_side=95)):
            for refuse in (decode, open_image):
                with pytest.raises(ImageTooLarge) as caught:
                    refuse(data, limits)
                assert caught.value.code == "image_too_large"

    @kinds
    def test_too_many_pixels_to_decode_now(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reader that allocates pixels when it opens is not even called."""
        data = EVERY_KIND[kind]()
        whole = decode(data, LIMITS)
        pixels = whole.width * whole.height
        assert decode(data, replace(LIMITS, most_pixels=pixels)).width == whole.width
        costly, name = replace(LIMITS, most_pixels=pixels - 1), formats.format_of(data)
        if name in {"GIF", "WEBP"}:
            monkeypatch.delitem(formats._READERS, name)
        with pytest.raises(TooCostly):
            decode(data, costly)

    def test_a_reduced_jpeg_counts_as_a_quarter_of_its_pixels(self) -> None:
        """It keeps all of its coefficients, however far it is reduced."""
        data = encoded(photo(), "JPEG")
        for factor in (2, 8):
            for most, refused in ((96 * 64 // 4, False), (96 * 64 // 4 - 1, True)):
                limits = replace(LIMITS, most_pixels=most)
                with pytest.raises(TooCostly) if refused else nullcontext():
                    assert decode_opened(open_image(data, limits), data, limits, 1 / factor).scale == factor

    @one_picture
    def test_cut_short_at_every_tenth(self, kind: str) -> None:
        data = EVERY_KIND[kind]()
        for tenth in range(1, 10):
            cut = data[: len(data) * tenth // 10]
            for factor in (1, 4):
                with pytest.raises(InvalidImage):
                    reduced_by(factor, cut)

    @kinds
    def test_cut_short_anywhere_is_an_error_or_harmless(self, kind: str) -> None:
        """Never half a picture: what little may be missing (a trailer, a second picture) does not show."""
        data = EVERY_KIND[kind]()
        whole = decode(data, LIMITS).pixels
        for length in random.Random(1).sample(range(1, len(data)), 60) + [len(data) - n for n in range(1, 12)]:
            try:
                part = decode(data[:length], LIMITS).pixels
            except (InvalidImage, UnsupportedImage):
                continue
            assert np.array_equal(part, whole), length

    @pytest.mark.parametrize("factor", [1, 4])
    @pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.startswith("jpeg")])
    def test_a_jpeg_that_lost_bytes_is_refused(self, kind: str, factor: int) -> None:
        """libjpeg fills up what is missing, and only warns."""
        data = EVERY_KIND[kind]()
        start, end = data.index(b"\xff\xda") + 20, data.index(b"\xff\xd9", data.index(b"\xff\xda"))
        for share in (0.3, 0.55, 0.9):
            at = start + round((end - start) * share)
            for damaged in (data[:at] + b"\xff\xd9", data[: at - 150] + data[at:]):
                with pytest.raises(InvalidImage):
                    reduced_by(factor, damaged)

    @pytest.mark.parametrize("kind", ["jpeg", "jpeg progressive", "jpeg in restart intervals", "jpeg cmyk"])
    def test_what_is_odd_about_a_jpeg_and_costs_no_pixel_is_read(self, kind: str) -> None:
        data = EVERY_KIND[kind]()
        scan, whole = data.index(b"\xff\xda"), decode(data, LIMITS).pixels
        revision = data.find(b"JFIF\0") + 5
        odd = {
            "bytes behind the end": data + b"\0" * 70 + b"trailer",
            "another picture behind the end": data + data,
            "fill bytes before the end": data[:-2] + bytes(40) + data[-2:],
            "markers' own fill": data[:-2] + b"\xff" * 9 + data[-2:],
            "bytes between two segments": data[:scan] + b"\0\0abc" + data[scan:],
            "a revision of JFIF": patched(data, revision, b"\x09") if revision > 5 else data,
        }
        for what, written in odd.items():
            assert (decode(written, LIMITS).pixels == whole).all(), what

    def test_a_scan_header_as_some_phones_write_it_is_read(self) -> None:
        data = EVERY_KIND["jpeg"]()
        at = data.index(b"\xff\xda") + 4
        spectrum = at + 1 + 2 * data[at]
        assert data[spectrum : spectrum + 2] == b"\0?"
        assert (decode(patched(data, spectrum + 1, b"\0"), LIMITS).pixels == decode(data, LIMITS).pixels).all()

    def test_colours_sampled_as_turbojpeg_does_not_read_them_are_read(self) -> None:
        data = EVERY_KIND["jpeg"]()
        at = data.index(b"\xff\xc0") + 11
        assert data[at : at + 7 : 3] == b"\x22\x11\x11"
        # Still four blocks of brightness and one of each colour, arranged in a row of four that TurboJPEG refuses.
        decoded = decode(patched(data, at, b"\x14"), LIMITS)
        assert (decoded.width, decoded.height) == (96, 64)

    @kinds
    def test_damage_is_refused_or_survived(self, kind: str) -> None:
        """What no byte of somebody else's may do: raise anything but an error of ours."""
        data, chance = EVERY_KIND[kind](), random.Random(kind)
        limits = Limits(max_pixels=1_000_000)
        for _ in range(60):
            damaged = bytearray(data)
            for _ in range(chance.choice((1, 2, 8))):
                damaged[chance.randrange(min(len(data), chance.choice((64, 500, len(data)))))] = chance.randrange(256)
            try:
                decode(bytes(damaged), limits)
            except InvalidInput:
                continue


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_bomb(side: int) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    pixels = png_chunk(b"IDAT", zlib.compress(bytes(3_000_000), 9))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + png_chunk(b"IEND", b"")


def tiff(tags: dict[int, int]) -> bytes:
    """A little-endian TIFF of one directory with LONG values."""
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4 + 4096)


def jpeg_bomb() -> bytes:
    data = bytearray(encoded(photo(), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65000, 65000)
    return bytes(data)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def gif_frame_bomb() -> bytes:
    """A small screen with a frame of 60,000 × 60,000."""
    data = encoded(photo(), "GIF")
    at = data.rindex(b"\x2c\0\0\0\0")
    return patched(data, at + 5, struct.pack("<HH", 60000, 60000))


def claiming(data: bytes, side: int) -> bytes:
    """The HEIF container with another size in every `ispe`."""
    changed = bytearray(data)
    for found in re.finditer(b"ispe", data):
        changed[found.start() + 8 : found.start() + 16] = struct.pack(">II", side, side)
    return bytes(changed)


def deep_grid() -> bytes:
    """A HEIC whose grid names its tiles a thousand times each, which a decoder would decode each time."""
    data = heic(Image.new("RGB", (600, 600), (120, 90, 60)), tile_size=512)
    at = data.index(b"dimg") - 4
    (size,) = struct.unpack_from(">I", data, at)
    tiles = data[at + 12 : at + size] * 1000
    box = struct.pack(">I", 12 + len(tiles)) + data[at + 4 : at + 10] + struct.pack(">H", len(tiles) // 2) + tiles
    grown = data[:at] + box + data[at + size :]
    for kind in (b"iref", b"meta"):
        start = grown.index(kind) - 4
        (length,) = struct.unpack_from(">I", grown, start)
        grown = patched(grown, start, struct.pack(">I", length + len(box) - size))
    return grown


@cache
def avif_bomb() -> bytes:
    """7,200 × 7,200 pixels of one colour, in a kilobyte that says it has 64 × 64."""
    return claiming(encoded(Image.new("RGB", (7200, 7200), (120, 90, 60)), "AVIF", speed=10), 64)


BOMBS: dict[str, Callable[[], bytes]] = {
    "png": lambda: png_bomb(60_000),
    "jpeg": jpeg_bomb,
    "bmp": lambda: patched(encoded(photo(), "BMP"), 18, struct.pack("<ii", 60_000, 60_000)),
    "webp canvas": lambda: patched(
        encoded(photo(), "WEBP", save_all=True, append_images=[photo().rotate(9)]), 24, b"\xff\xff\x3f\xff\xff\x3f"
    ),
    "heic": lambda: claiming(heic(photo()), 60_000),
    "heic grid": deep_grid,
    "avif": lambda: claiming(encoded(photo(), "AVIF"), 60_000),
    "gif screen": lambda: patched(encoded(photo(), "GIF"), 6, struct.pack("<HH", 60_000, 60_000)),
    "gif frame": gif_frame_bomb,
    "tiff": lambda: tiff({256: 60_000, 257: 60_000, 258: 8, 259: 1, 262: 1, 273: 200, 278: 60_000, 279: 4096}),
    "tiff tile": lambda: tiff({256: 64, 257: 64, 258: 8, 259: 5, 262: 1, 322: 2**20, 323: 2**20, 324: 200, 325: 4096}),
}


REFUSED_BY_DECODERS = {"heic grid", "avif"}


class TestBombs:
    def test_a_heic_stream_larger_than_its_container_says_is_refused(self) -> None:
        data = claiming(heic(Image.new("RGB", (2000, 2000), (120, 90, 60))), 64)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(InvalidImage):
            decode(data, LIMITS)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB; the stream takes 18,000

    def test_sequences_are_refused(self) -> None:
        data = encoded(photo(), "AVIF", save_all=True, append_images=[photo().rotate(9)])
        with pytest.raises(UnsupportedImage, match="sequence"):
            decode(data, LIMITS)

    @pytest.mark.parametrize("kind", BOMBS)
    def test_a_claim_of_too_many_pixels_is_refused_before_they_are_decoded(self, kind: str) -> None:
        data = BOMBS[kind]()
        assert len(data) < 32_000
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        with pytest.raises(InvalidImage if kind in REFUSED_BY_DECODERS else ImageTooLarge):
            decode(data, LIMITS)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB; 10 GB were claimed
        assert time.process_time() - start < 5

    def test_text_in_a_png_is_never_inflated(self) -> None:
        info = PngInfo()
        info.add_text("Comment", "x" * 5_000_000, zip=True)
        assert difference(decode(encoded(photo(), "PNG", pnginfo=info), LIMITS), photo()) == 0

    def test_jpegs_of_endless_scans_are_refused(self) -> None:
        data = encoded(photo(), "JPEG", progressive=True)
        at = data.rindex(b"\xff\xda")
        scan = data[at:-2]
        with pytest.raises(UnsupportedImage, match="scans"):
            decode(data[:-2] + scan * 200 + data[-2:], LIMITS)
        comment = b"\xff\xfe\0\x04\xff\xd9"  # which holds what looks like an end of image
        with pytest.raises(UnsupportedImage, match="scans"):
            decode(data[:-2] + comment + scan * 200 + data[-2:], LIMITS)

    def test_the_film_of_a_motion_photo_has_no_scans(self) -> None:
        data = encoded(photo(), "JPEG")
        assert np.array_equal(decode(data + b"\xff\xda\0\x08" * 200, LIMITS).pixels, decode(data, LIMITS).pixels)

    def test_a_gif_is_as_large_as_its_first_frame(self) -> None:
        """Pillow enlarges the picture to a frame that reaches beyond the screen."""
        data = patched(encoded(photo(), "GIF", comment=b"of a block"), 6, struct.pack("<HH", 16, 16))
        opened = open_image(data, LIMITS)
        assert (opened.width, opened.height) == (decode(data, LIMITS).width, decode(data, LIMITS).height) == (96, 64)


class TestWarnings:
    def test_pillows_warnings_are_neither_seen_nor_raised(self) -> None:
        """A directory that claims more than the file holds makes Pillow warn."""
        data = turned(photo(), "JPEG", 6)
        at = data.index(struct.pack(">HH", ORIENTATION, 3))
        damaged = patched(data, at, struct.pack(">HHII", 270, 2, 65535, 65535))  # a description of 65,535 letters
        actions: tuple[Literal["error", "always"], ...] = ("error", "always")
        for action in actions:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter(action)
                assert decode(damaged, LIMITS).width == photo().width
            assert seen == []

    def test_other_warnings_are_left_alone(self) -> None:
        decode(encoded(photo(), "PNG"), LIMITS)
        with pytest.warns(UserWarning, match="ours"):
            warnings.warn("ours", UserWarning, stacklevel=1)


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "jpeg", "group4"])
def test_a_damaged_tiff_is_refused_without_a_word_to_standard_error(
    compression: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = io.BytesIO()
    noise = Image.effect_noise((64, 64), 100)
    (noise.convert("1") if compression == "group4" else noise).save(file, "TIFF", compression=compression)
    refused = 0
    for seed in range(40):
        chance = np.random.default_rng(seed)
        data = np.frombuffer(file.getvalue(), np.uint8).copy()
        data[chance.integers(8, len(data), 5)] = chance.integers(0, 256, 5)
        try:
            decode(data.tobytes(), Limits())
        except InvalidInput:
            refused += 1
    assert refused > 0
    assert capfd.readouterr().err == ""


@pytest.mark.long
def test_an_image_without_memory_for_it_is_not_called_damaged() -> None:
    """In a process of its own, whose addresses are limited once everything is loaded."""
    program = """
import io, resource
from pathlib import Path
from PIL import Image
from app.errors import Overloaded
from app.face.formats import Limits
from app.face.image import decode
file = io.BytesIO()
Image.new("RGBA", (6000, 6000)).save(file, "PNG", compress_level=1)
small = io.BytesIO()
Image.new("RGB", (64, 64)).save(small, "WEBP")
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for more in (50, 130, 190, 240):
    resource.setrlimit(resource.RLIMIT_AS, (now + more * 1_000_000, resource.RLIM_INFINITY))
    try:
        decode(file.getvalue(), Limits())
    except Overloaded as error:
        print(error.code)
assert decode(small.getvalue(), Limits()).width == 64
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["overloaded"] * 4, done.stderr
