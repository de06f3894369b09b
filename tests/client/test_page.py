"""The page on Python is run against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.live import serving

pytestmark = pytest.mark.long
PAGE = (PROJECT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")


def test_its_python_runs_from_top_to_bottom_and_prints_what_a_reader_expects(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    with serving(tmp_path / "data") as server:
        code = code.replace("http://127.0.0.1:8000", server.url).replace("lk_…", server.key)
        code = code.replace('Path("crew.tar")', f"Path({str(tmp_path / 'crew.tar')!r})")
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(re.match(r"known \[\('Eileen Collins', 0\.9", line) for line in lines), lines
    assert any(line.startswith("gallery_not_found ") for line in lines)
    assert lines[-1] == "['unknown']"
    assert (tmp_path / "crew.tar").stat().st_size > 1000
