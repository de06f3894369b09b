"""The steps over a request's photos that operations share, and what the operations return."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from app.choices import Decision, Doubt
from app.errors import AmbiguousFace, InvalidInput
from app.face.quality import QualityLevel
from app.gallery.records import Gallery, NewFace, Origin, StoredFace
from app.inference.embedders import Embedders, Model
from app.inference.thresholds import fuse
from app.pipeline import AMBIGUOUS_SHARE, Choice, Reader, choose_face, crop_of, embed_faces, pick_face
from app.recognition.corrections import RuledOut
from app.recognition.decisions import (
    AnsweredCandidate,
    AnsweredScores,
    Assigned,
    IdentifyPoint,
    PopulationWarning,
    VerifyPoint,
    decide,
    is_turned,
    too_poor,
)
from app.recognition.duplicate_check import NOTHING, Findings
from app.recognition.gate import OFF, Gate
from app.types import Face, Photo, Template


@dataclass(frozen=True, slots=True)
class Chosen:
    """The face of a photo that an operation uses, and why that one.

    ``length`` and ``track`` are those of `Probes`; the photo of a track is its best one, its template the fused one.
    """

    photo: Photo
    choice: Choice
    length: float = 1.0
    track: tuple[int, ...] | None = None

    @property
    def face(self) -> Face:
        return self.photo.faces[self.choice.index]

    @property
    def template(self) -> Template:
        return template_of(self.face)


@dataclass(frozen=True, slots=True)
class Probes:
    """The probes of a search: faces of one photo, at these ``places``, or one face that a track of photos shows.

    ``length``: of the mean of the track's templates, 1 otherwise. ``track``: the indexes of the images that were fused;
    None for a single photo. The photo of a track is its best one, and has no other face; its template is the fused one.
    """

    photo: Photo
    places: Sequence[int]
    templates: Sequence[Template]
    length: float = 1.0
    track: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A 1:1 comparison; ``model`` is the id of the package whose templates were compared (here and below).

    ``warnings`` is None where no population was declared, ``reason`` is that of `decide` (here and below).
    """

    decision: Decision
    reason: Doubt | None
    score: float
    point: VerifyPoint
    first: Chosen
    second: Chosen
    model: str
    warnings: Sequence[PopulationWarning] | None = None

    @property
    def match(self) -> bool:
        return self.decision == "known"


@dataclass(frozen=True, slots=True)
class SubjectVerified:
    decision: Decision
    reason: Doubt | None
    candidate: AnsweredCandidate
    point: VerifyPoint
    chosen: Chosen
    nearest_other: AnsweredCandidate | None
    stages: Mapping[str, float]
    model: str
    warnings: Sequence[PopulationWarning] | None = None
    ruled_out: RuledOut | None = None

    @property
    def match(self) -> bool:
        return self.decision == "known"


@dataclass(frozen=True, slots=True)
class Identified:
    """One face of a probe; ``nearest_other`` is the best candidate that is not the answer."""

    face: Face
    decision: Decision
    reason: Doubt | None
    candidates: tuple[AnsweredCandidate, ...]
    margin: float | None
    nearest_other: AnsweredCandidate | None
    ruled_out: tuple[RuledOut, ...] = ()
    displaced_by: int | None = None


@dataclass(frozen=True, slots=True)
class Identification:
    photo: Photo
    faces: tuple[Identified, ...]
    point: IdentifyPoint
    subjects: int
    stages: Mapping[str, float]
    model: str
    warnings: Sequence[PopulationWarning] | None = None
    track: tuple[int, ...] | None = None
    """The indexes of the images that were fused; None for a single photo."""


@dataclass(frozen=True, slots=True)
class Rejected:
    index: int
    error: InvalidInput
    findings: Findings = NOTHING


@dataclass(frozen=True, slots=True)
class Enrollment:
    """``enrolled`` has the index of each accepted image, its face, what that became, and what it resembles.

    ``track``: the indexes of the images that were fused to decide about a conflict; None where each had its own.
    """

    subject: str
    created: bool
    enrolled: tuple[tuple[int, Face, StoredFace, Findings], ...]
    rejected: tuple[Rejected, ...]
    chosen: tuple[Chosen, ...]
    stages: Mapping[str, float]
    model: str
    track: tuple[int, ...] | None = None


def template_of(face: Face) -> Template:
    if face.template is None:
        raise ValueError("the face was not embedded")
    return face.template


def new_face(photo: Photo, face: Face, origin: Origin | None = None) -> NewFace:
    origin = origin or Origin(uuid.uuid4().hex, photo.width, photo.height, face.score)
    return NewFace((template_of(face),), face.quality, face.box, face.crop, origin)


