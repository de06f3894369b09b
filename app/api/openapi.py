"""The OpenAPI document: what FastAPI cannot see by itself, since bodies are taken apart by `app.api.body`."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api import schemas
from app.api.auth import OPEN_PATHS
from app.api.body import FORM_TYPE, JSON_TYPE, MANY_IMAGES, ONE_IMAGE, RAW_TYPE, TWO_IMAGES, ImageFields
from app.api.examples import ANSWERS, REQUESTS
from app.api.headers import CSP
from app.api.problems import BY_CODE
from app.api.rules import find_visit

Responses: TypeAlias = dict[int | str, dict[str, Any]]
"""FastAPI's word for what an operation may answer, by status."""
PAGE_PATH = "/docs"
ASSETS_PATH = "/docs/assets"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
REF = "#/components/schemas/{model}"
BODIES: tuple[tuple[type[BaseModel], ImageFields | None], ...] = (
    (schemas.DetectRequest, ONE_IMAGE),
    (schemas.EmbedRequest, ONE_IMAGE),
    (schemas.VerifyRequest, TWO_IMAGES),
    (schemas.SubjectVerifyRequest, ONE_IMAGE),
    (schemas.IdentifyRequest, ONE_IMAGE),
    (schemas.EnrollRequest, MANY_IMAGES),
    (schemas.GalleryCreate, None),
    (schemas.GalleryPatch, None),
    (schemas.ReembedStart, None),
    (schemas.SubjectCreate, None),
    (schemas.SubjectPatch, None),
    (schemas.FaceMove, None),
    (schemas.KeyCreate, None),
    (schemas.KeyRotate, None),
)
OPEN_CODES = ("internal_error",)
KEYED_CODES = (
    "missing_key",
    "wrong_key",
    "expired_key",
    "revoked_key",
    "rate_limited",
    "too_many_failures",
    "invalid_path",
    "internal_error",
    "not_ready",
)
"""Codes of every operation that needs the key."""
CALL_CODES = (
    "missing_scope",
    "invalid_request",
    "overloaded",
    "request_timeout",
    "shutting_down",
    "database_busy",
    "database_unavailable",
    "index_unavailable",
    "sealed_unreadable",
    "unusable",
)
"""Codes of every operation under /v1 besides."""
JSON_CODES = ("invalid_json", "unsupported_media_type", "payload_too_large", "body_timeout")
FORM_CODES = (*JSON_CODES, "invalid_multipart", "invalid_base64", "missing_image", "too_many_images")
IMAGE_CODES = (*FORM_CODES, "empty_image", "invalid_image", "unsupported_image", "image_too_large", "image_too_small")
DESCRIPTION = """\
Face recognition: detect, verify (1:1), enroll and identify (1:N).

Every call but `/livez`, `/readyz` and `/version` needs a key: `Authorization: Bearer KEY` or `x-api-key: KEY`. The
key needs the scope that `x-scope` names at each operation (`any`: every key will do; `admin` has all scopes), and sees
only the galleries it is restricted to. Where `x-unrestricted` is true, it may not be restricted.
Images come as multipart fields, as base64 in JSON, or as the raw body; parameters go into the query, or beside the
image as form or JSON fields. Scores are cosine similarities; decisions are made at operating points, asked for as
error rates (`fmr`, `fpir`). Every error has the same shape, and its `code` is what programs switch on.
"""


def errors(*codes: str) -> Responses:
    """FastAPI's ``responses``: each status with an example for each of its codes."""
    by_status: dict[int | str, list[str]] = defaultdict(list)
    for code in codes:
        by_status[BY_CODE[code].status].append(code)
    return {status: _error_response(status, found) for status, found in sorted(by_status.items(), key=str)}


def call_errors(*codes: str) -> Responses:
    """Those of an operation under /v1."""
    return errors(*KEYED_CODES, *CALL_CODES, *codes)


