"""Build the image, follow docs/how-to/docker.md, and try failures and upgrades: `python docker/try.py`.

Ends with 0 if everything worked. Also ends with 0, after one line that says why, if there is no engine or no base
image. Ends with 1 if something failed. Only images are left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import page
from engine import Engine, Unavailable, engine

PROJECT = Path(__file__).resolve().parent.parent
LFW = PROJECT.parent / "shared" / "data" / "lfw" / "lfw-deepfunneled.tar"
MEASURED_PEOPLE = 300
"""People of LFW with two photos each, whom the page enrolls and measures on, if the research data is here."""
ALONE = "likeness"
"""The page's name for the single container and its volume."""
SAMPLES = PROJECT / "docs" / "samples"
READY_S = 120.0
FOLLOW_S = 5.0
CLEANING_S = 90.0
ROUNDS = 10
WAITING = """docker() {
    case "$1 $2" in "compose exec" | "compose run")
        until command docker compose exec -T likeness python docker/healthy.py >/dev/null 2>&1; do
            command docker compose exec -T likeness true 2>/dev/null || break  # stopped, as the page says
            sleep 0.5
        done ;;
    "exec likeness") until command docker exec likeness python docker/healthy.py 2>/dev/null; do sleep 0.5; done ;;
    esac
    command docker "$@" || [ $? = 3 ]  # 3: some of the photos were refused
}
"""
"""Waits after `up`: a person who follows the page takes a few seconds then, which the service may need."""
NO_NETWORK = re.compile("NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProtocolError")
GALLERY = "/v1/galleries/crew"
OLDEST = (
    (PROJECT / "tests" / "support" / "version_0_1_0.py").read_text()
    + """
import os
make_0_1_0(os.environ["LIKENESS_DATABASE_URL"])
"""
)
KILL = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*"):
    if path.name != "1" and b"likeness\\0serve" in (path / "cmdline").read_bytes():
        os.kill(int(path.name), signal.SIGKILL)
"""
CONFINED = """
import os, pathlib
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
assert os.getuid() == 10001, os.getuid()
assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, status["CapBnd"]
assert int(status["NoNewPrivs"]) == 1
for folder in ("/", "/srv/likeness", "/opt/likeness", "/home", "/var/lib", "/run/likeness/database"):
    try:
        (pathlib.Path(folder) / "try").write_text("try")
    except OSError:
        continue
    raise AssertionError(f"{folder} can be written to")
"""
MODEST = """
import os
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
engine = sa.create_engine(os.environ["LIKENESS_DATABASE_URL"], isolation_level="AUTOCOMMIT")
with engine.connect() as connection:
    ask = lambda text: connection.execute(sa.text(text)).all()
    rights = "rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls, rolconnlimit"
    (found,) = ask(f"SELECT {rights} FROM pg_roles WHERE rolname = current_user")
    assert tuple(found) == (False,) * 5 + (250,), found
    assert {owner for (owner,) in ask("SELECT tableowner FROM pg_tables WHERE schemaname = 'public'")} == {
        ask("SELECT current_user")[0][0]
    }
    for refused in ("CREATE DATABASE other", "CREATE ROLE other", "SELECT * FROM pg_authid", "CREATE SCHEMA other",
                    "COPY galleries TO PROGRAM 'true'", "SELECT pg_read_file('postgresql.conf')"):
        try:
            ask(refused)
        except DBAPIError as error:
            assert "permission denied" in str(error), error
            continue
        raise AssertionError(f"it may {refused}")
assert not os.listdir("/run/likeness/database"), "it has the superuser's password"
"""
AS_SUPERUSER = """
REASSIGN OWNED BY likeness_service TO likeness; DROP OWNED BY likeness_service; DROP ROLE likeness_service;
"""
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 53), 3)
except OSError:
    sys.exit(1)
"""
LACKING = """
import importlib.util, shutil
found = [name for name in ("torch", "training", "pip", "setuptools") if importlib.util.find_spec(name)]
found += [name for name in ("gcc", "cc", "g++", "make", "curl") if shutil.which(name)]
assert not found, found
"""


