"""What Rekognition's clients ask, as models of ours: names, limits and patterns are those of its API reference.

What is not known is passed over, as Rekognition does; types are those of JSON, and nothing is guessed from text.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from app.compat.rekognition import errors
from app.compat.rekognition.errors import Refused

CollectionText = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[a-zA-Z0-9_.\-]+\z")]
UserText = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-:]+\z")]
ExternalText = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[a-zA-Z0-9_.\-:]+\z")]
FaceText = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z")]
RequestToken = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9\-_]+\z")]
PageToken = Annotated[str, StringConstraints(max_length=255)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Filter = Literal["NONE", "AUTO", "LOW", "MEDIUM", "HIGH"]
Attribute = Literal[
    "DEFAULT",
    "ALL",
    "AGE_RANGE",
    "BEARD",
    "EMOTIONS",
    "EYE_DIRECTION",
    "EYEGLASSES",
    "EYES_OPEN",
    "GENDER",
    "MOUTH_OPEN",
    "MUSTACHE",
    "FACE_OCCLUDED",
    "SMILE",
    "SUNGLASSES",
]
PageSize = Annotated[int, Field(ge=0, le=4096)]
MAX_MATCHES = 80
"""How many are answered where the client does not say."""
FACE_THRESHOLD = 80.0
ASSOCIATION_THRESHOLD = 75.0
SERIALIZATION_KINDS = ("_type", "_parsing", "model_attributes_type")
"""Ends of pydantic's names for what has another type in JSON."""
Model = TypeVar("Model", bound="Asked")


class Asked(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, hide_input_in_errors=True)


class S3Source(Asked):
    Bucket: str | None = None
    Name: str | None = None
    Version: str | None = None


class ImageSource(Asked):
    """One of the two."""

    Bytes: str | None = None
    S3Object: S3Source | None = None


class OfCollection(Asked):
    CollectionId: CollectionText


class Anything(Asked):
    """No parameter decides."""


class CreateCollection(OfCollection):
    Tags: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=128)],
        Annotated[str, StringConstraints(max_length=256)],
    ] = Field(default_factory=dict, max_length=200)


class ListCollections(Asked):
    NextToken: PageToken | None = None
    MaxResults: PageSize | None = None


class IndexFaces(OfCollection):
    Image: ImageSource
    ExternalImageId: ExternalText | None = None
    DetectionAttributes: list[Attribute] = Field(default_factory=list)
    MaxFaces: int | None = Field(default=None, ge=1)
    QualityFilter: Filter = "AUTO"


class ListFaces(OfCollection):
    NextToken: PageToken | None = None
    MaxResults: PageSize | None = None
    UserId: UserText | None = None
    FaceIds: list[FaceText] | None = Field(default=None, min_length=1, max_length=4096)


class DeleteFaces(OfCollection):
    FaceIds: list[FaceText] = Field(min_length=1, max_length=4096)


class SearchFaces(OfCollection):
    FaceId: FaceText
    MaxFaces: int = Field(default=MAX_MATCHES, ge=1, le=4096)
    FaceMatchThreshold: Percent = FACE_THRESHOLD


class SearchFacesByImage(OfCollection):
    Image: ImageSource
    MaxFaces: int = Field(default=MAX_MATCHES, ge=1, le=4096)
    FaceMatchThreshold: Percent = FACE_THRESHOLD
    QualityFilter: Filter = "NONE"


class CompareFaces(Asked):
    SourceImage: ImageSource
    TargetImage: ImageSource
    SimilarityThreshold: Percent = FACE_THRESHOLD
    QualityFilter: Filter = "NONE"


class DetectFaces(Asked):
    Image: ImageSource
    Attributes: list[Attribute] = Field(default_factory=list)


class OfUser(OfCollection):
    UserId: UserText
    ClientRequestToken: RequestToken | None = None


class ListUsers(OfCollection):
    NextToken: PageToken | None = None
    MaxResults: int | None = Field(default=None, ge=1, le=500)


class DisassociateFaces(OfUser):
    FaceIds: list[FaceText] = Field(min_length=1, max_length=100)


class AssociateFaces(DisassociateFaces):
    UserMatchThreshold: Percent = ASSOCIATION_THRESHOLD


class SearchUsers(OfCollection):
    UserId: UserText | None = None
    FaceId: FaceText | None = None
    UserMatchThreshold: Percent = FACE_THRESHOLD
    MaxUsers: int = Field(default=MAX_MATCHES, ge=1, le=500)


class SearchUsersByImage(OfCollection):
    Image: ImageSource
    UserMatchThreshold: Percent = FACE_THRESHOLD
    MaxUsers: int = Field(default=MAX_MATCHES, ge=1, le=500)
    QualityFilter: Filter = "NONE"


def read(model: type[Model], value: object) -> Model:
    """Raises Refused: InvalidParameterException, or SerializationException for what has another type."""
    if not isinstance(value, dict):
        raise Refused(errors.SERIALIZATION, "The request is not a JSON object.", code="invalid_json")
    try:
        return model.model_validate({name: found for name, found in value.items() if found is not None})
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        listed = [f"Value at '{'.'.join(str(part)[:64] for part in one['loc'])}': {one['msg']}" for one in found[:3]]
        message = f"{len(found)} validation error{'s' * (len(found) > 1)} detected: {'; '.join(listed)}"
        is_type = any(one["type"].endswith(SERIALIZATION_KINDS) for one in found)
        raise Refused(errors.SERIALIZATION if is_type else errors.INVALID_PARAMETER, message) from None
