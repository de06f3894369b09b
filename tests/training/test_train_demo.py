"""`make train-demo`: from nothing to drawn people who are identified over REST, in folders of the test's own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT


@pytest.mark.long
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on this machine")
def test_the_demo_fits_exports_and_is_identified_with(full: bool, tmp_path: Path) -> None:
    """With --full it is run (``--durations=1`` says how long that took); else its commands are read."""
    command = [
        "make", "train-demo", "--old-file=.venv/.train", f"BIN={Path(sys.executable).parent}",
        f"DEMO_RUN={tmp_path / 'run'}", f"DEMO_MODELS={tmp_path / 'models'}",
        f"DEMO=--set data.cache={tmp_path / 'cache'}",
    ]  # fmt: skip
    if not full:
        planned = subprocess.run([*command, "-n"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
        steps = [line.partition(" -m training ")[2].split(" ")[0] for line in planned.splitlines()]
        assert [step for step in steps if step] == ["train", "export", "try"]  # the rest installs
        assert str(tmp_path / "cache") in planned
        return
    shutil.copytree(PROJECT / "models" / "yunet", tmp_path / "models" / "yunet")
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # YuNet finds nine of ten drawn faces or so.
    assert re.search(r"demo@1 is served: (9|10) of 10 drawn people enrolled", done.stderr), done.stderr
    assert (tmp_path / "models" / "demo" / "manifest.json").is_file()
