"""Operations as routes: `Router.operation` declares one on its handler, `OperationRoute.handle` is a request's way."""

from __future__ import annotations

import asyncio
import inspect
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin
from urllib.parse import parse_qsl, unquote

from fastapi import FastAPI
from fastapi.params import Query
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from app.access.audit import AuditEntry, AuditLog, fit_id
from app.access.grants import Grant
from app.access.grants import Scope as KeyScope
from app.api import openapi
from app.api.auth import require_scope
from app.api.body import JSON_TYPE, File, ImageFields, invalid_request
from app.api.components import WorkersDep, components_of
from app.api.operation import Operation
from app.api.sent import Unparsed, content_of
from app.api.wire import CLIENT_GONE, OWN, Authenticate, WireFormat, callers_of, expected, send_error
from app.concurrency.admission import WorkerPool
from app.db.engine import again_if_ended
from app.errors import InvalidInput, LikenessError, Overloaded
from app.gallery.records import gallery_not_found

_BAD_KEY = frozenset({"expired_key", "revoked_key"})
_NOT_RECORDED = frozenset({429})
"""A request that was told to try again later did nothing; a flood of them must not become a flood of rows."""


def path_ids(scope: Scope) -> dict[str, str]:
    """Return the ids in the path, which was matched as it was sent: decoded, in NFC."""
    return {name: unicodedata.normalize("NFC", unquote(text)) for name, text in scope["path_params"].items()}


class AuditTrail:
    """Records a request and sends its answer on.

    An operation that changes something is written before it begins, and again before the answer goes out; any other is
    noted at its end. Refusals are noted too if the key is known or was wrong. Monitoring is not recorded.
    """

    def __init__(self, audit: AuditLog, operation: Operation, scope: Scope, send: Send) -> None:
        self.entry: AuditEntry = audit.entry(None, operation.name, scope["request_id"])
        ids = path_ids(scope)
        self.entry.gallery, self.entry.subject = fit_id(ids.pop("gallery", None)), fit_id(ids.pop("subject", None))
        self.entry.target = fit_id(next(iter(ids.values()), None))
        self.status = CLIENT_GONE
        self._audit = audit
        self._send = send
        self._changes = operation.changes
        self._begun = False
        self._finished = operation.monitoring

    async def begin(self) -> None:
        """Write the entry if the operation changes something; raise what the database raises, so that no change goes
        unrecorded."""
        if self._changes:
            await asyncio.wrap_future(self._audit.write(self.entry))
            self._begun = True

    def refuse(self, error: LikenessError) -> None:
        """Note a refusal. Requests without a key are not recorded: nothing limits how many there are."""
        if error.code in _BAD_KEY:
            self.entry.key = str(error.details["key"])
        is_try_again = isinstance(error, Overloaded) and not self._begun  # its status differs between wire formats
        self._finished = self._finished or is_try_again or error.code == "missing_key"

    async def send(self, message: Message) -> None:
        """Send on a part of the answer, after the outcome of a change was written."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            await self._finish()
        await self._send(message)

    async def _finish(self) -> None:
        """Add the outcome. If the database fails now, the work is done, and the entry stays without outcome."""
        if not self._begun or self._finished:
            return
        self.entry.status = self.status
        self._finished = True
        try:
            await asyncio.wrap_future(self._audit.write(self.entry))
        except LikenessError:
            self._audit.note(self.entry)

    def end(self) -> None:
        """Note the request, unless its outcome is written already or it is not recorded."""
        if self._finished or self.status in _NOT_RECORDED:
            return
        self.entry.status = self.status
        self._finished = True
        self._audit.note(self.entry)


Handler = TypeVar("Handler", bound=Callable[..., object])
WORKERS = "workers_"
"""The parameter by which a handler's wrapper gets the worker pool."""


