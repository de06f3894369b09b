"""The operations on photos: detect, embed, verify, identify, enroll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus

from app.access.audit import AuditEntry
from app.access.grants import Grant, Scope
from app.access.keys import Guard
from app.api import schemas
from app.api.body import IMAGE_OR_TRACK, MANY_IMAGES, ONE_IMAGE, TWO_IMAGES, Sent
from app.api.components import SubjectId
from app.api.operation import FACES_PATH, GALLERY_PATH, LIVENESS, PACKAGE, RATE_CODES, SUBJECT_PATH, TEMPLATES
from app.api.route import Router
from app.errors import InvalidInput
from app.face.quality import QualityLevel
from app.gallery.records import UNSET, Consent, Gallery, Terms
from app.recognition.decisions import (
    AnsweredCandidate,
    Chosen,
    Identification,
    IdentifyPoint,
    RuledOut,
    SubjectVerified,
    VerifyPoint,
)
from app.recognition.operations import Enrollment, Operations, reasons_of
from app.types import Photo, utc_now

router = Router("recognition")

VERIFY_SUBJECT_CODES = (
    *RATE_CODES,
    *TEMPLATES,
    *LIVENESS,
    "no_face",
    "face_unalignable",
    "subject_not_found",
    "subject_without_faces",
)
ENROLL_CODES = (
    *TEMPLATES,
    *LIVENESS,
    "no_face",
    "face_unalignable",
    "ambiguous_face",
    "low_quality",
    "duplicate_face",
    "face_conflict",
    "nothing_enrolled",
    "subject_expired",
    "invalid_expiry",
    "invalid_consent",
)


@router.operation("POST", "/v1/detect", scope=Scope.RECOGNIZE, images=ONE_IMAGE)
def detect(operations: Operations, sent: Sent[schemas.DetectParams]) -> schemas.DetectAnswer:
    """Find the faces in a photo.

    Each face has its box, five landmarks and quality; the best detector score comes first. The list is empty if there
    is no face. Faces may be as small as 20 pixels or larger than the frame, and turned by any angle. A face whose
    landmarks can't be measured has none, and the reason `unalignable`.
    """
    photo = operations.detect(sent.images[0])
    return schemas.DetectAnswer.of(photo, image=photo, explain=_explained([photo]) if sent.params.explain else None)


@router.operation("POST", "/v1/embed", scope=Scope.RECOGNIZE, images=ONE_IMAGE, codes=PACKAGE)
def embed(operations: Operations, sent: Sent[schemas.EmbedParams]) -> schemas.EmbedAnswer:
    """Turn the faces in a photo into vectors.

    The same as detect, each face with its embedding: a vector of length 1 whose dot product with another of the same
    `model` is the score. It is null for a face whose landmarks can't be measured.
    """
    photo, model = operations.embed(sent.images[0], sent.params.model)
    return schemas.EmbedAnswer.of(
        image=photo,
        faces=[
            schemas.EmbeddedFace.of(face, embedding=None if face.template is None else face.template.vector.tolist())
            for face in photo.faces
        ],
        model=model,
        explain=_explained([photo]) if sent.params.explain else None,
    )


@router.operation(
    "POST",
    "/v1/verify",
    scope=Scope.RECOGNIZE,
    images=TWO_IMAGES,
    codes=(*RATE_CODES, *PACKAGE, *LIVENESS, "no_face", "face_unalignable"),
)
def verify(operations: Operations, sent: Sent[schemas.VerifyParams]) -> schemas.VerifyAnswer:
    """Do two photos show the same person?

    Compares the most prominent face of each photo (large, and near the middle), or the faces at `face1` and `face2`, at
    the operating point of `fmr`, and decides: known, uncertain or unknown. With `track=true`, both `image1` and
    `image2` may be several images of one person, as in `identify`.
    """
    params = sent.params
    first, second = (_one_or_track(images, track=params.track) for images in sent.fields)
    verified = operations.verify(
        first,
        second,
        params.fmr,
        params.model,
        params.population,
        track=params.track,
        faces=(params.face1, params.face2),
        liveness=params.liveness or "off",
        liveness_of=params.liveness_of,
        quality=QualityLevel(params.quality),
    )
    both = [verified.first, verified.second]
    return schemas.VerifyAnswer.of(
        verified,
        **_decided_at(verified.point, params.fmr),
        face1=_chosen_face(verified.first),
        face2=_chosen_face(verified.second),
        explain=_explained([chosen.photo for chosen in both], both) if params.explain else None,
    )


@router.operation(
    "POST",
    f"{GALLERY_PATH}/identify",
    scope=Scope.RECOGNIZE,
    images=IMAGE_OR_TRACK,
    codes=(*RATE_CODES, *TEMPLATES, *LIVENESS),
)
def identify(
    operations: Operations,
    guard: Guard,
    grant: Grant,
    gallery: Gallery,
    sent: Sent[schemas.IdentifyParams],
) -> schemas.IdentifyAnswer:
    """Who is in this photo?

    Searches the gallery for every face of the photo, and decides for each: known, uncertain or unknown. A subject is
    given to at most one face of the photo, the best-scoring one. Without `fmr` or `fpir` the server's defaults for both
    hold, or the strictest measured operating point if the gallery is too large. Unless the key has the scope
    `templates`, scores are rounded down without changing a decision, and candidates below the most lenient operating
    point are left out, because enough exact scores would reveal the enrolled templates.

    With `track=true`, several images of one person, as from a camera, are one probe. The answer has one face, that of
    the best image, or none if no image shows a face of the `quality`.
    """
    params = sent.params
    identification = operations.identify(
        gallery,
        _one_or_track(sent.fields[0], track=params.track),
        exact=Scope.TEMPLATES in grant.allowed,
        track=params.track,
        limit=params.limit,
        fmr=params.fmr,
        fpir=params.fpir,
        population=params.population,
        liveness=params.liveness,
        quality=QualityLevel(params.quality),
    )
    guard.count_faces(grant, len(identification.faces))
    return identify_answer(identification, params)


@router.operation(
    "POST",
    f"{SUBJECT_PATH}/verify",
    scope=Scope.RECOGNIZE,
    images=IMAGE_OR_TRACK,
    codes=VERIFY_SUBJECT_CODES,
)
def verify_subject(
    operations: Operations,
    grant: Grant,
    gallery: Gallery,
    subject: SubjectId,
    sent: Sent[schemas.SubjectVerifyParams],
) -> schemas.SubjectVerifyAnswer:
    """Is this person the subject?

    Compares the photo's most prominent face with the subject's enrolled faces; the best score counts. Scores are
    rounded as `identify` says, and null below the most lenient operating point. `track=true`: as in `identify`.
    """
    params = sent.params
    verified = operations.verify_subject(
        gallery,
        subject,
        _one_or_track(sent.fields[0], track=params.track),
        params.fmr,
        exact=Scope.TEMPLATES in grant.allowed,
        track=params.track,
        population=params.population,
        liveness=params.liveness,
        quality=QualityLevel(params.quality),
        explain=params.explain,
    )
    return subject_verify_answer(verified, params.fmr, explain=params.explain)


@router.operation(
    "POST",
    FACES_PATH,
    scope=Scope.ENROLL,
    changes=True,
    status=201,
    images=MANY_IMAGES,
    codes=ENROLL_CODES,
)
def enroll(
    operations: Operations,
    grant: Grant,
    entry: AuditEntry,
    gallery: Gallery,
    subject: SubjectId,
    sent: Sent[schemas.EnrollParams],
) -> schemas.EnrollAnswer:
    """Enroll photos of a person.

    Adds each photo's face to the subject, which is created if it is missing. At the time of the answer, the faces are
    in the database and searches find them. Photos without a face, with several equally prominent ones, or of too low
    quality are listed in `rejected` with their reasons, and the others are enrolled. If no photo is good enough,
    nothing changes and the answer is an error.

    Unless `on_conflict` is `allow`, each face is first compared with those enrolled. In its row, `duplicate` is the
    same photo, saved again or not, and `conflict` a face of another subject that it matches at an FPIR of 0.001. With
    `track=true` the mean of all faces that are good enough is compared once, and its conflict is in each row. Keys with
    the scope `recognize` also see `unlike`: the most alike of the subject's own faces, if it has two or more and the
    new one looks like none of them (FMR 0.001). Two requests at the same moment may miss each other's faces. These
    rows tell a key with `enroll` alone whether a face is enrolled and, by trying ids, whose: a face of its own subject
    is no `conflict`. In a gallery that says `allow`, asking for another policy needs `recognize` too.
    """
    params = sent.params
    if params.on_conflict not in {None, "allow"} and gallery.on_conflict == "allow":
        grant.require(Scope.RECOGNIZE)
    terms = Terms(
        params.expires_at or UNSET,
        UNSET if params.consent is None else Consent(params.consent, utc_now()),
    )
    enrollment = operations.enroll(
        gallery,
        subject,
        sent.fields[0],
        QualityLevel(params.quality),
        liveness=params.liveness,
        terms=terms,
        face=params.face,
        on_conflict=params.on_conflict,
        track=params.track,
        tell=Scope.RECOGNIZE in grant.allowed,
        also=partial(entry.finish, HTTPStatus.CREATED),
    )
    return enroll_answer(enrollment, explain=params.explain)


def _one_or_track(images: Sequence[bytes], *, track: bool) -> Sequence[bytes]:
    """Return the images of a probe. Raises InvalidInput ``too_many_images`` for several without ``track``."""
    if len(images) > 1 and not track:
        message = "Send one image, or several of one person with `track=true`."
        raise InvalidInput(message, code="too_many_images", limit=1)
    return images


def identify_answer(identification: Identification, asked: schemas.IdentifyParams) -> schemas.IdentifyAnswer:
    point = identification.point
    nearest = [face.nearest_other for face in identification.faces]
    ruled_out = [face.ruled_out for face in identification.faces]
    parts = [identification.photo], (), identification.stages, nearest, ruled_out
    why = _explained(*parts, point=point, track=identification.track) if asked.explain else None
    return schemas.IdentifyAnswer.of(
        identification,
        image=identification.photo,
        faces=[
            schemas.IdentifiedFace.of(
                face,
                box=face.face.box,
                landmarks=face.face.landmarks,
                score=face.face.score,
                quality=face.face.quality,
                liveness=face.face.liveness,
                threshold=point.threshold,
                threshold_uncertain=point.uncertain,
            )
            for face in identification.faces
        ],
        fmr=point.fmr,
        fpir=point.fpir,
        fmr_asked=asked.fmr,
        fpir_asked=asked.fpir,
        limited=point.limited,
        calibration=point.calibration,
        explain=why,
    )


def subject_verify_answer(
    verified: SubjectVerified, fmr_asked: float | None, *, explain: bool
) -> schemas.SubjectVerifyAnswer:
    chosen, ruled_out = verified.chosen, [verified.ruled_out] if verified.ruled_out else []
    others = [verified.nearest_other], [ruled_out]
    parts = [chosen.photo], [chosen], verified.stages, *others
    why = _explained(*parts, point=verified.point, track=chosen.track) if explain else None
    candidate = verified.candidate
    return schemas.SubjectVerifyAnswer.of(
        verified,
        **_decided_at(verified.point, fmr_asked),
        subject=candidate.subject,
        name=candidate.name,
        score=candidate.score,
        template_score=candidate.template_score,
        face_id=candidate.face_id,
        face=_chosen_face(chosen),
        explain=why,
    )


def enroll_answer(enrollment: Enrollment, *, explain: bool) -> schemas.EnrollAnswer:
    photos = [chosen.photo for chosen in enrollment.chosen]
    return schemas.EnrollAnswer.of(
        enrollment,
        enrolled=[
            schemas.EnrolledFace.of(
                row,
                index=index,
                duplicate=objections.duplicate,
                conflict=objections.conflict,
                unlike=objections.unlike,
                liveness=face.liveness,
            )
            for index, face, row, objections in enrollment.enrolled
        ],
        rejected=[
            schemas.RejectedImage.of(
                image.objections,
                index=image.index,
                code=image.error.code,
                reasons=reasons_of(image.error),
                message=image.error.message,
            )
            for image in enrollment.rejected
        ],
        explain=_explained(photos, enrollment.chosen, enrollment.stages, track=enrollment.track) if explain else None,
    )


def _decided_at(point: VerifyPoint, fmr_asked: float | None) -> dict[str, object]:
    """Return an answer's fields about the operating point."""
    return {
        "threshold": point.threshold,
        "threshold_uncertain": point.uncertain,
        "fmr": point.fmr,
        "fmr_asked": fmr_asked,
        "calibration": point.calibration,
    }


