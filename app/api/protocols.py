"""What a request is written in: our own API, or another service's wire format (`app.compat`).

A dialect knows which operation of ours a request is, how its key is given, and how an error looks. All else is the same
for everybody: keys and scopes, room in the house, the audit log, the operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.access.grants import Grant
from app.api.auth import is_browser_path
from app.api.problems import answer_problem
from app.api.rules import Visit, find_visit
from app.api.service import Service
from app.errors import LikenessError


class Dialect(ABC):
    """``scope["path"]`` is the path as it was sent, percent-encoded."""

    reads_first: ClassVar[bool] = False
    """Whether `enter` reads the body, for which there has to be room."""

    @abstractmethod
    def speaks(self, scope: Scope) -> bool:
        """Whether the request is in this dialect."""

    @abstractmethod
    def visit(self, scope: Scope) -> Visit | None:
        """Which operation the request is; None: none that needs a scope."""

    @abstractmethod
    def answer(self, error: LikenessError, request_id: str, path: str) -> Response:
        """The error as this dialect has it."""

    async def enter(self, scope: Scope, receive: Receive, service: Service) -> tuple[Grant, Receive]:
        """What the request's key allows, and what its body is read from thereafter. Raises what `Guard.check` does."""
        return await service.guard.check(Headers(scope=scope), scope["path"], address_of(scope)), receive


class Own(Dialect):
    """Our own API."""

    def speaks(self, scope: Scope) -> bool:  # noqa: ARG002 (whatever nobody else does)
        return True

    def visit(self, scope: Scope) -> Visit | None:
        return find_visit(scope["method"], scope["path"])

    def answer(self, error: LikenessError, request_id: str, path: str) -> Response:
        found = answer_problem(error, request_id)
        if found.status == 401 and is_browser_path(path):
            found.headers["www-authenticate"] = 'Basic realm="Likeness"'
        return Response(found.body.model_dump_json(), found.status, found.headers, "application/json")


OWN = Own()


def dialect_of(scope: Scope) -> Dialect:
    """The first of ``app.state.dialects`` that speaks the request; our own otherwise."""
    others: tuple[Dialect, ...] = getattr(scope["app"].state, "dialects", ())
    return next((dialect for dialect in others if dialect.speaks(scope)), OWN)


def address_of(scope: Scope) -> str:
    """The caller's; empty where there is none to be known."""
    client = scope.get("client")
    return client[0] if client else ""
