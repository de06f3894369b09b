"""Binds handlers to declared operations, and adds them to the application."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from pydantic import BaseModel

from app.api import openapi
from app.api.dependencies import Service
from app.api.operation import AnyOperation, OperationTable

Handler = TypeVar("Handler", bound=Callable[..., object])


class Router:
    """The handlers of one group of operations; ``tag`` is the group's name on `/docs`."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.operations: list[AnyOperation] = []
        self.routes = APIRouter()

    def handles(
        self, operation: AnyOperation, responses: openapi.Responses | None = None, **extra: Any
    ) -> Callable[[Handler], Handler]:
        """Make the decorated function the operation's handler. One that isn't a coroutine runs in a worker thread.

        The first line of its docstring is the operation's summary, the rest its description.
        ``responses`` are further ones, ``extra`` goes to FastAPI.
        """
        if issubclass(operation.answer, BaseModel):
            extra["response_model"] = operation.answer
        if operation.file:
            extra["response_class"] = Response
        extra.setdefault("openapi_extra", openapi.request_body(operation))

        def bind(handler: Handler) -> Handler:
            summary, _, description = (inspect.getdoc(handler) or "").partition("\n")
            self.routes.add_api_route(
                operation.path,
                handler if inspect.iscoroutinefunction(handler) else _in_worker(handler),
                methods=[operation.method],
                status_code=operation.status,
                tags=[self.tag],
                summary=summary.removesuffix("."),
                description=description.strip(),
                responses=openapi.responses(operation) | (responses or {}),
                **extra,
            )
            self.operations.append(operation)
            return handler

        return bind


def _in_worker(handler: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    """Return a coroutine with the same parameters that runs the handler in a worker thread of its ``service``."""

    @wraps(handler)
    async def run(service: Service, **given: object) -> object:
        return await service.run(lambda: handler(service=service, **given))

    return run


def add_routers(app: FastAPI, routers: Iterable[Router]) -> None:
    """Add the operations of the routers to the application."""
    table: OperationTable = app.state.operations
    for router in routers:
        # Not `include_router`: FastAPI would then look each route up twice at each request, for 0.1 ms.
        app.router.routes.extend(router.routes.routes)
        for operation in router.operations:
            table.add(operation)
