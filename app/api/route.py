"""Operations as routes: `Router.operation` declares one on its handler; `OperationRoute.handle` answers a request."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Self, TypeVar, cast, get_args, get_origin
from urllib.parse import parse_qsl, unquote

from fastapi import FastAPI, Request
from fastapi.params import Depends, Query
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model
from starlette.datastructures import State
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.access.audit import AuditEntry, AuditTrail
from app.access.grants import Grant, missing_scope
from app.access.grants import Scope as KeyScope
from app.api import openapi
from app.api.body import (
    COSTLY_BYTES,
    FORM_TYPE,
    JSON_TYPE,
    QUICK_BYTES,
    ImageFields,
    Sent,
    invalid_request,
    parse_json,
    read_body,
    validate,
)
from app.api.components import Components, GalleryId
from app.api.operation import Operation
from app.api.schemas.base import Base64
from app.api.wire import CLIENT_GONE, OWN_FORMAT, WireFormat, callers_of, error_answer, expected, not_ready
from app.db.engine import again_if_overtaken
from app.error_codes import ERROR_CODES
from app.errors import GalleryNotFound, InvalidInput, LikenessError
from app.gallery.records import Gallery
from app.gallery.text import to_nfc
from app.wording import nearest_name, unknown_name

LOOKED_THROUGH = 100
"""Maximum galleries among which to search one with a similar id."""
PAUSED = frozenset(error.code for error in ERROR_CODES if error.status in (413, 429))
"""Error codes whose answers are delayed for a caller who gets them repeatedly (`Admission.pause`)."""


class OperationRoute(APIRoute):
    """The route of one operation."""

    def __init__(self, operation: Operation, endpoint: Callable[..., Any], **documented: Any) -> None:
        self.operation = operation
        self._state = State()
        super().__init__(
            operation.path,
            endpoint,
            methods=[operation.method],
            status_code=operation.status,
            response_model=operation.answer,
            **documented,
        )

    def bound_to(self, app: FastAPI) -> Self:
        """Return this route for the application, whose state has the components while it runs."""
        bound = copy(self)
        bound._state = app.state
        return bound

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations behind this route."""
        return (self.operation,)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: authenticate, admit, audit, then call the handler. Any error becomes an answer.

        FastAPI's own code would inspect all types again, and takes four times as long. A route of several operations
        sets ``scope["operation"]`` first.
        """
        operation: Operation = scope.get("operation", self.operation)
        components: Components | None = self._state.components
        if scope["method"] != operation.method:
            await super().handle(scope, receive, send)  # `super` refuses it
            return
        scope["components"] = components
        if operation.public:
            response = await self.endpoint(Request(scope, receive, send))
            await response(scope, receive, send)
            return
        if components is None:
            raise not_ready()
        scope["operation"] = operation
        # The path was matched as it was sent.
        scope["path_params"] = ids = {name: to_nfc(unquote(text)) for name, text in scope["path_params"].items()}
        trail = AuditTrail(components.audit, operation.name, ids, scope["request_id"], monitoring=operation.monitoring)
        try:
            refusal = await self._answer(trail, scope, receive, send)
            if refusal is not None:
                await _send_refusal(refusal, trail, scope, receive, send)
        finally:
            if not trail.is_recorded:
                trail.abandon(CLIENT_GONE)

    async def _answer(self, trail: AuditTrail, scope: Scope, receive: Receive, send: Send) -> LikenessError | None:
        """Answer with the result of the operation, or return the error to answer with."""
        operation: Operation = scope["operation"]
        components: Components = scope["components"]
        try:
            grant, receive = await operation.wire.authenticate(scope, receive, components)
            scope["grant"], trail.entry.key = grant, grant.key_id
            authorize(grant, operation, scope["path_params"].get("gallery"))
            if scope["query_string"] and operation.wire.strict and not operation.monitoring:
                check_query(operation, scope["query_string"])
            is_counted = not (operation.monitoring or operation.streams)
            callers = callers_of(grant.key_id, scope["address"])
            with components.admission.admit(*callers) if is_counted else nullcontext():
                scope["audit"] = trail.entry
                if operation.changes and not operation.one_commit:
                    # Raises what the database raises: no change goes unrecorded.
                    await asyncio.wrap_future(components.audit.write(trail.entry))
                response = await self.endpoint(Request(scope, receive, send))
                await trail.record(response.status_code)
                await response(scope, receive, send)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 (a request's edge: the client gets an answer)
            refusal = expected(error, scope["request_id"])
            # The frames would keep the body in memory while the answer is delayed.
            refusal.__traceback__ = refusal.__context__ = None
            trail.refuse(refusal)
            return await _naming_nearest(refusal, components, scope)
        return None


async def _naming_nearest(error: LikenessError, components: Components, scope: Scope) -> LikenessError:
    """Return the error; if a gallery is missing, with one of almost the same id, if the key may list it."""
    if not isinstance(error, GalleryNotFound) or scope["operation"].wire.name is not None:
        return error
    grant: Grant = scope["grant"]
    if KeyScope.READ not in grant.allowed:
        return error
    gallery = str(error.details["gallery"])
    try:
        page = await components.workers.run(
            lambda: components.store.galleries(limit=LOOKED_THROUGH, only=grant.galleries)
        )
    except LikenessError:  # the database is busy: answer without a suggestion
        return error
    return GalleryNotFound.of(gallery, nearest_name(gallery, [listed.id for listed in page.items]))


async def _send_refusal(refusal: LikenessError, trail: AuditTrail, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the refusal; late, if its caller was refused repeatedly."""
    if refusal.code in PAUSED:
        await scope["components"].admission.pause(trail.entry.key or callers_of("", scope["address"])[1])
    if answer := error_answer(refusal, scope["operation"].wire, scope):
        await trail.record(answer.status_code)
        await answer(scope, receive, send)


