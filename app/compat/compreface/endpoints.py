"""CompreFace's operations, declared once: with the scopes and audit words of this service's own."""

from __future__ import annotations

from typing import Any

from app.access.grants import Scope
from app.api.openapi import COMPREFACE
from app.api.operation import AnyOperation, File, Operation
from app.compat.compreface import requests

PREFIX = "/api/v1/"
RECOGNITION = f"{PREFIX}recognition"
SUBJECTS = f"{RECOGNITION}/subjects"
SUBJECT = f"{SUBJECTS}/{{subject}}"
FACES = f"{RECOGNITION}/faces"
FACE = f"{FACES}/{{face_id}}"
IMAGE = File(("application/octet-stream",), "The aligned face, 112x112, as JPEG; empty if there is none.")


def _operation(name: str, method: str, path: str, scope: Scope, **declared: Any) -> AnyOperation:
    return Operation(name, method, path, dict, scope, compat=COMPREFACE, **declared)


def _with_file(name: str, path: str, scope: Scope, **declared: Any) -> AnyOperation:
    return _operation(name, "POST", path, scope, body=requests.FileRequest, images=requests.FILE, **declared)


def _with_embeddings(name: str, path: str) -> AnyOperation:
    return _operation(name, "POST", path, Scope.TEMPLATES, body=requests.EmbeddingsRequest)


LIST_SUBJECTS = _operation("list_subjects", "GET", SUBJECTS, Scope.READ)
LIST_SUBJECTS_SLASH = _operation("list_subjects", "GET", f"{SUBJECTS}/", Scope.READ)
CREATE_SUBJECT = _operation(
    "create_subject", "POST", SUBJECTS, Scope.ENROLL, changes=True, status=201, body=requests.SubjectRequest
)
RENAME_SUBJECT = _operation("rename_subject", "PUT", SUBJECT, Scope.ENROLL, changes=True, body=requests.SubjectRequest)
DELETE_SUBJECT = _operation("delete_subject", "DELETE", SUBJECT, Scope.DELETE, changes=True)
DELETE_ALL_SUBJECTS = _operation("delete_all_subjects", "DELETE", SUBJECTS, Scope.DELETE, changes=True)
LIST_FACES = _operation("list_faces", "GET", FACES, Scope.READ)
ADD_FACE = _with_file("enroll", FACES, Scope.ENROLL, changes=True, status=201)
DELETE_FACES_OF = _operation("delete_subject", "DELETE", FACES, Scope.DELETE, changes=True)
DELETE_FACES = _operation(
    "delete_faces", "POST", f"{FACES}/delete", Scope.DELETE, changes=True, body=requests.FaceIdList
)
DELETE_FACE = _operation("delete_face", "DELETE", FACE, Scope.DELETE, changes=True)
SHOW_IMAGE = _operation("show_crop", "GET", f"{FACE}/img", Scope.READ, file=IMAGE)
RECOGNIZE = _with_file("identify", f"{RECOGNITION}/recognize", Scope.RECOGNIZE)
VERIFY_FACE = _with_file("verify_face", f"{FACE}/verify", Scope.RECOGNIZE)
RECOGNIZE_EMBEDDINGS = _with_embeddings("identify", f"{RECOGNITION}/embeddings/recognize")
VERIFY_FACE_EMBEDDINGS = _with_embeddings("verify_face", f"{RECOGNITION}/embeddings/faces/{{face_id}}/verify")
DETECT = _with_file("detect", f"{PREFIX}detection/detect", Scope.RECOGNIZE)
VERIFY = _operation(
    "verify",
    "POST",
    f"{PREFIX}verification/verify",
    Scope.RECOGNIZE,
    body=requests.SourceAndTargetRequest,
    images=requests.SOURCE_AND_TARGET,
)
VERIFY_EMBEDDINGS = _operation(
    "verify",
    "POST",
    f"{PREFIX}verification/embeddings/verify",
    Scope.RECOGNIZE,
    body=requests.VerifyEmbeddingsRequest,
)
"""Both vectors are the caller's, so that no score says anything of an enrolled face."""

ENDPOINTS: tuple[AnyOperation, ...] = tuple(one for one in globals().copy().values() if isinstance(one, Operation))
"""All of the above."""


def endpoints_table() -> str:
    """Return each call with its scope and audit word as a Markdown table."""
    lines = ["| call | scope | in the audit log |", "|---|---|---|"]
    lines += [f"| `{one.method} {one.path}` | `{one.scope}` | `{one.name}` |" for one in ENDPOINTS]
    return "\n".join(lines)
