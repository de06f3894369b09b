"""Write the reference pages of the documentation from the code: `python docs/reference.py`.

REST and metrics are read from a running server, the command line from Typer, an archive from a real export, and the
rest from the classes that the program itself uses. `make docs` runs this first. What people should know about a field
of an archive is written here, and a field that this file does not know is an error.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import tarfile
import tempfile
import textwrap
import time
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import httpx
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.core import TyperCommand

from app import cli

# The parts of the program that the pages are written from.
from app.access.grants import Scope
from app.api.route import Router
from app.cli.output import Exit
from app.config import PREFIX, Settings
from app.error_codes import ERROR_CODES
from app.features.compreface.routes import ROUTERS as COMPREFACE
from app.features.deepstack.routes import router as deepstack
from app.features.immich.routes import router as immich
from app.features.rekognition.routes import endpoints_table as rekognition_table
from app.features.similarity import similarity_table
from app.main import own_operations
from app.package.folders import load_package
from app.package.manifest import Manifest
from app.package.thresholds import Thresholds
from training.recipe import Recipe
from training.service import becomes_ready, environment, reserved_port, spawned

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "docs" / "reference"
SAMPLES = PROJECT / "docs" / "samples"
START_S = 120.0
STOP_S = 30.0
POLL_S = 0.2
MADE = "<!-- Written by docs/reference.py: change the code, not this page. -->\n\n"
OFF_BY_DEFAULT = dict.fromkeys(("DEEPSTACK", "IMMICH", "WATCHING"), "on")
METHODS = ("get", "post", "put", "patch", "delete")
PRESENTED_CODES = 0.8
"""Error codes that at least this share of the operations can return are listed once, for all of them."""

ARCHIVE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "manifest.json": {
        "format": "Always `likeness-gallery`.",
        "version": "Version of the format. Other versions are rejected.",
        "created_at": "When the export began, RFC 3339, UTC.",
        "gallery": "Id of the gallery.",
        "metadata": "Metadata of the gallery.",
        "store": "`crop` or `none`: whether the gallery keeps aligned crops.",
        "package": "Model package of the templates, `name@version`.",
        "package_sha256": "SHA-256 of the package's model file, or null.",
        "dimension": "Numbers in a template.",
        "population": "Groups of people that the gallery was declared for; absent if there are none.",
        "liveness": "The gallery's liveness setting, `report` or `require`; absent if it has none.",
        "subjects": "Lines in `subjects.jsonl`.",
        "faces": "Lines in `faces.jsonl`, rows in `templates.npy`.",
        "members": "The other members: `name`, `size` in bytes, `sha256`.",
    },
    "signature.json": {
        "algorithm": "Always `Ed25519`.",
        "public_key": "The server's public key, base64. `GET /v1/server-key` returns the same key.",
        "signature": "Signature of the manifest's bytes, base64.",
    },
    "subjects.jsonl": {
        "id": "The subject's id.",
        "name": "The subject's name, or null.",
        "metadata": "A JSON object.",
        "created_at": "When the subject was created.",
        "updated_at": "When the subject was last changed.",
        "expires_at": "When the subject expires, or null.",
        "consent": "`note` and `given_at`, or null.",
        "cover": "Id of the face that shows the subject, or null.",
    },
    "faces.jsonl": {
        "subject": "Id of the subject.",
        "face_id": "The face's id, 32 hexadecimal digits.",
        "quality": "0 to 100.",
        "reasons": "Why the quality is low.",
        "box": "Box of the face in the photo, in pixels: x, y, width, height.",
        "created_at": "When the face was enrolled.",
        "origin": "What is known of the photo that the face came from, or null.",
        "crop": "Length of the JPEG in `crops.bin` in bytes, or null.",
    },
}


def main() -> None:
    """Write every page into docs/reference, or into the folder named on the command line."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with _server() as client:
        written = pages(client)
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = MADE if path.suffix == ".md" else ""
        path.write_text(head + text.rstrip("\n") + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path}\n")