def authorize(grant: Grant, operation: Operation, gallery: str | None) -> None:
    """Check that the key may call the operation on this gallery.

    Raises InvalidInput (``missing_scope``, ``gallery_restricted``), and NotFound (``gallery_not_found``) for a gallery
    that the key may not see, as if it didn't exist.
    """
    if operation.scope is not None and operation.scope not in grant.allowed:
        raise missing_scope(operation.scope)
    if grant.galleries is None:
        return
    if operation.unrestricted:
        raise InvalidInput("This needs a key that is not restricted to galleries.", code="gallery_restricted")
    if gallery is not None and gallery not in grant.galleries:
        raise GalleryNotFound.of(gallery)


def check_query(operation: Operation, query: bytes) -> None:
    """Raise InvalidInput (``invalid_request``) if a parameter in the query is unknown or given twice."""
    known = operation.query.model_fields if operation.query else {}
    names = Counter(name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    wrong = [(name, unknown_name(name, known, "parameter")) for name in names if name not in known]
    wrong += [(name, "Given more than once") for name, count in names.items() if count > 1]
    if wrong:
        raise invalid_request([{"loc": (name,), "msg": message} for name, message in wrong], "query")


Handler = TypeVar("Handler", bound=Callable[..., object])


class Router:
    """The operations of one module; ``tag`` is the group's name on `/docs`."""

    def __init__(self, tag: str, wire: WireFormat = OWN_FORMAT, route: type[OperationRoute] = OperationRoute) -> None:
        self.tag = tag
        self.routes: list[OperationRoute] = []
        self._wire = wire
        self._route = route

    @property
    def operations(self) -> list[Operation]:
        return [operation for route in self.routes for operation in route.operations]

    def operation(
        self,
        method: str,
        path: str,
        *,
        in_document: bool = True,
        responses: openapi.Responses | None = None,
        extra: dict[str, Any] | None = None,
        **declared: Any,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated function as an operation; the fields of `Operation` say what may be ``declared``.

        The operation's name is the function's unless declared, its answer the annotated one unless the function returns
        a response. The first line of its docstring is the operation's summary, the rest its description. ``responses``
        and ``extra`` are further parts of the OpenAPI document.

        The function takes parts of `Components` by name; the request, its `Grant` or its `AuditEntry`; ids of the path,
        where a `Gallery` is opened; a model of the query (``Query()``); and the body, as a model of its JSON or as
        `Sent`. It runs in a worker thread, where the body is parsed and the gallery opened, unless it is a coroutine,
        which can take neither.
        """

        def declare(handler: Handler) -> Handler:
            signature = inspect.signature(handler, eval_str=True)
            parameters, answer = _parameters_of(signature), signature.return_annotation
            derived: dict[str, Any] = {
                "name": handler.__name__,
                "answer": None if isinstance(answer, type) and issubclass(answer, Response) else answer,
                "status": 204 if answer is None else 200,
                "query": parameters.query,
                "body": _model_of(parameters, declared.get("images")),
                "wire": self._wire,
            }
            operation = Operation(method=method, path=path, **(derived | declared))
            summary, _, description = (inspect.getdoc(handler) or "").partition("\n")
            route = self._route(
                operation,
                _endpoint(handler, parameters, operation),
                name=handler.__name__,
                tags=[self.tag],
                summary=summary.removesuffix("."),
                description=description.strip(),
                responses=openapi.responses(operation) | (responses or {}),
                response_class=Response if operation.file else JSONResponse,
                include_in_schema=in_document,
                openapi_extra=extra or openapi.request_body(operation),
            )
            self.routes.append(route)
            return handler

        return declare


def add_operations(app: FastAPI, routers: Iterable[Router]) -> None:
    """Add the operations of the routers to the application."""
    for router in routers:
        # With `include_router` FastAPI would look each route up twice at each request, for 0.1 ms.
        app.router.routes.extend(route.bound_to(app) for route in router.routes)


def operations_of(app: FastAPI) -> list[Operation]:
    """Return all operations of the application."""
    routes = (route for route in app.routes if isinstance(route, OperationRoute))
    return [operation for route in routes for operation in route.operations]


@dataclass(slots=True)
class _Parameters:
    """A handler's parameters, by where they come from."""

    of_request: dict[str, str] = field(default_factory=dict)
    """Names of parameters taken from the request, with their key in the scope, empty for the request itself."""
    parts: list[str] = field(default_factory=list)
    """Names of parameters that are parts of `Components`."""
    ids: dict[str, Any] = field(default_factory=dict)
    """Ids of the path, as fields of a model."""
    made: dict[str, Any] = field(default_factory=dict)
    """Functions that make parameters from a request for a feature (`Depends`)."""
    read: list[inspect.Parameter] = field(default_factory=list)
    """The parameters in the path and the query, for the document."""
    query: type[BaseModel] | None = None
    query_name: str = ""
    body: str = ""
    """The name of the parameter that is the body; empty if there is none."""
    model: Any = None
    """The body's type: a model of JSON, or `Sent`, whose parameters may also be in the query."""
    gallery: str = ""
    """The name of the parameter that is the path's gallery, opened; empty if there is none."""

    def reader(self) -> Callable[[Request], Awaitable[dict[str, Any]]]:
        """Return a coroutine that reads all parameters except the body, from the request and the service.

        It raises InvalidInput (``invalid_request``) for wrong ones in the path and the query.
        """
        of_path = create_model("Ids", **self.ids)

        async def read(request: Request) -> dict[str, Any]:
            scope = request.scope
            taken = {name: scope[key] if key else request for name, key in self.of_request.items()}
            if self.ids:
                taken |= validate(of_path, scope["path_params"], "path", strict=False)
            if self.query is not None:
                given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
                taken[self.query_name] = validate(self.query, given, "query", strict=False)
            for name, make in self.made.items():
                taken[name] = await make(request)
            if self.parts:
                parts = scope["components"].parts
                taken |= {name: parts[name] for name in self.parts}
            return taken

        return read


OF_REQUEST: Mapping[type, str] = {Request: "", Grant: "grant", AuditEntry: "audit"}
"""Types that a handler may take from its request, with their keys in the scope."""
QUERY = "query_"
"""The name of the parameters in the query of an operation that takes photos."""


def _parameters_of(signature: inspect.Signature) -> _Parameters:
    parameters = _Parameters()
    for name, parameter in signature.parameters.items():
        kind, origin = parameter.annotation, get_origin(parameter.annotation)
        marks = get_args(kind)[1:] if origin is Annotated else ()
        if isinstance(origin, type) and issubclass(origin, Sent):
            (parameters.query,) = get_args(kind)
            parameters.query_name = QUERY
            parameters.body, parameters.model = name, origin
            parameters.read.append(parameter.replace(name=QUERY, annotation=Annotated[parameters.query, Query()]))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            parameters.body, parameters.model = name, kind
        elif kind in OF_REQUEST:
            parameters.of_request[name] = OF_REQUEST[kind]
        elif any(isinstance(mark, Query) for mark in marks):
            parameters.query, parameters.query_name = get_args(kind)[0], name
            parameters.read.append(parameter)
        elif made := [mark.dependency for mark in marks if isinstance(mark, Depends)]:
            (parameters.made[name],) = made
        elif isinstance(kind, type) and kind not in (str, Gallery):
            parameters.parts.append(name)
        else:
            if kind is Gallery:
                parameters.gallery, kind = name, GalleryId
            parameters.ids[name] = kind, ...
            parameters.read.append(parameter.replace(annotation=kind))
    return parameters


def _model_of(parameters: _Parameters, images: ImageFields | None) -> Any:
    """Return the model of the body, for the document: with images, these in base64 and the query's parameters."""
    if images is None or parameters.query is None:
        return parameters.model
    several: Any = Annotated[list[Base64], Field(min_length=1)]
    kind: Any = Base64 | several if images.track else several if images.many else Base64
    name = parameters.query.__name__.removesuffix("Params") + "Request"
    fields: dict[str, Any] = dict.fromkeys(images.names, (kind, ...))
    return create_model(name, __base__=parameters.query, **fields)


def _endpoint(handler: Callable[..., Any], parameters: _Parameters, operation: Operation) -> Callable[..., Any]:
    """Return the coroutine that answers a request: it collects the handler's arguments, runs it, and writes its answer.

    Its signature is for the document.
    """
    is_coroutine = inspect.iscoroutinefunction(handler)
    model, images, read = parameters.model, operation.images, parameters.reader()

    async def endpoint(request: Request) -> Response:
        given = await read(request)
        if is_coroutine:
            return respond(await handler(**given), operation.status)
        components: Components = request.scope["components"]
        limits = components.limits
        parse: Callable[[], object]
        if parameters.body:
            most = operation.body_bytes(limits) if operation.body_bytes else limits.most(images)
            raw = await read_body(request, most, limits.seconds, components.admission.count_bytes)
            parse = partial(parse_json, raw, model)
            if images:
                parse = partial(model.parse, raw, images, limits, given.pop(QUERY, None))

        def work() -> Response:
            if parameters.body:
                size = len(raw.data)
                is_quick = size <= QUICK_BYTES or raw.media_type not in {FORM_TYPE, JSON_TYPE}
                parsed = parse() if is_quick else components.parsing.run(parse, costly=size >= COSTLY_BYTES)
                given[parameters.body] = parsed
            return respond(again_if_overtaken(call_handler), operation.status)

        def call_handler() -> object:
            if name := parameters.gallery:
                return handler(**given | {name: components.store.gallery(given[name])})
            return handler(**given)

        return await components.workers.run(work)

    endpoint.__signature__ = inspect.Signature(parameters.read)  # type: ignore[attr-defined]  # `inspect` reads it
    return endpoint


def respond(result: object, status: int = 200) -> Response:
    """Return a handler's result as the response. A model was validated when it was made, so it is only serialised."""
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(status_code=status)
    if isinstance(result, BaseModel):
        return Response(result.model_dump_json(by_alias=True), status, media_type=JSON_TYPE)
    return JSONResponse(cast(Any, result), status)
