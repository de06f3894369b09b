"""Make tars by hand, valid and invalid ones."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.types import Vectors


def tar_of(files: Mapping[str, bytes], mode: str = "w") -> bytes:
    file = io.BytesIO()
    opened: Any = tarfile.open
    with opened(fileobj=file, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def npy_of(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def units(count: int, dimension: int = 128, seed: int = 1) -> Vectors:
    found = np.random.default_rng(seed).standard_normal((count, dimension), dtype=np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def templates_of(vectors: NDArray[Any], about: Sequence[Mapping[str, Any] | bytes]) -> bytes:
    """Return a tar of templates, with a line in `faces.jsonl` for each."""
    told = b"".join((entry if isinstance(entry, bytes) else json.dumps(entry).encode()) + b"\n" for entry in about)
    return tar_of({"faces.jsonl": told, "templates.npy": npy_of(vectors)})
