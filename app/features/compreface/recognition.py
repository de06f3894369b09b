"""CompreFace's operations that recognize, verify and detect, from photos or embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from fastapi import Query

from app.access.grants import Grant, Scope
from app.access.keys import Guard
from app.api.components import Components
from app.api.route import Router
from app.concurrency.overload import Why
from app.errors import AmbiguousFace, InvalidInput, NoFace
from app.features.answers import corners, round_down
from app.features.collection import CollectionDep, is_stored
from app.features.compreface.requests import (
    FILE,
    MAX_PREDICTIONS,
    SOURCE_AND_TARGET,
    EmbeddingsRequest,
    FaceParams,
    FileRequest,
    Json,
    Photos,
    PredictionParams,
    RecognizeParams,
    SourceAndTargetRequest,
    VerifyEmbeddingsRequest,
    face_id_of,
    given_template,
)
from app.features.compreface.wire import (
    COMPREFACE,
    EMPTY_FIELD,
    MANY,
    PREFIX,
    VALIDATION,
    CompreFaceError,
    CompreFaceRoute,
)
from app.features.photos import embed_for, rank
from app.features.pose import pose_of
from app.features.similarity import AnsweredSimilarity, Similarity, probability_of, score_of
from app.gallery.records import Gallery
from app.inference.embedders import Embedders
from app.recognition.decisions import cosine, template_of
from app.recognition.operations import Operations
from app.types import Face, Photo, Sizes, Template

router = Router(COMPREFACE.name, COMPREFACE, CompreFaceRoute)

RECOGNITION = f"{PREFIX}recognition"
FACE = f"{RECOGNITION}/faces/{{face_id}}"
STRANGER = {"subject": "unknown", "similarity": 0.0}
"""The answer if the most similar subject's score is below the floor, so that its name and similarity must not be
answered."""


@router.operation("POST", f"{PREFIX}detection/detect", scope=Scope.RECOGNIZE, body=FileRequest, images=FILE)
def detect(components: Components, sent: Photos[FaceParams]) -> Json:
    """Detect the faces in a photo."""
    operations, file, params = components.operations, sent.images[0], sent.params
    embedded = params.wants("calculator")
    photo = operations.embed(file)[0] if embedded else operations.detect(file)
    faces = wanted_faces(photo.faces, params.det_prob_threshold, params.limit)
    result = [_face_answer(face, photo, params, embedded=embedded) for face in faces]
    return _with_versions({"result": result}, components, params, faces)


@router.operation(
    "POST", f"{PREFIX}verification/verify", scope=Scope.RECOGNIZE, body=SourceAndTargetRequest, images=SOURCE_AND_TARGET
)
def verify(components: Components, sent: Photos[FaceParams]) -> Json:
    """Compare the only face of a photo with each face of another photo."""
    operations, params = components.operations, sent.params
    source, model = operations.embed(sent.images[0])
    similarity = Similarity.of(operations.thresholds(model))
    faces = compared_faces(source, params)
    if len(faces) > 1:
        raise AmbiguousFace("More than one face in the source image")
    target, _ = operations.embed(sent.images[1], model)
    matches = [
        _face_answer(face, target, params, embedded=True)
        | {"similarity": round_down(similarity.of_cosine(cosine(template_of(faces[0]), template_of(face))))}
        for face in compared_faces(target, params)
    ]
    answer = {"source_image_face": _face_answer(faces[0], source, params, embedded=True), "face_matches": matches}
    return {"result": [_with_versions(answer, components, params, faces)]}


@router.operation(
    "POST", f"{PREFIX}verification/embeddings/verify", scope=Scope.RECOGNIZE, name="verify", body_bytes=MANY
)
def verify_embeddings(operations: Operations, embedders: Embedders, asked: VerifyEmbeddingsRequest) -> Json:
    """Compare an embedding with others."""
    if not asked.source or not asked.targets:
        raise CompreFaceError(EMPTY_FIELD, f"Field {'targets' if asked.source else 'source'} cannot be empty")
    package = embedders.default
    first = given_template(asked.source, package.id, package.manifest.dimension or 0)
    similarity = Similarity.of(operations.thresholds(package.id))
    return _compared(first, asked.targets, similarity.of_cosine)


@router.operation(
    "POST", f"{RECOGNITION}/recognize", scope=Scope.RECOGNIZE, name="identify", body=FileRequest, images=FILE
)
def recognize(home: CollectionDep, sent: Photos[RecognizeParams]) -> Json:
    """Find the subjects that the faces of a photo may show."""
    operations, params = home.operations, sent.params
    if not params.detect_faces:
        message = "detect_faces=false is not served: a face that was not aligned by its landmarks can't be compared"
        raise CompreFaceError(VALIDATION, message)
    gallery = home.open()
    if is_stored(gallery):
        photo, sizes = embed_for(operations, gallery, sent.images[0]), home.galleries.open_search(gallery).sizes
    else:
        photo, sizes = operations.embed(sent.images[0], gallery.embedder)[0], {}
    faces = compared_faces(photo, params)
    templates = [template_of(face) for face in faces]
    similarity = _answered(
        operations, gallery, templates[0].package, exact=Scope.TEMPLATES in home.grant.allowed, sizes=sizes
    )
    rankings = _rank(operations, gallery, templates, params.prediction_count, similarity, sizes, one_photo=True)
    home.components.guard.count_faces(home.grant, len(faces))
    result = [
        _face_answer(face, photo, params, embedded=True) | {"subjects": subjects}
        for face, subjects in zip(faces, rankings, strict=True)
    ]
    return _with_versions({"result": result}, home.components, params, faces)


@router.operation(
    "POST", f"{RECOGNITION}/embeddings/recognize", scope=Scope.TEMPLATES, name="identify", body_bytes=MANY
)
def recognize_embeddings(
    home: CollectionDep,
    asked: EmbeddingsRequest,
    query: Annotated[PredictionParams, Query()],
) -> Json:
    """Find the subjects that embeddings may show.

    Needs the scope `templates`. Similarities are rounded down to steps, and left out below the most lenient operating
    point, because enough exact ones would reveal the enrolled templates.
    """
    embeddings, gallery = _admitted(asked, home.components.guard, home.grant), home.open()
    sizes = home.galleries.open_search(gallery).sizes if is_stored(gallery) else {}
    similarity = _answered(home.operations, gallery, gallery.embedder, exact=False, sizes=sizes)
    templates = [given_template(embedding, gallery.embedder, gallery.dimension) for embedding in embeddings]
    rankings = _rank(home.operations, gallery, templates, query.prediction_count, similarity, sizes)
    result = [
        {"embedding": embedding, "similarities": ranking}
        for embedding, ranking in zip(embeddings, rankings, strict=True)
    ]
    return {"result": result}


@router.operation("POST", f"{FACE}/verify", scope=Scope.RECOGNIZE, body=FileRequest, images=FILE)
def verify_face(
    home: CollectionDep,
    face_id: str,
    sent: Photos[FaceParams],
) -> Json:
    """Compare each face of a photo with an enrolled image."""
    wanted = face_id_of(face_id)
    home.entry.target = wanted
    operations, gallery, params = home.operations, home.open(), sent.params
    row = home.store.face(gallery, wanted)
    enrolled = row.template
    similarity = _answered(operations, gallery, enrolled.package, exact=Scope.TEMPLATES in home.grant.allowed)
    photo = embed_for(operations, gallery, sent.images[0])
    faces = compared_faces(photo, params)
    home.components.guard.count_faces(home.grant, len(faces))
    result = [
        _face_answer(face, photo, params, embedded=True)
        | {
            "subject": row.subject,
            "similarity": round_down(similarity.answered(cosine(enrolled, template_of(face))) or 0.0),
        }
        for face in faces
    ]
    return _with_versions({"result": result}, home.components, params, faces)


@router.operation(
    "POST",
    f"{RECOGNITION}/embeddings/faces/{{face_id}}/verify",
    scope=Scope.TEMPLATES,
    name="verify_face",
    body_bytes=MANY,
)
def verify_face_embeddings(
    home: CollectionDep,
    face_id: str,
    asked: EmbeddingsRequest,
) -> Json:
    """Compare embeddings with an enrolled image.

    Needs the scope `templates`. Similarities are rounded down to steps, and are 0 below the most lenient operating
    point, because enough exact ones would reveal the enrolled template.
    """
    wanted = face_id_of(face_id)
    home.entry.target = wanted
    embeddings, gallery = _admitted(asked, home.components.guard, home.grant), home.open()
    enrolled = home.store.face(gallery, wanted).template
    similarity = _answered(home.operations, gallery, enrolled.package, exact=False)
    return _compared(enrolled, embeddings, lambda score: similarity.answered(score) or 0.0)


def _admitted(asked: EmbeddingsRequest, guard: Guard, grant: Grant) -> list[list[float]]:
    """Return the request's embeddings, after counting them against the key's rate limit for vectors."""
    if not asked.embeddings:
        raise CompreFaceError(EMPTY_FIELD, "Field embeddings cannot be empty")
    _admit_vectors(guard, grant, len(asked.embeddings))
    return asked.embeddings


def _answered(
    operations: Operations, gallery: Gallery, package: str, *, exact: bool, sizes: Sizes | None = None
) -> AnsweredSimilarity:
    """Return how scores are answered as similarities: scores with single faces, or with subjects that have these
    ``sizes``."""
    return AnsweredSimilarity.of(operations.thresholds_in(gallery, package), exact=exact, sizes=sizes)


def _rank(
    operations: Operations,
    gallery: Gallery,
    templates: Sequence[Template],
    count: int,
    similarity: AnsweredSimilarity,
    sizes: Sizes,
    *,
    one_photo: bool = False,
) -> list[list[Json]]:
    """Return each template's most similar subjects with their similarities; STRANGER if all scores are below the floor.

    Clients read the first one without checking that it exists, since CompreFace always answers one unless nobody is
    enrolled.
    """
    if not sizes:
        return [[] for _ in templates]
    rankings = rank(operations, gallery, templates, min(count, MAX_PREDICTIONS), similarity.scores, one_photo=one_photo)
    return [
        [
            {"subject": candidate.subject, "similarity": round_down(similarity.scale.of_cosine(candidate.score))}
            for candidate in ranking
            if candidate.score is not None
        ]
        or [dict(STRANGER)]
        for ranking in rankings
    ]


def _compared(first: Template, embeddings: Sequence[Sequence[float]], scale: Callable[[float], float]) -> Json:
    """Return the embeddings, lists of D numbers, with their similarities to the template, highest first."""
    dimension = len(first.vector)
    results = [
        {
            "embedding": embedding,
            "similarity": round_down(scale(cosine(first, given_template(embedding, first.package, dimension)))),
        }
        for embedding in embeddings
    ]
    return {"result": sorted(results, key=lambda result: -result["similarity"])}


def _with_versions(answer: Json, components: Components, params: FaceParams, faces: Sequence[Face]) -> Json:
    """Add the plugins' versions if the request asks for them; the calculator's version is the package of the
    templates."""
    if not params.status:
        return answer
    versions = {"detector": next(model.id for model in components.models() if model.loaded and model.task == "detect")}
    if template := faces[0].template:
        versions["calculator"] = template.package
    if params.wants("pose"):
        versions["pose"] = "five landmarks"
    return answer | {"plugins_versions": versions}


def compared_faces(photo: Photo, params: FaceParams) -> list[Face]:
    """Return the wanted faces that have a template, largest first. Raises NoFace if there are none."""
    faces = [face for face in photo.faces if face.template is not None]
    return wanted_faces(faces, params.det_prob_threshold, params.limit)


def wanted_faces(found: Iterable[Face], det_prob_threshold: float | None, limit: int = 0) -> list[Face]:
    """Return at most ``limit`` faces (0: all) with a score of at least ``det_prob_threshold``, largest first.

    Raises NoFace if there are none, since CompreFace never answers an empty list.
    """
    least = score_of(det_prob_threshold or 0.0)
    faces = [face for face in found if face.score >= least]
    if not faces:
        raise NoFace("No face is found in the given image")
    faces.sort(key=lambda face: -face.box.area)
    return faces[:limit] if limit else faces


def _face_answer(face: Face, photo: Photo, params: FaceParams, *, embedded: bool) -> Json:
    """Return a face in CompreFace's form with the requested plugins; ``embedded``: whether the calculator ran."""
    answer: Json = {"box": {"probability": round_down(probability_of(face.score))} | corners(face, photo)}
    landmarks = face.landmarks
    if params.wants("landmarks") and landmarks is not None:
        answer["landmarks"] = [[round(float(x)), round(float(y))] for x, y in landmarks]
    if params.wants("pose") and landmarks is not None and (pose := pose_of(landmarks)):
        answer["pose"] = {"pitch": round(pose.pitch, 2), "roll": round(pose.roll, 2), "yaw": round(pose.yaw, 2)}
    if params.wants("calculator") and face.template is not None:
        answer["embedding"] = face.template.vector.tolist()
    if params.status:
        answer["execution_time"] = _times(photo, embedded=embedded)
    return answer


def _times(photo: Photo, *, embedded: bool) -> dict[str, float]:
    """Return each plugin's milliseconds per face; the detector's include decoding and aligning."""
    share = {name: spent / len(photo.faces) for name, spent in photo.stages.items()}
    times = {"detector": round(sum(spent for name, spent in share.items() if name != "embed"), 1)}
    if embedded:
        times["calculator"] = round(share.get("embed", 0.0), 1)
    return times


def _admit_vectors(guard: Guard, grant: Grant, count: int) -> None:
    """Count vectors against the key's rate limit.

    Raises InvalidInput ``invalid_request`` for more vectors than the limit can ever allow at once, Overloaded
    ``rate_limited``.
    """
    rate = guard.vector_rate
    if rate is None:
        return
    if count > rate.burst:
        message = f"A request may hold {rate.burst} embeddings at most, not {count}."
        raise InvalidInput(message, code="invalid_request", limit=rate.burst)
    if wait_s := guard.vectors.take(grant.key_id, rate, count):
        raise Why.VECTOR_RATE.error(wait_s)
