"""What a request's body holds, as parameters of handlers: photos with parameters (`Sent`), or one model (`JSON`).

The body is read before the handler is called, within the server's limits, and parsed in the thread that runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Self, TypeVar, get_args, get_origin

from fastapi import Depends, Query, Request
from pydantic import BaseModel

from app.api import body
from app.api.body import Body, BodyLimits, ImageFields
from app.api.components import components_of
from app.concurrency.budget import Budget

Params = TypeVar("Params", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Sent(Generic[Params]):
    """The images of a body, in the order of the operation's fields, and the parameters of the query and the body."""

    images: list[bytes]
    params: Params

    @classmethod
    def parse(cls, raw: Body, wanted: ImageFields, limits: BodyLimits, query: Params) -> Self:
        """Return the content of a body. Raises InvalidInput as `body.parse_images` and `body.merge` do."""
        parts = body.parse_images(raw, wanted, limits, type(query).model_fields)
        images = [image for name in wanted.names for image in parts.images[name]]
        return cls(images, body.merge(type(query), query, parts))


@dataclass(frozen=True, slots=True)
class Json:
    """Marks the parameter that is the JSON body; ``large``: as long as any body may be, not only as metadata."""

    large: bool = False


JSON: Final = Json()


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A body that was read, and how to parse it."""

    raw: Body
    budget: Budget
    parser: Callable[[], object]

    def parse(self) -> object:
        """Return what the handler takes, when there is memory for its copies. Raises InvalidInput."""
        if body.is_quick(self.raw):
            return self.parser()
        with self.budget.hold(body.PARSED_COPIES * len(self.raw.data), threads=0):
            return self.parser()


@dataclass(frozen=True, slots=True)
class Content:
    """How FastAPI sees a parameter that is the body, and the models of body and query."""

    annotation: Any
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None


def content_of(annotation: Any, wanted: ImageFields | None) -> Content | None:
    """Return how a parameter of a handler is read from the body; None if it isn't."""
    kind = get_origin(annotation)
    if isinstance(kind, type) and issubclass(kind, Sent) and wanted is not None:
        (params,) = get_args(annotation)
        return Content(Annotated[annotation, Depends(_photos_reader(kind, params, wanted))], query=params)
    if kind is Annotated:
        model, *marks = get_args(annotation)
        for mark in marks:
            if isinstance(mark, Json):
                return Content(Annotated[model, Depends(_json_reader(model, mark))], body=model)
    return None


def _photos_reader(kind: type[Sent[Any]], params: type[BaseModel], wanted: ImageFields) -> Callable[..., Any]:
    async def read(request: Request, query: BaseModel) -> Unparsed:
        components = components_of(request.app.state)
        limits = components.limits
        most = limits.body_bytes(limits.count(wanted))
        raw = await body.read_body(request, most, limits.seconds, components.admission.take)
        return Unparsed(raw, components.admission.budget, lambda: kind.parse(raw, wanted, limits, query))

    return _with_parameters(read, request=Request, query=Annotated[params, Query()])


def _json_reader(model: type[BaseModel], mark: Json) -> Callable[..., Any]:
    async def read(request: Request) -> Unparsed:
        components = components_of(request.app.state)
        limits = components.limits
        most = limits.request_bytes if mark.large else limits.json_bytes
        raw = await body.read_body(request, most, limits.seconds, components.admission.take)
        return Unparsed(raw, components.admission.budget, lambda: body.parse_json(raw, model))

    return _with_parameters(read, request=Request)


def _with_parameters(function: Callable[..., Any], **annotations: Any) -> Callable[..., Any]:
    """Give the function the parameters that FastAPI should see."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, annotation=one) for name, one in annotations.items()]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # `inspect` reads it
    return function
