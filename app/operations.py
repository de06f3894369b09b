"""Enroll, verify, identify: the only place where thresholds decide.

A decision is made at an operating point: a threshold named by the false match rate (FMR) it was measured at. For
identification the rate is chosen so that somebody who is not enrolled is taken for anyone at all with the false
positive identification rate (FPIR) asked for: FMR = 1 - (1 - FPIR)^(1/subjects), comparisons taken as independent
(Daugman 2000, "Biometric decision landscapes").
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from app.errors import AmbiguousFace, Conflict, InvalidInput, LowQuality, NoFace
from app.face.quality import QualityLevel
from app.gallery.records import (
    NO_TERMS,
    Candidate,
    CropPolicy,
    Enrolled,
    FaceRow,
    Gallery,
    IndexKind,
    Metadata,
    NewFace,
    Origin,
    Terms,
)
from app.gallery.service import Galleries
from app.inference.embedders import Embedders, Model
from app.inference.package import Thresholds
from app.pipeline import Choice, Pipeline, choose_face, embed_faces, timed
from app.types import Face, Photo, Template

AMBIGUOUS_SHARE = 0.5
"""An enrollment photo whose second face is at least half as prominent as the first doesn't say whom it shows."""
UNCERTAIN_FACTOR = 10.0
"""`uncertain` reaches from the operating point decided at down to the one of ten times its FMR."""

CHANGES = 3
"""How often an operation may find that its gallery's packages have changed since it began."""
T = TypeVar("T")

Decision: TypeAlias = Literal["known", "uncertain", "unknown"]


@dataclass(frozen=True, slots=True)
class VerifyPoint:
    """Where verification decides: ``fmr`` is the rate measured at ``threshold``."""

    threshold: float
    fmr: float


@dataclass(frozen=True, slots=True)
class IdentifyPoint:
    """Where identification decides, ``fpir`` being what ``fmr`` makes of all the gallery's subjects."""

    threshold: float
    uncertain: float
    fmr: float
    fpir: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """The face of a photo that an operation used, and why."""

    photo: Photo
    choice: Choice

    @property
    def face(self) -> Face:
        return self.photo.faces[self.choice.index]

    @property
    def template(self) -> Template:
        return _template(self.face)


@dataclass(frozen=True, slots=True)
class Verified:
    """``model``, here as below, is the id of the package whose templates were compared."""

    match: bool
    score: float
    point: VerifyPoint
    first: Chosen
    second: Chosen
    model: str


@dataclass(frozen=True, slots=True)
class SubjectVerified:
    match: bool
    candidate: Candidate
    point: VerifyPoint
    chosen: Chosen
    nearest_other: Candidate | None
    stages: Mapping[str, float]
    model: str


@dataclass(frozen=True, slots=True)
class Identified:
    """One face of a probe: ``nearest_other`` is the best subject that is not its answer."""

    face: Face
    decision: Decision
    candidates: tuple[Candidate, ...]
    margin: float | None
    nearest_other: Candidate | None


@dataclass(frozen=True, slots=True)
class Identification:
    photo: Photo
    faces: tuple[Identified, ...]
    point: IdentifyPoint
    subjects: int
    stages: Mapping[str, float]
    model: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An image of an enrollment that was not taken."""

    index: int
    error: InvalidInput

    @property
    def reasons(self) -> list[str]:
        found = self.error.details.get("reasons", [])
        return [str(reason) for reason in found] if isinstance(found, (list, tuple)) else []


@dataclass(frozen=True, slots=True)
class Enrollment:
    """``enrolled`` pairs each taken image's index with the row it became."""

    subject: str
    created: bool
    enrolled: tuple[tuple[int, FaceRow], ...]
    rejected: tuple[Rejected, ...]
    chosen: tuple[Chosen, ...]
    stages: Mapping[str, float]
    model: str


