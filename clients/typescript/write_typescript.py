"""Write the TypeScript client from the server's OpenAPI document: `python clients/typescript/write_typescript.py`.

A method has the parameters of its operation, with the names, types and descriptions of the document, as in the Python
client, whose code for reading the document this module uses. A test compares the files with what this module would
write now.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
FILES = {name: FOLDER / "src" / f"{name}.ts" for name in ("types", "client")}
sys.path[:0] = [str(FOLDER.parent / "python")]

import generate as generate  # noqa: E402, PLC0414 - the Python client's generator, below the path; tests read it here

HEAD = "// Written by clients/typescript/write_typescript.py from the server's declarations: change those.\n\n"
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
RESERVED = {"class", "default", "delete", "export", "function", "import", "interface", "package", "public", "static"}
WIDTH = 110
Schema = Mapping[str, Any]


def write(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each file of `FILES` for a server's OpenAPI document."""
    schemas = described["components"]["schemas"]
    calls = [call for call in generate.calls_of(described) if call.name not in generate.NOT_CALLED]
    client = _client(calls, schemas)
    bodies = {call.answer for call in calls} | {call.request for call in calls}
    reached = _reached(schemas, bodies | set(re.findall(r"\bT\.(\w+)", client)))
    types = "\n".join(_declaration(name, schemas[name]) for name in sorted(reached))
    return {"types": HEAD + types, "client": HEAD + client}


