"""Markers of a JPEG, read before anything is decoded (ITU-T T.81, annex B)."""

from __future__ import annotations

import re
from collections.abc import Iterator

START_OF_SCAN = 0xDA
END_OF_IMAGE = 0xD9
_FIRST_WITH_LENGTH = 0xC0
"""Markers below have no segment; neither have those from RST0 to EOI, 0xD0 to 0xD9."""
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
"""Between pixels, FF is followed by 00 or a restart marker; any number of FF may stand before a marker."""


def count_scans(data: bytes) -> int:
    """Return the scans of the first image; what is appended behind its end, as the film of a motion photo, is none."""
    return sum(marker == START_OF_SCAN for marker, _ in _segments(data))


def is_interleaved(data: bytes) -> bool:
    """Return whether the first scan holds all components, as in a sequential JPEG of one scan.

    A decoder keeps the coefficients of every other image until its last scan. Raises IndexError for one cut short.
    """
    components = 0
    for marker, at in _segments(data):
        if marker == START_OF_SCAN:
            return data[at + 2] == components
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header
            components = data[at + 7]
            if marker in (0xC2, 0xCA):  # progressive
                return False
    return True


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker and where its segment, its length first, begins, up to the first end of image."""
    at = 2
    while found := _MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker == END_OF_IMAGE:
            return
        if marker >= _FIRST_WITH_LENGTH and marker != 0xD8:
            yield marker, at
            at += int.from_bytes(data[at : at + 2], "big")
