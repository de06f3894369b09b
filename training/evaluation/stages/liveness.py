"""Measure how often liveness is wrong on recordings of live people and of attacks, in the terms of ISO/IEC 30107-3.

APCER: the share of attack presentations taken for live, for each kind of attack, and its maximum. BPCER: the share of
live (bona fide) presentations not taken for live. A recording without a face is a non-response, counted separately. A
face counts as live if its score is **at or above** the threshold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.choices import Device
from app.errors import LikenessError
from app.features.liveness.scorer import Scorer, open_liveness
from app.models.calibration.intervals import Bools, Floats, Interval, Ints, people_weights, wilson
from app.models.opening import open_detector
from app.models.stages import LIMITS
from app.package.cards import RateInterval
from app.package.folders import Package
from app.package.manifest import LivenessCalibration, LivenessErrors, Manifest, liveness_digest
from app.photo_folders import folders_of_people, is_photo, walk
from app.pipeline import Pipeline, choose_face
from training.evaluation import bootstrap, metrics
from training.packages import DETECTOR, find_package

RATES = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Error rates at which points are measured, if there are enough recordings."""
ONE_KIND = "attack"
"""The kind of attacks that are not in a folder for their kind."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One photo or frame: of a live person (``kind`` None) or of a kind of attack; ``group`` is the person or video."""

    path: Path
    kind: str | None
    group: str | None


@dataclass(frozen=True, slots=True)
class Scored:
    """The liveness score of a recording and the longer side of its face in pixels; ``failure`` is why it has none."""

    recording: Recording
    score: float = math.nan
    face: float = math.nan
    failure: str | None = None


def find_recordings(live: Path, spoof: Path) -> list[Recording]:
    """Return the photos in both folders.

    ``live``: photos, or a folder of them for each person or video. ``spoof``: the same in a folder for each kind of
    attack; photos outside such a folder are of the kind `ONE_KIND`. Raises ValueError if one of them holds no photos.
    """
    recordings = [Recording(path, None, group) for path, group in _photos(live)]
    for folder in folders_of_people(spoof) if spoof.is_dir() else []:
        kind = re.sub(r"[^a-z0-9._-]+", "-", folder.name.lower()).strip("-._") or ONE_KIND
        recordings += [Recording(path, kind, group) for path, group in _photos(folder)]
    if spoof.is_dir():
        recordings += [Recording(path, ONE_KIND, None) for path in sorted(spoof.iterdir()) if is_photo([path.name])]
    kinds = {recording.kind for recording in recordings}
    if None not in kinds or len(kinds) == 1:
        raise ValueError(f"{live} and {spoof} must hold photos: of live people, and of attacks")
    return recordings


def _photos(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield each photo below a folder, with the first subfolder of its path."""
    for path in walk(folder):
        parts = path.relative_to(folder).parts
        yield path, parts[0] if len(parts) > 1 else None


@dataclass(frozen=True, slots=True)
class Judge:
    """The service's pipeline up to the liveness score."""

    pipeline: Pipeline
    scorer: Scorer

    def score(self, photo: bytes) -> tuple[float, float]:
        """Return the score of the photo's most prominent face and that face's longer side.

        Raises NoFace, and what decoding raises.
        """
        seen = self.pipeline.detect(photo, self.scorer.cuts)
        face = seen.faces[choose_face(seen).index]
        return self.scorer.score([face.cuts])[0], max(face.box.width, face.box.height)


@contextmanager
def open_judge(packages: Sequence[Package], models: Path, cache: Path, device: Device) -> Iterator[Judge]:
    """Load liveness packages and the detector of ``models``; all are closed at the end."""
    detector = open_detector(find_package(DETECTOR, models), cache)
    scorer = Scorer([open_liveness(package, cache, device) for package in packages])
    try:
        yield Judge(Pipeline(detector, LIMITS), scorer)
    finally:
        scorer.close()
        detector.close()


def score_all(
    recordings: Sequence[Recording], judge: Judge, *, threads: int, progress: Callable[[int], None]
) -> list[Scored]:
    """Score every recording; one that can't be read or has no face gets an error code instead."""

    def score(recording: Recording) -> Scored:
        try:
            return Scored(recording, *judge.score(recording.path.read_bytes()))
        except LikenessError as error:
            return Scored(recording, failure=error.code)
        finally:
            progress(1)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(score, recordings))


