"""The service's operations over photos: detect, embed, verify, identify, enroll.

`app.recognition.decisions` turns their scores into decisions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, Unpack

import numpy as np
from sqlalchemy.engine import Connection

from app.choices import LivenessMode, LivenessOf, OnConflict
from app.concurrency.threads import check_deadline
from app.errors import AmbiguousFace, InvalidInput, NoFace
from app.face.quality import QualityLevel
from app.gallery.corrections import wrong_probes
from app.gallery.records import NO_TERMS, Candidate, Gallery, GallerySettings, Origin, StoredFace, Terms, encode_crop
from app.gallery.service import Enrolled, Galleries, GallerySearch
from app.inference.embedders import Embedders, OpenedModel
from app.package.thresholds import Thresholds, fuse_templates
from app.pipeline import AMBIGUOUS_SHARE, Reader, choose_face, crop_of, embed_faces, timed
from app.recognition.decisions import (
    RERANKED,
    AnsweredScores,
    Assigned,
    Chosen,
    DefaultRates,
    Identification,
    Probes,
    RuledOut,
    SubjectVerified,
    Verified,
    assign,
    by_fused_score,
    cosine,
    decide,
    identified,
    identify_point,
    is_turned,
    population_warnings,
    rule_out,
    template_of,
    too_poor,
    verify_point,
)
from app.recognition.duplicates import NOTHING, Objections, find_objections, find_unlike, matches_good
from app.recognition.gate import OFF, Gate, Gates
from app.types import Face, Photo, Template

OwnThresholds: TypeAlias = Callable[[Gallery, Thresholds], Thresholds]
"""Returns the thresholds that decide in a gallery, given its package's."""


@dataclass(frozen=True, slots=True)
class Rejected:
    index: int
    error: InvalidInput
    objections: Objections = NOTHING


@dataclass(frozen=True, slots=True)
class Enrollment:
    """``enrolled`` has the index of each accepted image, its face, the stored face, and the faces it resembles.

    ``track`` has the indexes of the images fused to check for a conflict; None if each image was checked by itself.
    """

    subject: str
    created: bool
    enrolled: tuple[tuple[int, Face, StoredFace, Objections], ...]
    rejected: tuple[Rejected, ...]
    chosen: tuple[Chosen, ...]
    stages: Mapping[str, float]
    model: str
    track: tuple[int, ...] | None = None


