"""The operations `/ping` and `/predict`, which answers a photo's faces, each with box, score and embedding."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import httpx
import numpy as np
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from app.access.grants import Scope
from app.api.body import COSTLY_BYTES, JSON_TYPE, Body, ImageFields, parse_images, read_body
from app.api.components import Components
from app.api.json_reader import load_json
from app.api.openapi import BINARY, TEXT
from app.api.route import Router
from app.errors import InvalidInput, LikenessError, Unusable
from app.features.answers import corners, round_down
from app.features.forms import form_of, texts
from app.features.immich.wire import IMMICH, PING, PREDICT, Networks
from app.features.similarity import probability_of, score_of
from app.recognition.operations import Operations
from app.types import Vector

FACES = "facial-recognition"
IMAGE = ImageFields(("image",))
ENTRIES = "entries"
MAX_ENTRIES = 64 * 1024
"""Maximum bytes of the field `entries`."""
DIMENSION = 512
"""Length of the embeddings in Immich's database, which accepts no other length."""
LEAST_SCORE = 0.7
"""Immich's default of `minScore`."""
OTHERS_S = 300.0
"""Seconds to wait for the answer to a forwarded request: as long as Immich waits, by the limit of its `fetch`."""
Json: TypeAlias = dict[str, Any]
router = Router(IMMICH.name, IMMICH)


class Options(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    minScore: Annotated[float, Field(ge=0, le=1)] = LEAST_SCORE  # noqa: N815 (Immich's name)


class TaskModel(BaseModel):
    """A model that a task asks for. Its name is ignored, since faces are embedded with the server's default package."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    options: Options = Options()


class Entries(RootModel[dict[str, dict[str, Json]]]):
    """The models that are asked for, by the task's name and the model's type."""


@dataclass(frozen=True, slots=True)
class Immich:
    """Answers Immich's requests. ``networks``: the addresses that need no key; ``others``: the URL that other tasks are
    forwarded to."""

    core: Components
    networks: Networks
    others: str | None

    async def predict(self, body: Body, content_type: str) -> Response:
        """Answer the faces of a photo; forward any other request unchanged, and return its answer."""
        entries, answer = await self.core.workers.run(lambda: self._find(body))
        return answer or await self._hand_on(body, content_type, entries)

    def _find(self, body: Body) -> tuple[Collection[str], Response | None]:
        """Return the request's tasks, and the answer if the only task is to find faces."""
        wanted, image = self.core.parsing.run(lambda: self._parse(body), costly=len(body.data) >= COSTLY_BYTES)
        if image is None:
            return wanted, None
        detection = _validated(TaskModel, wanted[FACES].get("detection", {}))
        least = score_of(detection.options.minScore)
        answer = json.dumps(faces_of(self.core.operations, image, least))
        return wanted, Response(answer, media_type=JSON_TYPE)

    def _parse(self, body: Body) -> tuple[dict[str, dict[str, Json]], bytes | None]:
        text = texts(body, (ENTRIES,), MAX_ENTRIES).get(ENTRIES)
        if text is None:
            raise InvalidInput("Send the field `entries`.")
        wanted: dict[str, dict[str, Json]] = _validated(Entries, load_json(text.encode())).root
        if list(wanted) != [FACES]:
            return wanted, None
        return wanted, parse_images(body, IMAGE, self.core.limits, ignore=True).images["image"][0]

    async def _hand_on(self, body: Body, content_type: str, tasks: Collection[str]) -> Response:
        if self.others is None or FACES in tasks:
            message = (
                f"This server only finds faces, not: {', '.join(sorted(tasks))[:100]}. With "
                f"LIKENESS_IMMICH_OTHERS, other requests are forwarded to Immich's own machine learning."
            )
            raise InvalidInput(message)
        headers = {b"content-type": content_type.encode("latin-1")}
        try:
            async with httpx.AsyncClient(base_url=self.others, timeout=OTHERS_S) as client:
                answer = await client.post(PREDICT, content=body.data, headers=headers)
        except httpx.HTTPError as error:
            raise Unusable(f"LIKENESS_IMMICH_OTHERS, {self.others}: {type(error).__name__}.") from None
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


@router.operation("GET", PING, scope=None, public=True, monitoring=True)
async def ping(request: Request) -> Response:
    """Answer whether the server takes photos.

    Answers 503 before the server's models are ready and while it stops. Immich then uses another of its servers.
    """
    if request.app.state.status != "ok":
        raise LikenessError("The server is starting or stopping.", code="not_ready")
    return Response("pong", media_type="text/plain")


@router.operation("POST", PREDICT, scope=Scope.RECOGNIZE, name="embed", extra=form_of(entries=TEXT, image=BINARY))
async def predict(request: Request, components: Components, immich: Immich) -> Response:
    """Find the faces of a photo, each with its embedding.

    The form has the photo in `image` and the models that are asked for in `entries`.
    """
    limits = components.limits
    body = await read_body(request, limits.most(IMAGE), limits.seconds, components.admission.count_bytes)
    return await immich.predict(body, request.headers.get("content-type", ""))


def faces_of(operations: Operations, image: bytes, least: float) -> Json:
    """Return the answer for a photo in Immich's form, with the faces that could be aligned and whose detection score is
    ``least`` or more."""
    photo, package = operations.embed(image)
    faces = []
    for face in photo.faces:
        if face.template is None or face.score < least:
            continue
        box = corners(face, photo)
        faces.append(
            {
                "boundingBox": {"x1": box["x_min"], "y1": box["y_min"], "x2": box["x_max"], "y2": box["y_max"]},
                "embedding": json.dumps(padded(face.template.vector, package).tolist()),
                "score": round_down(probability_of(face.score)),
            }
        )
    return {FACES: faces, "imageHeight": photo.height, "imageWidth": photo.width}


def padded(vector: Vector, package: str) -> Vector:
    """Return the (D,) vector padded with zeros to DIMENSION numbers; this doesn't change cosines. Raises Unusable if D
    is larger."""
    if len(vector) > DIMENSION:
        raise Unusable(f"Immich stores {DIMENSION} numbers a face; {package} has {len(vector)}.")
    return np.pad(vector, (0, DIMENSION - len(vector)))


def _validated(model: type[Any], value: object) -> Any:
    try:
        return model.model_validate(value)
    except ValidationError:
        raise InvalidInput("`entries` is not what Immich sends.") from None