def reasons_of(error: InvalidInput) -> list[str]:
    """Return the reasons that a rejected photo has beside its code."""
    reasons = error.details.get("reasons", [])
    return [str(reason) for reason in reasons] if isinstance(reasons, (list, tuple)) else []


def all_rejected(rejected: Sequence[Rejected]) -> InvalidInput:
    codes = {photo.error.code for photo in rejected}
    listed = [
        {"index": photo.index, "code": error.code, "reasons": reasons_of(error), "message": error.message}
        | photo.findings.as_details()
        for photo in rejected
        for error in [photo.error]
    ]
    if len(codes) > 1:
        return InvalidInput("no image could be taken", code="nothing_enrolled", rejected=listed)
    first = rejected[0].error
    return type(first)(first.message, code=first.code, **{**first.details, "rejected": listed})


def identified(
    face: Face,
    assigned: Assigned,
    ruled_out: Iterable[RuledOut],
    *,
    places: Sequence[int],
    point: IdentifyPoint,
    scores: AnsweredScores,
    limit: int,
    level: QualityLevel,
) -> Identified:
    """Return what a face's ranking means at an operating point; at most ``limit`` candidates are answered.

    ``places`` are those of the faces that were assigned subjects, among the photo's.
    """
    ranking = assigned.candidates
    displaced_by = None if assigned.displaced_by is None else places[assigned.displaced_by]
    decision, reason = decide(ranking[0].score if ranking else None, point, face.quality.score, level)
    answered = scores.candidates(ranking)
    first, second = ([candidate.score for candidate in answered] + [None, None])[:2]
    margin = None if first is None or second is None else first - second
    others = answered if decision == "unknown" else answered[1:]
    out = tuple(subject.answered(scores.answered) for subject in ruled_out)
    nearest_other = others[0] if others else None
    return Identified(face, decision, reason, tuple(answered[:limit]), margin, nearest_other, out, displaced_by)


