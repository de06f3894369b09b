"""The OpenAPI document: complete, true, and held against the running service by generated requests."""

from __future__ import annotations

import base64
import copy
import json
import re
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, TypeAlias

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import checks
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

from app.api import schemas
from app.api.routes import galleries
from app.error_codes import ERROR_CODES
from app.features.calibration import routes as calibration
from app.features.calibration.routes import GalleryCalibration
from app.features.challenges import routes as challenges
from app.features.reembedding.routes import Reembedding
from app.features.review.schemas import Review
from app.features.review.store import _actions
from app.main import own_operations
from tests.conftest import PROJECT
from tests.support.service import COLLINS

METHODS = {"get", "post", "patch", "delete", "put"}
PUBLIC = vars(schemas) | vars(calibration) | vars(challenges) | vars(galleries)
MODELS = [
    model for model in (*PUBLIC.values(), Review, Reembedding) if isinstance(model, type) and "example" in vars(model)
]
COMPATIBLE = {"CompreFace", "Amazon Rekognition", "DeepStack", "Immich"}
WITHOUT_EXAMPLE = {"image/jpeg", "text/plain", "text/event-stream", "application/x-ndjson", "application/x-tar"}
OPEN = {"/livez", "/readyz", "/version"}
WITHOUT_PARAMETERS = {"/metrics", "/v1/models", "/v1/server-key", "/v1/key", "/v1/sign-in"}
AS_TOLD = {"liveness_unavailable", "liveness_not_measured"}
"""Codes of 503 that a request asks for by requiring what this server doesn't have."""
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.fixture(scope="module")
def document(api: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/openapi.json").raise_for_status().json()
    return found


def with_every_form(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with a body's other forms beside the first: JSON has text where the form has files."""
    found = copy.deepcopy(document)
    for methods in found["paths"].values():
        for operation in methods.values():
            body = operation.get("requestBody", {})
            content = body.get("content", {})
            for kind, form in body.pop("x-other-content", {}).items():
                content[kind] = {"schema": {"type": "string", "format": "binary"}} | form
                if kind == "application/json" and "schema" not in form:
                    name = content["multipart/form-data"]["schema"]["$ref"].rpartition("/")[2]
                    text = json.dumps(found["components"]["schemas"][name]).replace(', "format": "binary"', "")
                    content[kind]["schema"] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, found in document["paths"].items()
        for method, operation in found.items()
        if method in METHODS and not set(operation["tags"]) & COMPATIBLE
    }


KEY_HEADERS = {"x-api-key", "authorization"}
"""What schemathesis makes up, and the client has."""
GALLERY = "/v1/galleries/{gallery}"
SUBJECT = f"{GALLERY}/subjects/{{subject}}"
OPERATIONS = [f"{operation.method} {operation.path}" for operation in own_operations() if not operation.streams]
"""Which ones there must be, and with which scope, is written down in tests/access/test_access.py."""
PHOTO_OPERATIONS = [
    "POST /v1/detect",
    "POST /v1/embed",
    "POST /v1/verify",
    f"POST {GALLERY}/identify",
    f"POST {SUBJECT}/verify",
    f"POST {SUBJECT}/faces",
]


def test_every_operation_says_what_it_does(operations: dict[str, dict[str, Any]]) -> None:
    for name, operation in operations.items():
        assert operation["summary"], name
        assert len(operation["description"]) > 20, name
        assert operation["tags"], name
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (name, parameter["name"])


def test_every_operation_has_an_example_of_its_good_answer(operations: dict[str, dict[str, Any]]) -> None:
    for name, operation in operations.items():
        (good,) = (code for code in operation["responses"] if code.startswith("2"))
        content = operation["responses"][good].get("content", {})
        if good == "204" or WITHOUT_EXAMPLE & set(content):
            continue
        assert content["application/json"]["example"], name
        assert "$ref" in content["application/json"]["schema"], name


def test_every_body_has_an_example_and_all_the_ways_it_may_come(operations: dict[str, dict[str, Any]]) -> None:
    for name, operation in operations.items():
        if "requestBody" not in operation:
            continue
        body = operation["requestBody"]
        (first,), others = body["content"], body.get("x-other-content", {})
        if first == "application/x-tar":
            continue
        assert (body["content"] | others)["application/json"]["example"], name
        assert all(kind in body["description"] for kind in others)
        if operation["tags"] == ["recognition"]:
            raw = set() if name == "POST /v1/verify" else {"application/octet-stream", "image/*"}
            assert (first, set(others)) == ("multipart/form-data", {"application/json"} | raw), name


def test_photos_are_files_of_a_form_for_generators(document: dict[str, Any]) -> None:
    """Told of several forms of one body, generators take JSON and write `{}` for a file."""
    schemas = document["components"]["schemas"]
    photos = [operation for name, operation in each_operation(document) if name in PHOTO_OPERATIONS]
    assert len(photos) == len(PHOTO_OPERATIONS)
    for operation in photos:
        (form,) = operation["requestBody"]["content"].values()
        fields = schemas[form["schema"]["$ref"].rpartition("/")[2]]["properties"]
        files = {key: field.get("items", field) for key, field in fields.items() if key.startswith("image")}
        assert files
        assert all((file["type"], file["format"]) == ("string", "binary") for file in files.values())


def each_operation(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_operations_have_their_handlers_names_once(document: dict[str, Any]) -> None:
    ids = {name: operation["operationId"] for name, operation in each_operation(document)}
    assert len(set(ids.values())) == len(ids)
    assert ids[f"POST {GALLERY}/identify"] == "identify"
    assert ids["POST /api/v1/recognition/recognize"] == "compreface_recognize"
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", found) for found in ids.values())


def test_an_errors_code_is_one_of_the_table(document: dict[str, Any]) -> None:
    assert document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] == [
        error.code for error in ERROR_CODES
    ]


def test_closed_sets_have_names_and_nothing_is_named_twice(document: dict[str, Any]) -> None:
    """A generator makes up `GalleryCalibration` for the words of `Gallery.calibration`, which is a schema's name."""
    found = document["components"]["schemas"]
    assert found["Gallery"]["properties"]["calibration"]["$ref"] == "#/components/schemas/CalibrationSource"
    for name, schema in found.items():
        for field, value in schema.get("properties", {}).items():
            assert not isinstance(value.get("title"), str)
            made_up = name + "".join(word.capitalize() for word in field.split("_"))
            assert "enum" not in value or made_up not in found, made_up


def test_ids_in_paths_have_patterns_that_their_examples_match(document: dict[str, Any]) -> None:
    for name, operation in each_operation(document):
        for parameter in operation.get("parameters", ()):
            schema = parameter["schema"]
            if parameter["in"] == "path" and name.split()[1].startswith("/v1/") and parameter["name"] != "challenge":
                assert all(re.search(schema["pattern"], example) for example in schema["examples"]), name


PORTABLE = re.compile(r"(?:[^\\]|\\(?:[.\-/sdw]|x[0-7][0-9a-f]))*")
"""What ECMAScript's patterns, PHP's, Java's, .NET's and Go's have in common; PHP's clients read ids byte by byte."""


def test_patterns_are_those_of_every_language(document: dict[str, Any]) -> None:
    r"""PHP's clients refused every id for `\\u0000`; in JavaScript `\\z` is the letter."""
    patterns = set(re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps(document)))
    assert len(patterns) > 8
    assert [pattern for pattern in map(json.loads, patterns) if not PORTABLE.fullmatch(pattern)] == []


