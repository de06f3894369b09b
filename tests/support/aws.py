"""Run boto3 against our server, and check each answer, as it is sent, against botocore's own model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.model import OperationModel, Shape

REGION = "eu-central-1"
CONTENT_TYPE = "application/x-amz-json-1.1"
SIMPLE: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
    "blob": (str,),
}


def client(url: str, access_key: str | None = None, secret: str | None = None, **options: Any) -> Any:
    """Return an unmodified client, whose answers are checked on the way in."""
    made = boto3.client(
        "rekognition",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 6}, **options),
    )
    made.meta.events.register("before-parse.rekognition", check_answer)
    return made


def check(shape: Shape, value: Any, place: str) -> None:
    """Fail if a member is unknown to the shape, required but missing, of a wrong type, or out of bounds."""
    kind = shape.type_name
    if kind == "structure":
        assert isinstance(value, dict), place
        unknown = set(value) - set(shape.members)
        assert not unknown, f"{place}: {unknown} are not the shape's"
        missing = set(shape.required_members) - set(value)
        assert not missing, f"{place}: {missing} are missing"
        for name, found in value.items():
            check(shape.members[name], found, f"{place}.{name}")
    elif kind == "list":
        assert isinstance(value, list), place
        most = shape.metadata.get("max")  # the minimum is for requests: an answer's list may be empty
        assert most is None or len(value) <= most, place
        for number, found in enumerate(value):
            check(shape.member, found, f"{place}[{number}]")
    else:
        assert isinstance(value, SIMPLE[kind]), f"{place}: {value!r} is no {kind}"
        assert isinstance(value, str | int | float)
        assert kind == "boolean" or not isinstance(value, bool), place
        _check_size(shape, len(value) if isinstance(value, str) else value, place)
        pattern, allowed = shape.metadata.get("pattern", ""), shape.metadata.get("enum")
        assert not pattern or re.fullmatch(str(pattern), str(value)), f"{place}: {value!r} is not {pattern}"
        assert allowed is None or value in list(allowed), f"{place}: {value!r} is none of {allowed}"


def _check_size(shape: Shape, size: float, place: str) -> None:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    assert low is None or size >= low, f"{place}: {size} < {low}"
    assert high is None or size <= high, f"{place}: {size} > {high}"


def check_answer(operation_model: OperationModel, response_dict: dict[str, Any], **_: Any) -> None:
    status, headers, body = response_dict["status_code"], response_dict["headers"], json.loads(response_dict["body"])
    assert headers["Content-Type"] == CONTENT_TYPE
    assert headers["x-amzn-RequestId"]
    if status < 300:
        check(operation_model.output_shape, body, operation_model.name)
    else:
        assert body["__type"] == headers["x-amzn-ErrorType"]
        assert body["Message"]


def age_s(time: datetime) -> float:
    return abs((datetime.now(time.tzinfo) - time).total_seconds())


def signed_headers(url: str, key: Mapping[str, Any], operation: str, body: bytes, **headers: str) -> dict[str, str]:
    """Return the headers of one request, signed as botocore does it with a key as the server gave it."""
    headers = {"X-Amz-Target": f"RekognitionService.{operation}", "Content-Type": CONTENT_TYPE, **headers}
    request = AWSRequest("POST", f"{url}/", headers, body)
    SigV4Auth(Credentials(key["aws_access_key_id"], key["aws_secret_access_key"]), "rekognition", REGION).add_auth(
        request
    )
    return {name: str(value) for name, value in request.headers.items()}