def pages(client: httpx.Client) -> dict[str, str]:
    """Return the text of every generated page by its path below docs/reference. The client makes a gallery `crew`."""
    described = client.get("/openapi.json").raise_for_status().json()
    document = _with_words(described)
    archive = _export(client)
    metrics = client.get("/metrics").raise_for_status().text
    return {
        **rest_pages(document),
        "openapi.json": json.dumps(described, indent=1, ensure_ascii=False),
        "settings.md": settings_page(),
        "errors.md": errors_page(),
        "scopes.md": scopes_page(),
        "command-line.md": command_line_page(),
        "metrics.md": metrics_page(metrics),
        "drop-ins.md": drop_ins_page(),
        "manifest.md": model_page(Manifest, "Manifest of a model package", MANIFEST_INTRO),
        "recipe.md": model_page(Recipe, "Recipe of a training run", RECIPE_INTRO),
        "archive.md": archive_page(archive),
    }


def _with_words(document: Mapping[str, Any]) -> Any:
    """Return the document with each reference to an enumeration replaced by its values."""
    schemas = document["components"]["schemas"]
    sets = {f"#/components/schemas/{name}": schema for name, schema in schemas.items() if "enum" in schema}

    def inlined(value: Any) -> Any:
        if isinstance(value, dict):
            words = sets.get(str(value.get("$ref")), {})
            return {key: inlined(inner) for key, inner in (value | words).items() if not words or key != "$ref"}
        return list(map(inlined, value)) if isinstance(value, list) else value

    kept = {name: schema for name, schema in schemas.items() if "enum" not in schema}
    return inlined({**document, "components": {**document["components"], "schemas": kept}})


# ------------------------------------------------------------------------------------------------ a real server


@contextmanager
def _server() -> Iterator[httpx.Client]:
    """Run a server on an empty data folder; yield a client with its admin key."""
    with tempfile.TemporaryDirectory() as scratch, reserved_port() as port:
        data, log = Path(scratch) / "data", Path(scratch) / "log"
        url = f"http://127.0.0.1:{port}"
        with spawned(environment(DATA_DIR=data, PORT=port, **OFF_BY_DEFAULT), log, stop_s=STOP_S) as process:
            if not becomes_ready(process, url, patience_s=START_S):
                raise RuntimeError(f"The server did not start:\n{log.read_text()}")
            headers = {"x-api-key": (data / "admin.key").read_text().strip()}
            with httpx.Client(base_url=url, headers=headers, timeout=START_S) as client:
                yield client


def _export(client: httpx.Client) -> bytes:
    """Enroll a sample photo and return the archive of its gallery."""
    client.post("/v1/galleries", json={"id": "crew", "population": ["adults-18-59"]}).raise_for_status()
    photo = (SAMPLES / "collins.jpg").read_bytes()
    client.post("/v1/galleries/crew/subjects/eileen/faces", files={"images": photo}).raise_for_status()
    client.patch("/v1/galleries/crew", json={"liveness": "report"}).raise_for_status()
    job = client.post("/v1/galleries/crew/export").raise_for_status().json()
    deadline = time.monotonic() + START_S
    while job["state"] not in {"done", "failed", "cancelled"} and time.monotonic() < deadline:
        time.sleep(POLL_S)
        job = client.get(f"/v1/jobs/{job['id']}").raise_for_status().json()
    return client.get(f"/v1/jobs/{job['id']}/result").raise_for_status().content


# ------------------------------------------------------------------------------------------------ REST


