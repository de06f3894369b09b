"""Rekognition's operations, declared once: request model, scope, audit word, and the function that does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from app.access.grants import Scope
from app.api.body import ImageFields
from app.api.openapi import REF
from app.api.operation import Operation
from app.compat.rekognition import collections, recognition, requests, users
from app.compat.rekognition.answers import Shape
from app.compat.rekognition.call import Call
from app.compat.rekognition.wire import MEDIA_TYPE, PATH, REKOGNITION

TARGET_PREFIX = "RekognitionService."


@dataclass(frozen=True, slots=True)
class Target:
    """An operation that the header `X-Amz-Target` names."""

    operation: Operation
    model: type[requests.RekognitionModel]
    work: Callable[[Call, Any], Shape]


def _target(
    name: str,
    scope: Scope,
    model: type[requests.RekognitionModel],
    work: Callable[[Call, Any], Shape],
    *,
    images: tuple[str, ...] = (),
    changes: bool = False,
    unrestricted: bool = False,
) -> Target:
    operation = Operation(
        name,
        "POST",
        PATH,
        scope,
        changes=changes,
        unrestricted=unrestricted,
        images=ImageFields(images) if images else None,
        wire=REKOGNITION,
    )
    return Target(operation, model, work)


READ, RECOGNIZE, ENROLL, DELETE, ADMIN = Scope.READ, Scope.RECOGNIZE, Scope.ENROLL, Scope.DELETE, Scope.ADMIN
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "CreateCollection": _target(
            "create_gallery", ADMIN, requests.CreateCollection, collections.create, changes=True, unrestricted=True
        ),
        "DescribeCollection": _target("show_gallery", READ, requests.CollectionRequest, collections.describe),
        "ListCollections": _target("list_galleries", READ, requests.ListCollections, collections.list_all),
        "DeleteCollection": _target(
            "delete_gallery", ADMIN, requests.CollectionRequest, collections.delete, changes=True, unrestricted=True
        ),
        "IndexFaces": _target(
            "enroll", ENROLL, requests.IndexFaces, collections.index_faces, images=("Image",), changes=True
        ),
        "ListFaces": _target("list_faces", READ, requests.ListFaces, collections.list_faces),
        "DeleteFaces": _target("delete_faces", DELETE, requests.DeleteFaces, collections.delete_faces, changes=True),
        "SearchFaces": _target("identify", RECOGNIZE, requests.SearchFaces, recognition.search),
        "SearchFacesByImage": _target(
            "identify", RECOGNIZE, requests.SearchFacesByImage, recognition.search_by_image, images=("Image",)
        ),
        "CompareFaces": _target(
            "verify", RECOGNIZE, requests.CompareFaces, recognition.compare, images=("SourceImage", "TargetImage")
        ),
        "DetectFaces": _target("detect", RECOGNIZE, requests.DetectFaces, recognition.detect, images=("Image",)),
        "CreateUser": _target("create_subject", ENROLL, requests.UserRequest, users.create, changes=True),
        "DeleteUser": _target("dissolve_subject", DELETE, requests.UserRequest, users.delete, changes=True),
        "ListUsers": _target("list_subjects", READ, requests.ListUsers, users.list_all),
        "AssociateFaces": _target("move_faces", ENROLL, requests.AssociateFaces, users.associate, changes=True),
        "DisassociateFaces": _target(
            "move_faces", ENROLL, requests.DisassociateFaces, users.disassociate, changes=True
        ),
        "SearchUsers": _target("identify", RECOGNIZE, requests.SearchUsers, users.search),
        "SearchUsersByImage": _target(
            "identify", RECOGNIZE, requests.SearchUsersByImage, users.search_by_image, images=("Image",)
        ),
    }
)


MODELS = tuple({one.model: None for one in TARGETS.values()})


def find_target(target: str) -> Target | None:
    """Return what a request's `X-Amz-Target` names."""
    return TARGETS.get(target.removeprefix(TARGET_PREFIX)) if target.startswith(TARGET_PREFIX) else None


def document() -> dict[str, Any]:
    """Return what the OpenAPI document says of the one path beyond its summary and description."""
    target = {
        "name": "X-Amz-Target",
        "in": "header",
        "required": True,
        "description": "The operation.",
        "schema": {"type": "string", "enum": [TARGET_PREFIX + name for name in TARGETS]},
    }
    schema = {"anyOf": [{"$ref": REF.format(model=model.__name__)} for model in MODELS]}
    return {
        "parameters": [target],
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": schema}}},
        "x-scope": {name: str(one.operation.scope) for name, one in TARGETS.items()},
    }


def endpoints_table() -> str:
    """Return each operation with its scope and audit word as a Markdown table."""
    lines = ["| operation | scope | in the audit log |", "|---|---|---|"]
    for name, one in TARGETS.items():
        declared = one.operation
        lines.append(f"| `{name}`{'*' if declared.unrestricted else ''} | `{declared.scope}` | `{declared.name}` |")
    return "\n".join(lines)