class Operations:
    """Detect, embed, verify, identify, enroll. Synchronous; safe to share between threads.

    Operations on a gallery, which the caller has opened, use its package and its operating points, all others the
    default package's. Scores of enrolled faces are answered in steps and above a floor, or exactly if ``exact``
    (`decisions` says why). Every method that embeds may raise Unusable ``package_unavailable``; every method that
    takes an image, the errors of `app.face.image.decode`; every one that takes a gallery, NotFound and Conflict
    ``package_mismatch`` as `Store.gallery` says.
    """

    def __init__(
        self,
        reader: Reader,
        embedders: Embedders,
        galleries: Galleries,
        *,
        gates: Gates,
        fmr: float,
        fpir: float,
        own_thresholds: OwnThresholds | None = None,
        observers: Mapping[str, Callable[[float], None]] | None = None,
    ) -> None:
        """``own_thresholds`` returns the thresholds that decide in a gallery with its own calibration, without it the
        package's do; ``observers`` are called with the seconds of a stage, by the stage's name.
        """
        self._reader = reader
        self._beside = ThreadPoolExecutor(thread_name_prefix="beside")
        self._embedders = embedders
        self.galleries, self._store = galleries, galleries.store
        self._gates = gates
        self.defaults = DefaultRates(fmr, fpir)
        self._own_thresholds = own_thresholds or (lambda _, package: package.without_gallery("not_measured"))
        self._observers = observers or {}

    @property
    def package(self) -> str:
        return self._embedders.default.id

    def thresholds(self, model: str | None = None) -> Thresholds:
        """Return the operating points of a package by its id; None means the default package."""
        return self._embedders.thresholds(model or self.package)

    def thresholds_in(self, gallery: Gallery, model: str) -> Thresholds:
        """Return the operating points that decide in a gallery about templates of this package."""
        package = self._embedders.thresholds(model)
        return package if gallery.calibration == "package" else self._own_thresholds(gallery, package)

    @contextmanager
    def use_in(self, gallery: Gallery, package: str | None = None) -> Iterator[OpenedModel]:
        """Keep a package open, by default the one that probes of the gallery are embedded with, with the operating
        points that decide in the gallery."""
        with self._embedders.use(package or self.galleries.probed_by(gallery)) as opened:
            if gallery.calibration == "package":
                yield opened
            else:
                yield replace(opened, thresholds=self._own_thresholds(gallery, opened.thresholds))

    def open_gate(self, asked: LivenessMode | None, default: LivenessMode = "off") -> Gate:
        """Return the gate of a request for what it asks, else the default; a default of `require` always holds.

        Raises what `Gates.judging` raises.
        """
        mode = "require" if default == "require" else asked or default
        return OFF if mode == "off" else self._gates.judging(mode)

    def observe(self, stages: Mapping[str, float]) -> None:
        """Report the milliseconds of a photo's or an operation's stages to the observers, in seconds."""
        for stage in self._observers.keys() & stages.keys():
            self._observers[stage](stages[stage] / 1000)

    def detect(self, image: bytes, gate: Gate = OFF) -> Photo:
        """Return the photo's faces, cut out for the gate's packages."""
        photo = self._reader.detect(image, gate.cuts)
        self.observe(photo.stages)
        return photo

    def embed(self, image: bytes, model: str | None = None) -> tuple[Photo, str]:
        """Return all faces, with templates of those that could be aligned, and the id of the package that made them.

        ``model`` is `name` or `name@version`; None means the default package.
        Raises InvalidInput (``package_unknown``, ``package_ambiguous``).
        """
        with self._embedders.use(self._embedders.choose(model).id) as opened:
            return self.embed_all(image, opened), opened.id

    def verify(
        self,
        first: Sequence[bytes],
        second: Sequence[bytes],
        fmr: float | None = None,
        model: str | None = None,
        population: str | None = None,
        *,
        track: bool = False,
        faces: tuple[int | None, int | None] = (None, None),
        liveness: LivenessMode = "off",
        liveness_of: LivenessOf = "both",
        quality: QualityLevel = QualityLevel.LOW,
    ) -> Verified:
        """Compare two photos' ``faces``, given by their indexes in `detect`; None is the most prominent face.

        With ``track`` each of the two is several images of one person, which are one probe (`_fuse_track`); ``faces``
        are then ignored.

        ``population`` is the group that the caller says the photos show; ``quality`` is the minimum for a match.

        Raises OperatingPointUnavailable, NoFace, Unalignable and NotLive (``details.image`` names the photo), what
        `embed` raises for ``model``, and what `open_gate` raises.
        """
        gate = self.open_gate(liveness)
        with self._embedders.use(self._embedders.choose(model).id) as opened:
            verify_point(opened.thresholds, fmr, self.defaults.fmr)  # fails before any work on the photos
            gate1, gate2 = (gate if liveness_of in {"both", name} else OFF for name in ("image1", "image2"))
            if track:
                side1 = self._from_track(first, "image1", quality, opened, gate1)
                side2 = self._from_track(second, "image2", quality, opened, gate2)
            else:
                calls = {
                    "image1": partial(self.choose, first[0], "image1", gate1, faces[0]),
                    "image2": partial(self.choose, second[0], "image2", gate2, faces[1]),
                }
                side1, side2 = self.embed_live(self._side_by_side(calls), opened, gate)
            point = verify_point(opened.thresholds, fmr, self.defaults.fmr, length=side1.length, other=side2.length)
        score = cosine(template_of(side1.face), template_of(side2.face))
        warnings = population_warnings(opened.thresholds, population, point)
        worse = min(side1.face.quality.score, side2.face.quality.score)
        return Verified(*decide(score, point, worse, quality), score, point, side1, side2, opened.id, warnings)

    def verify_subject(
        self,
        gallery: Gallery,
        subject: str,
        images: Sequence[bytes],
        fmr: float | None = None,
        *,
        exact: bool,
        track: bool = False,
        population: str | None = None,
        liveness: LivenessMode | None = None,
        quality: QualityLevel = QualityLevel.LOW,
        explain: bool = False,
    ) -> SubjectVerified:
        """Compare the photo's most prominent face with one subject; ``explain`` also finds the nearest other subject.

        With ``track`` the images show one person and are one probe (`_fuse_track`). ``population`` replaces the
        gallery's.
        Raises NotFound, Conflict (``subject_without_faces``), and what `verify` raises.
        """
        gate = self.open_gate(liveness, gallery.liveness)
        searched = self.galleries.open_search(gallery)
        with self.use_in(gallery, searched.package) as opened:
            thresholds = opened.thresholds
            verify_point(thresholds, fmr, self.defaults.fmr)  # these two fail before any work on the photo
            self._store.subject(gallery, subject)
            if track:
                chosen = self._from_track(images, "image", quality, opened, gate)
            else:
                (image,) = images
                (chosen,) = self.embed_live({"image": self.choose(image, "image", gate)}, opened, gate)
            probe, stages = template_of(chosen.face), dict[str, float]()
            with timed(stages, "search"):
                found = searched.verify(subject, probe)
                (candidate,) = by_fused_score([found], thresholds, chosen.length)
            length, faces = chosen.length, candidate.faces
            point = verify_point(thresholds, fmr, self.defaults.fmr, faces, length=length, fused_scores=True)
            scores = AnsweredScores.of(thresholds, point.threshold, point.uncertain, exact=exact)
            warnings = population_warnings(thresholds, population, point, gallery.population)
        with timed(stages, "search"):
            others = ranked(searched, [probe], 2, thresholds, length)[0] if explain else []
            ruled_out: Sequence[RuledOut] = ()
            if gallery.corrected:
                _, (ruled_out,) = self._rule_out(gallery, [probe], [[candidate]], point.uncertain)
        self.observe(stages)
        (answered,) = scores.candidates([candidate], all_of_them=True)
        nearest = scores.candidates(other for other in others if other.subject != candidate.subject)
        score = None if ruled_out else candidate.score
        decision, reason = decide(score, point, chosen.face.quality.score, quality)
        return SubjectVerified(
            decision=decision,
            reason=reason,
            candidate=answered,
            point=point,
            chosen=chosen,
            nearest_other=nearest[0] if nearest else None,
            stages=stages,
            model=opened.id,
            warnings=warnings,
            ruled_out=ruled_out[0].answered(scores.answered) if ruled_out else None,
        )

    def _from_track(
        self, images: Sequence[bytes], name: str, quality: QualityLevel, opened: OpenedModel, gate: Gate
    ) -> Chosen:
        """Return the face that a track's images show, with their fused template.

        Raises NoFace, which has the field's ``name``, NotLive, and what decoding raises.
        """
        probes = self._fuse_track(images, quality, opened, gate)
        if not probes.templates:
            raise NoFace(f"no image shows a face of at least the quality `{quality.value}`", image=name)
        return Chosen(probes.photo, choose_face(probes.photo), probes.length, probes.track)

    def identify(
        self,
        gallery: Gallery,
        images: Sequence[bytes],
        *,
        exact: bool,
        track: bool = False,
        limit: int = 5,
        fmr: float | None = None,
        fpir: float | None = None,
        population: str | None = None,
        liveness: LivenessMode | None = None,
        quality: QualityLevel = QualityLevel.LOW,
    ) -> Identification:
        """Search the gallery for every face of the photo; a photo without a face gives an empty answer.

        With ``track`` the images show one person and are one probe (`_fuse_track`). ``population`` replaces the
        gallery's. Faces that could not be aligned, or that must be live but are not, are unknown without a search.
        Faces below ``quality`` are at most `uncertain`. Raises NotFound, OperatingPointUnavailable, NotLive if faces
        must be live and none is, and what `open_gate` raises.
        """
        gate = self.open_gate(liveness, gallery.liveness)
        searched = self.galleries.open_search(gallery)
        with self.use_in(gallery, searched.package) as opened:
            thresholds, sizes = opened.thresholds, searched.sizes
            decided_at = partial(identify_point, thresholds, fmr, fpir, self.defaults, sizes, fused_scores=True)
            point = decided_at()  # fails before any work on the photo
            if track:
                probes = self._fuse_track(images, quality, opened, gate)
                point = decided_at(length=probes.length)
            else:
                (image,) = images
                photo = self.embed_all(image, opened, gate)
                embedded = {place: face.template for place, face in enumerate(photo.faces) if face.template is not None}
                probes = Probes(photo, list(embedded), list(embedded.values()))
            scores = AnsweredScores.of(thresholds, point.threshold, point.uncertain, exact=exact)
            photo, places = probes.photo, probes.places
            warnings = population_warnings(thresholds, population, point, gallery.population)
        stages: dict[str, float] = {}
        with timed(stages, "search"):
            # `assign` may give a subject to each of the other faces, and the margin needs one more
            most = limit + len(places) + 1
            rankings = ranked(searched, probes.templates, most, thresholds, probes.length)
            ruled_out: dict[int, tuple[RuledOut, ...]] = {}
            if gallery.corrected and places:
                rankings, out = self._rule_out(gallery, probes.templates, rankings, point.uncertain)
                ruled_out = dict(zip(places, out, strict=True))
        self.observe(stages)
        assigned = dict(zip(places, assign(rankings, point.uncertain), strict=True))
        faces = tuple(
            identified(
                face,
                assigned.get(place, Assigned()),
                ruled_out.get(place, ()),
                places=places,
                point=point,
                scores=scores,
                limit=limit,
                level=quality,
            )
            for place, face in enumerate(photo.faces)
        )
        track_of, length = probes.track, probes.length
        return Identification(photo, faces, point, sum(sizes.values()), stages, opened.id, warnings, track_of, length)

    def enroll(
        self,
        gallery: Gallery,
        subject: str,
        images: Sequence[bytes],
        quality: QualityLevel = QualityLevel.MEDIUM,
        *,
        liveness: LivenessMode | None = None,
        terms: Terms = NO_TERMS,
        face: int | None = None,
        on_conflict: OnConflict | None = None,
        track: bool = False,
        tell: bool = True,
        also: Callable[[Connection], None] = lambda _: None,
    ) -> Enrollment:
        """Add the photos' faces to the subject, which is created if it is missing; poor photos are rejected one by one.

        The face of a head that is turned too far is enrolled if it matches a good photo (`duplicates.matches_good`).
        ``face`` is the index in `detect` of the face to take from a single photo. With ``track`` the photos have one
        conflict or none, that of the mean of their templates (`duplicates.find_objections`). ``terms`` replace the
        subject's own, ``on_conflict`` the gallery's; without ``tell``, objections don't name the person. ``also``
        writes in the transaction.
        Raises InvalidInput when every photo is rejected (``details.rejected`` has the reasons), NotFound, Conflict, and
        what `open_gate` raises.
        """
        if face is not None and len(images) > 1:
            raise InvalidInput("Send one image with `face`.", code="invalid_request")
        gate, policy = self.open_gate(liveness, gallery.liveness), on_conflict or gallery.on_conflict
        stages: dict[str, float] = {}
        with nullcontext() if policy == "allow" else self.galleries.searches.enrolling():
            taken, rejected = self._choose_each(images, quality, gate, face)  # by the index of their image
            if not taken:
                raise all_rejected(rejected)
            with self._embedders.use(gallery.embedder) as opened:
                taken = dict(zip(taken, self.embed_chosen(taken.values(), opened), strict=True))
            if any(chosen.poor for chosen in taken.values()):
                taken, turned = self._reject_unmatched(gallery, subject, taken, tell=tell)
                rejected += turned
                if not taken:
                    raise all_rejected(rejected)
            faces = list(taken.values())
            embedded = [(subject, template_of(chosen.face)) for chosen in faces]
            found = self.find_objections(gallery, embedded, policy, tell=tell, unlike=tell, track=track, stages=stages)
        # A face may resemble another of this request, which so far is known only by its image.
        images_of = {place: (index, None) for place, index in enumerate(taken)}
        objections = [objection.named(images_of) for objection in found]
        good: dict[int, tuple[Chosen, Objections]] = {}
        for index, chosen, objection in zip(taken, faces, objections, strict=True):
            if objection.refused and objection.error:
                rejected.append(Rejected(index, objection.error, objection))
            else:
                good[index] = chosen, objection
        rejected.sort(key=lambda photo: photo.index)
        if not good:
            raise all_rejected(rejected)
        with timed(stages, "store"):
            new = [(chosen.face, origin_of(chosen.photo, chosen.face)) for chosen, _ in good.values()]
            made = self.add_faces(gallery, subject, new, terms, also)
        self.observe(stages)
        rows = dict(zip(good, made.faces, strict=True))
        ids = {index: (index, row.face_id) for index, row in rows.items()}
        enrolled = [
            (index, chosen.face, rows[index], objection.named(ids)) for index, (chosen, objection) in good.items()
        ]
        return Enrollment(
            subject=made.subject,
            created=made.created,
            enrolled=tuple(enrolled),
            rejected=tuple(replace(photo, objections=photo.objections.named(ids)) for photo in rejected),
            chosen=tuple(faces),
            stages=stages,
            model=opened.id,
            track=tuple(taken) if track else None,
        )

    def _choose_each(
        self, images: Sequence[bytes], quality: QualityLevel, gate: Gate, face: int | None
    ) -> tuple[dict[int, Chosen], list[Rejected]]:
        """Return the faces that may be enrolled, by the index of their image, and the rejected images."""
        chosen: dict[int, Chosen] = {}
        rejected: list[Rejected] = []
        for index, image in enumerate(images):
            try:
                chosen[index] = self.choose_enrollable(image, quality, gate, face)
            except InvalidInput as error:
                rejected.append(Rejected(index, error))
        if gate.judge is None:
            return chosen, rejected
        taken: dict[int, Chosen] = {}
        for index, judged in zip(chosen, self._judge(chosen.values(), gate), strict=True):
            if refusal := gate.refusal(judged.face):
                rejected.append(Rejected(index, refusal))
            else:
                taken[index] = judged
        return taken, sorted(rejected, key=lambda photo: photo.index)

    def _reject_unmatched(
        self, gallery: Gallery, subject: str, taken: Mapping[int, Chosen], *, tell: bool
    ) -> tuple[dict[int, Chosen], list[Rejected]]:
        """Return the embedded faces without the turned ones that match no good one, and the latter as rejected images.

        Without ``tell`` they are compared only with the other images: a caller who may not identify anybody must not
        learn from a refusal whom a photo shows.
        """
        turned = {index: template_of(chosen.face) for index, chosen in taken.items() if chosen.poor}
        good = [template_of(chosen.face) for chosen in taken.values() if not chosen.poor]
        matched = self.matches_good(gallery, subject if tell else None, list(turned.values()), good)
        alone = {index for index, is_match in zip(turned, matched, strict=True) if not is_match}
        rejected = [Rejected(index, chosen.poor) for index, chosen in taken.items() if index in alone and chosen.poor]
        return {index: chosen for index, chosen in taken.items() if index not in alone}, rejected

    def matches_good(
        self, gallery: Gallery, subject: str | None, turned: Sequence[Template], good: Sequence[Template]
    ) -> list[bool]:
        """Return which turned heads may be enrolled: those that match a good face of the subject, new or enrolled
        (`duplicates.matches_good`)."""
        package = turned[0].package
        searched, measured = self.galleries.open_search(gallery, package), self.thresholds_in(gallery, package)
        return matches_good(searched, subject, turned, good, measured=measured)

    def find_objections(
        self,
        gallery: Gallery,
        faces: Sequence[tuple[str, Template]],
        on_conflict: OnConflict | None = None,
        *,
        tell: bool = True,
        unlike: bool = False,
        track: bool = False,
        stages: dict[str, float] | None = None,
    ) -> list[Objections]:
        """Return the objections to each face, given with its subject's id (`duplicates.find_objections`, also for
        ``track``); with ``unlike`` also whether it looks like none of its subject's other faces. ``stages`` gets the
        time of the search."""
        policy = on_conflict or gallery.on_conflict
        if policy == "allow" or not faces:
            return [NOTHING] * len(faces)
        package = faces[0][1].package
        searched, measured = self.galleries.open_search(gallery, package), self.thresholds_in(gallery, package)
        with timed({} if stages is None else stages, "search"):
            refuse, fmr = policy == "reject", self.defaults.fmr
            objections = find_objections(searched, faces, measured, fmr, refuse=refuse, tell=tell, track=track)
            for subject in dict.fromkeys(subject for subject, _ in faces) if unlike else ():
                places = [place for place, (whose, _) in enumerate(faces) if whose == subject]
                of_subject, before = [faces[place] for place in places], [objections[place] for place in places]
                for place, objection in zip(places, find_unlike(searched, of_subject, measured, before), strict=True):
                    objections[place] = objection
        return objections

    def create_gallery(
        self,
        gallery: str,
        embedder: str | None,
        *,
        force: bool = False,
        accept_non_commercial: bool = False,
        **settings: Unpack[GallerySettings],
    ) -> Gallery:
        """Create an empty gallery for templates of an installed package, given by id or name (None: the default).

        Raises InvalidInput (``package_unknown``, ``package_ambiguous``; ``package_not_measured`` unless ``force``,
        ``licence_not_accepted`` unless ``accept_non_commercial``), Conflict (``gallery_exists``,
        ``search_unavailable``).
        """
        package = self._embedders.choose_for_gallery(embedder, force=force, accept_non_commercial=accept_non_commercial)
        with self._embedders.use(package.id) as opened:
            return self.galleries.create_gallery(gallery, opened.id, opened.embedder.dimension, **settings)

    def add_faces(
        self,
        gallery: Gallery,
        subject: str,
        faces: Sequence[tuple[Face, Origin]],
        terms: Terms = NO_TERMS,
        also: Callable[[Connection], None] = lambda _: None,
    ) -> Enrolled:
        """Add faces to the subject unchecked, whatever they resemble. Raises what `Galleries.enroll` raises."""
        check_deadline()  # don't store anything for a request that was given up
        stored = to_store(self._embedders, gallery, [(subject, face, origin) for face, origin in faces])
        return self.galleries.enroll(gallery, subject, stored, terms=terms, also=also)

    def _rule_out(
        self, gallery: Gallery, probes: Sequence[Template], rankings: Sequence[Sequence[Candidate]], floor: float
    ) -> tuple[list[list[Candidate]], list[tuple[RuledOut, ...]]]:
        """Return each probe's ranking without the subjects that a correction rules out, and these; at least one probe.

        Candidates below `floor` decide nothing, so their corrections aren't read.
        """
        near = {candidate.subject for ranking in rankings for candidate in ranking if candidate.score >= floor}
        wrong = wrong_probes(self._store, gallery, probes[0].package, near)
        split = [rule_out(probe, ranking, wrong, floor) for probe, ranking in zip(probes, rankings, strict=True)]
        return [kept for kept, _ in split], [out for _, out in split]

    # Steps over the photos of a request

    def embed_all(self, image: bytes, opened: OpenedModel, gate: Gate = OFF) -> Photo:
        """Return the photo with all faces judged, and templates of those that the gate accepts and that could be
        aligned."""
        photo = self._reader.detect(image, gate.cuts)
        places: Sequence[int] = range(len(photo.faces))
        if gate.judge is not None:
            (photo,) = gate.judged([photo], [places])
            places = gate.accepted(photo)
        which = [place for place in places if photo.faces[place].crop is not None]
        (photo,) = embed_faces([photo], opened.embedder, [which])
        self.observe(photo.stages)
        return photo

    def choose(self, image: bytes, name: str, gate: Gate = OFF, index: int | None = None) -> Chosen:
        """Return the face at ``index``, by default the most prominent one. The errors name the photo by ``name``.

        Raises what `Pipeline.detect` raises, NoFace and Unalignable.
        """
        try:
            photo = self.detect(image, gate)
            chosen = Chosen(photo, choose_face(photo, index))
            crop_of(chosen.face)
        except InvalidInput as error:
            raise type(error)(error.message, code=error.code, **{**error.details, "image": name}) from error
        return chosen

    def _side_by_side(self, calls: Mapping[str, Callable[[], Chosen]]) -> dict[str, Chosen]:
        """Return the results by name. The calls run at the same time if the photo workers have room for all of them.

        Raises the error of the first call that fails.
        """
        first, *others = calls.values()
        if self._reader.free < len(calls):
            return {name: call() for name, call in calls.items()}
        running = [self._beside.submit(copy_context().run, other) for other in others]
        try:
            chosen = [first(), *(other.result() for other in running)]
        finally:
            wait(running)  # wait, since their memory is counted for the request
        return dict(zip(calls, chosen, strict=True))

    def choose_enrollable(self, image: bytes, level: QualityLevel, gate: Gate, index: int | None = None) -> Chosen:
        """Return the face that this photo enrolls: the one at ``index``, by default the most prominent one.

        A face whose quality is too low only because the head is turned is ``poor``; at `high` it is rejected like any
        other. Raises what `Pipeline.detect` raises, NoFace, AmbiguousFace, Unalignable, LowQuality.
        """
        photo = self.detect(image, gate)
        choice = choose_face(photo, index)
        if choice.runner_up >= AMBIGUOUS_SHARE:
            share = f"{choice.runner_up:.0%}"
            raise AmbiguousFace(f"{len(photo.faces)} faces, and the second is {share} as prominent as the first")
        face = photo.faces[choice.index]
        crop_of(face)
        poor = too_poor(face.quality, level)
        if poor and (level is QualityLevel.HIGH or not is_turned(face.quality)):
            raise poor
        return Chosen(photo, choice, poor=poor)

    def _fuse_track(self, images: Sequence[bytes], level: QualityLevel, opened: OpenedModel, gate: Gate) -> Probes:
        """Fuse the most prominent faces of images that show one person into one probe.

        Faces below the quality ``level`` and faces that could not be aligned are left out; if all are, there is
        no probe. Raises NotLive for the first face that is not live.
        """
        photos = [self.detect(image, gate) for image in images]
        found = {str(index): Chosen(photo, choose_face(photo)) for index, photo in enumerate(photos) if photo.faces}
        good = {
            index: chosen
            for index, chosen in found.items()
            if chosen.face.crop is not None and chosen.face.quality.score >= level.minimum
        }
        if not good:
            return Probes(replace(photos[0], faces=()), (), (), track=())
        faces = self.embed_live(good, opened, gate)
        vector, length = fuse_templates(np.stack([template_of(chosen.face).vector for chosen in faces]))
        best = max(faces, key=lambda chosen: chosen.face.quality.score)
        template = Template(vector, opened.id)
        photo = replace(best.photo, faces=(replace(best.face, template=template),))
        return Probes(photo, (0,), (template,), length, tuple(map(int, good)))

    def _judge(self, chosen: Collection[Chosen], gate: Gate) -> list[Chosen]:
        """Judge only the chosen faces, together."""
        which = [[face.choice.index] if face.face.cuts else [] for face in chosen]
        photos = gate.judged([face.photo for face in chosen], which)
        for photo in photos:
            if "liveness" in photo.stages:
                self.observe({"liveness": photo.stages["liveness"]})
        return [replace(face, photo=photo) for face, photo in zip(chosen, photos, strict=True)]

    def embed_chosen(self, chosen: Collection[Chosen], opened: OpenedModel) -> list[Chosen]:
        """Embed only the chosen faces, in one batch."""
        which = [[face.choice.index] for face in chosen]
        photos = embed_faces([face.photo for face in chosen], opened.embedder, which)
        for photo in photos:
            self.observe({"embed": photo.stages["embed"]})
        return [replace(face, photo=photo) for face, photo in zip(chosen, photos, strict=True)]

    def embed_live(self, chosen: Mapping[str, Chosen], opened: OpenedModel, gate: Gate) -> list[Chosen]:
        """Judge and embed the faces, given by their photos' names. Raises NotLive for the first that is not live."""
        if gate.judge is None:
            return self.embed_chosen(chosen.values(), opened)
        judged = self._judge(chosen.values(), gate)
        for name, face in zip(chosen, judged, strict=True):
            gate.check(face.face, image=name)
        return self.embed_chosen(judged, opened)