@dataclass(frozen=True, slots=True)
class Sample:
    """The (N,) scores of one kind of recording, and the person or video of each. None means that all recordings are
    independent."""

    scores: Floats
    groups: Ints | None
    unanswered: Interval
    """Share of the recordings in which no face was found."""

    @classmethod
    def of(cls, scored: Sequence[Scored]) -> Sample:
        answered = [photo for photo in scored if photo.failure is None]
        scores = np.array([photo.score for photo in answered], np.float64)
        names = [photo.recording.group for photo in answered]
        groups = None if None in names else np.unique([str(name) for name in names], return_inverse=True)[1]
        if groups is not None and len(set(groups.tolist())) == len(groups):
            groups = None
        return cls(scores, groups, wilson(len(scored) - len(answered), len(scored)))

    def share(self, happened: Bools, *, rounds: int, seed: int) -> Interval:
        """Return the share of recordings with its interval: Wilson's, or by a bootstrap over people or videos."""
        if self.groups is None:
            return wilson(int(happened.sum()), len(happened))
        count = int(self.groups.max()) + 1
        weights = people_weights(count, rounds, seed)[:, self.groups]
        return bootstrap.share_interval(float(happened.mean()), bootstrap.share_samples(happened, weights), count)


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """The errors at a threshold; ``apcer`` is the highest of the ``kinds``, its upper bound the highest of theirs."""

    threshold: float
    apcer: Interval
    bpcer: Interval
    kinds: Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class LivenessMeasurement:
    """The samples, and the points that they support, with rising thresholds."""

    live: Sample
    attacks: Mapping[str, Sample]
    smallest_face: float
    points: tuple[MeasuredPoint, ...]


def measure(scored: Sequence[Scored], *, rounds: int = bootstrap.ROUNDS, seed: int = 0) -> LivenessMeasurement:
    """Return the operating points of scored recordings.

    Raises ValueError if there is no face among the live ones or among a kind of attack, or too few for any point.
    """
    kinds = sorted({photo.recording.kind for photo in scored if photo.recording.kind is not None})
    live = Sample.of([photo for photo in scored if photo.recording.kind is None])
    attacks = {kind: Sample.of([photo for photo in scored if photo.recording.kind == kind]) for kind in kinds}
    for name, sample in {"live people": live, **attacks}.items():
        if not len(sample.scores):
            raise ValueError(f"no face was found in any photo of {name}")
    thresholds = sorted({*_by_apcer(attacks), *_by_bpcer(live)})
    if not thresholds:
        raise ValueError(f"at least {1 / RATES[0]:.0f} photos with a face are needed of live people and of each attack")
    points = tuple(point_at(threshold, live, attacks, rounds=rounds, seed=seed) for threshold in thresholds)
    faces = [photo.face for photo in scored if photo.recording.kind is None and photo.failure is None]
    return LivenessMeasurement(live, attacks, min(faces), points)


def point_at(threshold: float, live: Sample, attacks: Mapping[str, Sample], *, rounds: int, seed: int) -> MeasuredPoint:
    kinds = {
        kind: sample.share(sample.scores >= threshold, rounds=rounds, seed=seed) for kind, sample in attacks.items()
    }
    worst = max(kinds.values(), key=lambda kind: kind.value)
    apcer = Interval(worst.value, worst.low, max(kind.high for kind in kinds.values()))
    return MeasuredPoint(threshold, apcer, live.share(live.scores < threshold, rounds=rounds, seed=seed), kinds)


def _by_apcer(attacks: Mapping[str, Sample]) -> Iterator[float]:
    """Yield for each of RATES the lowest threshold at which no kind of attack passes more often than that."""
    for rate in RATES:
        if all(rate * len(sample.scores) >= 1 for sample in attacks.values()):
            passed = max(metrics.threshold_at_fmr(sample.scores, rate) for sample in attacks.values())
            if passed <= 1:  # scores are at most 1, so no live face could reach a higher threshold
                yield passed


def _by_bpcer(live: Sample) -> Iterator[float]:
    """Yield for each of RATES the highest threshold that no larger share of the live faces fails to reach."""
    rising = np.sort(live.scores)
    for rate in RATES:
        if rate * len(rising) >= 1:
            yield float(rising[math.floor(rate * len(rising) + 1e-9)])


def calibration(
    measured: LivenessMeasurement, packages: Sequence[Package], *, name: str, measured_on: str
) -> LivenessCalibration:
    """Return a measurement as the manifest's calibration, bound to the packages."""
    return LivenessCalibration(
        name=name,
        measured_on=measured_on,
        live=len(measured.live.scores),
        attacks={kind: len(sample.scores) for kind, sample in measured.attacks.items()},
        smallest_face=round(measured.smallest_face, 1),
        points=tuple(
            LivenessErrors(threshold=point.threshold, apcer=_rate(point.apcer), bpcer=_rate(point.bpcer))
            for point in measured.points
        ),
        measured_with=liveness_digest(package.manifest for package in packages),
    )


def _rate(interval: Interval) -> RateInterval:
    value = round(interval.value, 7)
    return RateInterval(value=value, low=min(value, round(interval.low, 7)), high=max(value, round(interval.high, 7)))


def with_calibration(manifest: Manifest, new: LivenessCalibration) -> Manifest:
    """Return the manifest with ``new`` in place of an earlier calibration with the same packages."""
    kept = [
        calibration for calibration in manifest.liveness_calibrations if calibration.measured_with != new.measured_with
    ]
    changed = manifest.model_copy(update={"liveness_calibrations": (*kept, new)})
    # model_copy doesn't validate, so validate here.
    return Manifest.model_validate_json(changed.model_dump_json())
