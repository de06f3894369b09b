"""Write the parts of the OpenAPI document that FastAPI can't know, since `app.api.body` reads the bodies."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args, get_origin

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app import choices
from app.api import schemas
from app.api.body import FORM_TYPE, JSON_TYPE, RAW_TYPE, File, ImageFields
from app.api.operation import Operation
from app.api.schemas.base import PHOTO
from app.api.wire import WireFormat
from app.error_codes import BY_CODE, ERROR_CODES
from app.types import DoubtReason

Responses: TypeAlias = dict[int | str, dict[str, Any]]
"""FastAPI's ``responses``: the possible answers of an operation, by status."""
BINARY, TEXT = {"type": "string", "format": "binary"}, {"type": "string"}
TEXT_TYPES = frozenset({"text/plain", "text/csv", "application/x-ndjson", "text/event-stream"})
TAGS = [
    {"name": "recognition", "description": "Photos in, answers out."},
    {"name": "challenges", "description": "Steps that a person follows in front of a camera."},
    {"name": "galleries", "description": "Sets of enrolled people."},
    {"name": "subjects", "description": "The people of a gallery."},
    {"name": "faces", "description": "Their enrolled images."},
    {"name": "jobs", "description": "Work that outlasts a request."},
    {"name": "watching", "description": "Who was before a camera: sightings, strangers, events."},
    {"name": "access", "description": "Keys, the audit log and receipts of erasures."},
    {"name": "server", "description": "The server itself."},
]
"""The groups of operations on the page, in this order."""
REF = "#/components/schemas/{model}"
EXAMPLE_REF = "#/components/examples/{code}"
OTHER_FORMS = "x-other-content"
"""Name of the extension with a body's other forms; `content` has only the first. With one form, generated clients send
photos as a form; with several they use the last, or JSON, and send a file as `{}`."""
ERROR = {"$ref": REF.format(model=schemas.ErrorAnswer.__name__)}
DESCRIPTION = """\
Face recognition: detect, verify (1:1), enroll and identify (1:N).

Every call but `/livez`, `/readyz` and `/version` needs a key: `Authorization: Bearer KEY` or `x-api-key: KEY`. The
key needs the scope that `x-scope` names at each operation (`any`: every key; `admin` has all scopes). A key that is
restricted to galleries sees only those; if `x-unrestricted` is true, the key must not be restricted.
Send images as multipart fields; or as base64 in JSON or as the raw body, as `x-other-content` says of each operation.
Parameters come in the query, or beside the image as form or JSON fields. Scores are cosine similarities; decisions are
made at operating points, which you choose as error rates (`fmr`, `fpir`). Every error has the same shape; programs
should switch on its `code`.
"""


def responses(operation: Operation) -> Responses:
    """Return FastAPI's ``responses``: the successful answer with its example, and each error status with an example per
    code."""
    if operation.wire.name:
        error = {"description": f"An error, in the form that {operation.wire.name} gives it."}
        return {operation.status: _good_response(operation), "4XX": error, "5XX": error}
    by_status: dict[int | str, list[str]] = defaultdict(list)
    for code in operation.error_codes:
        by_status[BY_CODE[code].status].append(code)
    answers: Responses = {operation.status: _good_response(operation)}
    return answers | {status: _error_response(status, codes) for status, codes in sorted(by_status.items(), key=str)}


def request_body(operation: Operation) -> dict[str, Any] | None:
    """Return FastAPI's ``openapi_extra``: the body of an operation. Generators use the first of several forms."""
    model, images, content = operation.body, operation.images, dict[str, Any]()
    if operation.upload:
        content = _upload_content(operation.upload)
    elif model is None:
        return None
    else:
        reference = {"schema": {"$ref": REF.format(model=model.__name__)}}
        if images:
            content[FORM_TYPE] = reference | {"encoding": {key: {"contentType": "image/*"} for key in images.names}}
        content[JSON_TYPE] = {} if images else reference
        several = images is not None and images.many and not images.track
        photos = dict.fromkeys(images.names, [PHOTO, PHOTO] if several else PHOTO) if images else {}
        if example := photos | getattr(model, "example", {}):
            content[JSON_TYPE]["example"] = example
        if images and images.raw:
            content |= {kind: {} for kind in (RAW_TYPE, "image/*")}
    first, *others = content
    body: dict[str, Any] = {"required": True, "content": {first: content[first]}}
    if others:
        body |= {
            "description": f"Also as {', '.join(f'`{kind}`' for kind in others)}; JSON has images as base64.",
            OTHER_FORMS: {kind: content[kind] for kind in others},
        }
    return {"requestBody": body}


