"""Rekognition's operations: what each asks, which of ours it is, and who does it.

`python -m app.doors.rekognition.rules` prints the table of docs/reference/drop-ins.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from app.access.records import Scope
from app.api.rules import Rule
from app.doors.rekognition import asked, collections, faces, recognition, users
from app.doors.rekognition.call import Call
from app.doors.rekognition.shapes import Shape

PATH = "/"
TARGET_PREFIX = "RekognitionService."


@dataclass(frozen=True, slots=True)
class Operation:
    """``images``: how many a request may hold, which decides how long it may be."""

    rule: Rule
    model: type[asked.Asked]
    work: Callable[[Call, Any], Shape]
    images: int = 0


def _operation(
    name: str,
    scope: Scope,
    model: type[asked.Asked],
    work: Callable[[Call, Any], Shape],
    *,
    images: int = 0,
    changes: bool = False,
    everywhere: bool = False,
) -> Operation:
    return Operation(Rule("POST", PATH, name, scope, changes, everywhere), model, work, images)


READ, RECOGNIZE, ENROLL, ADMIN = Scope.READ, Scope.RECOGNIZE, Scope.ENROLL, Scope.ADMIN
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "CreateCollection": _operation(
            "create_gallery", ADMIN, asked.CreateCollection, collections.create, changes=True, everywhere=True
        ),
        "DescribeCollection": _operation("show_gallery", READ, asked.OfCollection, collections.describe),
        "ListCollections": _operation("list_galleries", READ, asked.ListCollections, collections.list_all),
        "DeleteCollection": _operation(
            "delete_gallery", ADMIN, asked.OfCollection, collections.delete, changes=True, everywhere=True
        ),
        "IndexFaces": _operation("enroll", ENROLL, asked.IndexFaces, faces.index, images=1, changes=True),
        "ListFaces": _operation("list_faces", READ, asked.ListFaces, faces.list_all),
        "DeleteFaces": _operation("delete_faces", ENROLL, asked.DeleteFaces, faces.delete, changes=True),
        "SearchFaces": _operation("identify", RECOGNIZE, asked.SearchFaces, recognition.search),
        "SearchFacesByImage": _operation(
            "identify", RECOGNIZE, asked.SearchFacesByImage, recognition.search_by_image, images=1
        ),
        "CompareFaces": _operation("verify", RECOGNIZE, asked.CompareFaces, recognition.compare, images=2),
        "DetectFaces": _operation("detect", RECOGNIZE, asked.DetectFaces, recognition.detect, images=1),
        "CreateUser": _operation("create_subject", ENROLL, asked.OfUser, users.create, changes=True),
        "DeleteUser": _operation("dissolve_subject", ENROLL, asked.OfUser, users.delete, changes=True),
        "ListUsers": _operation("list_subjects", READ, asked.ListUsers, users.list_all),
        "AssociateFaces": _operation("move_faces", ENROLL, asked.AssociateFaces, users.associate, changes=True),
        "DisassociateFaces": _operation(
            "move_faces", ENROLL, asked.DisassociateFaces, users.disassociate, changes=True
        ),
        "SearchUsers": _operation("identify", RECOGNIZE, asked.SearchUsers, users.search),
        "SearchUsersByImage": _operation(
            "identify", RECOGNIZE, asked.SearchUsersByImage, users.search_by_image, images=1
        ),
    }
)


def find_operation(target: str) -> Operation | None:
    """By the request's `X-Amz-Target`."""
    return OPERATIONS.get(target.removeprefix(TARGET_PREFIX)) if target.startswith(TARGET_PREFIX) else None


def rules_table() -> str:
    """Operation, scope and the audit log's word as a Markdown table."""
    lines = ["| operation | scope | in the audit log |", "|---|---|---|"]
    for name, one in OPERATIONS.items():
        lines.append(f"| `{name}`{'*' if one.rule.everywhere else ''} | `{one.rule.scope}` | `{one.rule.name}` |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(rules_table() + "\n")
