"""Wire formats: this service's own REST interface, or another service's that `app.compat` speaks.

A wire format says how a key is sent and how an error looks. Everything else is the same for all: keys and scopes,
limits, the audit log, the operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.access.grants import Grant
from app.access.rate_limits import address_group
from app.api.auth import is_browser_path, required_key
from app.api.components import Components
from app.api.problems import answer_problem
from app.errors import LikenessError

Authenticate: TypeAlias = Callable[[Scope, Receive, Components], Awaitable[tuple[Grant, Receive]]]
"""Returns what the request's key allows, and where to read the body from; raises LikenessError."""


class WireFormat(ABC):
    """``scope["path"]`` is the path as it was sent, percent-encoded."""

    name: ClassVar[str | None] = None
    """The other service's; None: our own."""
    security: ClassVar[Sequence[str]]
    """The ways to send a key, by their names in the OpenAPI document."""
    security_schemes: ClassVar[Mapping[str, Any]] = {}
    """Those that are its alone, as the document describes them."""
    description: ClassVar[str] = ""
    """Of its operations, for the document."""
    strict: ClassVar[bool] = False
    """Whether parameters in the query that are unknown or given twice are errors."""

    @abstractmethod
    def speaks(self, scope: Scope) -> bool:
        """Return whether a request that no route took is in this format."""

    @abstractmethod
    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:
        """Return the error in this format."""

    async def authenticate(self, scope: Scope, receive: Receive, components: Components) -> tuple[Grant, Receive]:
        """Return what the request's key allows, and where to read the body from.

        Raises InvalidInput (``missing_key``), and what `Guard.check` raises.
        """
        return await components.guard.check(key_of(scope), address_of(scope)), receive


class OwnFormat(WireFormat):
    """This service's own REST interface."""

    security = ("bearer", "api_key")
    strict = True

    def speaks(self, scope: Scope) -> bool:  # noqa: ARG002 (every request that is in no other format)
        return True

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:
        found = answer_problem(error, request_id)
        if found.status == 401 and is_browser_path(path):
            found.headers["www-authenticate"] = 'Basic realm="Likeness"'
        return Response(found.body.model_dump_json(), found.status, found.headers, "application/json")


OWN = OwnFormat()


def key_of(scope: Scope) -> str:
    """Return the key that a request sends. Raises InvalidInput (``missing_key``)."""
    return required_key(Headers(scope=scope), scope["path"])


def callers_of(key_id: str, scope: Scope) -> tuple[str, str]:
    """Return whom a request counts for: its key, and its address."""
    return key_id, f"@{address_group(address_of(scope))}"


def address_of(scope: Scope) -> str:
    """Return the caller's address; empty if it is unknown."""
    client = scope.get("client")
    return client[0] if client else ""
