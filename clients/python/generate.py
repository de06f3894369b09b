"""Write the client's models and calls from the server's OpenAPI document: `python clients/python/generate.py`.

A call has the parameters of its operation, with the names, types and descriptions of the document. A test compares the
files with what this module would write now.
"""

from __future__ import annotations

import builtins
import keyword
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent / "likeness_client"
FILES = {name: PACKAGE / f"{name}.py" for name in ("answers", "calls", "operations")}
HEAD = '"""{}\n\nWritten by clients/python/generate.py from the server\'s declarations: change those."""\n\n'
WIDTH = 100
NAMES = {
    "review": "start_review",
    "get_review": "review",
    "read_audit": "audit",
    "get_crop": "face_crop",
    "get_report": "job_report",
    "readyz": "ready",
}
"""Names of calls that differ from their operation's handler without `get_`, `list_` or `show_`."""
NOT_CALLED = {"livez", "metrics", "sign_in", "get_result", "listen"}
"""Operations without a call: for monitors and browsers, streams, and the download that `Client.job_result` streams."""
EMPTY = {"array": "[]", "object": "{}"}
"""Defaults for a list or map that an answer leaves out."""
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}

Schema = Mapping[str, Any]


def write(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each file of `FILES` for a server's OpenAPI document."""
    described = without_closed_sets(described)
    calls = [call for call in calls_of(described) if call.name not in NOT_CALLED]
    schemas = described["components"]["schemas"]
    models = sorted(_reached(schemas, {call.answer for call in calls if call.answer in schemas}))
    return {
        "answers": "".join(_models(schemas, models)),
        "calls": "".join(_functions(calls)),
        "operations": "".join(_methods(calls, schemas)),
    }


def without_closed_sets(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document with plain text in place of each enumeration: a newer server may have more values."""
    schemas = described["components"]["schemas"]
    sets = {f"#/components/schemas/{name}" for name, schema in schemas.items() if "enum" in schema}

    def opened(value: Any) -> Any:
        if isinstance(value, Mapping):
            if value.get("$ref") in sets:
                return {key: inner for key, inner in value.items() if key != "$ref"} | {"type": "string"}
            return {key: opened(inner) for key, inner in value.items()}
        return [opened(inner) for inner in value] if isinstance(value, list) else value

    return opened(described)  # type: ignore[no-any-return]  # JSON


# ---------------------------------------------------------------------------------------------------------- models


def _reached(schemas: Mapping[str, Schema], names: set[str]) -> set[str]:
    """Return these schemas and all schemas that they refer to."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and "properties" in schemas[name]:
            found.add(name)
            waiting += [reference.rpartition("/")[2] for reference in _references(schemas[name]["properties"])]
    return found


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _models(schemas: Mapping[str, Schema], names: Iterable[str]) -> Iterator[str]:
    yield HEAD.format("The server's answers. Fields that a newer server adds are ignored.")
    yield "from __future__ import annotations\n\nfrom datetime import datetime\nfrom typing import Any\n\n"
    yield "from pydantic import BaseModel, ConfigDict\n\n\n"
    yield 'class Answer(BaseModel):\n    model_config = ConfigDict(extra="ignore", frozen=True)\n'
    for name in names:
        schema = schemas[name]
        yield f"\n\nclass {name}(Answer):\n"
        if schema.get("description"):
            yield _docstring(schema["description"], 4)
        required = schema.get("required", ())
        for key, value in sorted(schema["properties"].items(), key=lambda item: item[0] not in required):
            kind = _type(value, answer=True)
            if key not in required:
                default = repr(value["default"]) if "default" in value else EMPTY.get(value.get("type", ""), "None")
                kind += " | None" if default == "None" and not kind.endswith("None") else ""
                kind += f" = {default}"
            yield f"    {key}: {kind}\n"


def _type(schema: Schema, *, answer: bool) -> str:
    """Return a schema as a type. Enumerations are `str`: a newer server may have more values."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "Any" if name == "JsonValue" else str(name) if answer else "Mapping[str, Any]"
    if choices := schema.get("anyOf", schema.get("oneOf")):
        kinds = list(dict.fromkeys(_type(choice, answer=answer) for choice in choices))
        return " | ".join([kind for kind in kinds if kind != "None"] + ["None"] * ("None" in kinds))
    kind = schema.get("type")
    if kind == "array":
        return _array(schema, answer=answer)
    if kind == "object":
        inner = schema.get("additionalProperties")
        value = _type(inner, answer=answer) if isinstance(inner, Mapping) and inner else "Any"
        return f"dict[str, {value}]" if answer else f"Mapping[str, {value}]"
    if schema.get("format") == "date-time":
        return "datetime"
    return PLAIN.get(str(kind), "Any")


def _array(schema: Schema, *, answer: bool) -> str:
    if "prefixItems" in schema:
        return f"tuple[{', '.join(_type(item, answer=answer) for item in schema['prefixItems'])}]"
    inner = _type(schema["items"], answer=answer)
    return f"list[{inner}]" if answer else f"Sequence[{inner}]"


# ----------------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: ``name`` in Python, ``key`` in the request."""

    name: str
    key: str
    kind: str
    required: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One operation, as a method of the clients."""

    name: str
    method: str
    path: str
    text: str
    answer: str
    """A model's name, `bytes` or `None`."""
    ids: list[str]
    params: list[Parameter] = field(default_factory=list)
    body: list[Parameter] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    """Fields for one image each; with `many`, one field for any number of images."""
    many: bool = False
    track: bool = False
    """Whether the field for an image may be given several times."""
    upload: bool = False
    changes: bool = False
    """Whether the body holds the fields to change, where null removes a value."""
    request: str = ""
    """The body's schema."""
    query: list[tuple[str, Schema, bool]] = field(default_factory=list)
    """Name and schema of each parameter of ``params``, and whether it is required."""


def calls_of(described: Mapping[str, Any]) -> Iterator[Call]:
    schemas = described["components"]["schemas"]
    for path, methods in described["paths"].items():
        if path == "/" or path.startswith("/api/"):
            continue  # other services' wire formats have clients of their own
        for method, facts in methods.items():
            yield _call(facts["operationId"], method, path, facts, schemas)


def _call(handler: str, method: str, path: str, facts: Schema, schemas: Mapping[str, Schema]) -> Call:
    bodies = facts.get("requestBody", {}).get("content", {})
    reference = bodies.get("multipart/form-data", {}).get("schema", {}).get("$ref", "")
    form = schemas[reference.rpartition("/")[2]]["properties"] if reference else {}
    images = [key for key in form if key.startswith("image")]
    upload = "application/x-tar" in bodies
    ids = re.findall(r"{(\w+)}", path)
    params = [
        _parameter(parameter["name"], parameter["schema"], required=parameter.get("required", False))
        for parameter in facts.get("parameters", ())
        if parameter["in"] == "query"
    ]
    body, reference = [], bodies.get("application/json", {}).get("schema", {}).get("$ref", "")
    if reference and not images:
        schema = schemas[reference.rpartition("/")[2]]
        required = schema.get("required", ())
        body = [_parameter(key, value, required=key in required) for key, value in schema["properties"].items()]
    return Call(
        name=NAMES.get(handler) or (handler if handler in NOT_CALLED else re.sub("^(get|list|show)_", "", handler)),
        method=method.upper(),
        path=path,
        text=facts["summary"] + ("" if facts["summary"].endswith("?") else ".") + "\n\n" + facts.get("description", ""),
        answer=_answer(facts["responses"]),
        ids=ids,
        params=params,
        body=[_renamed(field, handler, ids) for field in body],
        images=images,
        many=any(form[key].get("type") == "array" for key in images),
        track=any("x-repeats" in form[key] for key in images),
        upload=upload,
        changes=method == "patch",
        request=next(
            (body["schema"]["$ref"].rpartition("/")[2] for body in bodies.values() if "$ref" in body["schema"]), ""
        ),
        query=[
            (parameter["name"], parameter["schema"], parameter.get("required", False))
            for parameter in facts.get("parameters", ())
            if parameter["in"] == "query"
        ],
    )


def _parameter(key: str, schema: Schema, *, required: bool) -> Parameter:
    name = f"{key}_" if keyword.iskeyword(key) or key in dir(builtins) else key
    return Parameter(name, key, _type(schema, answer=False), required)


def _renamed(parameter: Parameter, handler: str, ids: list[str]) -> Parameter:
    """Rename `id` to the name of the new object (`gallery`), and a second subject to `to`: the path has the first."""
    if parameter.key == "id":
        noun = handler.removeprefix("create_")
        return replace(parameter, name="key_id") if noun == "key" else replace(parameter, name=noun, required=True)
    return replace(parameter, name="to") if parameter.name in ids else parameter


def _answer(responses: Mapping[str, Schema]) -> str:
    content = next(facts for code, facts in responses.items() if code.startswith("2")).get("content", {})
    if not content:
        return "None"
    reference = content.get("application/json", {}).get("schema", {}).get("$ref")
    return str(reference.rpartition("/")[2]) if reference else "bytes"


def _functions(calls: Iterable[Call]) -> Iterator[str]:
    yield HEAD.format("A function for each operation that returns its call. Nothing is sent here.")
    yield "from __future__ import annotations\n\nfrom collections.abc import Mapping, Sequence\n"
    yield "from datetime import datetime\nfrom types import NoneType\nfrom typing import Any\n\n"
    yield "from likeness_client import answers\n"
    yield "from likeness_client.call import Call, Image, Tar, call, given, part, parts, tar_of\n"
    for call in calls:
        yield from _function(call)


def _function(call: Call) -> Iterator[str]:
    answer = f"answers.{call.answer}" if call.answer[0].isupper() and call.answer != "None" else call.answer
    known = [*call.params, *([] if call.changes else call.body)]
    yield f"\n\ndef {call.name}("
    yield ", ".join(_signature(call, known))
    yield f") -> Call[{answer}]:\n"
    yield _docstring(call.text, 4)
    arguments = [_quoted(call.method), _quoted(call.path), "NoneType" if answer == "None" else answer]
    arguments += [f"{name}={name}" for name in call.ids]
    if call.params:
        arguments.append(f"params=given({_sent(call.params)})")
    if call.changes:
        arguments.append("json=dict(changes)")
    elif call.body:
        arguments.append(f"json=given({_sent(call.body)})")
    if call.images:
        arguments.append(f"files={_files(call)}")
    if call.upload:
        arguments.append("content=tar_of(tar)")
    yield f"    return call({', '.join(arguments)})\n"


def _signature(call: Call, known: Iterable[Parameter]) -> Iterator[str]:
    known = list(known)
    yield from (f"{name}: str" for name in call.ids)
    yield from (f"{parameter.name}: {parameter.kind}" for parameter in known if parameter.required)
    if call.changes:
        yield "changes: Mapping[str, Any]"
    if call.images:
        kind = "Image | Sequence[Image]" if call.track else "Image"
        yield from ["images: Sequence[Image]"] if call.many else [f"{name}: {kind}" for name in call.images]
    if call.upload:
        yield "tar: Tar"
    optional = [parameter for parameter in known if not parameter.required]
    if optional:
        yield "*"
    for parameter in optional:
        kind = parameter.kind if parameter.kind.endswith("None") else f"{parameter.kind} | None"
        yield f"{parameter.name}: {kind} = None"


def _sent(parameters: Iterable[Parameter]) -> str:
    return ", ".join(f"{parameter.key}={parameter.name}" for parameter in parameters)


def _files(call: Call) -> str:
    if call.many:
        return f"[part({_quoted(call.images[0])}, image) for image in images]"
    if call.track:
        repeated = [f"parts({_quoted(name)}, {name})" for name in call.images]
        return repeated[0] if len(repeated) == 1 else f"[{', '.join(f'*{name}' for name in repeated)}]"
    return f"[{', '.join(f'part({_quoted(name)}, {name})' for name in call.images)}]"


def _methods(calls: Iterable[Call], schemas: Mapping[str, Schema]) -> Iterator[str]:
    calls = list(calls)
    yield HEAD.format("The calls as methods of both clients; those of pages as iterators over all pages too.")
    yield "from __future__ import annotations\n\nfrom likeness_client import calls\n"
    yield "from likeness_client.sending import Method, Pages\n\n\n"
    yield 'class Operations:\n    """The methods of both clients; `likeness_client.calls` has their arguments."""\n\n'
    yield from (f"    {call.name} = Method(calls.{call.name})\n" for call in calls)
    yield "\n"
    for call in calls:
        properties = schemas.get(call.answer, {}).get("properties", {})
        if "next_cursor" in properties:
            items = next(key for key, value in properties.items() if value.get("type") == "array")
            name = {"review": "findings"}.get(call.name, call.name)
            yield f"    all_{name} = Pages(calls.{call.name}, lambda page: page.{items})\n"


# ----------------------------------------------------------------------------------------------------------- words


def _docstring(text: str, indent: int) -> str:
    paragraphs = [
        textwrap.wrap(" ".join(paragraph.split()), WIDTH - indent) for paragraph in text.strip().split("\n\n")
    ]
    lines = [line for place, paragraph in enumerate(paragraphs) for line in ([""] if place else []) + paragraph]
    lines[-1] += '"""'
    padding = " " * indent
    return f'{padding}"""{lines[0]}\n' + "".join(f"{padding}{line}".rstrip() + "\n" for line in lines[1:])


def _quoted(text: object) -> str:
    return f'"{text}"'


def document() -> Mapping[str, Any]:
    """Return the OpenAPI document of this checkout's server."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from app.config import Settings  # noqa: PLC0415 - only writing needs the server
    from app.main import create_app  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        return create_app(Settings(data_dir=Path(folder), watching="on")).openapi()


def formatted(text: str) -> str:
    """Return the text as ruff formats it."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILES["calls"]), "-"]
    return subprocess.run(  # noqa: S603 - our own words
        command, input=text, capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    for name, text in write(document()).items():
        FILES[name].write_text(formatted(text), encoding="utf-8")


if __name__ == "__main__":
    main()
