"""Live, or a picture of a face: the cut around each face, and its score from one or several models.

A score is the probability of being live as the models give it, their mean where there are several. It decides nothing
here: `app.recognition.decisions` does, at thresholds that were measured.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

import cv2
import numpy as np

from app.concurrency.admission import Why
from app.concurrency.batcher import Batcher
from app.errors import LivenessUnavailable, Unusable
from app.inference.embedders import CPU_MAX_BATCH, GPU_WAIT_S
from app.inference.manifest import LivenessCalibration, LivenessCut, liveness_digest
from app.inference.package import CurrentManifests, Package, select
from app.inference.session import FIXED_BATCH, LivenessSession
from app.machine import cores
from app.types import Box, Pixels

TASK = "liveness"
QUEUE_LIMIT = 4096
"""Cuts that may wait: more than the faces of one photo; requests are bounded by themselves."""
RETRY_S = 5.0
"""Seconds until packages that could not be opened are tried again: each attempt hashes their files."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The picture of a face that one model is shown: a ``side`` × ``side`` picture."""

    side: int
    how: LivenessCut

    def enlarges(self, box: Box) -> bool:
        """Return whether the picture would have more pixels than the part of the photo that it shows."""
        return self.side > self.how.scale * max(box.width, box.height)


def cut_of(package: Package) -> Cut:
    """Return what the package is shown. Raises ValueError for a package of another task."""
    contract = package.manifest.liveness
    if contract is None:
        raise ValueError(f"{package.id} is no liveness package")
    return Cut(int(package.manifest.input.shape[1]), contract.cut)


