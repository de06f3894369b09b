"""Follow a tutorial of docs/tutorials as a reader would: its shell blocks, in order, in a copy of the project.

An HTML comment before a block says what is special about it: `background` (a server, in a separate terminal), `stop`
(the servers are stopped before the block), `not run`, and `output` (a text block: what the blocks since the last one
must have printed, where … stands for anything).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx

from tests.conftest import PROJECT
from training.service import reserved_port

TUTORIALS = PROJECT / "docs" / "tutorials"
PORTS = ("8000", "8765", "8443", "8444", "1883")
"""Ports that tutorials name; each is replaced with a free one."""
LEFT_OUT = ("bench/", "tests/")
START_S = 180.0
BLOCK_S = 600.0
POLL_S = 0.2
BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<mark>[\w ]+) -->\n)?^(?P<indent>[ ]*)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^[ ]*```$",
    re.MULTILINE | re.DOTALL,
)

Kind = Literal["run", "background", "stop", "output"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that the reader does or sees."""

    kind: Kind
    text: str


def steps(page: str) -> Iterator[Step]:
    """Yield the steps of a page, in order; raises ValueError for a comment that this module does not know."""
    for found in BLOCK.finditer(page):
        mark, language = found["mark"], found["language"]
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        if mark == "not run" or (mark is None and language != "sh"):
            continue
        if mark == "output":
            yield Step("output", code)
        elif mark == "background":
            yield Step("background", code)
        elif mark == "stop":
            yield Step("stop", "")
            yield Step("run", code)
        elif mark is None:
            yield Step("run", code)
        else:
            raise ValueError(f"unknown comment before a block: {mark}")


def copy_project(folder: Path) -> Path:
    """Copy the tracked files into ``folder``, with a `.venv` that is this interpreter's own."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        source = PROJECT / name
        if source.is_file() and not name.startswith(LEFT_OUT):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
    venv = folder / ".venv"
    venv.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith("."):
            (venv / entry.name).symlink_to(entry)
    for stamp in (".serve", ".train", ".dev"):
        (venv / stamp).touch()
    return folder


class Follower:
    """A reader with a shell whose variables and folder last from one block to the next."""

    def __init__(self, folder: Path, ports: Mapping[str, str]) -> None:
        self._folder = folder
        self._ports = ports
        self._state = folder.parent / "state.sh"
        self._state.write_text(f"cd '{folder}'\n")
        self._servers: list[subprocess.Popen[bytes]] = []
        self._children: list[int] = []
        self._printed = ""

    def follow(self, page: str) -> None:
        for step in steps(page):
            text = self._own_ports(step.text)
            if step.kind == "run":
                self._run(text)
            elif step.kind == "background":
                self._start(text)
            elif step.kind == "stop":
                self.stop()
            else:
                self._compare(text)

    def stop(self) -> None:
        """Stop the servers as Ctrl+C does."""
        for server in self._servers:
            os.killpg(server.pid, signal.SIGINT)
        for server in self._servers:
            server.wait(START_S)
        self._servers.clear()

    def close(self) -> None:
        """Stop the servers and all other programs that blocks left running."""
        self.stop()
        for group in self._children:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)

    def _environment(self) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("LIKENESS_", "OMP_"))}
        return plain | {"PYTHONPATH": str(self._folder), "LIKENESS_PORT": self._ports["8000"], "COLUMNS": "200"}

    def _own_ports(self, text: str) -> str:
        for written, port in self._ports.items():
            text = re.sub(rf"\b{written}\b", port, text)
        return text

    def _run(self, code: str) -> None:
        script = f"source '{self._state}'\n{code}\n{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > '{self._state}'\n"
        output = self._folder.parent / "output"
        with output.open("wb") as file:  # not a pipe, which a program in the background would keep open
            shell = subprocess.Popen(
                ["bash", "-eo", "pipefail", "-c", script],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment(),
                cwd=self._folder,
                start_new_session=True,
            )
            self._children.append(shell.pid)
            code_returned = shell.wait(BLOCK_S)
        printed = output.read_text()
        self._printed += printed
        assert code_returned == 0, f"exit code {code_returned}:\n{code}\n{printed}"

    def _start(self, code: str) -> None:
        log = (self._folder.parent / "server.log").open("ab")
        server = subprocess.Popen(
            ["bash", "-ec", f"source '{self._state}'\n{code}"],
            stdout=log,
            stderr=log,
            env=self._environment(),
            cwd=self._folder,
            start_new_session=True,
        )
        log.close()
        self._servers.append(server)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert server.poll() is None, (self._folder.parent / "server.log").read_text()
            assert time.monotonic() < deadline, (self._folder.parent / "server.log").read_text()
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._ports['8000']}/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _compare(self, expected: str) -> None:
        """Check that each line was printed, in this order."""
        printed = "\n".join(line.rstrip() for line in self._printed.splitlines())
        pattern = ".*?".join(re.escape(part) for part in expected.strip().split("…"))
        pattern = r"\s*\n(?:.*\n)*?".join(line.rstrip() for line in pattern.split("\\\n"))
        assert re.search(pattern, printed), f"expected:\n{expected}\nprinted:\n{printed}"
        self._printed = ""


@contextmanager
def following(folder: Path) -> Iterator[tuple[Follower, Path]]:
    """Yield a reader in a copy of the project below ``folder``, and the copy's path, for files that readers have."""
    project = folder / "likeness"
    project.mkdir()
    copy_project(project)
    with ExitStack() as stack:
        ports = {written: str(stack.enter_context(reserved_port())) for written in PORTS}
        follower = Follower(project, ports)
        stack.callback(follower.close)
        yield follower, project