def document(
    app: FastAPI,
    operations: Sequence[Operation],
    wires: Iterable[WireFormat],
    webhooks: Sequence[type[BaseModel]] = (),
) -> dict[str, Any]:
    """Return the document of these operations of ``app``. ``wires``: its further wire formats; ``webhooks``: models of
    the messages that it sends."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=DESCRIPTION,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=[{"url": "/", "description": "The server that this document comes from."}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        contact={"name": "Likeness"},
    )
    components = document.setdefault("components", {})
    known = components.setdefault("schemas", {})
    _add_bodies(known, operations, webhooks)
    document |= {"webhooks": {model.__name__.lower(): _webhook(model) for model in webhooks}} if webhooks else {}
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "The key of `admin.key`, or one of `/v1/keys`."},
        "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key."},
    }
    for wire in wires:
        components["securitySchemes"] |= wire.security_schemes
        document["tags"].append({"name": wire.name, "description": wire.description})
    used = {tag for path in document["paths"].values() for operation in path.values() for tag in operation["tags"]}
    document["tags"] = [tag for tag in document["tags"] if tag["name"] in used]
    by_path = {(operation.method, operation.path): operation for operation in reversed(operations)}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _complete(operation, by_path[method.upper(), path], method, path)
    known |= {name: {"type": "string", "enum": list(words)} for words, name in _NAMED_SETS.items()}
    known["Problem"]["properties"]["code"] |= {"enum": [error.code for error in ERROR_CODES]}
    _tidy(document["paths"])
    for name, schema in known.items():
        if name not in _NAMED_SETS.values():
            _tidy({"properties": schema.get("properties", {})})
    text = repr(document)
    named, shown = (set(re.findall(form.format(model=r"(\w+)", code=r"(\w+)"), text)) for form in (REF, EXAMPLE_REF))
    components["schemas"] = {name: schema for name, schema in sorted(known.items()) if name in named}
    components["examples"] = {code: {"value": _error_example(code)} for code in sorted(shown)}
    return document


def _add_bodies(known: dict[str, Any], operations: Sequence[Operation], webhooks: Sequence[type[BaseModel]]) -> None:
    """Add the schemas of bodies, webhooks and errors, which no handler's signature names; remove FastAPI's errors."""
    models: dict[type[BaseModel], None] = {schemas.ErrorAnswer: None} | dict.fromkeys(webhooks)
    models |= {operation.body: None for operation in operations if operation.body}
    _, bodies = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    known |= {name: schema for name, schema in bodies["$defs"].items() if name not in known}
    for operation in operations:
        if operation.images and operation.body and operation.wire.forms:
            known[operation.body.__name__] = _form_schema(operation.body, operation.images)
    for superfluous in ("HTTPValidationError", "ValidationError"):
        known.pop(superfluous, None)


def _complete(operation: dict[str, Any], declared: Operation, method: str, path: str) -> None:
    """Complete what FastAPI says of an operation: its id, example, and the keys and scope that it needs."""
    operation["operationId"] = _operation_id(operation["operationId"], method, path, declared)
    operation.setdefault("description", f"{declared.wire.name}'s call. {declared.wire.description}")
    _complete_example(operation["responses"], declared)
    operation["security"] = [] if declared.public else [{name: []} for name in declared.wire.security]
    if not declared.public and declared.wire.takes_keys:
        operation.setdefault("x-scope", declared.scope or "any")
        operation["x-unrestricted"] = declared.unrestricted


_NAMED_SETS: Mapping[tuple[str, ...], str] = {
    get_args(kind): name for name, kind in vars(choices).items() if get_origin(kind) is Literal
} | {tuple(DoubtReason): "LivenessDoubt"}
"""Names of the closed sets of words. Each set is a schema with this name: generators would otherwise invent names, the
same one for two sets."""
_VALUES = frozenset({"example", "examples", "default", "enum", "const", "required"})
"""Fields of a schema that hold values, not schemas."""


def _tidy(value: Any) -> None:
    """Change the output of FastAPI and pydantic, below ``value``, to a form that generators of clients understand.

    Remove fields' `title`, which repeats their name; name closed sets; describe the items of tuples.
    """
    for schema in _schemas(value):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        if "prefixItems" in schema and "items" not in schema:
            schema["items"] = schema["prefixItems"][0]
        if name := _NAMED_SETS.get(tuple(schema.get("enum", [schema.get("const")]))):
            for replaced in {"enum", "const", "type"} & schema.keys():
                del schema[replaced]
            schema["$ref"] = REF.format(model=name)


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for key, inner in list(value.items()):
            if key == "properties":
                yield from (schema for field in inner.values() for schema in _schemas(field))
            elif key not in _VALUES:
                yield from _schemas(inner)
    elif isinstance(value, list):
        for item in value:
            yield from _schemas(item)


def _operation_id(made: str, method: str, path: str, declared: Operation) -> str:
    """Return the handler's name as the id, without the path that FastAPI adds, but with another service's name."""
    handler = made.removesuffix(f"{re.sub('[^0-9a-zA-Z]', '_', path)}_{method}").rstrip("_")
    prefix = re.sub("[^a-z]+", "_", (declared.wire.name or "").lower())
    return f"{prefix}_{handler}" if prefix else handler


def _complete_example(responses: dict[str, Any], declared: Operation) -> None:
    """Write the successful answer's example as the server sends it, since FastAPI leaves out nulls."""
    content = responses[str(declared.status)].get("content", {}).get(JSON_TYPE, {})
    example, answer = getattr(declared.answer, "example", None), declared.answer
    if content and example and isinstance(answer, type) and issubclass(answer, BaseModel):
        content["example"] = answer.model_validate(example).model_dump(mode="json", by_alias=True)


