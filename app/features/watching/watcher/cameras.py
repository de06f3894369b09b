"""Read which cameras to watch, from the command line or a file, and open the models that find faces in their frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import cv2
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.errors import FileMissing, InvalidInput
from app.features.declarations import first_wrong
from app.features.watching.schemas import MAX_PLACE_NAME, PlaceName
from app.features.watching.watcher.camera import is_film, shown
from app.features.watching.watcher.looks import Looker
from app.features.watching.watcher.reporter import Reporter
from app.features.watching.watcher.tracker import Tracker
from app.features.watching.watcher.watch import WHOLE, Area, Watch
from app.gallery.text import to_nfc
from app.models.stages import Stages, open_stages
from app.package.folders import scan_packages, select
from app.package.thresholds import Thresholds

FPS, MIN_FACE = 5.0, 24
"""Default frames per second, and width in pixels of the smallest face: a usable face is at least 20 to 30 pixels
wide."""
SAME_FMR, OTHER_FMR = 1e-4, 3e-3
"""Operating points of the tracker: the FMR at which two faces are one person's wherever they are, and the FMR above
which they are two people's even in the same place. On eleven films, 12 of 368 hard cuts to another person in the same
place were taken for one person, and none of 138 crossings; with half of the frames missing, 3 of 110 visits were
split."""


def _ordered(area: Area) -> Area:
    if not (0 <= area.left < area.right <= 1 and 0 <= area.top < area.bottom <= 1):
        raise ValueError("left, top, right and bottom are shares of the picture, such as 0.2, 0, 1, 0.8")
    return area


Region: TypeAlias = Annotated[Area, AfterValidator(_ordered)]
_PLACE_NAMES = TypeAdapter[str](PlaceName)


class CameraConfig(BaseModel):
    """One camera of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str
    name: PlaceName | None = None
    fps: Annotated[float, Field(gt=0, le=60)] = FPS
    min_face: Annotated[int, Field(ge=10, le=1000)] = MIN_FACE
    roi: Region = WHOLE
    zones: dict[PlaceName, Region] = {}
    rotate: Literal[0, 90, 180, 270] = 0

    @property
    def label(self) -> str:
        return self.name or _as_name(Path(self.source).name if is_film(self.source) else shown(self.source))


class _CamerasFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    cameras: Annotated[list[CameraConfig], Field(min_length=1, max_length=64)]


def read_options(sources: Sequence[str], names: Sequence[str], roi: str | None, **same: object) -> list[CameraConfig]:
    """Return a camera for each source. ``names`` are in the order of the sources, ``roi`` is `left,top,right,bottom`,
    and ``same`` are the options that all cameras share. Raises InvalidInput ``invalid_source``."""
    part = {} if roi is None else {"roi": roi.split(",")}
    given = [{"source": source, "name": name} for source, name in zip_longest(sources, names[: len(sources)])]
    return _checked({"cameras": [camera | part | same for camera in given]}, "The cameras")


def read_cameras(path: Path) -> list[CameraConfig]:
    """Read a YAML file with a list `cameras`; each has `source`, `name`, `fps`, `min_face`, `roi`, `zones` and
    `rotate`.

    Raises FileMissing, InvalidInput (``invalid_source``).
    """
    import yaml  # noqa: PLC0415 - few need it

    if not path.is_file():
        raise FileMissing(f"There is no file {path}.")
    try:
        return _checked(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not YAML.", code="invalid_source") from error


def _checked(given: object, whose: str) -> list[CameraConfig]:
    try:
        return _CamerasFile.model_validate(given).cameras
    except ValidationError as error:
        raise InvalidInput(f"{whose}: {first_wrong(error)}", code="invalid_source") from None
    except InvalidInput as error:  # a name
        raise InvalidInput(f"{whose}: {error.message}", code="invalid_source") from None


@dataclass(frozen=True, slots=True)
class Eyes:
    """The detector, the embedder and the tracker's thresholds that the cameras of one process share."""

    stages: Stages
    same: float
    other: float

    def looker(self, min_face: int) -> Looker:
        return Looker(self.stages.detector, self.stages.embedder, min_face)

    def watch(self, label: str, camera: CameraConfig, reporter: Reporter, began: float | None = None) -> Watch:
        """Return a `Watch` of the camera. ``began``: see `Watch.began`."""
        looker, tracker = self.looker(camera.min_face), Tracker(self.same, self.other)
        return Watch(label, looker, tracker, reporter, camera.roi, camera.zones, camera.rotate, began)


@contextmanager
def open_eyes(models: Path, data: Path, cache: Path, detector: str, embedder: str) -> Iterator[Eyes]:
    """Open the detector, and the embedder that tells tracks apart, whose templates never leave this process.

    ``models`` and ``data`` are folders of packages, ``cache`` one for prepared models. Raises Unusable.
    """
    cv2.setNumThreads(1)  # each camera has a thread already
    packages = scan_packages(models, data if data.is_dir() else None).packages
    package = select(packages, embedder)
    points = Thresholds(package.manifest)
    with open_stages(package, select(packages, detector), cache) as stages:
        yield Eyes(stages, points.threshold(SAME_FMR), points.threshold(OTHER_FMR))


def names(cameras: Sequence[CameraConfig]) -> list[str]:
    """Return a unique name for each camera."""
    taken: list[str] = []
    for camera in cameras:
        name, count = camera.label, 1
        while name in taken:
            count += 1
            name = f"{camera.label[: MAX_PLACE_NAME - 4].rstrip()} {count}"
        taken.append(name)
    return taken


def _as_name(text: str) -> str:
    """Return a file's name or an address as a camera's name. Where it has characters that such a name can't have, such
    as the narrow space in those of macOS' screen recordings, these become spaces.

    Raises InvalidInput (``invalid_source``) if it still can't be one.
    """
    composed = to_nfc(text)
    plain = "".join(character if character.isprintable() else " " for character in composed)
    for name in (composed, plain):
        with suppress(ValidationError, InvalidInput):
            return _PLACE_NAMES.validate_python(name[:MAX_PLACE_NAME].strip())
    raise InvalidInput(f"Give {plain!r} a name that a camera can have.", code="invalid_source")