def answer(model: type[BaseModel], status: int = 200) -> Responses:
    """FastAPI's ``responses``: the example of a good answer."""
    description = (model.__doc__ or "").split("\n")[0] if model.__doc__ else "Done."
    return {status: {"description": description, "content": {JSON_TYPE: {"example": ANSWERS[model.__name__]}}}}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """FastAPI's ``openapi_extra``: the body of an operation, in all the ways it may come."""
    name = model.__name__
    wanted = dict(BODIES)[model]
    json_body = {"schema": {"$ref": REF.format(model=name)}, "example": REQUESTS[name]}
    content: dict[str, Any] = {}
    if wanted:
        content[FORM_TYPE] = {"schema": _form_schema(model, wanted)}
        if wanted.many:
            content[FORM_TYPE]["encoding"] = {wanted.names[0]: {"contentType": "image/*"}}
    content[JSON_TYPE] = json_body
    if wanted and wanted.raw:
        content[RAW_TYPE] = {"schema": {"type": "string", "format": "binary"}}
        content["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": content}}


def install(app: FastAPI) -> None:
    """Makes ``app`` serve the document with request models, security and nothing superfluous, and a page that shows it.

    The page's files are there already, at ``ASSETS_PATH``.
    """
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=app.title,
        swagger_js_url=f"{ASSETS_PATH}/swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS_PATH}/swagger-ui.css",
        swagger_favicon_url=f"{ASSETS_PATH}/favicon.png",
    )
    html = bytes(page.body).decode()
    policy = _page_policy(html)

    @app.get(PAGE_PATH, include_in_schema=False)
    async def show() -> Response:
        return HTMLResponse(html, headers={CSP: policy})

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _page_policy(html: str) -> str:
    """The page's own files and its own script, known by its hash; styles as Swagger UI sets them, on elements."""
    scripts = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in _SCRIPT.findall(html)]
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src 'self'", *(f"'sha256-{digest}'" for digest in scripts))),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes, tags=app.openapi_tags
    )
    components = document.setdefault("components", {})
    _, bodies = models_json_schema([(model, "validation") for model, _ in BODIES], ref_template=REF)
    known = components.setdefault("schemas", {})
    known |= {name: schema for name, schema in bodies["$defs"].items() if name not in known}
    for superfluous in ("HTTPValidationError", "ValidationError"):
        known.pop(superfluous, None)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "The key of `admin.key`, or one of `/v1/keys`."},
        "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["security"] = [] if path in OPEN_PATHS else [{"bearer": []}, {"api_key": []}]
            visit = find_visit(method.upper(), path)
            if path not in OPEN_PATHS:
                operation["x-scope"] = (visit.rule.scope if visit else None) or "any"
                operation["x-unrestricted"] = visit.rule.everywhere if visit else False
    return document


def _error_response(status: int | str, codes: Iterable[str]) -> dict[str, Any]:
    codes = list(dict.fromkeys(codes))
    response: dict[str, Any] = {
        "model": schemas.ErrorAnswer,
        "description": " ".join(f"`{code}`: {BY_CODE[code].meaning}" for code in codes),
        "content": {JSON_TYPE: {"examples": {code: {"value": _error_example(code)} for code in codes}}},
    }
    if status == 429:
        response["headers"] = {
            "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
        }
    return response


def _error_example(code: str) -> dict[str, Any]:
    problem = {"code": code, "message": BY_CODE[code].meaning, "details": {}}
    return {"error": problem, "request_id": "4f1d8f0c2b7e4c4f8a55f3b1f0e7d9aa"}


def _form_schema(model: type[BaseModel], wanted: ImageFields) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=REF)
    file = {"type": "string", "format": "binary", "description": "An image file."}
    many = {"type": "array", "items": file, "minItems": 1, "description": "Image files; repeat the field."}
    schema["properties"] |= dict.fromkeys(wanted.names, many if wanted.many else file)
    schema["title"] = f"{model.__name__}Form"
    return schema
