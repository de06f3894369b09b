"""The container engine of this machine: found, or started for as long as it is needed; and the images to begin with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import stand_ins

OWN_STATE = Path("/var/lib/likeness-try")
"""Of an engine that is started here: its images are there the next time."""
START_S = 30.0
PULL_S = 120.0


class Unavailable(Exception):
    """There is nothing to try with on this machine: no fault of what was to be tried."""


class Engine:
    """A docker that answers, and docker-compose of either generation; all commands end at `deadline` (monotonic)."""

    def __init__(self, docker: str, environ: Mapping[str, str], deadline: float) -> None:
        self.docker = docker
        self._environ = dict(environ)
        self._deadline = deadline
        plugin = self.run(docker, "compose", "version", check=False)
        if plugin.returncode == 0:
            self._compose = [docker, "compose"]
        elif found := shutil.which("docker-compose"):
            self._compose = [found]
        else:
            raise Unavailable("there is no docker-compose")

    def left(self) -> float:
        """Seconds; raises subprocess.TimeoutExpired where there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise subprocess.TimeoutExpired("everything", 0)
        return left

    def allow(self, seconds: float) -> None:
        """That much more, for cleaning up."""
        self._deadline = max(self._deadline, time.monotonic() + seconds)

    def run(self, *command: str, check: bool = True, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self._environ, cwd=folder, capture_output=True, text=True, timeout=self.left(), check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done

    def __call__(self, *command: str, check: bool = True) -> str:
        """What `docker …` prints."""
        return self.run(self.docker, *command, check=check).stdout.strip()

    def compose(self, *command: str, folder: Path, check: bool = True) -> str:
        return self.run(*self._compose, *command, folder=folder, check=check).stdout.strip()

    def inspect(self, container: str) -> dict[str, object]:
        found: list[dict[str, object]] = json.loads(self("inspect", container))
        return found[0]

    def has(self, image: str) -> bool:
        return self.run(self.docker, "image", "inspect", image, check=False).returncode == 0

    def provide(self, images: Sequence[str], *, make: bool) -> list[str]:
        """Pulls what is missing, or, where that fails and it may, makes stand-ins; which those are.

        Raises Unavailable.
        """
        known = {image.name: image for image in stand_ins.IMAGES}
        for image in images:
            if self.has(image) or self._pull(image):
                continue
            if not (make and image in known and os.getuid() == 0 and shutil.which("debootstrap")):
                raise Unavailable(f"{image} is not here, can't be pulled, and no stand-in can be made")
            try:
                stand_ins.make(self.docker, known[image], self._environ, self.left())
            except subprocess.CalledProcessError as error:
                raise Unavailable(f"no stand-in for {image} can be made: {error}") from None
        form = f'{{{{index .Config.Labels "{stand_ins.LABEL}"}}}}'
        return [image for image in images if self("image", "inspect", "--format", form, image) == "yes"]

    def _pull(self, image: str) -> bool:
        try:
            seconds = min(PULL_S, self.left())
            done = subprocess.run(
                [self.docker, "pull", "--quiet", image],
                env=self._environ,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


@contextmanager
def engine(deadline: float, environ: Mapping[str, str], *, start: bool) -> Iterator[Engine]:
    """The engine that answers; where none does and it may (`start`, as root), one of its own until the end.

    Raises Unavailable.
    """
    docker = _client()
    environ = {**environ, "DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}
    if _answers(docker, environ):
        yield Engine(docker, environ, deadline)
        return
    if not start:
        raise Unavailable("no engine answers")
    if os.getuid() != 0 or not shutil.which("dockerd"):
        raise Unavailable("no engine answers, and none can be started")
    run = OWN_STATE / "run"
    run.mkdir(parents=True, exist_ok=True)
    environ["DOCKER_HOST"] = f"unix://{run}/docker.sock"
    command = ["dockerd", "--host", environ["DOCKER_HOST"], "--data-root", str(OWN_STATE / "data")]
    command += ["--exec-root", str(run), "--pidfile", str(run / "dockerd.pid")]
    with (run / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + START_S
        while not _answers(docker, environ):
            if daemon.poll() is not None or time.monotonic() > end:
                last = (run / "dockerd.log").read_text().strip().splitlines()[-1:]
                raise Unavailable(f"dockerd does not start here: {' '.join(last)[-300:]}")
            time.sleep(0.2)
        yield Engine(docker, environ, deadline)
    finally:
        daemon.terminate()
        try:
            daemon.wait(START_S)
        except subprocess.TimeoutExpired:
            daemon.kill()


def _client() -> str:
    """A docker that can build with BuildKit: newer ones need a plugin for it. Raises Unavailable."""
    folders = dict.fromkeys([*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin"])
    found = [path for folder in folders if (path := shutil.which("docker", path=folder))]
    for path in found:
        environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
        done = subprocess.run([path, "build", "--help"], env=environ, capture_output=True, text=True, check=False)
        if "--secret" in done.stdout:
            return path
    raise Unavailable("there is no docker that builds with BuildKit" if found else "there is no docker")


def _answers(docker: str, environ: Mapping[str, str]) -> bool:
    command = [docker, "info", "--format", "{{.ServerVersion}}"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0 and re.match(r"\d", done.stdout) is not None