def test_the_committed_document_is_the_servers(document: dict[str, Any]) -> None:
    """`make generated` writes it, and the clients, anew."""
    committed = json.loads((PROJECT / "docs" / "reference" / "openapi.json").read_text(encoding="utf-8"))
    assert committed == document


def test_every_operation_lists_its_error_codes_with_examples(
    operations: dict[str, dict[str, Any]], document: dict[str, Any]
) -> None:
    statuses = {error.code: str(error.status) for error in ERROR_CODES}
    for name, operation in operations.items():
        codes = []
        for status, response in operation["responses"].items():
            if status.startswith("2") or (name == "GET /readyz" and status == "503"):
                continue
            content = response["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}, (name, status)
            for code, reference in content["examples"].items():
                assert reference == {"$ref": f"#/components/examples/{code}"}
                example = document["components"]["examples"][code]
                assert statuses[code] == status
                schemas.ErrorAnswer.model_validate(example["value"])
                assert example["value"]["error"]["code"] == code
                assert f"`{code}`" in response["description"]
                codes.append(code)
        assert "internal_error" in codes
        if name.split()[1] not in {*OPEN, "/metrics"}:
            assert {"missing_key", "wrong_key", "overloaded", "invalid_request"} <= set(codes), name


def test_every_operation_but_the_open_ones_names_the_key(operations: dict[str, dict[str, Any]]) -> None:
    for name, operation in operations.items():
        expected: list[dict[str, list[str]]] = [] if name.split()[1] in OPEN else [{"bearer": []}, {"api_key": []}]
        assert operation["security"] == expected


def test_every_code_is_one_that_some_operation_answers(operations: dict[str, dict[str, Any]]) -> None:
    answered = {
        code
        for operation in operations.values()
        for response in operation["responses"].values()
        for code in response.get("content", {}).get("application/json", {}).get("examples", {})
    }
    assert {error.code for error in ERROR_CODES} - answered == {
        "not_found",
        "method_not_allowed",
        "invalid_http",
        "uri_too_long",
        "head_too_large",
    }


def test_every_operation_is_in_one_group_and_other_services_have_their_own(document: dict[str, Any]) -> None:
    found = [(operation["tags"], path) for path, methods in document["paths"].items() for operation in methods.values()]
    assert all(len(tags) == 1 for tags, _ in found)
    assert {tags[0] for tags, _ in found} == {tag["name"] for tag in document["tags"]}
    groups = {tags[0] for tags, path in found if not path.startswith("/v1/") or path.startswith("/v1/vision/")}
    assert groups == {"server", *COMPATIBLE}
    rekognition = document["paths"]["/"]["post"]
    assert "RekognitionService.SearchUsersByImage" in rekognition["parameters"][0]["schema"]["enum"]
    assert rekognition["x-scope"]["DeleteCollection"] == "admin"
    assert document["paths"]["/api/v1/recognition/recognize"]["post"]["x-scope"] == "recognize"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_examples_are_what_they_are_examples_of(model: Any) -> None:
    assert model.model_validate(model.example, strict=issubclass(model, schemas.Params))


def test_examples_do_not_contradict_themselves() -> None:
    answers = (Review, Reembedding, GalleryCalibration)
    assert [model.example["job"]["kind"] for model in answers] == ["review", "reembed", "calibrate"]
    (finding,) = Review.model_validate(Review.example).findings
    assert finding.other is not None
    assert (finding.face.face_id, finding.face.subject) != (finding.other.face_id, finding.other.subject)
    assert finding.actions == _actions(finding.kind, finding.face, finding.other, ())


Operation: TypeAlias = APIOperation[Any, Any, Any, Any]
Case: TypeAlias = schemathesis.Case[Any]


@dataclass(frozen=True)
class Inhabited:
    """Each operation as schemathesis reads it from the document, and path parameters that name somebody enrolled."""

    operations: dict[str, Operation]
    somebody: dict[str, str]

    def named(self, name: str) -> dict[str, str] | None:
        found = {key: value for key, value in self.somebody.items() if f"{{{key}}}" in name}
        return found or None


@pytest.fixture(scope="module")
def inhabited(api: httpx.Client, document: dict[str, Any]) -> Inhabited:
    api.post("/v1/galleries", json={"id": "inhabited"}).raise_for_status()
    path = "/v1/galleries/inhabited/subjects/eileen/faces"  # ids that no example has, so that nobody deletes them
    face_id = api.post(path, files={"images": COLLINS}).raise_for_status().json()["enrolled"][0]["face_id"]
    every = schemathesis.openapi.from_dict(with_every_form(document))
    found = [result.ok() for result in every.get_all_operations() if isinstance(result, Ok)]
    somebody = {"gallery": "inhabited", "subject": "eileen", "face_id": face_id}
    return Inhabited({operation.label: operation for operation in found}, somebody)


@pytest.fixture(scope="module")
def count(full: bool) -> int:
    """Requests that are generated for each operation, in each way; the same every time."""
    return 20 if full else 2


def hold(api: httpx.Client, cases: SearchStrategy[Case], count: int) -> None:
    """Sends generated requests and holds the answers against the document."""

    @seed(20260131)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case: Case) -> None:
        made = requests.Request(**case.as_transport_kwargs(base_url=str(api.base_url))).prepare()
        body: Any = made.body
        headers: Any = {name: value for name, value in made.headers.items() if name.lower() not in KEY_HEADERS}
        response = api.request(made.method or "", made.url or "", headers=headers, content=body)
        response.elapsed = timedelta()  # schemathesis wants to know, and in process nobody measures
        refused = response.status_code == HTTPStatus.SERVICE_UNAVAILABLE and response.json()["error"]["code"] in AS_TOLD
        case.validate_response(response, checks=CHECKS[1:] if refused else CHECKS)

    check()


