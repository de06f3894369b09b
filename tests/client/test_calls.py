"""The client writes its own paths; each call is one of the server's operations, with its answer and parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any

import pytest
from starlette.routing import Match

from app.api.route import OperationRoute
from app.api.routes import ROUTERS
from app.client import calls, server_calls
from app.client.call import Call

ROUTES = [route for router in ROUTERS for route in router.routes]
FUNCTIONS = [
    function
    for module in (calls, server_calls)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__
]
VALUES: dict[str, Any] = {
    "image": b"photo",
    "image1": b"photo",
    "image2": b"photo",
    "images": [b"photo"],
    "frames": [b"photo"],
    "tar": b"tar",
    "changes": {},
    "faces": ["a"],
    "scopes": ["read"],
}
"""An argument of each parameter that is no id."""


def routed(call: Call[Any]) -> OperationRoute:
    scope = {"type": "http", "method": call.method, "path": call.path, "root_path": ""}
    found: list[OperationRoute] = [route for route in ROUTES if route.matches(scope)[0] is Match.FULL]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_each_call_is_an_operation_of_the_server(function: Callable[..., Call[Any]]) -> None:
    parameters = inspect.signature(function).parameters.values()
    required = {one.name: VALUES.get(one.name, "a/b") for one in parameters if one.default is one.empty}
    call = function(**required)
    operation = routed(call).operation
    assert call.answer is (operation.answer or (bytes if operation.file else NoneType))
    query = operation.query.model_fields.keys() if operation.query else set()
    assert call.params.keys() <= query
    optional = {one.name for one in parameters if one.default is not one.empty}
    body = operation.body.model_fields.keys() if operation.body else set()
    renamed = {"key_id": "id", "csv": "format"}
    assert {renamed.get(name, name) for name in optional} <= query | body
