"""Rekognition's operations, and their only path, `POST /`: the header `X-Amz-Target` names the operation."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from starlette import types
from starlette.datastructures import Headers

from app.access.audit import AuditEntry
from app.access.grants import Grant, Scope
from app.api.body import COSTLY_BYTES, ImageFields
from app.api.components import Components
from app.api.json_reader import load_json
from app.api.openapi import REF
from app.api.operation import Operation
from app.api.route import OperationRoute, Router
from app.db.engine import again_if_overtaken
from app.errors import LikenessError, NotFound
from app.features.one_time import SeenSignatures
from app.features.rekognition import collections, recognition, requests, users
from app.features.rekognition.answers import Shape
from app.features.rekognition.call import Call
from app.features.rekognition.errors import FAULTS, THROUGHPUT, answer_of
from app.features.rekognition.sigv4 import Claim
from app.features.rekognition.wire import CLAIM, MEDIA_TYPE, PATH, REKOGNITION, TARGET_HEADER, headers_of, use_once

TARGET_PREFIX = "RekognitionService."


@dataclass(frozen=True, slots=True)
class Target:
    """An operation that the header `X-Amz-Target` names."""

    operation: Operation
    model: type[requests.RekognitionModel]
    work: Callable[[Call, Any], Shape]


def _target(
    name: str, scope: Scope, work: Callable[..., Shape], *, changes: bool = False, unrestricted: bool = False
) -> Target:
    """Return a target; the annotation of ``work``'s parameter ``wanted`` says which model and images its request
    has."""
    model = inspect.signature(work, eval_str=True).parameters["wanted"].annotation
    images = tuple(name for name, field in model.model_fields.items() if field.annotation is requests.ImageSource)
    operation = Operation(
        name,
        "POST",
        PATH,
        scope,
        changes=changes,
        unrestricted=unrestricted,
        body=model,
        images=ImageFields(images) if images else None,
        wire=REKOGNITION,
    )
    return Target(operation, model, work)


READ, RECOGNIZE, ENROLL, DELETE, ADMIN = Scope.READ, Scope.RECOGNIZE, Scope.ENROLL, Scope.DELETE, Scope.ADMIN
TARGETS: Mapping[str, Target] = {
    "CreateCollection": _target("create_gallery", ADMIN, collections.create, changes=True, unrestricted=True),
    "DescribeCollection": _target("show_gallery", READ, collections.describe),
    "ListCollections": _target("list_galleries", READ, collections.list_all),
    "DeleteCollection": _target("delete_gallery", ADMIN, collections.delete, changes=True, unrestricted=True),
    "IndexFaces": _target("enroll", ENROLL, collections.index_faces, changes=True),
    "ListFaces": _target("list_faces", READ, collections.list_faces),
    "DeleteFaces": _target("delete_faces", DELETE, collections.delete_faces, changes=True),
    "SearchFaces": _target("identify", RECOGNIZE, recognition.search),
    "SearchFacesByImage": _target("identify", RECOGNIZE, recognition.search_by_image),
    "CompareFaces": _target("verify", RECOGNIZE, recognition.compare),
    "DetectFaces": _target("detect", RECOGNIZE, recognition.detect),
    "CreateUser": _target("create_subject", ENROLL, users.create, changes=True),
    "DeleteUser": _target("dissolve_subject", DELETE, users.delete, changes=True),
    "ListUsers": _target("list_subjects", READ, users.list_all),
    "AssociateFaces": _target("move_faces", ENROLL, users.associate, changes=True),
    "DisassociateFaces": _target("move_faces", ENROLL, users.disassociate, changes=True),
    "SearchUsers": _target("identify", RECOGNIZE, users.search),
    "SearchUsersByImage": _target("identify", RECOGNIZE, users.search_by_image),
}
MODELS = tuple({target.model: None for target in TARGETS.values()})


def find_target(target: str) -> Target | None:
    return TARGETS.get(target.removeprefix(TARGET_PREFIX)) if target.startswith(TARGET_PREFIX) else None


def document() -> dict[str, Any]:
    """Return the path's part of the OpenAPI document, except summary and description."""
    header = {
        "name": "X-Amz-Target",
        "in": "header",
        "required": True,
        "description": "The operation.",
        "schema": {"type": "string", "enum": [TARGET_PREFIX + name for name in TARGETS]},
    }
    schema = {"anyOf": [{"$ref": REF.format(model=model.__name__)} for model in MODELS]}
    return {
        "parameters": [header],
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": schema}}},
        "x-scope": {name: str(target.operation.scope) for name, target in TARGETS.items()},
    }


_TRY_AGAIN = FAULTS | {THROUGHPUT}


class TargetRoute(OperationRoute):
    """A route whose operation is named by a header. For an unknown name, its own declaration is used."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (self.operation, *(target.operation for target in TARGETS.values()))

    async def handle(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        if (target := find_target(Headers(scope=scope).get(TARGET_HEADER, ""))) is not None:
            scope["operation"] = target.operation
        await super().handle(scope, receive, send)


router = Router(REKOGNITION.name, REKOGNITION, TargetRoute)


@router.operation("POST", PATH, scope=None, monitoring=True, extra=document())
async def call(
    request: Request, components: Components, seen_signatures: SeenSignatures, grant: Grant, entry: AuditEntry
) -> Response:
    """Call an operation of Amazon Rekognition.

    The header `X-Amz-Target` names it. Request and answer have the shapes of AWS's API reference.
    """
    name = request.headers.get(TARGET_HEADER, "")
    target = find_target(name)
    if target is None:
        raise NotFound("There is no such operation.")
    claim: Claim = request.scope[CLAIM]
    called = Call(components, grant, entry, name.removeprefix(TARGET_PREFIX), claim.region)
    body = await request.body()
    components.admission.count_bytes(len(body))

    used = False

    def parse() -> Any:
        return requests.read(target.model, load_json(body) if body else {})

    def work() -> dict[str, Any]:
        nonlocal used
        use_once(seen_signatures, claim, request.headers, changes=target.operation.changes)
        used = True
        values = components.parsing.run(parse, costly=len(body) >= COSTLY_BYTES)
        return again_if_overtaken(lambda: target.work(called, values))

    try:
        answer = await components.workers.run(work)
    except LikenessError as error:
        if used and answer_of(error).name in _TRY_AGAIN:
            # A client may retry within the same second, with the same signature.
            await components.workers.run(lambda: seen_signatures.release(claim.signature))
        raise
    content = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    return Response(content, headers=headers_of(request.scope["request_id"]), media_type=MEDIA_TYPE)


def endpoints_table() -> str:
    """Return a Markdown table of the operations, with their scopes and their names in the audit log."""
    lines = ["| operation | scope | in the audit log |", "|---|---|---|"]
    for name, target in TARGETS.items():
        declared = target.operation
        lines.append(f"| `{name}`{'*' if declared.unrestricted else ''} | `{declared.scope}` | `{declared.name}` |")
    return "\n".join(lines)
