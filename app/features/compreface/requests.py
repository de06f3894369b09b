"""Requests as CompreFace's clients send them: parameters, images, JSON."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from app.api import body
from app.api.body import Body, BodyLimits, ImageFields, Sent
from app.api.schemas import Base64
from app.errors import MissingImage
from app.features.compreface.wire import EMPTY_FIELD, INCORRECT_ARGUMENT, CompreFaceError
from app.types import Template, Vector

FILE = ImageFields(("file",))
SOURCE_AND_TARGET = ImageFields(("source_image", "target_image"))
MAX_PREDICTIONS = 1000
MAX_PAGE = 2000
"""Maximum faces on one page; larger page sizes are lowered to this, as in CompreFace."""
Json: TypeAlias = dict[str, Any]
Given = TypeVar("Given", bound=BaseModel)
Embedding = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]


class Params(BaseModel):
    """Parameters of a call. Unknown parameters are ignored, as in CompreFace."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, given: Any) -> Any:
        """Remove empty values, except of `subject`, which is text, as Spring does."""
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value != "" or name == "subject"}


class PhotoParams(Params):
    det_prob_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class EnrollParams(PhotoParams):
    subject: str | None = None


class FaceParams(PhotoParams):
    """The parameters of every call that compares photos."""

    limit: Annotated[int, Field(ge=0)] = 0
    face_plugins: str = ""
    status: bool = False

    def wants(self, plugin: str) -> bool:
        return plugin in {name.strip().lower() for name in self.face_plugins.split(",")}


class RecognizeParams(FaceParams):
    prediction_count: Annotated[int, Field(ge=1)] = 1
    detect_faces: bool = True


class PredictionParams(Params):
    prediction_count: Annotated[int, Field(ge=1)] = 1


class PageParams(Params):
    page: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    size: Annotated[int, Field(ge=1)] = 20
    subject: str | None = None


class FileRequest(Params):
    file: Base64


class SourceAndTargetRequest(Params):
    source_image: Base64
    target_image: Base64


class SubjectRequest(Params):
    subject: str | None = None


class EmbeddingsRequest(Params):
    embeddings: list[Embedding] | None = None


class VerifyEmbeddingsRequest(Params):
    source: list[Annotated[float, Field(allow_inf_nan=False)]] | None = None
    targets: list[Embedding] | None = None


class FaceIdList(RootModel[list[str]]):
    """A list of image ids."""


class Photos(Sent[Given]):
    """The images of a body, and the parameters. Those of the query override those of the form; those in JSON are
    ignored."""

    @classmethod
    def parse(cls, raw: Body, wanted: ImageFields, limits: BodyLimits, query: Given) -> Self:
        try:
            parts = body.parse_images(raw, wanted, limits, type(query).model_fields, ignore=True)
        except MissingImage as error:
            missing = error.message.partition(":")[0]
            if raw.media_type == body.JSON_TYPE:
                raise CompreFaceError(EMPTY_FIELD, f"Field {missing} cannot be empty") from None
            message = f"Required part {missing} is missing"
            raise MissingImage(message) from None
        params = query
        if not parts.strict and parts.fields:
            given = query.model_dump(exclude_unset=True)
            params = body.validate(type(query), parts.fields | given, "form", strict=False)
        return cls([parts.images[name] for name in wanted.names], params)


def face_id_of(image_id: str) -> str:
    """Return the face id, 32 hexadecimal digits, for an image id, a UUID. Raises CompreFaceError."""
    try:
        return uuid.UUID(image_id).hex
    except ValueError:
        raise CompreFaceError(INCORRECT_ARGUMENT, "image_id should be a UUID") from None


def image_id_of(face_id: str) -> str:
    """Return the image id, a UUID, for a face id, 32 hexadecimal digits."""
    return str(uuid.UUID(face_id))


def given_template(embedding: Sequence[float], package: str, dimension: int) -> Template:
    """Return a client's embedding as a template of ``package``, scaled to length 1. Raises CompreFaceError for a wrong
    length or only zeros."""
    if len(embedding) != dimension:
        raise CompreFaceError(
            INCORRECT_ARGUMENT, f"An embedding of {package} has {dimension} numbers, not {len(embedding)}"
        )
    vector = np.array(embedding, np.float64)
    largest = float(np.abs(vector).max())
    if not largest:
        raise CompreFaceError(INCORRECT_ARGUMENT, "An embedding of zeros has no direction")
    vector /= largest  # so that squares neither overflow nor become 0
    unit: Vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    return Template(unit, package)
