"""Rekognition's requests as pydantic models, with the names, limits and patterns of its API reference.

Unknown fields are ignored, as in Rekognition. Types are strict: text is not converted to another type.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from app.features.rekognition import errors
from app.features.rekognition.errors import RekognitionError
from app.wording import found_wrong

CollectionText = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[a-zA-Z0-9_.\-]+$")]
UserText = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-:]+$")]
ExternalText = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[a-zA-Z0-9_.\-:]+$")]
FaceText = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
RequestToken = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9\-_]+$")]
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
"""Maximum matches in an answer if the request doesn't say how many."""
ASSOCIATION_THRESHOLD = 75.0
SERIALIZATION_KINDS = ("_type", "_parsing", "model_attributes_type")
"""Suffixes of pydantic's error types for a value of another JSON type."""
ModelT = TypeVar("ModelT", bound="RekognitionModel")


class RekognitionModel(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, hide_input_in_errors=True)


class S3Source(RekognitionModel):
    Bucket: str | None = None
    Name: str | None = None
    Version: str | None = None


class ImageSource(RekognitionModel):
    """An image, in exactly one of the two fields."""

    Bytes: str | None = None
    S3Object: S3Source | None = None


class CollectionRequest(RekognitionModel):
    CollectionId: CollectionText


class CreateCollection(CollectionRequest):
    Tags: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=128)],
        Annotated[str, StringConstraints(max_length=256)],
    ] = Field(default_factory=dict, max_length=200)


class ListCollections(RekognitionModel):
    NextToken: PageToken | None = None
    MaxResults: PageSize | None = None


class IndexFaces(CollectionRequest):
    Image: ImageSource
    ExternalImageId: ExternalText | None = None
    DetectionAttributes: list[Attribute] = Field(default_factory=list)
    MaxFaces: int | None = Field(default=None, ge=1)
    QualityFilter: Filter = "AUTO"


class ListFaces(CollectionRequest):
    NextToken: PageToken | None = None
    MaxResults: PageSize | None = None
    UserId: UserText | None = None
    FaceIds: list[FaceText] | None = Field(default=None, min_length=1, max_length=4096)


class DeleteFaces(CollectionRequest):
    FaceIds: list[FaceText] = Field(min_length=1, max_length=4096)


class SearchFaces(CollectionRequest):
    FaceId: FaceText
    MaxFaces: int = Field(default=MAX_MATCHES, ge=1, le=4096)
    FaceMatchThreshold: Percent | None = None


class SearchFacesByImage(CollectionRequest):
    Image: ImageSource
    MaxFaces: int = Field(default=MAX_MATCHES, ge=1, le=4096)
    FaceMatchThreshold: Percent | None = None
    QualityFilter: Filter = "NONE"


class CompareFaces(RekognitionModel):
    SourceImage: ImageSource
    TargetImage: ImageSource
    SimilarityThreshold: Percent | None = None
    QualityFilter: Filter = "NONE"


class DetectFaces(RekognitionModel):
    Image: ImageSource
    Attributes: list[Attribute] = Field(default_factory=list)


class UserRequest(CollectionRequest):
    UserId: UserText
    ClientRequestToken: RequestToken | None = None


class ListUsers(CollectionRequest):
    NextToken: PageToken | None = None
    MaxResults: int | None = Field(default=None, ge=1, le=500)


class DisassociateFaces(UserRequest):
    FaceIds: list[FaceText] = Field(min_length=1, max_length=100)


class AssociateFaces(DisassociateFaces):
    UserMatchThreshold: Percent = ASSOCIATION_THRESHOLD


class SearchUsers(CollectionRequest):
    UserId: UserText | None = None
    FaceId: FaceText | None = None
    UserMatchThreshold: Percent | None = None
    MaxUsers: int = Field(default=MAX_MATCHES, ge=1, le=500)


class SearchUsersByImage(CollectionRequest):
    Image: ImageSource
    UserMatchThreshold: Percent | None = None
    MaxUsers: int = Field(default=MAX_MATCHES, ge=1, le=500)
    QualityFilter: Filter = "NONE"


def read(model: type[ModelT], value: object) -> ModelT:
    """Return the request as its model.

    Raises RekognitionError: SerializationException for a value of another type, else InvalidParameterException.
    """
    if not isinstance(value, dict):
        raise RekognitionError(errors.SERIALIZATION, "The request is not a JSON object.", code="invalid_json")
    try:
        return model.model_validate({name: field for name, field in value.items() if field is not None})
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        listed = [
            f"Value at '{'.'.join(str(part)[:64] for part in problem['loc'])}': {found_wrong(problem)}"
            for problem in problems[:3]
        ]
        message = f"{len(problems)} validation error{'s' * (len(problems) > 1)} detected: {'; '.join(listed)}"
        is_type = any(problem["type"].endswith(SERIALIZATION_KINDS) for problem in problems)
        raise RekognitionError(errors.SERIALIZATION if is_type else errors.INVALID_PARAMETER, message) from None