class Operations:
    """The service's verbs over photos. Synchronous; safe to share between threads.

    What is asked of a gallery is done with the gallery's package and at its operating points, everything else with the
    default's. Whatever embeds may raise Unusable ``package_unavailable``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        embedders: Embedders,
        galleries: Galleries,
        *,
        fmr: float,
        fpir: float,
        observe: Callable[[Mapping[str, float]], None] = lambda _: None,
    ) -> None:
        """``observe`` is told what the stages of each photo and operation took, in milliseconds."""
        self._pipeline = pipeline
        self._embedders = embedders
        self._galleries = galleries
        self._fmr = fmr
        self._fpir = fpir
        self._observe = observe

    @property
    def package(self) -> str:
        """Id of the package that is used where neither a gallery nor the caller names one."""
        return self._embedders.default.id

    def thresholds(self, model: str | None = None) -> Thresholds:
        """Operating points of a package by its id; of the default where None."""
        return self._embedders.thresholds(model or self.package)

    def detect(self, image: bytes) -> Photo:
        return self._observed(self._pipeline.detect(image))

    def embed(self, image: bytes, model: str | None = None) -> tuple[Photo, str]:
        """With the id of the package that made the templates: ``model``, as `name` or `name@version`, or the default.

        Raises InvalidInput (``package_unknown``, ``package_ambiguous``), and what the image deserves.
        """
        with self._embedders.use(self._embedders.choose(model).id) as used:
            return self._embed(image, used), used.id

    def verify(self, image1: bytes, image2: bytes, fmr: float | None = None, model: str | None = None) -> Verified:
        """Whether the most prominent faces of two photos are one person's, by the default package or ``model``.

        Raises OperatingPointUnavailable, NoFace (``details.image`` names the photo), what the images deserve, and what
        `embed` says of ``model``.
        """
        with self._embedders.use(self._embedders.choose(model).id) as used:
            point = verify_point(used.thresholds, fmr, self._fmr)
            both = self._one_face(image1, "image1"), self._one_face(image2, "image2")
            first, second = self._embedded(both, used)
        score = cosine(first.template, second.template)
        return Verified(score >= point.threshold, score, point, first, second, used.id)

    def verify_subject(
        self, gallery: str, subject: str, image: bytes, fmr: float | None = None, *, explain: bool = False
    ) -> SubjectVerified:
        """Whether the photo's most prominent face is the subject's.

        Raises NotFound, Conflict (``subject_without_faces``), and what `verify` raises.
        """
        return steady(lambda: self._verify_subject(gallery, subject, image, fmr, explain=explain))

    def _verify_subject(
        self, gallery: str, subject: str, image: bytes, fmr: float | None, *, explain: bool
    ) -> SubjectVerified:
        with self._used_by(gallery) as used:
            point = verify_point(used.thresholds, fmr, self._fmr)
            self._galleries.subject(gallery, subject)  # before any work on the photo
            (chosen,) = self._embedded([self._one_face(image, "image")], used)
        stages: dict[str, float] = {}
        with timed(stages, "search"):
            candidate = self._galleries.verify(gallery, subject, chosen.template)
            others = self._galleries.search(gallery, [chosen.template], 2)[0] if explain else []
        self._observe(stages)
        nearest = next((other for other in others if other.subject != candidate.subject), None)
        match = candidate.score >= point.threshold
        return SubjectVerified(match, candidate, point, chosen, nearest, stages, used.id)

    def identify(
        self, gallery: str, image: bytes, *, limit: int = 5, fmr: float | None = None, fpir: float | None = None
    ) -> Identification:
        """Who each face of the photo is; no face gives an empty answer.

        Raises NotFound, OperatingPointUnavailable, and what the image deserves.
        """
        return steady(lambda: self._identify(gallery, image, limit, fmr, fpir))

    def _identify(
        self, gallery: str, image: bytes, limit: int, fmr: float | None, fpir: float | None
    ) -> Identification:
        with self._used_by(gallery) as used:
            subjects = self._galleries.subjects_with_faces(gallery)
            point = identify_point(used.thresholds, fmr, fpir, self._fpir, subjects)
            photo = self._embed(image, used)
        stages: dict[str, float] = {}
        with timed(stages, "search"):
            # each of the other faces may take one subject away, and the margin needs one more
            probes = [_template(face) for face in photo.faces]
            rankings = self._galleries.search(gallery, probes, limit + len(probes) + 1)
        self._observe(stages)
        faces = [
            _identified(face, ranking, point, limit)
            for face, ranking in zip(photo.faces, assign(rankings, point.uncertain), strict=True)
        ]
        return Identification(photo, tuple(faces), point, subjects, stages, used.id)

    def enroll(
        self,
        gallery: str,
        subject: str,
        images: Sequence[bytes],
        quality: QualityLevel = QualityLevel.MEDIUM,
        *,
        terms: Terms = NO_TERMS,
    ) -> Enrollment:
        """Adds the photos' faces to the subject, which is made if it is missing; bad photos are left out. `terms` are
        the subject's from then on.

        Raises InvalidInput when no photo is good enough (``details.rejected`` says why each isn't), NotFound, Conflict.
        """
        own, *_ = self._galleries.enrolled_by(gallery)
        taken: dict[int, Chosen] = {}
        rejected: list[Rejected] = []
        for index, image in enumerate(images):
            try:
                taken[index] = self._enrollable(image, quality)
            except InvalidInput as error:
                rejected.append(Rejected(index, error))
        if not taken:
            raise _all_rejected(rejected)
        with self._embedders.use(own) as used:
            faces = self._embedded(taken.values(), used)
        stages: dict[str, float] = {}
        with timed(stages, "store"):
            made = self._add(gallery, subject, [_new_face(chosen) for chosen in faces], terms)
        self._observe(stages)
        enrolled = tuple(zip(taken, made.faces, strict=True))
        return Enrollment(made.subject.id, made.created, enrolled, tuple(rejected), tuple(faces), stages, used.id)

    def embed_for(self, gallery: str, image: bytes) -> Photo:
        """Every face of a photo with a template that compares with the gallery's.

        Raises NotFound, and what the image deserves.
        """
        with self._used_by(gallery) as used:
            return self._embed(image, used)

    def rank(self, gallery: str, templates: Sequence[Template], limit: int) -> list[list[Candidate]]:
        """For each template the ``limit`` subjects most like it, whoever the others are, with nothing decided.

        Raises NotFound, InvalidInput (``invalid_template``), Conflict (``package_mismatch``).
        """
        stages: dict[str, float] = {}
        with timed(stages, "search"):
            rankings = self._galleries.search(gallery, templates, limit)
        self._observe(stages)
        return rankings

    def enroll_face(
        self,
        gallery: str,
        subject: str,
        chosen: Chosen,
        quality: QualityLevel = QualityLevel.MEDIUM,
        origin: Origin | None = None,
    ) -> FaceRow:
        """Adds one face that somebody has chosen from a photo to the subject, which is made if it is missing.

        Raises LowQuality, NotFound, Conflict (``package_mismatch``).
        """
        check_quality(chosen.face, quality)
        stages: dict[str, float] = {}
        with timed(stages, "store"):
            made = self._add(gallery, subject, [_new_face(chosen, origin)])
        self._observe(stages)
        return made.faces[0]

    def examine(self, gallery: str, image: bytes, quality: QualityLevel = QualityLevel.MEDIUM) -> NewFace:
        """The photo's face as `enroll` would take it, without taking it.

        Raises NotFound, and the InvalidInput that `enroll` would refuse the photo with.
        """
        with self._used_by(gallery) as used:
            (chosen,) = self._embedded([self._enrollable(image, quality)], used)
            return _new_face(chosen)

    def complete(self, gallery: str, faces: Sequence[NewFace]) -> list[NewFace]:
        """The faces with a template of each package that the gallery takes by now, made of their crops. That may
        change before they are written, which then raises Conflict ``package_mismatch`` (see `steady`)."""
        own, *others = self._galleries.enrolled_by(gallery)
        whole = [replace(face, template=one) for face, one in zip(faces, self._by(faces, own), strict=True)]
        for other in others:
            whole = [replace(face, second=one) for face, one in zip(whole, self._by(faces, other), strict=True)]
        return whole

    def create_gallery(
        self,
        gallery: str,
        embedder: str | None,
        store: CropPolicy = "crop",
        metadata: Metadata | None = None,
        search: IndexKind = "fp32",
    ) -> Gallery:
        """An empty gallery for templates of an installed package, named by its id or its name, or of the default's.

        Raises InvalidInput (``package_unknown``, ``package_ambiguous``), Conflict (``gallery_exists``,
        ``search_unavailable``).
        """
        with self._embedders.use(self._embedders.choose(embedder).id) as used:
            return self._galleries.create_gallery(
                gallery, used.id, used.embedder.dimension, store=store, metadata=metadata, search=search
            )

    @contextmanager
    def _used_by(self, gallery: str) -> Iterator[Model]:
        """The package that the gallery is searched by. Raises NotFound."""
        with self._embedders.use(self._galleries.probed_by(gallery)) as used:
            yield used

    def _add(self, gallery: str, subject: str, faces: Sequence[NewFace], terms: Terms = NO_TERMS) -> Enrolled:
        """With a template of each package that the gallery takes by now."""

        return steady(lambda: self._galleries.enroll(gallery, subject, self.complete(gallery, faces), terms=terms))

    def _by(self, faces: Sequence[NewFace], package: str) -> list[Template]:
        """The faces' templates of this package, made of their crops where they have none."""
        lacking = [face.crop for face in faces if face.by(package) is None and face.crop is not None]
        if not lacking:
            return [face.by(package) or face.template for face in faces]
        with self._embedders.use(package) as used:
            made = iter(used.embedder.embed(lacking)[0])
        return [face.by(package) or next(made, face.template) for face in faces]

    def _embed(self, image: bytes, used: Model) -> Photo:
        return self._observed(self._pipeline.embed(image, used.embedder))

    def _embedded(self, chosen: Collection[Chosen], used: Model) -> list[Chosen]:
        """The same with templates of the faces that were chosen, and of no others; made together."""
        photos = embed_faces([one.photo for one in chosen], used.embedder, [[one.choice.index] for one in chosen])
        for photo in photos:
            self._observe({"embed": photo.stages["embed"]})
        return [replace(one, photo=photo) for one, photo in zip(chosen, photos, strict=True)]

    def _observed(self, photo: Photo) -> Photo:
        self._observe(photo.stages)
        return photo

    def _one_face(self, image: bytes, name: str) -> Chosen:
        try:
            photo = self.detect(image)
        except InvalidInput as error:
            raise type(error)(error.message, code=error.code, **{**error.details, "image": name}) from error
        if not photo.faces:
            raise NoFace(f"{name}: no face was found", image=name)
        return Chosen(photo, choose_face(photo))

    def _enrollable(self, image: bytes, level: QualityLevel) -> Chosen:
        photo = self.detect(image)
        if not photo.faces:
            raise NoFace("no face was found")
        chosen = Chosen(photo, choose_face(photo))
        share = chosen.choice.runner_up
        if share >= AMBIGUOUS_SHARE:
            raise AmbiguousFace(f"{len(photo.faces)} faces, and the second is {share:.0%} as prominent as the first")
        check_quality(chosen.face, level)
        return chosen


# ---------------------------------------------------------------- operating points


def verify_point(thresholds: Thresholds, asked: float | None, default: float) -> VerifyPoint:
    """Raises OperatingPointUnavailable where the rate was not measured.

    A default that the package was not measured at gives way to the nearest rate that was.
    """
    if asked is not None:
        return VerifyPoint(thresholds.threshold(asked), asked)
    fmr = _measured(thresholds, default)
    return VerifyPoint(thresholds.threshold(fmr), fmr)


def identify_point(
    thresholds: Thresholds, fmr: float | None, fpir: float | None, default: float, subjects: int
) -> IdentifyPoint:
    """Raises OperatingPointUnavailable where a rate that was asked for was not measured.

    The default gives way to the nearest measured rate: in galleries larger than was measured for, to the strictest one;
    the answer's ``fpir`` then says what is really to be expected.
    """
    if fmr is None:
        fmr = fmr_for(default if fpir is None else fpir, subjects)
        if fpir is None:
            fmr = _measured(thresholds, fmr)
    threshold = thresholds.threshold(fmr)
    uncertain = thresholds.threshold(_measured(thresholds, fmr * UNCERTAIN_FACTOR))
    return IdentifyPoint(threshold, uncertain, fmr, fpir_of(fmr, subjects))


def fmr_for(fpir: float, subjects: int) -> float:
    """The FMR of one comparison that gives ``fpir`` over ``subjects`` independent ones; none counts as one."""
    return -math.expm1(math.log1p(-fpir) / max(subjects, 1))


def fpir_of(fmr: float, subjects: int) -> float:
    """1 - (1 - FMR)^subjects: the inverse of `fmr_for`."""
    return -math.expm1(math.log1p(-fmr) * max(subjects, 1))


def _measured(thresholds: Thresholds, fmr: float) -> float:
    """``fmr``, or the nearest rate that was measured."""
    if thresholds.lowest is None or thresholds.highest is None:
        return fmr  # `Thresholds.threshold` says that nothing was measured
    return min(max(fmr, thresholds.lowest), thresholds.highest)


# ---------------------------------------------------------------- decisions


def check_quality(face: Face, level: QualityLevel) -> None:
    """Raises LowQuality where the face is too poor to be enrolled at this level."""
    quality = face.quality
    if quality.score < level.minimum:
        reasons = [reason.value for reason in quality.reasons]
        message = f"quality {quality.score:.0f}, {level.minimum:.0f} is the least that `{level.value}` takes"
        raise LowQuality(message, reasons=reasons, score=quality.score, minimum=level.minimum)


def cosine(a: Template, b: Template) -> float:
    """Cosine similarity of two unit vectors, -1 to 1; raises Conflict (``package_mismatch``) across packages."""
    if a.package != b.package:
        raise Conflict(f"templates of {a.package} and {b.package} don't compare", code="package_mismatch")
    dot = np.dot(a.vector.astype(np.float64), b.vector.astype(np.float64))
    return float(np.clip(dot, -1.0, 1.0))


def assign(rankings: Sequence[Sequence[Candidate]], floor: float) -> list[list[Candidate]]:
    """Each face's ranking without the subjects that are given to other faces of the photo.

    The best-scoring pair of a face and a subject goes first, then the best of what is left, and so on, down to
    ``floor``: nobody is in a photo twice. Scores below it decide nothing, so they take nobody away either.
    """
    pairs = [
        (-candidate.score, face, candidate.subject)
        for face, ranking in enumerate(rankings)
        for candidate in ranking
        if candidate.score >= floor
    ]
    given: dict[str, int] = {}
    served: set[int] = set()
    for _, face, subject in sorted(pairs):
        if face not in served and subject not in given:
            given[subject] = face
            served.add(face)
    return [
        [candidate for candidate in ranking if given.get(candidate.subject, face) == face]
        for face, ranking in enumerate(rankings)
    ]


def decide(score: float | None, point: IdentifyPoint) -> Decision:
    """``score``: the first candidate's; None where there is none."""
    if score is None or score < point.uncertain:
        return "unknown"
    return "known" if score >= point.threshold else "uncertain"


def _identified(face: Face, ranking: Sequence[Candidate], point: IdentifyPoint, limit: int) -> Identified:
    decision = decide(ranking[0].score if ranking else None, point)
    margin = ranking[0].score - ranking[1].score if len(ranking) > 1 else None
    others = ranking if decision == "unknown" else ranking[1:]
    return Identified(face, decision, tuple(ranking[:limit]), margin, others[0] if others else None)


def steady(work: Callable[[], T]) -> T:
    """Does it once more where the gallery changed its packages, or began to have two, while it was worked for."""
    for _ in range(CHANGES - 1):
        try:
            return work()
        except Conflict as error:
            if error.code not in {"package_mismatch", "two_packages"}:
                raise
    return work()


def _template(face: Face) -> Template:
    if face.template is None:
        raise ValueError("the face was not embedded")
    return face.template


def _new_face(chosen: Chosen, origin: Origin | None = None) -> NewFace:
    face, photo = chosen.face, chosen.photo
    origin = origin or Origin(uuid.uuid4().hex, photo.width, photo.height, face.detection.score)
    return NewFace(chosen.template, face.quality, face.detection.box, face.crop, origin)


def _all_rejected(rejected: Sequence[Rejected]) -> InvalidInput:
    codes = {one.error.code for one in rejected}
    listed = [
        {"index": one.index, "code": one.error.code, "reasons": one.reasons, "message": one.error.message}
        for one in rejected
    ]
    if len(codes) > 1:
        return InvalidInput("no image could be taken", code="nothing_enrolled", rejected=listed)
    first = rejected[0].error
    return type(first)(first.message, code=first.code, **{**first.details, "rejected": listed})
