"""What the steps of a challenge read in films of people: ``python -m bench.challenge FOLDER``.

A row for each film: its frames, those with one prominent face, those of them that look ahead, the range of their yaw,
the largest change of size, the steps that some frame shows, and whether the film passes if the person who replays it
chooses the frames, as one who cuts a film does: the service sees frames, not films.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from rich.console import Console

from app.errors import InvalidInput
from app.inference.package import load_package
from app.inference.thresholds import Thresholds
from app.recognition.challenge import AHEAD_MOST, MOVES, Seen, look_at, why_not
from app.recognition.decisions import verify_point
from app.stages import Stages, open_stages

MODELS = Path(__file__).resolve().parent.parent / "models"
KINDS = {".mkv", ".mp4", ".gif"}
FMR = 1e-4
"""The service's default."""
FIRST_FRAMES = 12
"""Frames that are tried as the first one, spread over those that look ahead."""


@dataclass(frozen=True, slots=True)
class Film:
    """The frames that show one prominent face, of all that there are."""

    count: int
    faces: Sequence[Seen]
    vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    """(N, D) unit vectors of the faces."""

    def ahead(self) -> list[int]:
        """Return the places of the faces that look ahead."""
        return [place for place, face in enumerate(self.faces) if abs(face.yaw) <= AHEAD_MOST]

    def shown(self, threshold: float) -> tuple[set[str], bool]:
        """Return the steps that frames show after a first one, and whether one first frame has all, by one person."""
        steps: set[str] = set()
        passes = False
        ahead = self.ahead()
        for first in ahead[:: max(1, len(ahead) // FIRST_FRAMES)]:
            one = self.vectors @ self.vectors[first] >= threshold
            fits = {step: [not why_not(step, face, self.faces[first]) for face in self.faces] for step in MOVES}
            steps |= {step for step in MOVES if any(fits[step])}
            passes = passes or all(bool((one & np.array(fits[step])).any()) for step in MOVES)
        return steps, passes


def read_film(path: Path, stages: Stages) -> Film:
    """Read each frame as the service does."""
    count, faces = 0, []
    for frame in _frames(path):
        count += 1
        photo = stages.pipeline.detect(bytes(cv2.imencode(".bmp", frame)[1]))
        try:
            if photo.faces:
                faces.append(look_at(photo, 0, "ahead"))
        except InvalidInput:  # several faces, or landmarks of none
            continue
    vectors = np.array([stages.embed_pixels(face.crop) for face in faces], np.float32)
    return Film(count, faces, vectors)


def _frames(path: Path) -> Iterator[cv2.typing.MatLike]:
    film = cv2.VideoCapture(str(path))
    while True:
        more, frame = film.read()
        if not more:
            return
        yield frame


def main() -> None:
    """Print a row for each film of the folder."""
    folder = Path(sys.argv[1])
    sface = load_package(MODELS / "sface")
    threshold = verify_point(Thresholds(sface.manifest), None, FMR).threshold
    show = Console(width=120, highlight=False).print
    show(f"{'film':26} frames face ahead   yaw          size steps")
    with TemporaryDirectory() as cache, open_stages(sface, load_package(MODELS / "yunet"), Path(cache)) as stages:
        for path in sorted(path for path in folder.iterdir() if path.suffix in KINDS):
            film = read_film(path, stages)
            yaws, sizes = ([face.yaw for face in film.faces], [face.size for face in film.faces])
            steps, passes = film.shown(threshold) if film.faces else (set(), False)
            spread = f"{min(yaws):4.0f}…{max(yaws):3.0f} {max(sizes) / min(sizes):8.2f}" if yaws else ""
            ended = "passes" if passes else ""
            show(
                f"{path.stem[:26]:26} {film.count:6} {len(film.faces):4} {len(film.ahead()):5} {spread} "
                f"{' '.join(step for step in MOVES if step in steps)} {ended}"
            )


if __name__ == "__main__":
    main()
