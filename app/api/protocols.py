"""Wire protocols: this service's own REST interface, or another service's that `app.compat` speaks.

A protocol knows which operation a request is, how its key is sent, and how an error looks. Everything else is the same
for all: keys and scopes, limits, the audit log, the operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.access.grants import Grant
from app.access.grants import Scope as KeyScope
from app.access.rate_limits import address_group
from app.api.auth import is_browser_path, required_key
from app.api.dependencies import Service
from app.api.endpoints import SIGN_IN
from app.api.operation import MatchedOperation, Operation, OperationTable
from app.api.problems import answer_problem
from app.errors import LikenessError

OWN_PREFIX = "/v1/"
"""Below it, a request that matches no operation needs an unrestricted `admin` key; elsewhere (`/docs`) any key."""


class WireProtocol(ABC):
    """``scope["path"]`` is the path as it was sent, percent-encoded."""

    @abstractmethod
    def speaks(self, scope: Scope) -> bool:
        """Return whether the request is in this protocol."""

    def match(self, scope: Scope) -> MatchedOperation | None:
        """Return the operation that the request is; None if it is none."""
        table: OperationTable = scope["app"].state.operations
        return table.match(scope["method"], scope["path"])

    @abstractmethod
    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:
        """Return the error in this protocol's form."""

    async def authenticate(self, scope: Scope, receive: Receive, service: Service) -> tuple[Grant, Receive]:
        """Return what the request's key allows, and where to read the body from.

        Raises InvalidInput (``missing_key``), and what `Guard.check` raises.
        """
        return await service.guard.check(_key_of(scope), address_of(scope)), receive


class OwnProtocol(WireProtocol):
    """This service's own REST interface."""

    def speaks(self, scope: Scope) -> bool:  # noqa: ARG002 (every request that is in no other protocol)
        return True

    def match(self, scope: Scope) -> MatchedOperation | None:
        method, path = scope["method"], scope["path"]
        found = super().match(scope)
        if found is None and path.startswith(OWN_PREFIX):
            return MatchedOperation(Operation("unknown", method, path, bytes, KeyScope.ADMIN, unrestricted=True))
        return found

    async def authenticate(self, scope: Scope, receive: Receive, service: Service) -> tuple[Grant, Receive]:
        if (scope["method"], scope["path"]) != (SIGN_IN.method, SIGN_IN.path):
            return await super().authenticate(scope, receive, service)
        code, address = _key_of(scope), address_of(scope)
        key = await service.guard.attempt(lambda: service.codes.spend(code), address)
        scope["signed_in_key"] = key
        return await service.guard.check(key, address), receive

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:
        found = answer_problem(error, request_id)
        if found.status == 401 and is_browser_path(path):
            found.headers["www-authenticate"] = 'Basic realm="Likeness"'
        return Response(found.body.model_dump_json(), found.status, found.headers, "application/json")


OWN = OwnProtocol()


def protocol_of(scope: Scope) -> WireProtocol:
    """Return the first of ``app.state.protocols`` that speaks the request; our own if none does."""
    others: tuple[WireProtocol, ...] = getattr(scope["app"].state, "protocols", ())
    return next((protocol for protocol in others if protocol.speaks(scope)), OWN)


def _key_of(scope: Scope) -> str:
    return required_key(Headers(scope=scope), scope["path"])


def callers_of(key_id: str, scope: Scope) -> tuple[str, str]:
    """Return whom a request counts for: its key, and its address."""
    return key_id, f"@{address_group(address_of(scope))}"


def address_of(scope: Scope) -> str:
    """Return the caller's address; empty if it is unknown."""
    client = scope.get("client")
    return client[0] if client else ""