def cut_face(pixels: Pixels, box: Box, cut: Cut, *, turned: int = 0) -> Pixels:
    """Return the (side, side, 3) uint8 RGB picture of the face at ``box``.

    ``pixels`` is the (H, W, 3) uint8 RGB photo; the picture is turned clockwise by ``turned`` degrees. Takes no more
    memory than the photo's part under the cut.
    """
    if cut.how.edge == "move":
        picture = _resized(_moved(pixels, box, cut.how), cut.side, cut.side, cut.how)
    else:
        picture = _reflected(pixels, box, cut)
    return np.ascontiguousarray(np.rot90(picture, -turned // 90)) if turned else picture


def _size(box: Box, how: LivenessCut) -> tuple[float, float]:
    """Return the cut's width and height in pixels of the photo, before its edges are minded."""
    if how.shape == "square":
        side = max(box.width, box.height, 1.0) * how.scale
        return side, side
    return max(box.width, 1.0) * how.scale, max(box.height, 1.0) * how.scale


def _moved(pixels: Pixels, box: Box, how: LivenessCut) -> Pixels:
    """Return the part of the photo; its corners are computed as in minivision's `CropImage`."""
    rows, columns = pixels.shape[:2]
    width, height = _size(box, how)
    factor = min(1.0, (columns - 1) / width, (rows - 1) / height)
    width, height = width * factor, height * factor
    left = float(np.clip(box.x + box.width / 2 - width / 2, 0, columns - 1 - width))
    top = float(np.clip(box.y + box.height / 2 - height / 2, 0, rows - 1 - height))
    return pixels[int(top) : int(top + height) + 1, int(left) : int(left + width) + 1]


def _reflected(pixels: Pixels, box: Box, cut: Cut) -> Pixels:
    """Return the picture of a cut that is mirrored beyond the photo's edges.

    The part inside the photo is brought to its share of the picture first, so that a large cut needs no large copy.
    """
    rows, columns = pixels.shape[:2]
    width, height = _size(box, cut.how)
    across = _Span.of(box.x + box.width / 2, width, columns, cut.side)
    down = _Span.of(box.y + box.height / 2, height, rows, cut.side)
    part = _resized(pixels[down.first : down.last, across.first : across.last], across.inside, down.inside, cut.how)
    return np.asarray(
        cv2.copyMakeBorder(part, down.before, down.after, across.before, across.after, cv2.BORDER_REFLECT_101), np.uint8
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """One axis of a cut: photo pixels from ``first`` to ``last`` (exclusive) become ``inside`` pixels of the picture,
    with ``before`` and ``after`` of them beyond the photo's edges."""

    first: int
    last: int
    before: int
    inside: int
    after: int

    @classmethod
    def of(cls, centre: float, size: float, limit: int, side: int) -> _Span:
        start, length = math.floor(centre - size / 2), max(1, round(size))
        first = min(max(start, 0), limit - 1)
        last = max(min(start + length, limit), first + 1)
        before = min(round(max(0, first - start) / length * side), side - 1)
        after = min(round(max(0, start + length - last) / length * side), side - 1 - before)
        return cls(first, last, before, side - before - after, after)


def _resized(part: Pixels, width: int, height: int, how: LivenessCut) -> Pixels:
    """Resize; what is enlarged under ``area`` is interpolated as facenox's training did it."""
    kind = cv2.INTER_LINEAR
    if how.resize == "area":
        kind = cv2.INTER_AREA if part.shape[1] >= width and part.shape[0] >= height else cv2.INTER_LANCZOS4
    return np.asarray(cv2.resize(part, (width, height), interpolation=kind), np.uint8)


class Scorer:
    """The liveness of faces by one or several open packages. Safe to share between threads."""

    def __init__(self, packages: Sequence[tuple[Package, LivenessSession]], *, workers: int | None = None) -> None:
        """``workers``: threads for each package; by default one a core, and one on a GPU."""
        self.packages = tuple(package for package, _ in packages)
        self.cuts = tuple(cut_of(package) for package in self.packages)
        self.devices = {package.id: session.device for package, session in packages}
        self._batchers = [_batcher(session, workers) for _, session in packages]

    def score(self, faces: Sequence[Sequence[Pixels]]) -> list[float]:
        """Return the mean probability of being live, 0-1, of each face. A face has one picture for each of ``cuts``.

        Raises Overloaded if a queue is full.
        """
        futures: list[list[Future[tuple[float, int]]]] = []
        try:
            for place, batcher in enumerate(self._batchers):
                futures.append(batcher.submit_all([pictures[place] for pictures in faces]))
            by_package = [[future.result()[0] for future in each] for each in futures]
        finally:
            for future in (one for each in futures for one in each):  # after an error the rest is not needed
                future.cancel()
        return [math.fsum(scores) / len(scores) for scores in zip(*by_package, strict=True)]

    @property
    def waiting(self) -> int:
        """How many pictures wait."""
        return sum(batcher.waiting for batcher in self._batchers)

    @property
    def batch_sizes(self) -> dict[int, int]:
        """How many batches of each size there were."""
        sizes: Counter[int] = Counter()
        for batcher in self._batchers:
            sizes.update(batcher.batch_sizes)
        return dict(sizes)

    def close(self) -> None:
        """Finish what waits; later calls raise Overloaded."""
        for batcher in self._batchers:
            batcher.close()


def _batcher(session: LivenessSession, workers: int | None) -> Batcher[Pixels, float]:
    gpu = session.device in FIXED_BATCH

    def run(cuts: list[Pixels]) -> list[float]:
        return [float(score) for score in session.run(np.stack(cuts))]

    return Batcher(
        run,
        max_batch=FIXED_BATCH.get(session.device, CPU_MAX_BATCH),
        max_wait_s=GPU_WAIT_S if gpu else 0.0,
        queue_limit=QUEUE_LIMIT,
        workers=workers or (1 if gpu else cores()),
        name="liveness",
    )


@dataclass(frozen=True, slots=True)
class OpenLiveness:
    """The open packages with the calibration that holds for them together, if there is one."""

    scorer: Scorer
    calibration: LivenessCalibration | None


class LivenessPackages:
    """The liveness packages of one server, opened when they are first needed. Safe to share between threads.

    ``find`` returns the installed packages, ``open_one`` opens one. ``names`` are those that are averaged; none of them
    means the only one installed. Operating points that are written while the server runs count at once.
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, Package]],
        open_one: Callable[[Package], LivenessSession],
        names: Sequence[str] = (),
    ) -> None:
        self._find, self._open_one, self._names = find, open_one, tuple(names)
        self._lock = Lock()
        self._scorer: Scorer | None = None
        self._failure: LivenessUnavailable | None = None
        self._failed_at = 0.0
        self._manifests = CurrentManifests()
        self._calibration: tuple[Sequence[Package], LivenessCalibration | None] = ((), None)
        self._closed = False

    def open(self) -> OpenLiveness:
        """Return the packages, opened the first time.

        Raises Unusable ``liveness_unavailable`` (``details.reason``: none installed, several and none named, damaged …)
        and Overloaded ``shutting_down``.
        """
        with self._lock:
            if self._closed:
                raise Why.STOPPING.error()
            if self._scorer is None:
                if self._failure is not None and time.monotonic() - self._failed_at < RETRY_S:
                    raise self._failure.with_traceback(None)
                self._scorer = self._opened()
            return OpenLiveness(self._scorer, self._current(self._scorer.packages))

    @property
    def scorer(self) -> Scorer | None:
        """The open packages; None before the first use."""
        return self._scorer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._scorer is not None:
                self._scorer.close()

    def _opened(self) -> Scorer:
        try:
            chosen = choose_packages(self._find(), self._names)
            scorer = Scorer([(package, self._open_one(package)) for package in chosen])
        except Unusable as error:
            failure = error if isinstance(error, LivenessUnavailable) else _unavailable(error.message, error.code)
            self._failure, self._failed_at = failure, time.monotonic()
            raise failure from error
        self._failure = None
        return scorer

    def _current(self, packages: Sequence[Package]) -> LivenessCalibration | None:
        """Return the calibration that the packages' manifests have now."""
        now = [self._manifests.read(package) for package in packages]
        if self._calibration[0] != now:
            self._calibration = now, find_calibration(now)
        return self._calibration[1]


def choose_packages(installed: Mapping[str, Package], names: Sequence[str]) -> list[Package]:
    """Return the packages named, or the only one installed.

    Raises Unusable ``liveness_unavailable``, and ``package_unknown``, ``package_ambiguous`` for a name.
    """
    found = {key: package for key, package in installed.items() if package.manifest.task == TASK}
    if names:
        chosen = {package.id: package for package in (select(found, name) for name in names)}
        return list(chosen.values())
    if not found:
        message = "No liveness package is installed: add one with likeness models add FILE --task liveness"
        raise _unavailable(message, "none_installed")
    if len(found) > 1:
        message = (
            f"Several liveness packages are installed: name those to average in LIKENESS_LIVENESS ({', '.join(found)})"
        )
        raise _unavailable(message, "not_named")
    return list(found.values())


def find_calibration(packages: Sequence[Package]) -> LivenessCalibration | None:
    """Return the calibration that was measured with exactly these packages, wherever among them it is kept."""
    digest = liveness_digest(package.manifest for package in packages)
    kept = (each for package in packages for each in package.manifest.liveness_calibrations)
    return next((each for each in kept if each.measured_with == digest), None)


def _unavailable(message: str, reason: str) -> LivenessUnavailable:
    return LivenessUnavailable(message, reason=reason)
