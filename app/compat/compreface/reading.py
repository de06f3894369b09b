"""Requests as CompreFace's clients send them: parameters, images, and JSON that may hold more than is asked for."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from app.api import body
from app.api.body import ImageFields
from app.api.service import Service
from app.compat.compreface.errors import EMPTY_FIELD, INCORRECT_ARGUMENT, VALIDATION, Refused
from app.errors import InvalidInput, MissingImage
from app.types import Template, Vector

FILE = ImageFields(("file",))
SOURCE_AND_TARGET = ImageFields(("source_image", "target_image"))
MAX_PREDICTIONS = 1000
MAX_PAGE = 2000
"""Faces on one page; larger sizes count as this one, as in CompreFace."""
Model = TypeVar("Model", bound=BaseModel)
Embedding = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]


class Params(BaseModel):
    """What nobody knows is ignored, as CompreFace does."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class EnrollParams(Params):
    det_prob_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class FaceParams(EnrollParams):
    """What every call with photos takes."""

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


class SubjectBody(Params):
    subject: str | None = None


class EmbeddingsBody(Params):
    embeddings: list[Embedding] | None = None


class VerificationBody(Params):
    source: list[Annotated[float, Field(allow_inf_nan=False)]] | None = None
    targets: list[Embedding] | None = None


async def read_images(
    request: Request, service: Service, wanted: ImageFields, query: Model
) -> tuple[dict[str, bytes], Model]:
    """Each image by its field's name, and the parameters: of the query, or of the form where the query lacks them."""
    limits = service.limits
    raw = await body.read_body(request, limits.body_bytes(wanted.count(limits)), limits.seconds, service.workers.take)

    def parse() -> tuple[dict[str, bytes], Model]:
        parts = _parts(raw, wanted, service, type(query))
        merged = query
        if not parts.strict and parts.fields:
            given = query.model_dump(exclude_unset=True)
            merged = body.validate(type(query), parts.fields | given, "form", strict=False)
        return {name: found[0] for name, found in parts.images.items()}, merged

    return await service.run(parse)


def _parts(raw: body.Body, wanted: ImageFields, service: Service, params: type[BaseModel]) -> body.Parts:
    try:
        return body.parse_images(raw, wanted, service.limits, params.model_fields)
    except MissingImage as error:
        missing = error.message.partition(":")[0]
        if raw.media_type == body.JSON_TYPE:
            raise Refused(EMPTY_FIELD, f"Field {missing} cannot be empty") from None
        message = f"Required part {missing} is missing"
        raise MissingImage(message) from None


async def read_json(request: Request, service: Service, model: type[Model]) -> Model:
    """A JSON object as ``model``; what it holds besides is ignored."""
    value = await _read_any_json(request, service, service.limits.request_bytes)

    def parse() -> Model:
        try:
            return model.model_validate(value, strict=True)
        except ValidationError as error:
            raise body.invalid_request(
                [{**one} for one in error.errors(include_input=False, include_url=False)]
            ) from None

    return await service.run(parse)


async def read_ids(request: Request, service: Service) -> list[str]:
    """A JSON list of CompreFace's image ids, as ours. Raises Refused."""
    value = await _read_any_json(request, service, service.limits.json_bytes)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Refused(VALIDATION, "A list of image ids is due")
    return [face_id_of(one) for one in value]


async def _read_any_json(request: Request, service: Service, limit: int) -> Any:
    raw = await body.read_body(request, limit, service.limits.seconds, service.workers.take)
    if raw.media_type != body.JSON_TYPE:
        raise InvalidInput(f"send {body.JSON_TYPE}", code="unsupported_media_type")
    return await service.run(lambda: body.load_json(raw.data))


def face_id_of(image_id: str) -> str:
    """Our 32 hexadecimal digits of CompreFace's UUID."""
    try:
        return uuid.UUID(image_id).hex
    except ValueError:
        raise Refused(INCORRECT_ARGUMENT, "image_id should be a UUID") from None


def image_id_of(face_id: str) -> str:
    """CompreFace's UUID of our 32 hexadecimal digits."""
    return str(uuid.UUID(face_id))


def template_of(embedding: Sequence[float], package: str, dimension: int) -> Template:
    """A client's embedding, of any length but 0, as a template of the package it should come from."""
    if len(embedding) != dimension:
        raise Refused(INCORRECT_ARGUMENT, f"An embedding of {package} has {dimension} numbers, not {len(embedding)}")
    vector = np.array(embedding, np.float64)
    largest = float(np.abs(vector).max())
    if not largest:
        raise Refused(INCORRECT_ARGUMENT, "An embedding of zeros has no direction")
    vector /= largest  # so that squaring neither overflows nor vanishes
    unit: Vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    return Template(unit, package)