def rest_pages(document: Mapping[str, Any]) -> dict[str, str]:
    """Return an overview, a page for each tag, and a page of all models."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]
    tags = {tag["name"]: tag["description"] for tag in document["tags"]}
    for _, _, operation in operations:
        tags.setdefault(operation["tags"][0], "")
    general = _general_codes(document, [operation for _, _, operation in operations])
    lines = ["# REST", "", document["info"]["description"].strip(), ""]
    lines += ["| call | what it does | scope |", "|---|---|---|"]
    for method, path, operation in operations:
        link = f"{_file_name(operation['tags'][0])}#{_anchor(f'{method} {path}')}"
        lines.append(f"| [`{method} {path}`]({link}) | {operation['summary']} | {_scope(operation)} |")
    lines += ["", "## Errors of every call", "", ", ".join(f"`{code}`" for code in general), ""]
    lines += ["[Errors](../errors.md) says what each code means.", ""]
    found = {"rest/index.md": "\n".join(lines)}
    for tag, description in tags.items():
        mine = [listed for listed in operations if listed[2]["tags"][0] == tag]
        text = [f"# {tag[0].upper()}{tag[1:]}", "", description, ""]
        for method, path, operation in mine:
            text += _operation(document, method, path, operation, general)
        found[f"rest/{_file_name(tag)}"] = "\n".join(text)
    return found | {"rest/models.md": _models_page(document)}


def _operation(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any], general: Sequence[str]
) -> list[str]:
    summary = operation["summary"]
    end = "" if summary.endswith("?") else "."
    lines = [f"## {method} {path}", "", f"**{summary}{end}** {operation.get('description', '')}", ""]
    lines += [f"Scope: {_scope(operation)}.", ""]
    wanted = [_resolved(document, parameter) for parameter in operation.get("parameters", ())]
    if wanted:
        lines += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
        for parameter in wanted:
            need = "" if parameter.get("required") else " (optional)"
            meaning = _cell(parameter.get("description", ""))
            kind = _type(parameter["schema"])
            lines.append(f"| `{parameter['name']}` | {parameter['in']}{need} | {kind} | {meaning} |")
        lines.append("")
    body = operation.get("requestBody")
    if body:
        content = body["content"] | body.get("x-other-content", {})
        kinds = ", ".join(f"`{kind}`" for kind in content)
        lines += [f"Body: {kinds}. {_model_links(content)}", ""]
        example = content.get("application/json", {}).get("example")
        lines += _example(example)
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            content = answer.get("content", {})
            lines += [f"Answer {status}: {answer['description']} {_model_links(content)}", ""]
            lines += _example(content.get("application/json", {}).get("example"))
    particular = [code for code in _codes(document, operation) if code not in general]
    if particular:
        lines += ["Errors: " + ", ".join(f"`{code}`" for code in particular), ""]
    return lines


def _file_name(tag: str) -> str:
    return f"{tag.lower().replace(' ', '-')}.md"


def _scope(operation: Mapping[str, Any]) -> str:
    if not operation.get("security", True):
        return "no key"
    scope = operation.get("x-scope")
    if scope is None:
        return "a sign-in code"
    if isinstance(scope, dict):
        return "by `X-Amz-Target`: " + ", ".join(f"{name} `{action}`" for name, action in scope.items())
    return f"`{scope}`" + (" (unrestricted key)" if operation.get("x-unrestricted") else "")


def _resolved(document: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in node:
        return node
    found: Any = document
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found  # type: ignore[no-any-return]  # JSON


def _codes(document: Mapping[str, Any], operation: Mapping[str, Any]) -> list[str]:
    codes: list[str] = []
    for status, answer in operation["responses"].items():
        if status.startswith(("4", "5")):
            content = _resolved(document, answer).get("content", {})
            codes += content.get("application/json", {}).get("examples", {})
    return list(dict.fromkeys(codes))


def _general_codes(document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> list[str]:
    listed = [_codes(document, operation) for operation in operations]
    found = [codes for codes in listed if codes]  # other services' calls have none of ours
    known = dict.fromkeys(code for codes in found for code in codes)
    return [code for code in known if sum(code in codes for codes in found) >= PRESENTED_CODES * len(found)]


def _model_links(content: Mapping[str, Any]) -> str:
    names = dict.fromkeys(re.findall(r"#/components/schemas/(\w+)", json.dumps(content)))
    return ", ".join(f"[`{name}`](models.md#{_anchor(name)})" for name in names)


def _example(example: object) -> list[str]:
    if example is None:
        return []
    text = json.dumps(example, indent=2, ensure_ascii=False)
    short = re.sub(r"\[\s+([-\d., \n]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    return ["```json", *short.splitlines(), "```", ""]


def _models_page(document: Mapping[str, Any]) -> str:
    lines = ["# Models", "", "Objects of requests and answers.", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"## {name}", "", schema.get("description", ""), ""]
        if schema.get("properties"):
            lines += ["| field | type | meaning |", "|---|---|---|"]
            for field, about in schema["properties"].items():
                need = "" if field in schema.get("required", ()) else " (optional)"
                lines.append(f"| `{field}`{need} | {_type(about)} | {_cell(about.get('description', ''))} |")
            lines.append("")
    return "\n".join(lines)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"`{name}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(choice) for choice in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    limits = [
        f"{sign} {schema[word]}"
        for word, sign in (
            ("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"),
            ("minLength", "length ≥"), ("maxLength", "length ≤"),
        )
        if word in schema
    ]  # fmt: skip
    return str(schema.get("type", "any")) + (f" ({', '.join(limits)})" if limits else "")


# ------------------------------------------------------------------------------------------------ tables of the program


def settings_page() -> str:
    return (
        "# Settings\n\nSettings are environment variables. The server rejects an unknown `LIKENESS_…` variable at "
        f"start and names the nearest one that exists.\n\n{_settings_table()}\n"
    )


def errors_page() -> str:
    shape = json.dumps({"error": {"code": "…", "message": "…", "details": {}}, "request_id": "…"})
    return (
        f"# Errors\n\nEvery error has this shape. Programs should switch on `code`.\n\n```json\n{shape}\n```\n\n"
        "The request id is also in the header `x-request-id` and in the server's log. Answers with status 429 carry "
        f"`Retry-After`.\n\n{problems_table()}\n"
    )


def scopes_page() -> str:
    return (
        "# Scopes\n\nA key has one or more scopes; `admin` includes all of them but `templates`, which "
        "shows [exact scores](../explanation/security.md#templates-from-scores). The names below are those of the "
        "audit log. Operations with * need a key that is not restricted to galleries. "
        f"[API keys](../how-to/keys.md) shows how to make one.\n\n{_scopes_table()}\n"
    )


def _scopes_table() -> str:
    """Return the operations of each scope as a Markdown table."""
    lines = ["| scope | operations |", "|---|---|"]
    for scope in (None, *Scope):
        allowed = [
            operation
            for operation in own_operations()
            if operation.scope == scope and not operation.public and operation.wire.takes_keys
        ]
        names = [f"`{operation.name}`{'*' if operation.unrestricted else ''}" for operation in allowed]
        lines.append(f"| {f'`{scope}`' if scope else 'any'} | {', '.join(names)} |")
    return "\n".join(lines)


def drop_ins_page() -> str:
    sface = load_package(PROJECT / "models" / "sface")
    return "\n".join(
        (
            "# Drop-ins: CompreFace, Rekognition, DeepStack, Immich",
            "",
            "Calls of other services that Likeness answers, the scope each needs, and its name in the audit log.",
            "Tutorials: [moving from CompreFace](../tutorials/move-from-compreface.md),",
            "[moving from Rekognition](../tutorials/move-from-rekognition.md).",
            "",
            "## CompreFace",
            "",
            _calls_table(COMPREFACE),
            "",
            "## Rekognition",
            "",
            "`POST /` with `X-Amz-Target: RekognitionService.OPERATION`. Operations with * need a key that is not",
            "restricted to galleries. Other operations are answered with `UnknownOperationException`.",
            "",
            rekognition_table(),
            "",
            "## DeepStack and CodeProject.AI",
            "",
            "With `LIKENESS_DEEPSTACK=on`: [moving from DeepStack](../how-to/move-from-deepstack.md).",
            "",
            _calls_table([deepstack]),
            "",
            "## Immich",
            "",
            "With `LIKENESS_IMMICH=on`: [finding Immich's faces](../how-to/immich.md).",
            "",
            _calls_table([immich]),
            "",
            "## Similarity",
            "",
            "These services return a similarity instead of a cosine score: 0 to 1, or 0 to 100 (Rekognition, the same",
            "number × 100). Here it says how often two different people reach it, the FMR of a",
            "single comparison, whichever model runs. For a subject with several photos it is the rate over all of",
            "them (the gallery's mean). For two photos with the default model:",
            "",
            similarity_table(Thresholds(sface.manifest)),
            "",
            "Between these points the similarity is linear in log10(FMR); above and below them it is a straight line",
            "to 1 and 0. A package without operating points has (cosine + 1) / 2. A search among N people compares N",
            "times: with 1,000 people and a threshold of 0.9, about one stranger in ten is taken for somebody; at",
            "0.99, one in a thousand.",
        )
    )


def _calls_table(routers: Iterable[Router]) -> str:
    """Return each call with its scope and audit word as a Markdown table."""
    lines = ["| call | scope | in the audit log |", "|---|---|---|"]
    for router in routers:
        for operation in router.operations:
            scope = f"`{operation.scope}`" if operation.scope else "no key"
            name = "–" if operation.monitoring else f"`{operation.name}`"
            lines.append(f"| `{operation.method} {operation.path}` | {scope} | {name} |")
    return "\n".join(lines)


def every_command() -> Iterator[tuple[str, TyperCommand]]:
    """Yield each command that help shows, with its full name, such as `galleries list`."""
    for name in cli.ENTRIES:
        yield from _below(name, cli.load(name))


def _below(name: str, command: Any) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperCommand):
        yield name, command
        return
    for inner, subcommand in command.commands.items():
        if not subcommand.hidden:
            yield from _below(f"{name} {inner}", subcommand)


def command_line_page() -> str:
    lines = [
        "# Command line",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {Exit[name].value} | {meaning} |" for name, meaning in _attribute_docstrings(Exit).items()),
        "",
        *_commands_by_task(),
    ]
    for name, command in every_command():
        arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
        options = [
            parameter
            for parameter in command.params
            if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False)
        ]
        usage = [f"likeness {name}", *("[OPTIONS]" for _ in options[:1]), *map(_argument, arguments)]
        lines += [f"## `likeness {name}`", "", command.help or "", "", "```text", " ".join(usage), "```", ""]
        lines += [f"- `{_argument(argument)}`: {getattr(argument, 'help', '')}" for argument in arguments]
        lines += [
            f"- `{' / '.join([*option.opts, *option.secondary_opts])}`: {getattr(option, 'help', '')}"
            for option in options
        ]
        examples = (command.epilog or "").partition(": ")[2].split("\n\n")
        lines += ["", "```sh", *examples, "```", ""] if examples[0] else [""]
    return "\n".join(lines)


def _settings_table() -> str:
    """Return the settings as a Markdown table: variable, default, meaning."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        lines.append(f"| `{PREFIX}{name.upper()}` | {_shown_default(name, field)} | {field.description} |")
    return "\n".join(lines)