class Photos:
    """Detect, judge and embed faces. ``observe`` receives the milliseconds that each stage took."""

    def __init__(self, reader: Reader, observe: Callable[[Mapping[str, float]], None]) -> None:
        self._reader = reader
        self._observe = observe
        self._beside = ThreadPoolExecutor(thread_name_prefix="beside")

    def detect(self, image: bytes, gate: Gate = OFF) -> Photo:
        """Return the photo's faces, cut out for the gate's packages."""
        photo = self._reader.detect(image, gate.cuts)
        self._observe(photo.stages)
        return photo

    def embed(self, image: bytes, used: Model, gate: Gate = OFF) -> tuple[Photo, list[int]]:
        """Judge all faces and embed those that the gate accepts and that could be aligned; return the photo and these
        faces' indices.
        """
        photo = self._reader.detect(image, gate.cuts)
        (photo,) = gate.judged([photo], [range(len(photo.faces))])
        places = [place for place in gate.accepted(photo) if photo.faces[place].crop is not None]
        (photo,) = embed_faces([photo], used.embedder, [places])
        self._observe(photo.stages)
        return photo, places

    def all(self, images: Sequence[bytes], used: Model, gate: Gate) -> Probes:
        """Return all faces of the only image that the gate accepts."""
        (image,) = images
        photo, places = self.embed(image, used, gate)
        return Probes(photo, places, [template_of(photo.faces[place]) for place in places])

    def choose(self, image: bytes, name: str, gate: Gate, index: int | None = None) -> Chosen:
        """Return the face at ``index``, by default the most prominent one. The errors name the photo by ``name``.

        Raises what `Pipeline.detect` raises, NoFace and Unalignable.
        """
        try:
            photo = self.detect(image, gate)
            chosen = Chosen(photo, choose_face(photo) if index is None else pick_face(photo, index))
            crop_of(chosen.face)
        except InvalidInput as error:
            raise type(error)(error.message, code=error.code, **{**error.details, "image": name}) from error
        return chosen

    def choose_each(self, wanted: Mapping[str, tuple[bytes, Gate, int | None]]) -> dict[str, Chosen]:
        """Return what `choose` returns of each photo by its name, side by side where there is room for all of them now.

        Raises what it raises for the first.
        """
        calls = [partial(self.choose, image, name, gate, index) for name, (image, gate, index) in wanted.items()]
        if self._reader.free < len(calls):
            return {name: call() for name, call in zip(wanted, calls, strict=True)}
        others = [self._beside.submit(copy_context().run, call) for call in calls[1:]]
        try:
            chosen = [calls[0](), *(other.result() for other in others)]
        finally:
            wait(others)  # what they keep is the request's
        return dict(zip(wanted, chosen, strict=True))

    def choose_enrollable(
        self, image: bytes, level: QualityLevel, gate: Gate, index: int | None = None, *, turned: bool = False
    ) -> Chosen:
        """Return the face that this photo enrolls, at ``index`` or the most prominent one; with ``turned`` also one
        that only a turned head makes too poor.

        Raises what `Pipeline.detect` raises, NoFace, AmbiguousFace, Unalignable, LowQuality.
        """
        photo = self.detect(image, gate)
        chosen = Chosen(photo, choose_face(photo) if index is None else pick_face(photo, index))
        share = chosen.choice.runner_up
        if share >= AMBIGUOUS_SHARE:
            raise AmbiguousFace(f"{len(photo.faces)} faces, and the second is {share:.0%} as prominent as the first")
        crop_of(chosen.face)
        if (error := too_poor(chosen.face, level)) and not (turned and is_turned(chosen.face.quality)):
            raise error
        return chosen

    def track(self, images: Sequence[bytes], level: QualityLevel, used: Model, gate: Gate) -> Probes:
        """Fuse the most prominent faces of images that show one person, without those below the quality or that could
        not be aligned; there may be none. Raises NotLive for the first that is refused."""
        photos = [self.detect(image, gate) for image in images]
        chosen = {str(index): Chosen(photo, choose_face(photo)) for index, photo in enumerate(photos) if photo.faces}
        able = {index: one for index, one in chosen.items() if one.face.crop is not None}
        good = {index: one for index, one in able.items() if one.face.quality.score >= level.minimum}
        if not good:
            return Probes(replace(photos[0], faces=()), (), (), track=())
        faces = self.probes(good, used, gate)
        vector, length = fuse(np.stack([face.template.vector for face in faces]))
        best = max(faces, key=lambda one: one.face.quality.score)
        template = Template(vector, best.template.package)
        photo = replace(best.photo, faces=(replace(best.face, template=template),))
        return Probes(photo, (0,), (template,), length, tuple(map(int, good)))

    def judge(self, chosen: Collection[Chosen], gate: Gate) -> list[Chosen]:
        """Judge the chosen faces, and no others, together."""
        if gate.judge is None:
            return list(chosen)
        which = [[face.choice.index] if face.face.cuts else [] for face in chosen]
        return self._with(chosen, gate.judged([face.photo for face in chosen], which), "liveness")

    def embed_chosen(self, chosen: Collection[Chosen], used: Model) -> list[Chosen]:
        """Embed the chosen faces, and no others, in one batch."""
        which = [[face.choice.index] for face in chosen]
        return self._with(chosen, embed_faces([face.photo for face in chosen], used.embedder, which), "embed")

    def probes(self, chosen: Mapping[str, Chosen], used: Model, gate: Gate) -> list[Chosen]:
        """Judge and embed the faces, given by their photos' names. Raises NotLive for the first that is refused."""
        judged = self.judge(chosen.values(), gate)
        for name, face in zip(chosen, judged, strict=True):
            gate.check(face.face, image=name)
        return self.embed_chosen(judged, used)

    def _with(self, chosen: Collection[Chosen], photos: Sequence[Photo], stage: str) -> list[Chosen]:
        """Return the chosen faces in these photos, which went through one more stage."""
        for photo in photos:
            if stage in photo.stages:
                self._observe({stage: photo.stages[stage]})
        return [replace(face, photo=photo) for face, photo in zip(chosen, photos, strict=True)]


def complete(embedders: Embedders, home: Gallery, faces: Sequence[NewFace]) -> list[NewFace]:
    """Return the faces with a template of each package that the gallery stores now, made from their crops.

    A gallery's packages may change before the faces are written; writing then raises Conflict ``package_mismatch``.
    """
    made = [{template.package: template for template in face.templates} for face in faces]
    for package in home.packages:
        lacking = [
            (templates, face.crop)
            for templates, face in zip(made, faces, strict=True)
            if package not in templates and face.crop is not None
        ]
        if lacking:
            with embedders.use(package) as used:
                embedded, _ = used.embedder.embed([crop for _, crop in lacking])
            for (templates, _), template in zip(lacking, embedded, strict=True):
                templates[package] = template
    return [
        replace(face, templates=tuple(each[package] for package in home.packages if package in each) or face.templates)
        for face, each in zip(faces, made, strict=True)
    ]
