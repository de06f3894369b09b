"""Every command that the pages print exists, takes the options that it is given, and gets those that it requires."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from app import cli
from bench import __main__ as bench
from bench import rates
from tests.conftest import PROJECT
from training import __main__ as training

pytest.importorskip("torch", reason="commands of training need the extra `train`")

PRINTED = re.compile(r"(?: {4}|\$ )?(?:\.venv/bin/)?(likeness|python -m training|python -m bench) ")
PAGES = sorted(path for path in (PROJECT / "docs").rglob("*.md") if "reference" not in path.parts)
ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&"}


def printed(path: Path) -> Iterator[str]:
    """Yield the commands in a page's blocks of code, each on one line, without what stands before it."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    for block in re.findall(r"^```.*?^```|^ {4}[^\n]*$", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if found := PRINTED.match(line):
                yield line[found.start(1) :]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that these words call, None if there is none, and the words behind it."""
    found: Any
    if words[0] == "likeness":
        if words[1] not in cli.ENTRIES:
            return get_command(cli.app), words[1:]
        found, rest = cli.load(words[1]), words[2:]
    elif words[2:4] == ["bench", "rates"]:
        found, rest = get_command(rates.app), words[4:]
    else:
        found, rest = get_command({"training": training.app, "bench": bench.app}[words[2]]), words[3:]
    while found is not None and hasattr(found, "get_command") and rest and not rest[0].startswith("-"):
        found, rest = found.get_command(None, rest[0]), rest[1:]
    return found, rest


def problems(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    command, rest = command_of(list(takewhile(lambda word: word not in ENDS, lexer)))
    if command is None:
        return ["no such command"]
    given = {word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)}
    options = [option for option in command.params if option.param_type_name == "option"]
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}
    lacking = [option.opts[0] for option in options if option.required and given.isdisjoint(option.opts)]
    return [f"no option {option}" for option in sorted(given - known)] + [f"lacks {option}" for option in lacking]


def test_the_pages_print_commands_that_run() -> None:
    lines = [(path.name, line) for path in PAGES for line in printed(path)]
    assert len(lines) > 100
    assert not [(*where, found) for where in lines if (found := problems(where[1]))]