def _good_response(operation: Operation) -> dict[str, Any]:
    if operation.file:
        content = {kind: {"schema": TEXT if kind in TEXT_TYPES else BINARY} for kind in operation.file.media_types}
        return {"description": operation.file.description, "content": content}
    if not (isinstance(operation.answer, type) and issubclass(operation.answer, BaseModel)):
        return {"description": "Done."}
    description = (operation.answer.__doc__ or "Done.").split("\n")[0]
    return {"description": description, "content": {JSON_TYPE: {"example": getattr(operation.answer, "example", None)}}}


def _webhook(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of the requests to a webhook's address."""
    content = {"schema": {"$ref": REF.format(model=model.__name__)}, "example": getattr(model, "example", None)}
    body = {"required": True, "content": {JSON_TYPE: content}}
    taken = {"2XX": {"description": "Taken: it is not sent again."}}
    summary = (model.__doc__ or "").split("\n")[0]
    named = {"operationId": f"receive_{model.__name__.lower()}", "summary": summary, "security": []}
    return {"post": named | {"requestBody": body, "responses": taken}}


def _upload_content(upload: File) -> dict[str, Any]:
    file = BINARY | {"description": upload.description}
    form = {"type": "object", "properties": {upload.field: file}, "required": [upload.field]}
    return {kind: {"schema": form if kind == FORM_TYPE else file} for kind in upload.media_types}


def _error_response(status: int | str, codes: Iterable[str]) -> dict[str, Any]:
    codes = list(dict.fromkeys(codes))
    examples = {code: {"$ref": EXAMPLE_REF.format(code=code)} for code in codes}
    response: dict[str, Any] = {
        "description": " ".join(f"`{code}`: {BY_CODE[code].meaning}" for code in codes),
        # FastAPI's `model` would build a validator for each status of each operation at every start.
        "content": {JSON_TYPE: {"schema": ERROR, "examples": examples}},
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
    file = BINARY | {"description": "An image file."}
    many = {"type": "array", "items": file, "minItems": 1, "description": "Image files; repeat the field."}
    # Generators get one file, since they can't say "one or several"; our own clients know `x-repeats`.
    track = file | {"description": "An image file; with `track=true` repeat the field.", "x-repeats": True}
    schema["properties"] |= dict.fromkeys(wanted.names, track if wanted.track else many if wanted.many else file)
    return schema
