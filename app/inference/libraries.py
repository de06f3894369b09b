"""Find out which shared libraries an ELF file needs, and which of these the system can't find."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOAD, DYNAMIC = 1, 2
NEEDED, STRING_TABLE = 1, 5
"""Types of segments, and of entries of the dynamic section (ELF, version 1.2, book III)."""
OWNERS: Mapping[str, str] = {
    "libcuda.": "NVIDIA's driver",
    "libcublas": "nvidia-cublas",
    "libcudart.": "nvidia-cuda-runtime",
    "libcudnn": "nvidia-cudnn-cu13",
    "libcufft": "nvidia-cufft",
    "libcurand.": "nvidia-curand",
    "libnvinfer": "TensorRT",
    "libnvonnxparser": "TensorRT",
    "libnvrtc": "nvidia-cuda-nvrtc",
}
"""Packages that contain libraries, by the beginnings of the libraries' names."""
OPENED_LATE: Mapping[str, tuple[str, ...]] = {
    "libonnxruntime_providers_cuda.so": ("libcudnn.so.9", "libcufft.so.12", "libnvrtc.so.13")
}
"""Libraries that a file opens by itself, so that its header doesn't name them."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A library that can't be loaded, and the package that contains it."""

    name: str
    owner: str | None

    def __str__(self) -> str:
        return f"{self.name} ({self.owner})" if self.owner else self.name


def needed(library: bytes | mmap.mmap) -> list[str]:
    """Return the names of the libraries that an ELF file (64 bits, little endian) needs."""
    (table,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", library, table + place * size) for place in range(count)]
    dynamic = next(segment for segment in segments if segment[0] == DYNAMIC)
    entries = [struct.unpack_from("<qQ", library, dynamic[2] + at) for at in range(0, dynamic[5], 16)]
    address = next(value for kind, value in entries if kind == STRING_TABLE)
    _, _, offset, start, *_ = next(s for s in segments if s[0] == LOAD and s[3] <= address < s[3] + s[5])
    names = (offset + address - start + value for kind, value in entries if kind == NEEDED)
    return [library[name : library.find(b"\0", name)].decode() for name in names]


def find_missing(file: Path) -> list[Missing]:
    """Return the libraries that `file` needs and that can't be loaded; none if there is no such file."""
    if not file.is_file():
        return []
    with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as library:
        names = [*needed(library), *OPENED_LATE.get(file.name, ())]
    return [Missing(name, owner_of(name)) for name in names if not _loads(name)]


def owner_of(name: str) -> str | None:
    return next((owner for start, owner in OWNERS.items() if name.startswith(start)), None)


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