def _chosen_face(chosen: Chosen) -> schemas.ChosenFace:
    return schemas.ChosenFace.of(chosen.face, image=chosen.photo, faces=len(chosen.photo.faces))


def _explained(
    photos: Iterable[Photo],
    chosen: Iterable[Chosen] = (),
    stages: Mapping[str, float] | None = None,
    nearest: Iterable[AnsweredCandidate | None] = (),
    ruled_out: Iterable[Sequence[RuledOut]] = (),
    *,
    point: VerifyPoint | IdentifyPoint | None = None,
    track: Sequence[int] | None = None,
) -> schemas.Explain:
    """Return how an answer came about. ``stages``: milliseconds besides those of the photos, which are summed;
    ``point``: the operating point that decided about a gallery's faces.
    """
    photos = list(photos)
    total: dict[str, float] = {}
    for part in (*(photo.stages for photo in photos), stages or {}):
        for stage, spent in part.items():
            total[stage] = total.get(stage, 0.0) + spent
    return schemas.Explain.of(
        stages={stage: round(spent, 3) for stage, spent in total.items()},
        batch_size=max((photo.batch_size for photo in photos if photo.batch_size is not None), default=None),
        chosen=[
            schemas.Choice(
                index=face.choice.index,
                why=face.choice.why,
                runner_up_share=face.choice.runner_up if len(face.photo.faces) > 1 else None,
                track=None if face.track is None else list(face.track),
            )
            for face in chosen
        ],
        nearest_other=list(nearest),
        ruled_out=list(ruled_out),
        comparisons=None if point is None else round(point.comparisons, 1),
        track=None if track is None else list(track),
    )
