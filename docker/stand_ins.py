"""Make stand-ins for the base images of Dockerfile and docker-compose.yml, on machines that can't pull them.

They are made of Debian's own packages by debootstrap (as root), under the same names, with the same users, folders and
environment as far as they are used here. Use them to try the files, not for production.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

POSTGRES_ENTRY = """#!/bin/sh
# Creates the database if there is none, as the official image does, then becomes the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" \\
        --auth-host=scram-sha-256 --auth-local=trust $POSTGRES_INITDB_ARGS
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses= -k /run/postgresql" start
    createdb --host=/run/postgresql --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w -m fast stop
fi
exec "$@" -c 'listen_addresses=*' -k /run/postgresql
"""


@dataclass(frozen=True, slots=True)
class Image:
    """An image ``name`` of the files, made of ``packages`` of Debian's ``release`` and a Dockerfile's ``lines``."""

    name: str
    release: str
    packages: tuple[str, ...]
    lines: str
    more: tuple[str, ...] = ()
    """Packages with dependencies that debootstrap can't resolve: apt installs them afterwards."""

    @property
    def digest(self) -> str:
        """Return eight digits that identify the contents: a stand-in with other contents is made again."""
        return _digest(repr(self))


LABEL = "likeness.stand-in"
COMPOSE, COMPOSE_PATH = "docker-compose", "/usr/libexec/docker/cli-plugins/docker-compose"
"""For a machine that has no Compose, or one that is too old."""
PYTHON = ("ca-certificates", "python3", "python3-pip", "python3-venv")
SERVICES = (
    *("ca-certificates", "caddy", "curl", COMPOSE, "nginx-light", "postgresql", "prometheus"),
    *("prometheus-alertmanager", "wget"),
)
CAMERA = ("gir1.2-gst-rtsp-server-1.0", "gstreamer1.0-plugins-base", "gstreamer1.0-plugins-good", "python3-gi")
BROKER = ("ca-certificates", "mosquitto", "mosquitto-clients")
IMAGES = (
    Image(
        "python:3.11-slim-bookworm",
        "bookworm",
        PYTHON,
        "RUN ln -s /usr/bin/python3 /usr/local/bin/python3 && ln -s python3 /usr/local/bin/python\n",
    ),
    Image(
        "postgres:17-trixie",
        "trixie",
        SERVICES,
        "RUN userdel --force caddy; groupmod -g 999 postgres && usermod -u 999 postgres"
        " && install -d -o 999 -g 999 /var/lib/postgresql/data /run/postgresql\n"
        "COPY entry /usr/local/bin/entry\n"
        "ENV LANG=C.UTF-8 PATH=/usr/lib/postgresql/17/bin:$PATH PGDATA=/var/lib/postgresql/data\n"
        'VOLUME /var/lib/postgresql/data\nENTRYPOINT ["sh", "/usr/local/bin/entry"]\n',
    ),
    Image("nginx:1.28-bookworm", "trixie", SERVICES, "STOPSIGNAL SIGQUIT\n"),
    Image(
        "prom/prometheus:v3.12.0",
        "trixie",
        SERVICES,
        'RUN install -d -o 65534 -g 65534 /prometheus\nVOLUME /prometheus\nENTRYPOINT ["prometheus"]\n',
    ),
    Image(
        "prom/alertmanager:v0.28.1",
        "trixie",
        SERVICES,
        "RUN install -d -o 65534 -g 65534 /alertmanager\nVOLUME /alertmanager\n"
        'ENTRYPOINT ["prometheus-alertmanager"]\n',
    ),
    # Debian has no Grafana: this stand-in only answers requests and holds the password.
    Image(
        "grafana/grafana:12.4.3",
        "trixie",
        SERVICES,
        "RUN install -d /api && touch /api/health\nENTRYPOINT []\n"
        'CMD ["caddy", "file-server", "--root", "/", "--listen", ":3000"]\n',
    ),
    Image(
        "eclipse-mosquitto:2.0.22",
        "trixie",
        BROKER,
        "RUN userdel --force mosquitto; groupadd -g 1883 mosquitto && useradd -u 1883 -g 1883 mosquitto"
        " && install -d -o 1883 -g 1883 /mosquitto/data /mosquitto/config\nVOLUME /mosquitto/data\n"
        "ENV PATH=/usr/sbin:$PATH\n",
        CAMERA,
    ),
    Image("debian:trixie-slim", "trixie", BROKER, "", CAMERA),
    Image("caddy:2.10.2", "trixie", SERVICES, "RUN install -d /data /config /etc/caddy\n"),
)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def make(docker: str, image: Image, environ: Mapping[str, str], seconds: float) -> None:
    """Make the image. Packages that several images share are downloaded once.

    Raises subprocess.TimeoutExpired if the download takes longer than `seconds`, and CalledProcessError.
    """
    made_of = (image.packages, image.more) if image.more else image.packages
    raw = f"likeness-stand-in:{image.release}-{_digest(repr(made_of))}"
    command = [docker, "image", "inspect", raw]
    if subprocess.run(command, env=environ, capture_output=True, check=False).returncode:
        _import(docker, raw, image, environ, seconds)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "entry").write_text(POSTGRES_ENTRY)
        (Path(folder) / "Dockerfile").write_text(f"FROM {raw}\n{image.lines}LABEL {LABEL}={image.digest}\n")
        command = [docker, "build", "--quiet", "--tag", image.name, folder]
        subprocess.run(command, env=environ, check=True, capture_output=True)


def _import(docker: str, raw: str, image: Image, environ: Mapping[str, str], seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        _bootstrap(image, root, seconds)
        left_out = [f"--exclude=./{path}" for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc")]
        with subprocess.Popen(["tar", "-C", str(root), *left_out, "-c", "."], stdout=subprocess.PIPE) as tar:
            command = [docker, "import", "-", raw]
            subprocess.run(command, env=environ, stdin=tar.stdout, check=True, capture_output=True)


def _bootstrap(image: Image, root: Path, seconds: float) -> None:
    packages = ",".join(image.packages)
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", image.release, str(root)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as running:
        try:
            code = running.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGTERM)  # not SIGKILL: it has to unmount its mounts
            raise
    if code:
        raise subprocess.CalledProcessError(code, command)
    if image.more:
        shutil.copy("/etc/resolv.conf", root / "etc")
        install = f"apt-get -qq update && apt-get -qq install -y --no-install-recommends {' '.join(image.more)}"
        command = ["chroot", str(root), "env", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", install]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=seconds)
