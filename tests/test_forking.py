"""Tests that run in forked processes are reported as if one process had run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.long

ONE = """
import os, pytest

@pytest.fixture(scope="session")
def process():
    return os.getpid()

def test_passes(process, tmp_path):
    assert process == os.getpid() != int(os.environ["COLLECTOR"])
    (tmp_path / "file").touch()

def test_fails():
    print("said before")
    assert 1 == 2

@pytest.mark.skip(reason="not here")
def test_is_skipped():
    pass
"""
TWO = """
import os, signal

def test_passes():
    pass

def test_ends_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_is_not_run():
    pass
"""
COLLECTOR = """
import os
os.environ["COLLECTOR"] = str(os.getpid())
"""


def outcomes(folder: Path, *words: str) -> tuple[int, str]:
    """The exit status of pytest in this folder, and what it printed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.forking",
        "-p",
        "no:cacheprovider",
        *words,
        str(folder),
    ]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "conftest.py").write_text(COLLECTOR)
    (tmp_path / "test_one.py").write_text(ONE)
    return tmp_path


def test_each_outcome_is_reported_with_what_was_printed(folder: Path) -> None:
    status, said = outcomes(folder, "--processes", "2", "-r", "A")
    assert (status, "1 failed, 1 passed, 1 skipped" in said) == (1, True), said
    assert "said before" in said
    assert "assert 1 == 2" in said
    assert re.search(r"SKIPPED .*not here", said)


def test_a_process_that_ends_fails_its_test_and_no_other_file(folder: Path) -> None:
    (folder / "test_two.py").write_text(TWO)
    status, said = outcomes(folder, "--processes", "2")
    assert (status, "2 failed, 2 passed, 1 skipped" in said) == (1, True), said
    assert "its process ended with -9, and the tests of its file after this one were not run" in said


def test_the_run_ends_at_the_first_failure_if_that_was_asked_for(folder: Path) -> None:
    for number in range(20):
        (folder / f"test_z{number}.py").write_text("def test_passes():\n    pass\n")
    status, said = outcomes(folder, "--processes", "1", "-x")
    assert (status, "1 failed, 1 passed" in said) == (1, True), said