ABOUT_SOMEBODY = [
    name for name in OPERATIONS if "{" in name and not name.startswith("DELETE") and not name.endswith("/erase")
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in ABOUT_SOMEBODY else name for name in OPERATIONS]
)
def test_requests_as_the_document_describes_them(
    api: httpx.Client, inhabited: Inhabited, name: str, count: int
) -> None:
    """Ids are made up: most operations with ids in their path answer 404, and are tried in the second stage."""
    hold(api, inhabited.operations[name].as_strategy(), count)


@pytest.mark.parametrize("name", ABOUT_SOMEBODY)
def test_requests_about_somebody_who_is_there(api: httpx.Client, inhabited: Inhabited, name: str, count: int) -> None:
    hold(api, inhabited.operations[name].as_strategy(path_parameters=inhabited.named(name)), count)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [name for name in OPERATIONS if name.split()[1] not in {*OPEN, *WITHOUT_PARAMETERS}],
)
def test_requests_against_what_the_document_says(
    api: httpx.Client, inhabited: Inhabited, name: str, count: int
) -> None:
    hold(api, inhabited.operations[name].as_strategy(generation_mode=GenerationMode.NEGATIVE), count)


@pytest.mark.parametrize("name", PHOTO_OPERATIONS)
def test_photos_with_generated_parameters(api: httpx.Client, inhabited: Inhabited, name: str, count: int) -> None:
    photo = base64.b64encode(COLLINS).decode()
    body = {"images": [photo]} if name.endswith("/faces") else {"image": photo}
    if name == "POST /v1/verify":
        body = {"image1": photo, "image2": photo}
    operation = inhabited.operations[name]
    cases = operation.as_strategy(path_parameters=inhabited.named(name), body=body, media_type="application/json")
    hold(api, cases, max(count // 2, 2))
