"""DeepStack's face operations: its `userid` is a subject's id here, its `confidence` a similarity.

Faces are recognised as `identify` decides; `min_confidence` can only make this stricter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Self, TypeAlias, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from app.access.audit import fit_id
from app.access.grants import Grant, Scope
from app.access.keys import Guard
from app.api import body as bodies
from app.api.body import Body, BodyLimits, ImageFields, Sent
from app.api.components import Components
from app.api.openapi import TEXT
from app.api.route import Router
from app.api.schemas import Base64
from app.errors import InvalidInput, SubjectNotFound
from app.face.quality import QualityLevel
from app.features.answers import corners, round_down
from app.features.collection import CollectionDep, is_stored
from app.features.deepstack.wire import DEEPSTACK, PREFIX
from app.features.forms import form_of, texts
from app.features.listing import subject_ids
from app.features.similarity import AnsweredSimilarity, Similarity, probability_of, score_of
from app.gallery import subjects
from app.recognition.operations import Operations

FACE = f"{PREFIX}face"
USER = "userid"
USER_FORM = form_of(userid=TEXT)
STRANGER = {"userid": "unknown", "confidence": 0.0}
TWO = 2
Json: TypeAlias = dict[str, Any]
Given = TypeVar("Given", bound=BaseModel)
router = Router(DEEPSTACK.name, DEEPSTACK)


class Images(ImageFields):
    """The photos of a form: all fields whose names begin with `image`, such as `image1`, or `image` and a UUID."""

    def field_of(self, name: str) -> str | None:
        return self.names[0] if name.startswith(self.names[0]) else None


ONE = Images(("image",))
MANY = Images(("image",), many=True)


class DeepStackParams(BaseModel):
    """Fields of the form besides the photos. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    userid: str | None = None


class DeepStackPhoto(DeepStackParams):
    image: Base64


class DeepStackPhotos(DeepStackParams):
    image: list[Base64]


class Form(Sent[Given]):
    """The photos of a form, and its other fields. A field without a value counts as missing."""

    @classmethod
    def parse(cls, body: Body, wanted: ImageFields, limits: BodyLimits, query: Given) -> Self:
        model = type(query)
        parts = bodies.parse_images(body, wanted, limits, model.model_fields, ignore=True)
        fields = {name: value for name, value in parts.fields.items() if value != ""}
        given = query.model_dump(exclude_unset=True) | fields
        return cls([parts.images["image"]], bodies.validate(model, given, "form", strict=False))


async def _user(request: Request) -> str | None:
    """Return the field `userid` of a form without photos."""
    components: Components = request.scope["components"]
    limits, count_bytes = components.limits, components.admission.count_bytes
    return texts(await bodies.read_body(request, limits.json_bytes, limits.seconds, count_bytes), (USER,)).get(USER)


UserDep: TypeAlias = Annotated[str | None, Depends(_user)]


@router.operation("POST", FACE, scope=Scope.RECOGNIZE, body=DeepStackPhoto, images=ONE)
def detect(operations: Operations, sent: Form[DeepStackParams]) -> Json:
    """Detect the faces in a photo."""
    photo, least = operations.detect(sent.images[0]), score_of(sent.params.min_confidence)
    faces = [face for face in photo.faces if face.score >= least]
    return _predictions(
        [corners(face, photo) | {"confidence": round_down(probability_of(face.score))} for face in faces]
    )


@router.operation("POST", f"{FACE}/recognize", scope=Scope.RECOGNIZE, name="identify", body=DeepStackPhoto, images=ONE)
def recognize(home: CollectionDep, guard: Guard, grant: Grant, sent: Form[DeepStackParams]) -> Json:
    """Find the subjects that a photo shows; a face that matches nobody is `unknown`."""
    gallery, operations = home.open(), home.operations
    if not is_stored(gallery):
        photo = operations.detect(sent.images[0])
        return _predictions([corners(face, photo) | STRANGER for face in photo.faces])
    exact, sizes = Scope.TEMPLATES in grant.allowed, home.galleries.open_search(gallery).sizes
    found = operations.identify(gallery, sent.images, exact=exact, limit=1)
    guard.count_faces(grant, len(found.faces))
    thresholds = operations.thresholds_in(gallery, found.model)
    scale = AnsweredSimilarity.of(thresholds, exact=exact, sizes=sizes).scale
    predictions = []
    for identified in found.faces:
        best = identified.candidates[0] if identified.decision == "known" else None
        confidence = round_down(scale.of_cosine(best.score)) if best and best.score is not None else 0.0
        named = best is not None and confidence >= sent.params.min_confidence
        who = {"userid": best.subject, "confidence": confidence} if best and named else STRANGER
        predictions.append(corners(identified.face, found.photo) | who)
    return _predictions(predictions)


@router.operation("POST", f"{FACE}/match", scope=Scope.RECOGNIZE, name="verify", body=DeepStackPhotos, images=MANY)
def match(operations: Operations, sent: Form[DeepStackParams]) -> Json:
    """Compare the most prominent faces of two photos."""
    if len(sent.images) != TWO:
        raise InvalidInput("Send two images, as `image1` and `image2`.", code="missing_image")
    first, second = sent.images
    verified = operations.verify([first], [second])
    similarity = Similarity.of(operations.thresholds(verified.model)).of_cosine(verified.score)
    return {"success": True, "similarity": round_down(similarity)}


@router.operation(
    "POST", f"{FACE}/register", scope=Scope.ENROLL, name="enroll", changes=True, body=DeepStackPhotos, images=MANY
)
def register(home: CollectionDep, sent: Form[DeepStackParams]) -> Json:
    """Enroll more photos of a subject. Photos without one clear face are left out."""
    user = _required(sent.params.userid)
    home.entry.subject = fit_id(user)
    gallery = home.open_or_create()
    made = home.operations.enroll(gallery, user, sent.images, QualityLevel.NONE, tell=False)
    return {"success": True, "message": "face added" if made.created else "face updated"}


@router.operation("POST", f"{FACE}/list", scope=Scope.READ, name="list_subjects")
def list_users(home: CollectionDep) -> Json:
    """List the subjects."""
    return {"success": True, "faces": subject_ids(home.store, home.open())}


@router.operation("POST", f"{FACE}/delete", scope=Scope.DELETE, name="delete_subject", changes=True, extra=USER_FORM)
def delete(home: CollectionDep, userid: UserDep) -> Json:
    """Delete a subject with its faces. This also succeeds for an unknown subject."""
    user = _required(userid)
    home.entry.subject = fit_id(user)
    gallery = home.open()
    if is_stored(gallery):
        with suppress(SubjectNotFound), home.galleries.change(gallery) as change:
            subjects.delete_subject(change, user)
    return {"success": True}


def _required(user: str | None) -> str:
    if not user:
        raise InvalidInput("userid not specified")
    return user


def _predictions(predictions: list[Json]) -> Json:
    return {"success": True, "predictions": predictions}