class Trial:
    """One Compose project, and the requests to it from outside."""

    def __init__(self, docker: Engine, base: str) -> None:
        self.docker = docker
        self.name = docker.environ["COMPOSE_PROJECT_NAME"]
        self.base = base
        self.client = httpx.Client(base_url=base, timeout=30)

    def compose(self, *command: str, check: bool = True) -> str:
        return self.docker.compose(*command, folder=PROJECT, check=check)

    def replicas(self) -> list[str]:
        return self.compose("ps", "-q", "likeness").split()

    def address(self, container: str) -> str:
        """Return a replica's own address, on the network that it shares with the proxy."""
        form = "{{range $name, $one := .NetworkSettings.Networks}}{{$name}}={{$one.IPAddress}} {{end}}"
        found = dict(pair.split("=") for pair in self.docker("inspect", "--format", form, container).split())
        return f"http://{next(ip for name, ip in found.items() if name.endswith('_service'))}:8000"

    def until(self, what: str, condition: Callable[[], bool], seconds: float = READY_S) -> float:
        """Wait until the condition holds; return the seconds that it took."""
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > seconds:
                raise AssertionError(f"{what}: not within {seconds:.0f} s\n{self.compose('logs', check=False)[-4000:]}")
            self.docker.left()
            time.sleep(0.05)
        return time.monotonic() - begun

    def ready(self, base: str | None = None) -> bool:
        try:
            return self.client.get(f"{base or self.base}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def healthy(self) -> bool:
        """Return whether every container with a health check is healthy."""
        found = [
            self.docker("inspect", "--format", "{{json .State}}", container)
            for container in self.compose("ps", "-q").split()
        ]
        states = [json.loads(state) for state in found]
        return all(state["Health"]["Status"] == "healthy" for state in states if "Health" in state)

    def take_admin_key(self) -> None:
        key = self.docker("exec", self.replicas()[0], "likeness", "keys", "admin").splitlines()[0]
        self.client.headers["x-api-key"] = key

    def enroll(self, subject: str, photo: str, base: str | None = None) -> None:
        files = {"images": (SAMPLES / photo).read_bytes()}
        self.client.post(f"{base or self.base}{GALLERY}/subjects/{subject}/faces", files=files).raise_for_status()

    def known(self, photo: str, base: str | None = None) -> set[str]:
        """Return the known subjects in the photo."""
        files = {"image": (SAMPLES / photo).read_bytes()}
        answer = self.client.post(f"{base or self.base}{GALLERY}/identify", files=files).raise_for_status().json()
        return {face["candidates"][0]["subject"] for face in answer["faces"] if face["decision"] == "known"}


# The trials, in order. Each returns one line that says what was seen.


def comes_up(trial: Trial) -> str:
    begun = time.monotonic()
    trial.compose("up", "-d", "--no-build")
    trial.until("the service is ready", trial.ready)
    seconds = time.monotonic() - begun
    trial.until("all are healthy", trial.healthy)
    trial.take_admin_key()
    return f"answered {seconds:.1f} s after `up`"


def is_confined(trial: Trial) -> str:
    container = trial.replicas()[0]
    trial.docker("exec", container, "python", "-c", CONFINED)
    trial.docker("exec", container, "python", "-c", LACKING)
    away = "no way out" if nameserver() else "(whether there is a way out could not be tried)"
    if away == "no way out":
        reached = trial.docker.run(
            trial.docker.docker, "exec", container, "python", "-c", REACH, nameserver(), check=False
        ).returncode
        assert reached == 1, "it reaches what is outside"
    for container_id in trial.compose("ps", "-aq").split():
        found = trial.docker(
            "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}}", container_id
        ).split()
        assert found[0] == "true", "its root can be written to"
        assert found[1].split(":")[0] not in {"", "0", "root"}, "it is root"
    return f"no root, no capability, nothing to write to, {away}; no compiler, pip, torch"


def nameserver() -> str:
    """Return an outside address that this machine can reach (by TCP, at port 53); empty if there is none."""
    for address in re.findall(r"^nameserver ([0-9.]+)$", Path("/etc/resolv.conf").read_text(), re.MULTILINE):
        with suppress(OSError), socket.create_connection((address, 53), 3):
            return str(address)
    return ""


def is_no_superuser(trial: Trial) -> str:
    trial.docker("exec", trial.replicas()[0], "python", "-c", MODEST)
    return "the service's role owns its tables, and may make no role, database, schema or file"


def passes_its_own_checks(trial: Trial) -> str:
    found = json.loads(trial.docker("exec", trial.replicas()[0], "likeness", "doctor", "--json").splitlines()[-1])
    return f"`likeness doctor`: {json.dumps(found)[:200]}"


def enrolls_and_identifies(trial: Trial) -> str:
    trial.client.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
    trial.enroll("eileen", "collins.jpg")
    assert trial.known("both.jpg") == {"eileen"}
    return "enrolled, and found in another photo"


def survives_kill_9(trial: Trial) -> str:
    container = trial.replicas()[0]
    before = trial.docker("inspect", "--format", "{{.State.StartedAt}}", container)
    trial.docker("exec", container, "python", "-c", KILL)
    begun = time.monotonic()
    trial.until(
        "it is started again", lambda: trial.docker("inspect", "--format", "{{.State.StartedAt}}", container) != before
    )
    trial.until("it is ready again", trial.ready)
    seconds = time.monotonic() - begun
    assert trial.known("collins_again.jpg") == {"eileen"}
    return f"ready again after {seconds:.1f} s, and still knew everyone"


def survives_its_database(trial: Trial) -> str:
    database = trial.compose("ps", "-q", "database")
    trial.docker("exec", database, "pg_ctl", "stop", "-m", "immediate", "-D", "/var/lib/postgresql/data", check=False)

    def found() -> bool:
        try:
            return trial.known("collins_again.jpg") == {"eileen"}
        except httpx.HTTPError:
            return False

    return f"PostgreSQL killed: answered again after {trial.until('the database is back', found):.1f} s"


def stops_in_time(trial: Trial) -> str:
    container = trial.replicas()[0]
    begun = time.monotonic()
    trial.compose("stop", "likeness")
    seconds = time.monotonic() - begun
    code = trial.docker("inspect", "--format", "{{.State.ExitCode}}", container)
    assert code == "0", f"exit code {code}"
    return f"`stop`: exit code 0 after {seconds:.1f} s"


def upgrades_the_schema(trial: Trial) -> str:
    """Upgrade a database of an earlier version, which used the superuser: it has no role, and owns no table.

    The service must be stopped."""
    trial.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "likeness", "-c", OLDEST)
    database = trial.compose("ps", "-q", "database")
    trial.docker("exec", database, "psql", "-h", "/run/postgresql", "-U", "likeness", "-c", AS_SUPERUSER)
    trial.compose("up", "-d", "--no-build")
    seconds = trial.until("it is ready", trial.ready)
    assert trial.known("collins_again.jpg") == {"eileen"}
    is_no_superuser(trial)
    return f"a database of the first version, the superuser's: ready {seconds:.1f} s after `up`, still knew everyone"


