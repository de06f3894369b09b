"""One process a data folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app import instance
from app.errors import Unusable

HOLD = """
import sys, time
from pathlib import Path
from app import instance
with instance.claim(Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(folder: Path, url: str) -> subprocess.Popen[str]:
    """Another process that holds the folder until it is killed."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), url], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_process_is_refused_and_told_where_the_first_answers(tmp_path: Path) -> None:
    with hold(tmp_path, "http://127.0.0.1:1") as holder:
        try:
            assert instance.running_at(tmp_path) == "http://127.0.0.1:1"
            with pytest.raises(Unusable, match="in use by http://127") as refusal, instance.claim(tmp_path):
                pass
            assert refusal.value.code == "data_dir_in_use"
        finally:
            holder.kill()


def test_a_killed_holder_leaves_nothing_locked(tmp_path: Path) -> None:
    with hold(tmp_path, "http://127.0.0.1:1") as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert instance.running_at(tmp_path) is None
    with instance.claim(tmp_path):
        pass


def test_a_passing_command_is_no_server(tmp_path: Path) -> None:
    with hold(tmp_path, "") as holder:
        try:
            assert instance.running_at(tmp_path) is None
        finally:
            holder.kill()


def test_nobody_holds_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert instance.running_at(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
