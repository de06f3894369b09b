"""Run `likeness watch` in a process of its own, and cameras for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.live import LiveServer, environment

SYSTEM_PYTHON = Path("/usr/bin/python3")
"""Debian's Python, which finds Debian's packages."""
NEEDED = (
    "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import Gst, GstRtspServer; Gst.init()"
    "; assert all(map(Gst.ElementFactory.find, ('jpegdec', 'jpegenc', 'rtpjpegpay', 'qtdemux', 'rtph264pay')))"
)
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A running watcher and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def printed(self) -> str:
        return self.log.read_text()


@contextmanager
def watching(server: LiveServer, log: Path, *words: object, key: str | None = None) -> Iterator[Watched]:
    """Run `likeness watch WORDS` beside the server, and stop it as a supervisor would (SIGTERM)."""
    environ = environment(server.data_dir, SERVER=server.url, KEY=key or server.key)
    command = [sys.executable, "-m", "app", "watch", *map(str, words)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
    try:
        yield Watched(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def need_rtsp() -> None:
    """Skip the test if GStreamer's RTSP server is not installed."""
    python = SYSTEM_PYTHON if SYSTEM_PYTHON.exists() else None
    if python is None or subprocess.run([python, "-c", NEEDED], capture_output=True, check=False).returncode:
        packages = "python3-gi gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-base gstreamer1.0-plugins-good"
        pytest.skip(f"needs GStreamer's RTSP server (Debian: apt install {packages})")


@contextmanager
def rtsp_camera(port: int, files: Sequence[Path]) -> Iterator[subprocess.Popen[bytes]]:
    """Serve photos or a film by RTSP with docker/camera.py, at `rtsp://127.0.0.1:PORT/camera`."""
    command: list[str | Path] = [SYSTEM_PYTHON, PROJECT / "docker" / "camera.py", str(port), *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the camera did not start"
        try:
            yield process
        finally:
            process.kill()