def scales_to_two(trial: Trial) -> str:
    trial.compose("up", "-d", "--no-build", "--scale", "likeness=2")
    first, second = (trial.address(container) for container in trial.replicas())
    trial.until("both are ready", lambda: trial.ready(first) and trial.ready(second))
    waits = [seen_by_the_other(trial, *pair) for pair in [(first, second), (second, first)] * (ROUNDS // 2)]
    return f"enrolled on one, known to the other after {max(waits):.2f} s at most, its answer's time included"


def seen_by_the_other(trial: Trial, here: str, there: str) -> float:
    """Enroll by one replica, find and delete by the other; return the seconds until it was found there."""
    trial.enroll("grace", "hopper.jpg", here)
    seconds = trial.until("the other knows", lambda: "grace" in trial.known("hopper.jpg", there), FOLLOW_S)
    trial.client.delete(f"{there}{GALLERY}/subjects/grace").raise_for_status()
    trial.until("the other forgot", lambda: not trial.known("hopper.jpg", here), FOLLOW_S)
    return seconds


def loses_one_of_two(trial: Trial) -> str:
    first = trial.replicas()[0]
    trial.docker("exec", first, "python", "-c", KILL)
    statuses = [trial.client.get(GALLERY).status_code for _ in range(40)]
    assert set(statuses) == {200}, statuses
    trial.until("both are ready", lambda: all(trial.ready(trial.address(container)) for container in trial.replicas()))
    return "one of two killed: 40 of 40 questions through the proxy answered"


def asked_of(trial: Trial, prometheus: str, path: str, **query: str) -> dict[str, Any]:
    """Return the answer of Prometheus's API in the container of that name; empty while it does not answer."""
    url = httpx.URL(f"http://127.0.0.1:9090/api/v1/{path}", params=query)
    answer = trial.docker("exec", prometheus, "wget", "-q", "-O", "-", str(url), check=False)
    found: dict[str, Any] = json.loads(answer or "{}").get("data") or {}
    return found


def is_watched(trial: Trial) -> str:
    """Check that Prometheus sees both replicas and understands every query of the dashboard and the alerts."""
    trial.compose("up", "-d", "--no-build", "--no-deps", "--scale", "likeness=2", "likeness", "prometheus")
    prometheus = trial.compose("ps", "-q", "prometheus")

    def ask(path: str, **query: str) -> dict[str, Any]:
        return asked_of(trial, prometheus, path, **query)

    trial.until("it sees both", lambda: len(ask("query", query="likeness_ready == 1").get("result", ())) == 2)
    dashboard = json.loads((PROJECT / "docker/monitoring/grafana/dashboards/likeness.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for expression in asked:
        plain = expression.replace("$instance", ".*").replace("$__rate_interval", "1m")
        assert "result" in ask("query", query=plain), plain
    rules = len(re.findall(r"- alert:", (PROJECT / "docker/monitoring/alerts.yml").read_text()))
    groups = ask("rules")["groups"]
    assert [len(group["rules"]) for group in groups] == [rules]
    return f"Prometheus sees both replicas; {len(asked)} questions of the dashboard and {rules} alerts are understood"


def watches_a_camera(trial: Trial) -> str:
    """Check that MQTT reports who is in front of a camera: by RTSP, the watcher and Mosquitto."""
    trial.docker.environ |= {"LIKENESS_WATCHING": "on", "LIKENESS_MQTT": "mqtt://mosquitto:1883"}
    trial.docker.environ |= {"WATCH_GALLERY": "crew", "MQTT_PUBLISH": free_address()}
    begun = time.monotonic()
    trial.compose("--profile", "cameras", "build", "camera")
    trial.compose("up", "-d", "--no-build", "--no-deps", "likeness")
    trial.until("the service watches", lambda: trial.ready() and trial.client.get("/v1/webhooks").status_code == 200)
    started = time.monotonic()
    trial.compose("--profile", "cameras", "up", "-d", "--no-build", "--no-deps", "mosquitto", "camera", "watcher")
    broker = trial.compose("--profile", "cameras", "ps", "-q", "mosquitto")
    listen = ("mosquitto_sub", "-t", "likeness/people/+/state", "-C", "1", "-W", "5")
    state: dict[str, Any] = {}

    def heard() -> bool:
        found = trial.docker("exec", broker, *listen, check=False)
        state.update(json.loads(found) if found.startswith("{") else {})
        return state.get("present") == "ON"

    trial.until("the broker knows who is there", heard)
    seconds = time.monotonic() - started
    assert (state["subject"], state["camera"]) == ("eileen", "samples"), state
    events = trial.client.get("/v1/events", params={"after": 0, "seconds": 0}).raise_for_status().text
    assert "event: person_seen" in events, events
    took = f"{seconds:.0f} s after `up` ({started - begun:.0f} s before, to build and to start again)"
    trial.compose("--profile", "cameras", "rm", "-fs", "watcher", "camera", "mosquitto")
    return f"a camera by RTSP: {state['subject']} is there, by MQTT {took}"


def tells_nothing(trial: Trial) -> str:
    """Check that neither logs nor `inspect` show a secret."""
    secrets = [trial.client.headers["x-api-key"]]
    database = trial.compose("ps", "-q", "database")
    secrets.append(trial.docker("exec", database, "cat", "/run/likeness/database/password"))
    secrets.append(trial.docker("exec", trial.replicas()[0], "cat", "/run/likeness/service/password"))
    told = trial.compose("logs") + "".join(
        trial.docker("inspect", container) for container in trial.compose("ps", "-aq").split()
    )
    assert not [secret for secret in secrets if secret in told]
    # Errors about the unreachable database are expected.
    unexpected = [line for line in told.splitlines() if '"level": "error"' in line and '"Unusable"' not in line]
    assert not unexpected, f"errors that nobody expected are in the log: {unexpected[:3]}"
    return "no secret in logs or `inspect`"


def alerts_somebody(trial: Trial) -> str:
    """Check that alerts of a stopped replica and of a missing backup reach a webhook, with shorter waiting times."""
    told: list[str] = []
    quick_one = f"{trial.name}-quick"

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            told.extend(alert["labels"]["alertname"] for alert in body["alerts"] if alert["status"] == "firing")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    network = f"{trial.name}_outside"
    gateway = trial.docker("network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", network)
    with HTTPServer((gateway, 0), Hook) as server, tempfile.TemporaryDirectory() as folder:
        Thread(target=server.serve_forever, daemon=True).start()
        alerts = Path(folder) / "alerts.yml"
        hook = f"http://{gateway}:{server.server_port}/"
        text = (PROJECT / "docker/monitoring/alertmanager.yml").read_text().replace("group_wait: 10s", "group_wait: 0s")
        alerts.write_text(text.replace("- name: nobody", f"- name: nobody\n    webhook_configs: [{{url: '{hook}'}}]"))
        Path(folder).chmod(0o755)
        alerts.chmod(0o644)
        trial.docker.environ["ALERTS_FILE"] = str(alerts)
        trial.compose("up", "-d", "--no-build", "--no-deps", "alertmanager")
        rules = PROJECT / "docker/monitoring/alerts.yml"
        quick = re.sub(r"for: \w+", "for: 0s", rules.read_text())
        prometheus = trial.compose("ps", "-q", "prometheus")
        write = "cat >alerts.yml && sed s:/etc/prometheus/alerts:/prometheus/alerts: /etc/prometheus/prometheus.yml"
        done = subprocess.run(
            [trial.docker.docker, "exec", "-i", prometheus, "sh", "-c", f"cd /prometheus; {write} >prometheus.yml"],
            input=quick,
            env=trial.docker.environ,
            text=True,
            capture_output=True,
            timeout=trial.docker.left(),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        trial.compose(
            *("run", "-d", "--no-deps", "--name", quick_one, "prometheus"),
            *("--config.file=/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp/quick"),
        )
        trial.until("the backup's age is told", lambda: "LikenessBackupOld" in told, 120)
        # The alert's rule compares whole minutes, so both replicas have to be up for at least one whole minute.
        both = "max_over_time(count(likeness_ready)[1h:1m]) == 2"
        trial.until("both were there", lambda: bool(asked_of(trial, quick_one, "query", query=both).get("result")), 120)
        trial.docker("stop", trial.replicas()[0])
        trial.until("the stopped replica is told", lambda: "LikenessReplicaGone" in told, 240)
        server.shutdown()
        trial.docker("rm", "-f", quick_one)
    return f"a web hook was told of {', '.join(sorted(set(told)))}"


STEPS: tuple[Callable[[Trial], str], ...] = (
    comes_up,
    is_confined,
    is_no_superuser,
    passes_its_own_checks,
    enrolls_and_identifies,
    survives_kill_9,
    survives_its_database,
    stops_in_time,
    upgrades_the_schema,
    scales_to_two,
    loses_one_of_two,
    is_watched,
    alerts_somebody,
    watches_a_camera,
    tells_nothing,
)


def base_images() -> list[str]:
    """Return the images that must exist before anything is built or started, except the GPU's."""
    compose = (PROJECT / "docker-compose.yml").read_text()
    dockerfiles = [(PROJECT / "docker" / name).read_text() for name in ("Dockerfile", "camera.Dockerfile")]
    found = re.findall(r"^ARG (?:PYTHON|DEBIAN)_IMAGE=(\S+)", "\n".join(dockerfiles), re.MULTILINE)
    found += re.findall(r"^    image: \$\{\w+:-([^}]+)\}", compose, re.MULTILINE)
    return sorted(set(found))


def build(docker: Engine) -> str:
    """Build the image, with the package index and certificates that pip uses on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "pip.conf"
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
        )
        settings = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='([^']*)'$", asked.stdout, re.MULTILINE))
        lines = [f"{name} = {settings[name]}" for name in ("index-url", "default-timeout") if name in settings]
        command = ["build", "--file", "docker/Dockerfile", "--target", "cpu", "--tag", "likeness:cpu"]
        if bundle := settings.get("cert"):
            lines.append("cert = /run/secrets/ca")
            command += ["--secret", f"id=ca,src={bundle}"]
        config.write_text("\n".join(["[global]", *lines, ""]))
        try:
            docker.run(docker.docker, *command, "--secret", f"id=pip,src={config}", ".", folder=PROJECT)
        except AssertionError as error:
            if found := NO_NETWORK.search(str(error)):
                raise Unavailable(f"the package index is not reached from a build ({found.group()})") from None
            raise
    size = int(docker("image", "inspect", "--format", "{{.Size}}", "likeness:cpu"))
    return f"the image has {size / 1e6:.0f} MB"


@contextmanager
def project(docker: Engine, address: str) -> Iterator[Trial]:
    trial = Trial(docker, f"http://{address}")
    try:
        yield trial
    finally:
        docker.allow(CLEANING_S)
        take_down(docker, PROJECT)


def take_down(docker: Engine, folder: Path) -> None:
    profiles = [word for name in ("monitoring", "tls", "models", "cameras") for word in ("--profile", name)]
    docker.compose(*profiles, "down", "--volumes", "--remove-orphans", "--timeout", "10", folder=folder, check=False)


def follows_the_page(docker: Engine, begun: float) -> None:
    """Run every command of the page, in order, and print how long each block took. Raises AssertionError."""
    ports = {port: free_address().rpartition(":")[2] for port in ("8000", "8001", "8080", "8443", "3000")}
    places = {"PUBLISH": "8000", "HTTP_PUBLISH": "8080", "HTTPS_PUBLISH": "8443", "GRAFANA_PUBLISH": "3000"}
    environ = docker.environ | {name: f"127.0.0.1:{ports[port]}" for name, port in places.items()}
    environ["PATH"] = f"{Path(docker.docker).parent}:{environ['PATH']}"
    for kind in ("container", "volume"):
        if docker.run(docker.docker, kind, "inspect", ALONE, check=False).returncode == 0:
            raise Unavailable(f"a {kind} `{ALONE}`, as the page has it, is there already")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "likeness"
        page.copy_project(folder)
        many = give_photos(folder)
        try:
            for number, block in enumerate(page.blocks(page.PAGE.read_text(encoding="utf-8")), 1):
                first = block.code.splitlines()[0]
                if not block.is_run or (block.mark == page.NEEDS_PEOPLE and not many):
                    say(begun, f"page, block {number}, not run", first)
                    continue
                took = run_block(docker, page.with_ports(block.code, ports), folder, environ)
                say(begun, f"page, block {number}", f"{took:.1f} s: {first}")
        finally:
            docker.allow(CLEANING_S)
            docker("rm", "--force", ALONE, check=False)
            docker("volume", "rm", ALONE, check=False)
            take_down(docker, folder)


def run_block(docker: Engine, code: str, folder: Path, environ: dict[str, str]) -> float:
    """Run the lines, once the service is ready, in one shell that stops at the first error; return the seconds."""
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", f"{WAITING}{code}"],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=docker.left(),
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return time.monotonic() - begun


def give_photos(folder: Path) -> bool:
    """Put a reader's files into the folder: people, a model. Return whether there are enough people to measure."""
    for person, photos in {"eileen": ("collins.jpg", "collins_again.jpg"), "grace": ("hopper.jpg",)}.items():
        (folder / "people" / person).mkdir(parents=True)
        for photo in photos:
            shutil.copy(SAMPLES / photo, folder / "people" / person)
    shutil.copy(PROJECT / "models" / "sface-slim" / "model.onnx", folder / "mine.onnx")
    if not LFW.is_file():
        return False
    with tarfile.open(LFW) as archive:
        names = {Path(member) for member in archive.getnames()}
        second = sorted(path.parent for path in names if path.name.endswith("_0002.jpg"))
        twice = [person for person in second if person / f"{person.name}_0001.jpg" in names][:MEASURED_PEOPLE]
        for path in (person / f"{person.name}_000{number}.jpg" for person in twice for number in (1, 2)):
            content = archive.extractfile(str(path))
            assert content is not None
            target = folder / "people" / path.parent.name / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(content.read())
    return True


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def say(begun: float, what: str, seen: str) -> None:
    sys.stdout.write(f"{time.monotonic() - begun:6.1f} s  {what.replace('_', ' ')}: {seen}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", action="store_true", help="start an engine where none answers (as root)")
    parser.add_argument("--stand-ins", action="store_true", help="make base images of Debian's packages (as root)")
    parser.add_argument("--seconds", type=float, default=900, help="give up, without a verdict, after as many")
    given = parser.parse_args()
    begun = time.monotonic()
    address = free_address()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LIKENESS_", "COMPOSE_"))}
    environ = {name: value for name, value in environ.items() if not name.endswith("_IMAGE")}
    environ |= {"COMPOSE_PROJECT_NAME": f"likeness-try-{os.getpid()}", "PUBLISH": address}
    try:
        with engine(begun + given.seconds, environ, start=given.start) as docker:
            made = docker.provide(base_images(), make=given.stand_ins)
            say(begun, "base images", f"stand-ins: {', '.join(made)}" if made else "the real ones")
            say(begun, "builds", build(docker))
            follows_the_page(docker, begun)
            with project(docker, address) as trial:
                for step in STEPS:
                    say(begun, step.__name__, step(trial))
    except Unavailable as error:
        sys.stdout.write(f"Containers were not tried: {error}.\n")
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"Containers were tried up to here; {given.seconds:.0f} s did not suffice for the rest.\n")
    except (AssertionError, httpx.HTTPError) as error:
        sys.stdout.write(f"{time.monotonic() - begun:6.1f} s  FAILED: {error!r}\n{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
