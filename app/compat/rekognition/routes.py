"""`POST /`: the one path of all operations, each named by the header `X-Amz-Target`."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import Scope

from app.access.audit import AuditEntry
from app.access.grants import Grant
from app.api.components import Components
from app.api.json_reader import load_json
from app.api.operation import Operation
from app.api.route import OperationRoute, Router
from app.compat.rekognition import requests
from app.compat.rekognition.call import Call
from app.compat.rekognition.endpoints import MODELS, TARGETS, document, find_target
from app.compat.rekognition.errors import FAULTS, THROUGHPUT, answer_of
from app.compat.rekognition.signatures import use_once
from app.compat.rekognition.sigv4 import Claim
from app.compat.rekognition.wire import CLAIM, MEDIA_TYPE, PATH, REKOGNITION, TARGET_HEADER, headers_of
from app.db.engine import again_if_ended
from app.errors import LikenessError, NotFound

JSON_COPIES = 3
"""Of a body while it is read: its text, the strings in it, and the largest of them in ASCII."""
_TRY_AGAIN = FAULTS | {THROUGHPUT}


class TargetRoute(OperationRoute):
    """A route whose operations are named by a header; its own declaration stands for an unknown one."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (self.operation, *(target.operation for target in TARGETS.values()))

    def operation_of(self, scope: Scope) -> Operation:
        target = find_target(Headers(scope=scope).get(TARGET_HEADER, ""))
        return self.operation if target is None else target.operation


router = Router(REKOGNITION.name, REKOGNITION, TargetRoute)


@router.operation("POST", PATH, scope=None, monitoring=True, more_models=MODELS, extra=document())
async def call(request: Request, components: Components, grant: Grant, entry: AuditEntry) -> Response:
    """Call an operation of Amazon Rekognition.

    The header `X-Amz-Target` names it. Request and answer have the shapes of AWS's API reference.
    """
    target = find_target(request.headers.get(TARGET_HEADER, ""))
    if target is None:
        raise NotFound("There is no such operation.")
    claim: Claim = request.scope[CLAIM]
    admission, signatures = components.admission, components.signatures
    body = await request.body()
    admission.take(len(body))

    used = False

    def work() -> dict[str, Any]:
        nonlocal used
        use_once(signatures, claim, request.headers, changes=target.operation.changes)
        used = True
        with admission.budget.hold(JSON_COPIES * len(body), threads=0):
            values = requests.read(target.model, load_json(body) if body else {})
        return again_if_ended(lambda: target.work(Call(components, grant, entry, claim.region), values))

    try:
        answer = await components.workers.run(work)
    except LikenessError as error:
        if used and answer_of(error).name in _TRY_AGAIN:
            # Clients retry, maybe within the same second.
            await components.workers.run(lambda: signatures.release(claim.signature))
        raise
    content = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    return Response(content, headers=headers_of(request.scope["request_id"]), media_type=MEDIA_TYPE)