def _shown_default(name: str, field: FieldInfo) -> str:
    if name == "models_dir":
        return "the project's `models`"
    if field.default_factory is not None or field.default in (None, ()):
        return ""
    return f"`{field.default}`"


def _commands_by_task() -> list[str]:
    """Return a table of tasks, each with its command."""
    tasks: dict[str, list[str]] = {}
    for name, command in every_command():
        task = (command.help or "").partition("\n")[0].partition(". ")[0].removesuffix(".")
        anchor = re.sub(r"\W+", "-", f"likeness {name}")
        panel = cli.ENTRIES[name.partition(" ")[0]].panel
        tasks.setdefault(panel, []).append(f"| {_cell(task)} | [`likeness {name}`](#{anchor}) |")
    lines = ["## By task", ""]
    for panel, rows in tasks.items():
        lines += [f"**{panel}**", "", "| task | command |", "|---|---|", *rows, ""]
    return lines


def _argument(parameter: Any) -> str:
    name = str(parameter.name).upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def metrics_page(text: str) -> str:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    lines = [
        "# Metrics",
        "",
        "`GET /metrics`, Prometheus text format. No label names a gallery, a person or anything a client sent.",
        "[Monitoring](../how-to/monitor.md) shows how to collect them.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", text, flags=re.MULTILINE):
        if name.endswith("_created"):
            continue
        samples = re.findall(rf"^{name}(?:_bucket|_count|_sum)?\{{([^}}]*)\}}", text, flags=re.MULTILINE)
        labels = dict.fromkeys(label for sample in samples for label in re.findall(r"(\w+)=", sample) if label != "le")
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name}` | {kinds[name]} | {shown} | {_cell(meaning)} |")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ pydantic classes

MANIFEST_INTRO = """\
A model package is a folder in `models/` with `manifest.json` and, if `source` says so, the ONNX file. Unknown keys
are rejected. [Your own model](../tutorials/your-own-model.md) shows how to write one.
"""
RECIPE_INTRO = """\
A recipe is a TOML file; `python -m training train RECIPE` runs it. `--set train.steps=500` and `--set losses.0.m=0.3`
change single values. An unknown key is an error that names the nearest one. Keys of a `[[losses]]` table that are not
listed here are the loss's own: see [losses](losses.md).
"""


MEANINGS: Mapping[str, str] = {
    "Manifest.name": "Name of the package and of its folder.",
    "Manifest.version": "Version. `name@version` is the package's id.",
    "Manifest.task": "What the model does.",
    "Manifest.title": "Name for people.",
    "Manifest.description": "A sentence or two for people.",
    "Manifest.source": "Where the model file comes from.",
    "Manifest.sha256": "SHA-256 of the model file. The server does not run a file with another hash.",
    "Manifest.prepare": "What the service does to the graph once, before it runs it.",
    "Manifest.input": "Input of the prepared graph.",
    "Manifest.output": "Output of the prepared graph.",
    "Manifest.licence": "Licence of the weights.",
    "Manifest.provenance": "Where the weights come from.",
    "Manifest.calibrations": "Measured operating points. Without them a package embeds but decides nothing.",
    "Recipe.name": "Name of the run.",
    "Recipe.seed": "Seed of everything that is random.",
    "Recipe.losses": "Any number of `[[losses]]` tables.",
    "Optimizer.name": "The optimiser.",
    "Schedule.name": "How the learning rate changes.",
    "Sampler.name": "Which crops make a batch: see [losses](losses.md#samplers).",
    "Model.backbone": "The network: see [training data](../how-to/training-data.md#backbones).",
    "Loss.name": "The loss: see [losses](losses.md).",
}
"""Meanings of the keys that have no docstring in their class."""


def model_page(model: type[BaseModel], title: str, intro: str) -> str:
    """Return a table for ``model`` and one for each class that its fields name."""
    lines = [f"# {title}", "", intro.strip(), ""]
    waiting, seen = [model], set()
    while waiting:
        schema = waiting.pop(0)
        if schema in seen:
            continue
        seen.add(schema)
        lines += [f"## {schema.__name__}", ""]
        if schema.__doc__ and schema.__doc__ is not BaseModel.__doc__ and "__doc__" not in schema.__doc__:
            lines += [" ".join(textwrap.dedent(schema.__doc__).split()), ""]
        said = _attribute_docstrings(schema)
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for name, field in schema.model_fields.items():
            inner = [found for found in _models_in(field.annotation) if found not in seen]
            waiting += inner
            meaning = _cell(field.description or said.get(name) or MEANINGS.get(f"{schema.__name__}.{name}", ""))
            lines.append(f"| `{name}` | {_cell(_annotation(field.annotation))} | {_default(field)} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def _attribute_docstrings(model: type) -> dict[str, str]:
    """Return the docstrings below the fields in the class's source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)  # noqa: S101 - what getsource returns for a class
    found: dict[str, str] = {}
    field = ""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            field = statement.targets[0].id
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            field = statement.target.id
        elif field and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[field] = " ".join(str(statement.value.value).split())
            field = ""
        else:
            field = ""
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _annotation(annotation: Any) -> str:
    """Return a type in plain words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        found = _annotation(inner[0])
    elif origin is Literal:
        found = " or ".join(f"`{json.dumps(value)}`" for value in inner)
    elif origin in (Union, types.UnionType):
        found = " or ".join(dict.fromkeys(map(_annotation, inner)))
    elif origin is tuple and Ellipsis not in inner:
        found = f"({', '.join(map(_annotation, inner))})"
    elif origin in (tuple, list):
        found = f"list of {_annotation(inner[0])}"
    elif origin is dict:
        found = f"table of {_annotation(inner[0])} to {_annotation(inner[1])}"
    else:
        found = "null" if annotation is type(None) else _plain(annotation)
    return found


def _plain(annotation: Any) -> str:
    name = getattr(annotation, "__name__", str(annotation))
    return {"str": "text", "float": "number", "int": "integer", "bool": "boolean"}.get(
        name, f"[{name}](#{name.lower()})" if _models_in(annotation) else name
    )


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or value is None or isinstance(value, BaseModel) or value in ((), {}):
        return ""
    return f"`{json.dumps(value) if not isinstance(value, float) else f'{value:g}'}`"


# ------------------------------------------------------------------------------------------------ archive


def archive_page(archive: bytes) -> str:
    """Describe the members of a real archive. Raises ValueError if a field and the descriptions here do not match."""
    lines = [
        "# Archive of a gallery",
        "",
        "`likeness export` writes one uncompressed tar. Its members come in this order:",
        "",
    ]
    tables: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]  # files only
    lines += ["| member | content |", "|---|---|"]
    contents = {
        "manifest.json": "what the archive holds",
        "signature.json": "the server's Ed25519 signature of the manifest",
        "subjects.jsonl": "one subject per line",
        "faces.jsonl": "one face per line",
        "templates.npy": "templates, NumPy, (faces, dimension) float32, in the order of `faces.jsonl`",
        "crops.bin": "aligned crops, JPEG, one after the other, as `faces.jsonl`; absent with `--no-crops`",
    }
    if list(members) != list(contents):
        raise ValueError(f"The archive has other members than described here: {list(members)}")
    lines += [f"| `{name}` | {contents[name]} |" for name in members]
    for name, described in ARCHIVE_FIELDS.items():
        first = json.loads(members[name].splitlines()[0] if name.endswith("l") else members[name])
        if set(first) != set(described):
            raise ValueError(f"{name} has other fields than described here: {set(first) ^ set(described)}")
        tables += ["", f"## {name}", "", "| field | type | meaning |", "|---|---|---|"]
        tables += [f"| `{field}` | {_json_type(first[field])} | {described[field]} |" for field in first]
    signed = """
The signature is over the bytes `likeness signature v1`, NUL, the length of the purpose as one byte, the purpose
`gallery archive`, and the manifest's bytes. An import checks signature, signer, order, sizes, checksums and package
before it writes anything. How to use archives: [import and export](../how-to/import-and-export.md).
"""
    return "\n".join(lines) + "\n" + signed + "\n".join(tables)


def _json_type(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null or a value")


# ------------------------------------------------------------------------------------------------ Markdown


def _anchor(heading: str) -> str:
    """Return the id that the site gives to a heading (Python-Markdown's `toc`)."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def _cell(text: str | Iterable[str]) -> str:
    joined = text if isinstance(text, str) else " ".join(text)
    return " ".join(joined.split()).replace("|", "\\|")


def problems_table() -> str:
    """Return every code as a Markdown table: status, code, meaning."""
    lines = ["| status | code | meaning |", "|---|---|---|"]
    lines += [f"| {error.status} | `{error.code}` | {error.meaning} |" for error in ERROR_CODES]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
