"""Write gpu-libraries.json: which shared libraries the wheels of gpu.txt hold, and which ones those need.

`.venv/bin/python requirements/libraries.py`. It needs the package index: some 1.3 GB of wheels are read over HTTP, and
not kept. Of wheels larger than READ_BYTES only the libraries' names are read: these are NVIDIA's own, which need only
each other.
"""

from __future__ import annotations

import io
import json
import os
import re
import ssl
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from app.inference.libraries import needed

FOLDER = Path(__file__).resolve().parent
RECORD = FOLDER / "gpu-libraries.json"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
WHEEL = re.compile(
    r"-(py3|py2\.py3|cp311)-(none|cp311|abi3)-.*(linux.*x86_64|any)\.whl$|-cp3(10|11)-abi3-.*linux.*x86_64\.whl$"
)
CUDA = re.compile(r"^(faiss|onnxruntime|nvidia|lib\w+-cu|cuda|rapids)")
"""Packages that have to do with CUDA."""
READ_BYTES = 300_000_000
"""Largest wheel whose libraries are read."""
PIECE_BYTES = 4 * 1024 * 1024


class Remote(io.RawIOBase):
    """A file on the index, read by ranges."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._size - self._at))
        if count:
            buffer[:count] = opened(self._url, Range=f"bytes={self._at}-{self._at + count - 1}")
            self._at += count
        return count


def opened(url: str, **headers: str) -> bytes:
    """Return what an address of the index answers."""
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the index is https
    with urllib.request.urlopen(request, context=context) as answer:  # noqa: S310 - the same
        content: bytes = answer.read()
    return content


def wheel_of(name: str, version: str) -> tuple[str, int]:
    """Return the address and size of the package's wheel for Linux on x86-64 with Python 3.11."""
    page = f"{INDEX.rstrip('/')}/{name}/"
    files = json.loads(opened(page, Accept="application/vnd.pypi.simple.v1+json"))["files"]
    prefix = f"{name}-{version}-".replace("-", "_").lower()
    (found,) = (
        file
        for file in files
        if file["filename"].replace("-", "_").lower().startswith(prefix) and WHEEL.search(file["filename"])
    )
    return urllib.parse.urljoin(page, found["url"]).partition("#")[0], found["size"]


def libraries(url: str, size: int) -> dict[str, list[str] | None]:
    """Return each library in a wheel by its path, with the libraries that it needs, or None if these were not read."""
    with zipfile.ZipFile(io.BufferedReader(Remote(url, size), PIECE_BYTES)) as wheel:
        found = [entry for entry in wheel.infolist() if re.search(r"\.so(\.\d+)*$", entry.filename)]
        return {entry.filename: needed(wheel.read(entry)) if size <= READ_BYTES else None for entry in found}


def main() -> None:
    pins = re.findall(r"^([\w.-]+)==([\w.]+)", (FOLDER / "gpu.txt").read_text(), re.MULTILINE)
    record = {}
    for name, version in pins:
        if CUDA.match(name) and name != "onnx":
            record[f"{name}=={version}"] = libraries(*wheel_of(name, version))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
