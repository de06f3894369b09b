"""A worker can do nothing else: each attempt is made from inside one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Landlock and seccomp are Linux's")

ATTEMPTS = {
    "read a file": "open('/etc/passwd')",
    "write a file": "open(sys.argv[1], 'w')",
    "make a folder": "os.mkdir(sys.argv[1])",
    "remove a file": "os.unlink(sys.argv[2])",
    "rename a file": "os.rename(sys.argv[2], sys.argv[1])",
    "cut a file short": "os.truncate(sys.argv[2], 0)",
    "make a file of memory": "os.memfd_create('x')",
    "open a TCP socket": "socket.socket()",
    "open a Unix socket": "socket.socket(socket.AF_UNIX)",
    "make a pair of sockets": "socket.socketpair()",
    "connect a socket that it has": "kept.connect(('127.0.0.1', 9))",
    "run a program": "os.execv('/bin/true', ['true'])",
    "run a program as a child": "subprocess.run(['/bin/true'])",
    "fork": "os.fork() or os._exit(3)",
    "end the server": "os.kill(os.getppid(), 0)",
    "limit the server": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)",
    "take more memory": "bytearray(2**29)",
    "look into the server": "os.open(f'/proc/{os.getppid()}/mem', os.O_RDONLY)",
    "become somebody else": "os.setuid(65534)",
}
ALLOWED = {
    "take memory": "bytearray(2**24)",
    "start a thread": "threading.Thread(target=int).start()",
    "wait": "time.sleep(0)",
    "signal itself": "signal.raise_signal(signal.SIGURG)",
}
SCRIPT = """
import json, os, resource, signal, socket, subprocess, sys, threading, time
from app.machine import limit_memory
from app.workers import limits, sandbox
kept, outcomes = socket.socket(), {}
for attempt in json.load(sys.stdin):
    ours, theirs = os.pipe()
    if not os.fork():
        limit_memory(2**28)
        held = sandbox.enter()
        try:
            exec(attempt)
        except (OSError, ValueError, MemoryError) as error:
            outcome = f"denied: {error}"
        else:
            outcome = "done"
        os.write(theirs, json.dumps([*held, outcome]).encode())
        os._exit(0)
    os.close(theirs)
    outcomes[attempt] = json.loads(os.read(ours, 9999) or "[]")
    os.wait()
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What became of each attempt, after what held it."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "there").write_text("x")
    command = [sys.executable, "-c", SCRIPT, str(folder / "new"), str(folder / "there")]
    attempts = json.dumps([*ATTEMPTS.values(), *ALLOWED.values()])
    done = subprocess.run(
        command, input=attempts, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=300
    )
    assert not done.returncode, done.stderr
    assert [path.name for path in folder.iterdir()] == ["there"]
    assert (folder / "there").read_text() == "x"
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_worker_can_not(attempt: str, outcomes: dict[str, list[str]]) -> None:
    *held, outcome = outcomes[ATTEMPTS[attempt]]
    if "seccomp" not in held:
        pytest.skip("this system has no seccomp, or is of another kind of machine")
    assert outcome.startswith("denied")


@pytest.mark.parametrize("work", ALLOWED)
def test_a_worker_can(work: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes[ALLOWED[work]][-1] == "done"
