"""Write the server's answers as TypeScript interfaces: `python .ci/page/shapes.py FILE`.

The page's JSDoc names them (`Api.Subject`), so that TypeScript checks what the page reads against what the server says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def kind_of(schema: Mapping[str, Any]) -> str:  # noqa: PLR0911 (a case a kind of schema)
    """Return the TypeScript type of a JSON schema."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if choices := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return " | ".join(map(json.dumps, choices))
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(kind_of, schema["anyOf"])))
    if "prefixItems" in schema:
        return f"[{', '.join(map(kind_of, schema['prefixItems']))}]"
    if schema.get("type") == "array":
        return f"Array<{kind_of(schema.get('items', {}))}>"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {kind_of(values) if isinstance(values, dict) else 'any'}>"
    return PLAIN.get(schema.get("type", ""), "any")


def interfaces(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a declaration for each schema; what an answer may leave out is optional."""
    lines = ["declare namespace Api {"]
    for name, schema in schemas.items():
        if "properties" not in schema:
            lines.append(f"  type {name} = {kind_of(schema)};")
            continue
        required = schema.get("required", ())
        fields = [
            f"    {field}{'' if field in required else '?'}: {kind_of(value)};"
            for field, value in schema["properties"].items()
        ]
        lines += [f"  interface {name} {{", *fields, "  }"]
    return "\n".join([*lines, "}\n"])


def main(file: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from app.config import Settings  # noqa: PLC0415 - below the path
    from app.main import create_app  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        document = create_app(Settings(data_dir=Path(folder), watching="on")).openapi()
    Path(file).write_text(interfaces(document["components"]["schemas"]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
