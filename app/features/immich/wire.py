"""The wire format of Immich's machine learning: no key, and errors as `{"detail"}`."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.access.grants import Grant
from app.access.grants import Scope as KeyScope
from app.api.components import Components
from app.api.wire import WireFormat, answer_problem, given_key
from app.errors import LikenessError

PING, PREDICT = "/ping", "/predict"
Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]
KEYLESS = Grant("immich.networks", frozenset({KeyScope.RECOGNIZE}), frozenset())
"""What an address in the setting's networks may do without a key: recognise, but without any gallery. A real key's id
can't contain a dot."""


class ImmichFormat(WireFormat):
    """The format of `/ping` and `/predict`."""

    name = "Immich"
    security = ("api_key", "bearer")
    description = "What Immich's server asks of its machine learning (docs/how-to/immich.md)."

    def speaks(self, scope: Scope) -> bool:
        return scope["path"] in {PING, PREDICT}

    async def authenticate(self, scope: Scope, receive: Receive, components: Components) -> tuple[Grant, Receive]:
        """Return what the key may do; KEYLESS if there is none and the address needs none."""
        if given_key(Headers(scope=scope), scope["path"]) is None:
            networks: Networks = components.parts["immich"].networks
            if _is_in(scope["address"], networks):
                return KEYLESS, receive
        return await super().authenticate(scope, receive, components)

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (not in it)
        ours = answer_problem(error, "")
        content = json.dumps({"detail": ours.body.error.message}, ensure_ascii=False)
        return Response(content, ours.status, ours.headers, "application/json")


IMMICH = ImmichFormat()


def _is_in(address: str, networks: Networks) -> bool:
    try:
        caller = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(caller, ipaddress.IPv6Address) and caller.ipv4_mapped:
        caller = caller.ipv4_mapped
    return any(caller in network for network in networks)