def ranked(
    searched: GallerySearch, templates: Sequence[Template], limit: int, thresholds: Thresholds, length: float = 1.0
) -> list[list[Candidate]]:
    """Return the ``limit`` subjects of the highest scores for each template, ordered by `by_fused_score`.

    ``length`` is that of a fused probe's mean. Raises what `GallerySearch.search` raises.
    """
    rankings = searched.search(templates, max(limit, RERANKED))
    return [by_fused_score(ranking, thresholds, length)[:limit] for ranking in rankings]


def origin_of(photo: Photo, face: Face) -> Origin:
    return Origin(uuid.uuid4().hex, photo.width, photo.height, face.score)


def reasons_of(error: InvalidInput) -> list[str]:
    """Return the reasons that a rejected photo has besides its code."""
    reasons = error.details.get("reasons", [])
    return [str(reason) for reason in reasons] if isinstance(reasons, (list, tuple)) else []


def all_rejected(rejected: Sequence[Rejected]) -> InvalidInput:
    codes = {photo.error.code for photo in rejected}
    listed = [
        {"index": photo.index, "code": error.code, "reasons": reasons_of(error), "message": error.message}
        | photo.objections.as_details()
        for photo in rejected
        for error in [photo.error]
    ]
    if len(codes) > 1:
        return InvalidInput("no image could be taken", code="nothing_enrolled", rejected=listed)
    first = rejected[0].error
    return type(first)(first.message, code=first.code, **{**first.details, "rejected": listed})


def to_store(embedders: Embedders, home: Gallery, faces: Sequence[tuple[str, Face, Origin | None]]) -> list[StoredFace]:
    """Return faces, given with their subjects' ids, in the form that the gallery keeps: with a template from the crop
    by each package that the gallery stores now.

    A gallery's packages may change before the faces are written; writing then raises Conflict ``package_mismatch``.
    """
    made = [{face.template.package: face.template} if face.template else {} for _, face, _ in faces]
    for package in home.packages:
        lacking = [
            (templates, face.crop)
            for templates, (_, face, _) in zip(made, faces, strict=True)
            if package not in templates and face.crop is not None
        ]
        if lacking:
            with embedders.use(package) as opened:
                embedded, _ = opened.embedder.embed([crop for _, crop in lacking])
            for (templates, _), template in zip(lacking, embedded, strict=True):
                templates[package] = template
    stored = []
    for (subject, face, origin), by_package in zip(faces, made, strict=True):
        first, *others = [by_package[name] for name in home.packages if name in by_package] or [template_of(face)]
        second = others[0] if others else None
        crop = encode_crop(face.crop) if home.store == "crop" and face.crop is not None else None
        stored.append(StoredFace(subject, first, face.quality, face.box, crop, origin=origin, second=second))
    return stored
