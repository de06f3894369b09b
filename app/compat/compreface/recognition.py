"""Recognize, verify and detect: photos and embeddings in, similarities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Query, Request

from app.api.dependencies import Service, ServiceDep, entry_of, grant_of
from app.api.openapi import COMPREFACE
from app.api.router import Router
from app.compat.compreface import endpoints
from app.compat.compreface.answers import Json, face_answer, rounded, wanted_faces
from app.compat.compreface.errors import EMPTY_FIELD, VALIDATION, Refused
from app.compat.compreface.requests import (
    FILE,
    MAX_PREDICTIONS,
    SOURCE_AND_TARGET,
    EmbeddingsRequest,
    FaceParams,
    GalleryDep,
    PredictionParams,
    RecognizeParams,
    VerifyEmbeddingsRequest,
    face_id_of,
    gallery_of,
    given_template,
    is_stored,
    read_images,
    read_json,
)
from app.compat.similarity import AnsweredSimilarity, Similarity
from app.errors import AmbiguousFace
from app.gallery.records import Gallery, stored_template
from app.recognition.decisions import cosine
from app.recognition.results import template_of
from app.types import Face, Photo, Template

router = Router(COMPREFACE)


@router.handles(endpoints.DETECT)
async def detect(request: Request, service: ServiceDep, query: Annotated[FaceParams, Query()]) -> Json:
    """Detect the faces in a photo."""
    images, params = await read_images(request, service, FILE, query)
    embedded = params.wants("calculator")

    def work() -> Json:
        file = images["file"]
        photo = service.operations.embed(file)[0] if embedded else service.operations.detect(file)
        faces = wanted_faces(photo, params.det_prob_threshold, params.limit)
        result = [face_answer(face, photo, params, embedded=embedded) for face in faces]
        return _with_versions({"result": result}, service, params, faces)

    return await service.run(work)


@router.handles(endpoints.VERIFY)
async def verify(request: Request, service: ServiceDep, query: Annotated[FaceParams, Query()]) -> Json:
    """Compare the one face of a photo with each face of another."""
    images, params = await read_images(request, service, SOURCE_AND_TARGET, query)

    def work() -> Json:
        source, model = service.operations.embed(images["source_image"])
        similarity = _scale(service, model)
        faces = wanted_faces(source, params.det_prob_threshold, params.limit)
        if len(faces) > 1:
            raise AmbiguousFace("More than one face in the source image")
        target, _ = service.operations.embed(images["target_image"], model)
        matches = [
            face_answer(face, target, params, embedded=True)
            | {"similarity": rounded(similarity.of_cosine(cosine(template_of(faces[0]), template_of(face))))}
            for face in wanted_faces(target, params.det_prob_threshold, params.limit)
        ]
        answer = {"source_image_face": face_answer(faces[0], source, params, embedded=True), "face_matches": matches}
        return {"result": [_with_versions(answer, service, params, faces)]}

    return await service.run(work)


@router.handles(endpoints.VERIFY_EMBEDDINGS)
async def verify_embeddings(request: Request, service: ServiceDep) -> Json:
    """Compare an embedding with others."""
    asked = await read_json(request, service, VerifyEmbeddingsRequest)
    if not asked.source or not asked.targets:
        raise Refused(EMPTY_FIELD, f"Field {'targets' if asked.source else 'source'} cannot be empty")
    source, targets = asked.source, asked.targets

    def work() -> Json:
        package = service.embedders.default
        first = given_template(source, package.id, package.manifest.dimension or 0)
        similarity = _scale(service, package.id)
        return _compared(first, targets, similarity.of_cosine)

    return await service.run(work)


@router.handles(endpoints.RECOGNIZE)
async def recognize(
    request: Request, service: ServiceDep, gallery: GalleryDep, query: Annotated[RecognizeParams, Query()]
) -> Json:
    """Find the subjects that the faces of a photo may show."""
    images, params = await read_images(request, service, FILE, query)
    if not params.detect_faces:
        message = "detect_faces=false is not served: a face that was not aligned by its landmarks can't be compared"
        raise Refused(VALIDATION, message)

    def work() -> Json:
        photo = _embed(service, gallery, images["file"])
        faces = wanted_faces(photo, params.det_prob_threshold, params.limit)
        templates = [template_of(face) for face in faces]
        similarity = _answered(service, gallery, templates[0].package, exact=grant_of(request).sees_exact_scores)
        rankings = _rank(service, gallery, templates, params.prediction_count, similarity, one_photo=True)
        service.guard.count_faces(grant_of(request), len(faces))
        result = [
            face_answer(face, photo, params, embedded=True) | {"subjects": subjects}
            for face, subjects in zip(faces, rankings, strict=True)
        ]
        return _with_versions({"result": result}, service, params, faces)

    return await service.run(work)


@router.handles(endpoints.RECOGNIZE_EMBEDDINGS)
async def recognize_embeddings(
    request: Request, service: ServiceDep, query: Annotated[PredictionParams, Query()]
) -> Json:
    """Find the subjects that embeddings may show.

    Needs the scope `templates`. Similarities are rounded down to steps, and none below the most lenient operating point
    is answered, because enough exact ones show the enrolled templates.
    """
    gallery, embeddings = await _read_embeddings(request, service)

    def work() -> Json:
        similarity = _answered(service, gallery, gallery.embedder, exact=False)
        templates = [given_template(one, gallery.embedder, gallery.dimension) for one in embeddings]
        rankings = _rank(service, gallery, templates, query.prediction_count, similarity)
        return {
            "result": [
                {"embedding": one, "similarities": subjects} for one, subjects in zip(embeddings, rankings, strict=True)
            ]
        }

    return await service.run(work)


@router.handles(endpoints.VERIFY_FACE)
async def verify_face(
    request: Request, service: ServiceDep, gallery: GalleryDep, face_id: str, query: Annotated[FaceParams, Query()]
) -> Json:
    """Compare each face of a photo with an image."""
    wanted = face_id_of(face_id)
    entry_of(request).target = wanted
    images, params = await read_images(request, service, FILE, query)

    def work() -> Json:
        row = service.galleries.store.find_face(gallery, wanted)
        enrolled = stored_template(row)
        similarity = _answered(service, gallery, row.package, exact=grant_of(request).sees_exact_scores)
        photo = service.operations.embed_for(gallery.id, images["file"])
        faces = wanted_faces(photo, params.det_prob_threshold, params.limit)
        result = [
            face_answer(face, photo, params, embedded=True)
            | {
                "subject": row.subject,
                "similarity": rounded(similarity.answered(cosine(enrolled, template_of(face))) or 0.0),
            }
            for face in faces
        ]
        return _with_versions({"result": result}, service, params, faces)

    return await service.run(work)


@router.handles(endpoints.VERIFY_FACE_EMBEDDINGS)
async def verify_face_embeddings(request: Request, service: ServiceDep, face_id: str) -> Json:
    """Compare embeddings with an image.

    Needs the scope `templates`. Similarities are rounded down to steps, and are 0 below the most lenient operating
    point, because enough exact ones show the enrolled template.
    """
    wanted = face_id_of(face_id)
    entry_of(request).target = wanted
    gallery, embeddings = await _read_embeddings(request, service)

    def work() -> Json:
        enrolled = stored_template(service.galleries.store.find_face(gallery, wanted))
        similarity = _answered(service, gallery, enrolled.package, exact=False)
        return _compared(enrolled, embeddings, lambda score: similarity.answered(score) or 0.0)

    return await service.run(work)


async def _read_embeddings(request: Request, service: Service) -> tuple[Gallery, list[list[float]]]:
    """Return the request's gallery and embeddings, which the key's rate of vectors admits."""
    embeddings = (await read_json(request, service, EmbeddingsRequest)).embeddings
    if not embeddings:
        raise Refused(EMPTY_FIELD, "Field embeddings cannot be empty")
    gallery = await gallery_of(request, service)
    service.guard.admit_vectors(grant_of(request), len(embeddings))
    return gallery, embeddings


def _embed(service: Service, gallery: Gallery, image: bytes) -> Photo:
    if is_stored(gallery):
        return service.operations.embed_for(gallery.id, image)
    return service.operations.embed(image, gallery.embedder)[0]


def _answered(service: Service, gallery: Gallery, package: str, *, exact: bool) -> AnsweredSimilarity:
    return AnsweredSimilarity.of(service.operations.thresholds_in(gallery, package), exact=exact)


def _rank(
    service: Service,
    gallery: Gallery,
    templates: Sequence[Template],
    count: int,
    similarity: AnsweredSimilarity,
    *,
    one_photo: bool = False,
) -> list[list[Json]]:
    """Return the nearest subjects of each template, with their similarities."""
    if not is_stored(gallery):
        return [[] for _ in templates]
    rankings = service.operations.rank(
        gallery.id, templates, min(count, MAX_PREDICTIONS), similarity.scores, one_photo=one_photo
    )
    return [
        [
            {"subject": one.subject, "similarity": rounded(similarity.scale.of_cosine(one.score))}
            for one in ranking
            if one.score is not None
        ]
        for ranking in rankings
    ]


def _compared(first: Template, embeddings: Sequence[Sequence[float]], scale: Callable[[float], float]) -> Json:
    """Return the embeddings with their similarities to the template, the highest first."""
    dimension = len(first.vector)
    found = [
        {"embedding": one, "similarity": rounded(scale(cosine(first, given_template(one, first.package, dimension))))}
        for one in embeddings
    ]
    return {"result": sorted(found, key=lambda one: -one["similarity"])}


def _scale(service: Service, package: str) -> Similarity:
    return Similarity.of(service.operations.thresholds(package))


def _with_versions(answer: Json, service: Service, params: FaceParams, faces: Sequence[Face]) -> Json:
    """Add the plugins' versions if they are asked for; the calculator's is the package of the faces' templates."""
    if not params.status:
        return answer
    versions = {"detector": next(one.id for one in service.models() if one.loaded and one.task == "detect")}
    if template := faces[0].template:
        versions["calculator"] = template.package
    if params.wants("pose"):
        versions["pose"] = "five landmarks"
    return answer | {"plugins_versions": versions}
