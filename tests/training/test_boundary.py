"""Training takes a stated part of the service: `app.package`, the words, and the stages that it runs."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import PROJECT

WORDS = {"choices", "errors", "files", "machine", "photo_folders", "types", "wording"}
"""Modules that import nothing of the service."""
STAGES = {"face", "inference", "models", "pipeline"}
"""What measures and exports a network runs it as the service does, through these and what they need."""
NEEDED_BY_STAGES = {"concurrency"}
CONTRACT = "training needs nothing of the server"


def imported_of_app(folder: Path) -> Iterator[tuple[str, str]]:
    """Return each import of the service below a folder: the file, and the module or name."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "app":
                for name in node.names:
                    yield str(file.relative_to(PROJECT)), f"{node.module}.{name.name}"
            elif isinstance(node, ast.Import):
                yield from ((str(file), name.name) for name in node.names if name.name.split(".")[0] == "app")


def rooms_of_app() -> set[str]:
    return {
        path.stem for path in (PROJECT / "app").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }


def test_a_model_package_is_described_without_the_service() -> None:
    taken = {name.split(".")[1] for _, name in imported_of_app(PROJECT / "app" / "package")}
    assert taken <= WORDS | {"package"}


def test_training_takes_the_shared_package_the_words_and_the_stages() -> None:
    allowed = {"training/evaluation/stages/liveness.py": "features"}
    others = [
        (file, name)
        for file, name in imported_of_app(PROJECT / "training")
        if name.split(".")[1] not in WORDS | STAGES | {"package", allowed.get(file)}
    ]
    assert others == []


def test_the_linter_decides_on_every_room_of_the_service() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [candidate for candidate in settings["contracts"] if candidate["name"] == CONTRACT]
    forbidden = {name.removeprefix("app.") for name in contract["forbidden_modules"]}
    allowed = WORDS | STAGES | NEEDED_BY_STAGES | {"package"}
    assert not forbidden & allowed
    assert forbidden | allowed == rooms_of_app() - {"__init__", "__main__"}
