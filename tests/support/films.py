"""Make films of packaged photos for tests of cameras."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import av
import numpy as np
from PIL import Image

SIZE = (640, 480)


def film(
    path: Path,
    photos: Sequence[bytes | None],
    *,
    each_s: float = 2.0,
    fps: int = 10,
    size: int = 480,
    turned: int = 0,
    codec: Literal["mpeg4", "libx264"] = "mpeg4",
) -> Path:
    """Write a film that shows the photos one after the other, moving; None shows nobody.

    ``size`` is a photo's height; the whole picture is turned by ``turned`` degrees clockwise.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = Image.new("L", SIZE).rotate(-turned, expand=True).size
        stream.bit_rate = 4_000_000
        for photo in photos:
            shown = None if photo is None else Image.open(io.BytesIO(photo)).convert("RGB")
            if shown is not None:
                shown = shown.resize((shown.width * size // shown.height, size))
            for step in range(round(each_s * fps)):
                picture = Image.new("RGB", SIZE, "grey")
                if shown is not None:
                    picture.paste(shown, (60 + 4 * step, 0))
                picture = picture.rotate(-turned, Image.Resampling.BICUBIC, expand=True)
                frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
