"""Find the container engine of this machine, or start one while it is needed, and provide the base images."""

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
"""State of an engine that is started here; its images are kept for the next time."""
OLDEST_COMPOSE = 2, 24
"""The first version in which an `env_file` may be missing."""
START_S = 30.0
PULL_S = 120.0


class Unavailable(Exception):
    """This machine lacks something that the trial needs. Not a failure of what is tried."""


class Engine:
    """Run commands of a docker that answers; all of them end at `deadline` (monotonic)."""

    def __init__(self, docker: str, environ: Mapping[str, str], deadline: float) -> None:
        self.docker = docker
        self.environ = dict(environ)
        self._deadline = deadline

    def left(self) -> float:
        """Return the seconds left. Raises subprocess.TimeoutExpired when time is up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise subprocess.TimeoutExpired("everything", 0)
        return left

    def allow(self, seconds: float) -> None:
        """Extend the deadline to leave at least this many seconds, for cleaning up."""
        self._deadline = max(self._deadline, time.monotonic() + seconds)

    def run(self, *command: str, check: bool = True, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environ, cwd=folder, capture_output=True, text=True, timeout=self.left(), check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done

    def __call__(self, *command: str, check: bool = True) -> str:
        """Run `docker …`; return what it prints."""
        return self.run(self.docker, *command, check=check).stdout.strip()

    def compose(self, *command: str, folder: Path, check: bool = True) -> str:
        return self.run(self.docker, "compose", *command, folder=folder, check=check).stdout.strip()

    def inspect(self, container: str) -> dict[str, object]:
        found: list[dict[str, object]] = json.loads(self("inspect", container))
        return found[0]

    def has(self, image: str) -> bool:
        return self.run(self.docker, "image", "inspect", image, check=False).returncode == 0

    def provide(self, images: Sequence[str], *, make: bool) -> list[str]:
        """Pull the missing images, or make stand-ins if that fails and ``make`` allows it. Return the stand-ins.

        Also finds Compose. Raises Unavailable.
        """
        known = {image.name: image for image in stand_ins.IMAGES}
        for image in images:
            if self.has(image):
                made_of = self._label(image)
                if not made_of or made_of == known[image].digest:
                    continue
            elif self._pull(image):
                continue
            if not (make and image in known and os.getuid() == 0 and shutil.which("debootstrap")):
                raise Unavailable(f"{image} is not here, can't be pulled, and no stand-in can be made")
            try:
                stand_ins.make(self.docker, known[image], self.environ, self.left())
            except subprocess.CalledProcessError as error:
                raise Unavailable(f"no stand-in for {image} can be made: {error}") from None
        made = [image for image in images if self._label(image)]
        self._find_compose(next((image for image in made if stand_ins.COMPOSE in known[image].packages), None))
        return made

    def _label(self, image: str) -> str:
        """Return the digest of a stand-in's contents; an empty text for a real image."""
        return self("image", "inspect", "--format", f'{{{{index .Config.Labels "{stand_ins.LABEL}"}}}}', image)

    def _find_compose(self, stand_in: str | None) -> None:
        """Use this machine's Compose plugin, or the one in a stand-in. Raises Unavailable."""
        if self._has_compose():
            return
        if stand_in is None:
            raise Unavailable("there is no Compose 2.24 or newer")
        plugins = OWN_STATE / "config" / "cli-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        container = self("create", stand_in, "true")
        self("cp", f"{container}:{stand_ins.COMPOSE_PATH}", str(plugins / "docker-compose"))
        self("rm", container)
        self.environ["DOCKER_CONFIG"] = str(plugins.parent)
        if not self._has_compose():
            raise Unavailable("the stand-in's Compose does not run here")

    def _has_compose(self) -> bool:
        done = self.run(self.docker, "compose", "version", "--short", check=False)
        found = re.match(r"v?(\d+)\.(\d+)", done.stdout.strip())
        return done.returncode == 0 and found is not None and (int(found[1]), int(found[2])) >= OLDEST_COMPOSE

    def _pull(self, image: str) -> bool:
        try:
            seconds = min(PULL_S, self.left())
            done = subprocess.run(
                [self.docker, "pull", "--quiet", image],
                env=self.environ,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


@contextmanager
def engine(deadline: float, environ: Mapping[str, str], *, start: bool) -> Iterator[Engine]:
    """Yield the engine that answers. If none does and ``start`` allows it (as root), start one for the block.

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
    """Return a docker that can build with BuildKit; newer versions need a plugin for it. Raises Unavailable."""
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