class OperationRoute(APIRoute):
    """The route of one operation."""

    def __init__(self, operation: Operation, endpoint: Callable[..., Any], **documented: Any) -> None:
        self.operation = operation
        super().__init__(
            operation.path,
            endpoint,
            methods=[operation.method],
            status_code=operation.status,
            response_model=operation.answer,
            **documented,
        )

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations behind this route."""
        return (self.operation,)

    def operation_of(self, scope: Scope) -> Operation:  # noqa: ARG002 (for routes of several operations)
        """Return the operation that a request on this route is."""
        return self.operation

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: authenticate, admit, audit, then the handler. Any error becomes an answer."""
        operation = self.operation_of(scope)
        if operation.public or scope["method"] != operation.method:
            await super().handle(scope, receive, send)
            return
        components = components_of(scope["app"].state)
        scope["operation"] = operation
        trail = AuditTrail(components.audit, operation, scope, send)
        try:
            authenticate = operation.authenticate or operation.wire.authenticate
            grant, receive = await authenticate(scope, receive, components)
            scope["grant"], trail.entry.key = grant, grant.key_id
            authorize(grant, operation, path_ids(scope).get("gallery"))
            check_query(operation, scope["query_string"])
            callers = callers_of(grant.key_id, scope)
            with nullcontext() if operation.monitoring else components.admission.admit(*callers):
                scope["audit"] = trail.entry
                await trail.begin()
                await self.app(scope, receive, trail.send)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 (a request's edge: the client gets an answer)
            refusal = expected(error, scope["request_id"])
            trail.refuse(refusal)
            await send_error(refusal, operation.wire, scope, receive, trail)
        finally:
            trail.end()


def authorize(grant: Grant, operation: Operation, gallery: str | None) -> None:
    """Check that the key may call the operation on this gallery.

    Raises InvalidInput (``missing_scope``, ``gallery_restricted``), and NotFound (``gallery_not_found``) for a gallery
    that the key may not see, as if there were none.
    """
    if operation.scope is not None:
        require_scope(grant, operation.scope)
    if operation.unrestricted and grant.galleries is not None:
        raise InvalidInput("This needs a key that is not restricted to galleries.", code="gallery_restricted")
    if gallery is not None and not grant.sees(gallery):
        raise gallery_not_found(gallery)


def check_query(operation: Operation, query: bytes) -> None:
    """Raise InvalidInput (``invalid_request``) if a parameter in the query is unknown or given twice."""
    if not query or not operation.wire.strict or operation.monitoring:
        return
    known = operation.query.model_fields if operation.query else {}
    names = [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
    wrong = [(name, "There is no such parameter") for name in dict.fromkeys(names) if name not in known]
    wrong += [(name, "Given more than once") for name in dict.fromkeys(names) if names.count(name) > 1]
    if wrong:
        raise invalid_request([{"loc": (name,), "msg": message} for name, message in wrong], "query")


class Router:
    """The operations of one module; ``tag`` is the group's name on `/docs`."""

    def __init__(self, tag: str, wire: WireFormat = OWN, route: type[OperationRoute] = OperationRoute) -> None:
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
        scope: KeyScope | None,
        name: str | None = None,
        answer: Any = None,
        changes: bool = False,
        unrestricted: bool = False,
        status: int | None = None,
        body: type[BaseModel] | None = None,
        images: ImageFields | None = None,
        upload: File | None = None,
        file: File | None = None,
        codes: tuple[str, ...] = (),
        monitoring: bool = False,
        public: bool = False,
        authenticate: Authenticate | None = None,
        more_models: tuple[type[BaseModel], ...] = (),
        in_document: bool = True,
        responses: openapi.Responses | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated function as an operation; `Operation` says what the fields mean.

        Its name is the function's unless given, its answer the annotated one unless the function returns a response;
        the models of query and body are those of its parameters. The first line of its docstring is the operation's
        summary, the rest its description. A function that isn't a coroutine runs in a worker thread. ``responses`` and
        ``extra`` are further parts of the OpenAPI document.
        """

        def declare(handler: Handler) -> Handler:
            signature = inspect.signature(handler, eval_str=True)
            contents = {
                parameter.name: content
                for parameter in signature.parameters.values()
                if (content := content_of(parameter.annotation, images))
            }
            operation = Operation(
                name=name or handler.__name__,
                method=method,
                path=path,
                scope=scope,
                answer=answer or _answer_of(signature.return_annotation),
                changes=changes,
                unrestricted=unrestricted,
                status=status or (204 if signature.return_annotation is None else 200),
                query=_query_of(signature) or next((one.query for one in contents.values() if one.query), None),
                body=body or next((one.body for one in contents.values() if one.body), None),
                images=images,
                upload=upload,
                file=file,
                codes=codes,
                monitoring=monitoring,
                public=public,
                authenticate=authenticate,
                more_models=more_models,
                wire=self._wire,
            )
            parameters = [
                parameter.replace(annotation=contents[parameter.name].annotation)
                if parameter.name in contents
                else parameter
                for parameter in signature.parameters.values()
            ]
            summary, _, description = (inspect.getdoc(handler) or "").partition("\n")
            self.routes.append(
                self._route(
                    operation,
                    _endpoint(handler, parameters, operation.status, parsed=bool(contents)),
                    name=handler.__name__,
                    tags=[self.tag],
                    summary=summary.removesuffix("."),
                    description=description.strip(),
                    responses=openapi.responses(operation) | (responses or {}),
                    response_class=Response if file else JSONResponse,
                    include_in_schema=in_document,
                    openapi_extra=extra or openapi.request_body(operation),
                )
            )
            return handler

        return declare


def install(app: FastAPI, routers: Iterable[Router]) -> None:
    """Add the operations of the routers to the application."""
    for router in routers:
        # Not `include_router`: FastAPI would then look each route up twice at each request, for 0.1 ms.
        app.router.routes.extend(router.routes)


def operations_of(app: FastAPI) -> list[Operation]:
    """Return all operations of the application."""
    routes = (route for route in app.routes if isinstance(route, OperationRoute))
    return [operation for route in routes for operation in route.operations]


def _answer_of(annotation: Any) -> Any:
    """Return what a handler's answer is in JSON; None for an empty answer and for a response."""
    is_response = isinstance(annotation, type) and issubclass(annotation, Response)
    return None if is_response else annotation


def _query_of(signature: inspect.Signature) -> type[BaseModel] | None:
    for parameter in signature.parameters.values():
        if get_origin(parameter.annotation) is Annotated:
            model, *marks = get_args(parameter.annotation)
            if any(isinstance(mark, Query) for mark in marks) and issubclass(model, BaseModel):
                return cast(type[BaseModel], model)
    return None


def _endpoint(
    handler: Callable[..., Any], parameters: list[inspect.Parameter], status: int, *, parsed: bool
) -> Callable[..., Any]:
    """Return the coroutine that FastAPI calls: it parses the body, runs the handler and writes its answer."""
    is_coroutine = inspect.iscoroutinefunction(handler)

    async def endpoint(**given: Any) -> Response:
        workers: WorkerPool | None = given.pop(WORKERS, None)
        if workers is None:
            return respond(await handler(**given), status)
        if is_coroutine:
            return respond(await handler(**await workers.run(partial(_parsed, given))), status)
        return await workers.run(partial(_answered, handler, given, status))

    if parsed or not is_coroutine:
        parameters = [*parameters, inspect.Parameter(WORKERS, inspect.Parameter.KEYWORD_ONLY, annotation=WorkersDep)]
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # `inspect` reads it
    return endpoint


def _answered(handler: Callable[..., Any], given: dict[str, Any], status: int) -> Response:
    parsed = _parsed(given)
    return again_if_ended(lambda: respond(handler(**parsed), status))


def _parsed(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value.parse() if isinstance(value, Unparsed) else value for name, value in given.items()}


def respond(result: object, status: int = 200) -> Response:
    """Return a handler's result as the response; a model was checked when it was made, so it is only written."""
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(status_code=status)
    if isinstance(result, BaseModel):
        return Response(result.model_dump_json(by_alias=True), status, media_type=JSON_TYPE)
    return JSONResponse(cast(Any, result), status)