def kind_of(schema: Schema) -> str:  # noqa: PLR0911 (a case a kind of schema)
    """Return the TypeScript type of a JSON schema."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if words := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return " | ".join(map(json.dumps, words))
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(kind_of, schema["anyOf"])))
    if "prefixItems" in schema:
        return f"[{', '.join(map(kind_of, schema['prefixItems']))}]"
    if schema.get("type") == "array":
        return f"Array<{kind_of(schema.get('items', {}))}>"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {kind_of(values) if isinstance(values, dict) and values else 'unknown'}>"
    return PLAIN.get(schema.get("type", ""), "unknown")


def _reached(schemas: Mapping[str, Schema], names: set[str]) -> set[str]:
    """Return these schemas and all that they refer to."""
    found: set[str] = set()
    waiting = [name for name in names if name in schemas]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += re.findall(r"#/components/schemas/(\w+)", json.dumps(schemas[name]))
    return found


def _declaration(name: str, schema: Schema) -> str:
    """Return an interface, or for a closed set a union that also accepts any other text: a newer server may have more
    values."""
    comment = _comment(schema.get("description", ""), "")
    if "properties" not in schema:
        more = " | (string & {})" if "enum" in schema else ""
        return f"{comment}export type {name} = {kind_of(schema)}{more};\n"
    required = schema.get("required", ())
    lines = [
        f"{_comment(value.get('description', ''), '  ')}  {field}{'' if field in required else '?'}: {kind_of(value)};"
        for field, value in schema["properties"].items()
    ]
    return "\n".join([f"{comment}export interface {name} {{", *lines, "}\n"])


def _client(calls: list[generate.Call], schemas: Mapping[str, Schema]) -> str:
    methods = "\n".join(_method(call, schemas) for call in calls)
    lines = [
        'import { type Call, type Image, type Options, Sender, pages, path } from "./call.ts";',
        'import type * as T from "./types.ts";',
        "",
        "/** A client of one server; a method for each operation. Each throws LikenessError. */",
        "export class Client {",
        "  readonly #sender: Sender;",
        "",
        "  constructor(options: Options = {}) {",
        "    this.#sender = new Sender(options);",
        "  }",
        "",
        "  /** Send a call that this client has no method for. */",
        "  send<Answer>(call: Call): Promise<Answer> {",
        "    return this.#sender.send(call);",
        "  }",
        "",
        methods + "}",
        "",
    ]
    return "\n".join(lines)


def _method(call: generate.Call, schemas: Mapping[str, Schema]) -> str:
    name = _camel(call.name)
    ids = [f"{_variable(name)}: string" for name in call.ids]
    arguments = [*ids]
    parts = [f"method: {json.dumps(call.method)}", f"path: {_path(call)}"]
    if call.many:
        arguments.append("images: readonly Image[]")
        parts.append(f"images: {{ {call.images[0]}: images }}")
    elif call.images:
        kind = "Image | readonly Image[]" if call.track else "Image"
        arguments += [f"{name}: {kind}" for name in call.images]
        parts.append(f"images: {{ {', '.join(call.images)} }}")
    if call.upload:
        arguments.append("tar: Blob | ReadableStream<Uint8Array>")
        parts.append("body: tar")
    if call.request and not call.images:
        need = any(field in schemas[call.request].get("required", ()) for field in schemas[call.request]["properties"])
        arguments.append(f"body: T.{call.request}{'' if need or call.changes else ' = {}'}")
        parts.append("json: { ...body }")
    if call.query:
        fields = "; ".join(f"{key}{'' if need else '?'}: {_qualified(kind_of(kind))}" for key, kind, need in call.query)
        optional = not any(need for _, _, need in call.query)
        arguments.append(f"query: {{ {fields} }}{' = {}' if optional else ''}")
        parts.append("query")
    answer = f"T.{call.answer}" if call.answer in schemas else "void" if call.answer == "None" else "Blob"
    if answer in {"void", "Blob"}:
        parts.append(f'answer: "{"nothing" if answer == "void" else "blob"}"')
    text = f"{_comment(call.text, '  ')}  {name}({', '.join(arguments)}): Promise<{answer}> {{\n"
    text += f"    return this.send({{ {', '.join(parts)} }});\n  }}\n"
    properties = schemas.get(call.answer, {}).get("properties", {})
    if "next_cursor" in properties:
        items = next(key for key, value in properties.items() if value.get("type") == "array")
        item = _qualified(kind_of(properties[items]["items"]))
        given = ", ".join([*map(_variable, call.ids), "{ ...query, ...(cursor === undefined ? {} : { cursor }) }"])
        text += (
            f"\n  /** The {items} of all pages. */\n"
            f"  all{name[0].upper()}{name[1:]}({', '.join(arguments)}): AsyncGenerator<{item}> {{\n"
            f"    return pages((cursor) => this.{name}({given}), (page) => page.{items});\n  }}\n"
        )
    return text


def _path(call: generate.Call) -> str:
    if not call.ids:
        return json.dumps(call.path)
    ids = ", ".join(name if name == _variable(name) else f"{name}: {_variable(name)}" for name in call.ids)
    return f"path({json.dumps(call.path)}, {{ {ids} }})"


def _qualified(kind: str) -> str:
    """Return the type with the names of declared types below `T`."""
    return re.sub(
        r'(?<!")\b([A-Z]\w+)\b(?!")(?!<)',
        lambda found: found[1] if found[1] in {"Array", "Record"} else f"T.{found[1]}",
        kind,
    )


def _variable(name: str) -> str:
    """Return the name of a parameter, changed if it is a reserved word of JavaScript."""
    return f"{_camel(name)}Id" if name in RESERVED else _camel(name)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _comment(text: str, indent: str) -> str:
    paragraphs = [
        textwrap.wrap(" ".join(paragraph.split()), WIDTH - len(indent)) for paragraph in text.strip().split("\n\n")
    ]
    lines: Iterator[str] = (
        line for place, paragraph in enumerate(paragraphs) for line in ([""] if place else []) + paragraph
    )
    told = [line.replace("*/", "* /") for line in lines]
    if len(told) <= 1:
        return f"{indent}/** {told[0]} */\n" if told and told[0] else ""
    return "".join([f"{indent}/**\n", *(f"{indent} * {line}".rstrip() + "\n" for line in told), f"{indent} */\n"])


def main() -> None:
    for name, text in write(generate.document()).items():
        FILES[name].write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
