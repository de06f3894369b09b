"""Commands find a server that runs on the data folder, and no other."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from app.server import data_folder

HOLD = """
import sys, time
from pathlib import Path
from app.server import data_folder
with data_folder.announce(Path(sys.argv[1]), sys.argv[2]):
    print("there", flush=True)
    time.sleep(60)
"""


def announce(folder: Path, url: str) -> subprocess.Popen[str]:
    """Another process that says it is a server, until it is killed."""
    server = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), url], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "there\n"
    return server


def test_the_first_of_several_servers_is_found_and_when_it_is_killed_the_next(tmp_path: Path) -> None:
    with announce(tmp_path, "http://127.0.0.1:1") as first, announce(tmp_path, "http://127.0.0.1:2") as second:
        try:
            assert data_folder.running_at(tmp_path) == "http://127.0.0.1:1"
            first.send_signal(signal.SIGKILL)
            first.wait()
            assert data_folder.running_at(tmp_path) == "http://127.0.0.1:2"
        finally:
            first.kill()
            second.kill()


def test_neither_an_ended_nor_a_killed_server_is_found_and_nothing_is_left_of_them(tmp_path: Path) -> None:
    with announce(tmp_path, "http://127.0.0.1:1") as server:
        server.send_signal(signal.SIGKILL)
        server.wait()
    with data_folder.announce(tmp_path, "http://127.0.0.1:2"):
        assert data_folder.running_at(tmp_path) == "http://127.0.0.1:2"
    assert data_folder.running_at(tmp_path) is None
    assert list((tmp_path / data_folder.FOLDER).iterdir()) == []


def test_nobody_runs_on_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert data_folder.running_at(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
