"""Photos in, answers out: detect, embed, verify, identify, enroll."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from app.access.grants import Scope
from app.api import answers, endpoints, schemas
from app.api.dependencies import GalleryId, ServiceDep, SubjectId, grant_of
from app.api.operation import MANY_IMAGES, ONE_IMAGE, TWO_IMAGES
from app.api.router import Router
from app.face.quality import QualityLevel
from app.gallery.records import UNSET, Consent, Terms
from app.recognition.results import Enrollment
from app.timestamps import utc_now, utc_text

router = Router("recognition")


@router.handles(endpoints.DETECT)
async def detect(
    request: Request, service: ServiceDep, query: Annotated[schemas.DetectParams, Query()]
) -> schemas.DetectAnswer:
    """Find the faces in a photo.

    Each face has its box, five landmarks and quality; the best detector score comes first. The list is empty if there
    is no face. Faces may be as small as 20 pixels or larger than the frame. If no face is certain, the photo is also
    searched rotated.
    """
    images, params = await service.read(request, ONE_IMAGE, query)
    photo = await service.run(lambda: service.operations.detect(images["image"][0]))
    return answers.detect(photo, explain=params.explain)


@router.handles(endpoints.EMBED)
async def embed(
    request: Request, service: ServiceDep, query: Annotated[schemas.EmbedParams, Query()]
) -> schemas.EmbedAnswer:
    """Turn the faces in a photo into vectors.

    The same as detect, each face with its embedding: a vector of length 1 whose dot product with another of the same
    `model` is the score.
    """
    images, params = await service.read(request, ONE_IMAGE, query)
    photo, model = await service.run(lambda: service.operations.embed(images["image"][0], params.model))
    return answers.embed(photo, model, explain=params.explain)


@router.handles(endpoints.VERIFY)
async def verify(
    request: Request, service: ServiceDep, query: Annotated[schemas.VerifyAnyParams, Query()]
) -> schemas.VerifyAnswer:
    """Do two photos show the same person?

    Compares the most prominent face of each photo (large, and near the middle), or the faces at `face1` and `face2`, at
    the operating point of `fmr`.
    """
    images, params = await service.read(request, TWO_IMAGES, query)
    faces = params.face1, params.face2
    found = await service.run(
        lambda: service.operations.verify(
            images["image1"][0],
            images["image2"][0],
            params.fmr,
            params.model,
            params.population,
            faces=faces,
            liveness=params.liveness or "off",
            liveness_of=params.liveness_of,
        )
    )
    return answers.verify(found, params.fmr, explain=params.explain)


@router.handles(endpoints.IDENTIFY)
async def identify(
    request: Request,
    service: ServiceDep,
    gallery: GalleryId,
    query: Annotated[schemas.IdentifyParams, Query()],
) -> schemas.IdentifyAnswer:
    """Who is in this photo?

    Searches the gallery for every face of the photo, and decides for each: known, uncertain or unknown. A subject is
    given to at most one face of the photo, the best-scoring one. Without `fmr` or `fpir` the server's default FPIR is
    used, or the strictest measured operating point if the gallery is too large for it. Unless the key has the scope
    `templates`, scores are rounded down without changing a decision, and candidates below the most lenient operating
    point are left out, because enough exact scores show the enrolled templates.
    """
    images, params = await service.read(request, ONE_IMAGE, query)
    found = await service.run(
        lambda: service.operations.identify(
            gallery,
            images["image"][0],
            exact=grant_of(request).sees_exact_scores,
            limit=params.limit,
            fmr=params.fmr,
            fpir=params.fpir,
            population=params.population,
            liveness=params.liveness,
        )
    )
    service.guard.count_faces(grant_of(request), len(found.faces))
    return answers.identify(found, params)


@router.handles(endpoints.VERIFY_SUBJECT)
async def verify_subject(
    request: Request,
    service: ServiceDep,
    gallery: GalleryId,
    subject: SubjectId,
    query: Annotated[schemas.VerifySubjectParams, Query()],
) -> schemas.SubjectVerifyAnswer:
    """Is this person the subject?

    Compares the photo's most prominent face with the subject's enrolled faces; the best score counts. Scores are
    rounded as `identify` says, and null below the most lenient operating point.
    """
    images, params = await service.read(request, ONE_IMAGE, query)
    found = await service.run(
        lambda: service.operations.verify_subject(
            gallery,
            subject,
            images["image"][0],
            params.fmr,
            exact=grant_of(request).sees_exact_scores,
            population=params.population,
            liveness=params.liveness,
            explain=params.explain,
        )
    )
    return answers.verify_subject(found, params.fmr, explain=params.explain)


@router.handles(endpoints.ENROLL_FACES)
async def enroll(
    request: Request,
    service: ServiceDep,
    gallery: GalleryId,
    subject: SubjectId,
    query: Annotated[schemas.EnrollParams, Query()],
) -> schemas.EnrollAnswer:
    """Enroll photos of a person.

    Adds each photo's face to the subject, which is created if it is missing. When the answer comes, the faces are in
    the database and searches find them. Photos without a face, with several equally prominent ones, or of too low
    quality are listed in `rejected` with their reasons, and the others are enrolled. If no photo is good enough,
    nothing changes and the answer is an error.

    Unless `on_conflict` is `allow`, each face is first compared with those enrolled: `duplicate` in its row is the same
    photo, saved again or not, `conflict` a face of another subject that it matches at an FPIR of 0.001. Two requests at
    the same moment may miss each other's faces.
    """
    images, params = await service.read(request, MANY_IMAGES, query)
    level = QualityLevel(params.quality)
    terms = Terms(
        UNSET if params.expires_at is None else utc_text(params.expires_at),
        UNSET if params.consent is None else Consent(params.consent, utc_now()),
    )
    tell = grant_of(request).has(Scope.RECOGNIZE)

    def enroll() -> Enrollment:
        return service.operations.enroll(
            gallery,
            subject,
            images["images"],
            level,
            liveness=params.liveness,
            terms=terms,
            face=params.face,
            on_conflict=params.on_conflict,
            tell=tell,
        )

    found = await service.run(enroll)
    return answers.enroll(found, explain=params.explain)
