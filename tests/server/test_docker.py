"""The files for containers, held to what they promise and to the code. `docker/try.py` really builds and runs them."""

from __future__ import annotations

import copy
import fnmatch
import json
import os
import re
import runpy
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import ProgrammingError

from app.cli import ENTRIES
from app.config import CLIENT_VARIABLES, PREFIX, Settings
from app.db.engine import Database
from app.db.opening import POOL_SIZE
from app.features.keys_file.reading import read_declared_keys
from tests.conftest import PROJECT
from tests.support.following import engine_of
from tests.support.live import LiveServer, environment
from tests.support.postgres import new_database
from tests.support.service import BOTH, COLLINS, running
from tests.support.version_0_1_0 import make_0_1_0

FOLDER = PROJECT / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = ("likeness", "likeness-gpu")
ENDING = ("secrets", "settings", "role", "models")
WITH_A_WAY_OUT = ("models", "alertmanager", "watcher")
"""To fetch a model, to tell people of alerts, and to see cameras."""
PAGE = (PROJECT / "docs" / "how-to" / "docker.md").read_text()
SAYS: dict[str, Any] = runpy.run_path(str(FOLDER / "page.py"))
OF_THE_IMAGE = {"data_dir", "device", "host", "models_dir", "port", "tls_cert", "tls_key"}
"""Settings that the image or the proxy decides."""
IMAGES: dict[str, str] = runpy.run_path(str(FOLDER / "digests.py"))["images"]()
LIKENESS_UID = "10001"
RIGHTS = """SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls, rolconnlimit FROM pg_roles
WHERE rolname = current_user"""

every_service = pytest.mark.parametrize("name", SERVICES)


@every_service
def test_every_container_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "tls" else [])
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "network_mode", "pid", "ipc"} & service.keys() or service.get("network_mode") == "none"
    assert re.fullmatch(r"[1-9][0-9]*:[0-9]+", service["user"]), "a user by number, and not root"
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}, "logs don't fill the disk"


@every_service
def test_every_container_says_whether_it_is_well_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    if name in ENDING:
        assert service["restart"] == "no"
        return
    assert service["restart"] == "unless-stopped"
    assert "healthcheck" in service or name in OWN  # theirs is in the image
    waits = service["depends_on"]
    assert "secrets" in waits
    if name in OWN:
        assert waits["database"] == {"condition": "service_healthy"}
        assert waits["role"] == {"condition": "service_completed_successfully"}


@every_service
def test_what_is_mounted_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", ()):
        source, _, rest = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", volume).partition(":")
        if source.startswith("."):
            assert (PROJECT / source).exists(), source
            assert rest.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


def test_nothing_but_the_proxies_and_grafana_is_reachable_and_they_from_this_machine_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"proxy", "tls", "grafana", "mosquitto"}
    for ports in published.values():
        assert all(re.search(r":-127\.0\.0\.1:\d+\}:\d+$", port) for port in ports), ports
    inside = {name for name, network in COMPOSE["networks"].items() if network.get("internal")}
    for name, service in SERVICES.items():
        if name not in {*published, *WITH_A_WAY_OUT} and "network_mode" not in service:
            assert set(service["networks"]) <= inside, name


def test_no_secret_is_written_down() -> None:
    for service in SERVICES.values():
        for name, value in (service.get("environment") or {}).items():
            if "PASSWORD" in name:
                assert value is None or str(value).startswith("/run/"), name
    url = SERVICES["likeness"]["environment"]["LIKENESS_DATABASE_URL"]
    assert re.search(r"//likeness_service@database/likeness\?passfile=/run/likeness/", url)


@pytest.mark.parametrize("name", OWN)
def test_every_setting_is_passed_on(name: str) -> None:
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    given = SERVICES[name]["environment"]
    of_commands = CLIENT_VARIABLES - {"LIKENESS_KEY"}
    assert set(given) == (known - {PREFIX + field.upper() for field in OF_THE_IMAGE}) | of_commands
    fixed = {key: value for key, value in given.items() if value is not None and not value.startswith("${")}
    Settings(**{key.removeprefix(PREFIX).lower(): value for key, value in fixed.items() if key not in of_commands})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"LIKENESS_FMRR": "1e-4"}, "LIKENESS_FMRR is not a setting; did you mean LIKENESS_FMR?"),
        ({"LIKENESS_FMR": "much"}, "LIKENESS_FMR: "),
        ({"LIKENESS_FMR": "1e-4", "LIKENESS_SERVER": "http://likeness:8000", "PUBLISH": "8000"}, ""),
    ],
)
def test_settings_that_do_not_exist_are_refused_before_anything_starts(given: dict[str, str], said: str) -> None:
    assert SERVICES["settings"]["env_file"] == [{"path": ".env", "required": False}]
    assert all(SERVICES[name]["depends_on"]["settings"]["condition"].endswith("successfully") for name in OWN)
    command = [sys.executable, str(FOLDER / "check_settings.py")]
    environ = {"PYTHONPATH": str(PROJECT), **given}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(said)
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == bool(said)


def test_the_trial_runs_every_command_of_the_page_but_these() -> None:
    """`docker/try.py` reads the page itself, and runs its blocks in order."""
    blocks = list(SAYS["blocks"](PAGE))
    assert PAGE.index("docker compose up -d") < PAGE.index("\n## ")
    shell = re.findall(r"^```(?:sh|bash|shell|console)\n", PAGE, re.MULTILINE)
    assert len(blocks) == len(shell) > 15
    left_out = {block.mark: block.code.strip() for block in blocks if block.mark is not None}
    assert set(left_out) == {
        "needs many people",
        "not run: from the internet",
        "not run: mine needs operating points first",
        "not run: in a checkout",
        "not run: no GPU in the trial",
        "not run: the trial does it after this page",
        "not run: the trial builds so, with this machine's index",
    }
    with pytest.raises(ValueError, match="unknown comment"):
        list(SAYS["blocks"]("<!-- later -->\n```sh\nls\n```\n"))


@pytest.mark.parametrize(
    "path", sorted({*(PROJECT / "docs").rglob("*.md"), PROJECT / "README.md"}), ids=lambda p: p.stem
)
def test_commands_of_compose_name_a_service_and_a_command_that_are_there(path: Path) -> None:
    """On every page: what a service is told after its name is what its entrypoint takes."""
    for line in re.findall(r"docker compose [^`\n]*", path.read_text()):
        words = shlex.split(line.split(" #")[0], comments=False)
        for verb in ("exec", "run"):
            if verb not in words[:4]:
                continue
            rest = words[words.index(verb) + 1 :]
            while rest and rest[0].startswith("-"):
                rest = rest[2:] if rest[0] in {"-v", "--entrypoint"} else rest[1:]
            service, *command = rest
            if service.startswith("compreface-"):
                continue
            assert service in SERVICES, line
            if verb == "run" and service == "likeness" and "--entrypoint" not in words:
                assert command[0] in ENTRIES, line
            if verb == "exec" and command[0] == "likeness":
                assert command[1] in ENTRIES, line


def test_each_variable_is_on_the_page() -> None:
    text = (PROJECT / "docker-compose.yml").read_text()
    used = {name for name in re.findall(r"\$\{(\w+):-", text) if not name.startswith(PREFIX) and "_IMAGE" not in name}
    named = set(re.findall(r"`([A-Z_]+)`", PAGE[PAGE.index("## Settings") :]))
    assert used - named == set()


def test_only_the_tls_proxy_is_believed_about_who_calls() -> None:
    """Its port is not published, and nginx takes what callers say about themselves on no other one."""
    assert SERVICES["proxy"]["ports"] == ["${PUBLISH:-127.0.0.1:8000}:8080"]
    text = (FOLDER / "nginx.conf").read_text()
    assert "map $server_port $caller { 8081 $http_x_forwarded_for; default $remote_addr; }" in text
    assert "reverse_proxy proxy:8081" in (FOLDER / "Caddyfile").read_text()
    assert "X-Forwarded-For $remote_addr" not in text


@pytest.mark.parametrize("given", [{}, {"LIKENESS_REQUEST_TIMEOUT": "600.5"}])
def test_the_proxy_waits_for_longer_than_the_service(given: dict[str, str], tmp_path: Path) -> None:
    program, option, script = SERVICES["proxy"]["entrypoint"]
    default = SERVICES["proxy"]["environment"]["LIKENESS_REQUEST_TIMEOUT"].partition(":-")[2].removesuffix("}")
    script = script.replace("$$", "$").replace("/tmp", str(tmp_path)).replace("/etc/likeness", str(FOLDER))  # noqa: S108 - the container's
    script = script.replace("exec nginx -c", "cat")
    seconds = {"LIKENESS_REQUEST_TIMEOUT": default} | given
    done = subprocess.run([program, option, script], env=seconds, capture_output=True, text=True, check=True)
    assert "REQUEST_TIMEOUT;" not in done.stdout
    waits = [int(found) for found in re.findall(r"(?:body|read|send)_timeout ([0-9]+)s;", done.stdout)]
    served = Settings(request_timeout=float(seconds["LIKENESS_REQUEST_TIMEOUT"])).request_timeout
    assert len(waits) == 3
    assert all(served + 25 < wait <= served + 30 for wait in waits)


def test_stopping_has_time_for_what_is_begun() -> None:
    for name in OWN:
        seconds = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert seconds >= Settings().drain_seconds + 15


def copied() -> list[str]:
    """What Dockerfile copies from the project."""
    lines = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]
    return [source for line in lines for source in line]


def test_dockerfile_copies_only_what_exists_and_is_sent_to_the_engine() -> None:
    ignored = (PROJECT / ".dockerignore").read_text().split("\n")
    assert "*" in ignored, "nothing is sent that is not named"
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert copied()
    for source in copied():
        assert (PROJECT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in sent), source
    assert not {"training", "tests"} & {Path(source).parts[0] for source in copied()}


def test_each_image_is_complete() -> None:
    """Both final stages are written out: what one has, the other has too."""
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    finals = re.split(r"^FROM \S+ AS (?:gpu|cpu)\n", DOCKERFILE, flags=re.MULTILINE)[1:]
    assert len(finals) == 2
    for final in finals:
        assert f"USER {LIKENESS_UID}:{LIKENESS_UID}" in final
        assert re.search(r"^HEALTHCHECK .*docker/healthy\.py", final, re.MULTILINE)
        assert f'org.opencontainers.image.version="{version}"' in final
    with_no_device = [
        re.sub(r" LIKENESS_DEVICE=cuda \\\n.*|, on CUDA", "", final).replace("gpu", "cpu") for final in finals
    ]
    assert with_no_device[0].strip() == with_no_device[1].strip()
    assert re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)[-1] == "cpu", "what no target means"


@pytest.mark.parametrize("buildx", [True, False])
def test_digests_are_what_the_registry_says(tmp_path: Path, buildx: bool) -> None:
    found = digests_written(tmp_path, f"sha256:{'a' * 64}", buildx=buildx)
    assert found == "".join(f"{name}={image}@sha256:{'a' * 64}\n" for name, image in IMAGES.items())


@pytest.mark.parametrize("answer", ["", "sha256:abc"])
def test_no_digest_is_invented(tmp_path: Path, answer: str) -> None:
    with pytest.raises(SystemExit, match="No registry tells the digest of"):
        digests_written(tmp_path, answer)
    assert not (tmp_path / "digests.env").exists()


def digests_written(folder: Path, answer: str, *, buildx: bool = True) -> str:
    docker = folder / "docker"
    wrong = "" if buildx else 'if [ "$1" = buildx ]; then exit 1; fi\n'
    docker.write_text(f"#!/bin/sh\n{wrong}echo '{answer}'\n")
    docker.chmod(0o755)
    module = runpy.run_path(str(FOLDER / "digests.py"))
    module["main"].__globals__["TARGET"] = folder / "digests.env"
    module["main"](str(docker))
    return (folder / "digests.env").read_text()


def secrets_made(folder: Path, **environ: str) -> None:
    for volume in ("database", "metrics", "grafana", "service", "watcher"):
        (folder / volume).mkdir(exist_ok=True)
    subprocess.run([sys.executable, FOLDER / "make_secrets.py", folder], env=environ, check=True)


def test_secrets_are_made_once_and_for_those_only_who_need_them(tmp_path: Path) -> None:
    secrets_made(tmp_path)
    made = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    others = {"database/password", "metrics/key", "watcher/key", "grafana/password"}
    assert set(made) == {*others, "service/password", "service/pgpass"}
    assert made["service/pgpass"] == f"*:*:*:*:{made['service/password']}\n"
    assert len({*made.values()}) == 6
    assert min(len(text) for text in made.values()) >= 32
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in made}
    assert modes.pop("service/pgpass") == 0o600, "libpq takes no other"
    assert set(modes.values()) == {0o640}
    secrets_made(tmp_path, DATABASE_PASSWORD="another")
    assert all((tmp_path / name).read_text() == text for name, text in made.items())


def test_a_password_that_is_given_is_the_superusers_alone(tmp_path: Path) -> None:
    (tmp_path / "database").mkdir()
    (tmp_path / "database" / "pgpass").write_text("of an earlier version")
    secrets_made(tmp_path, DATABASE_PASSWORD=r"with:colon\and backslash")
    made = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name, text in made.items() if "colon" in text} == {"database/password"}
    assert "database/pgpass" not in made
    assert "database_secret" not in str(SERVICES["likeness"]["volumes"])


def test_the_services_role_owns_its_tables_and_nothing_else(tmp_path: Path, postgresql: Path) -> None:
    """A database of an earlier version is the superuser's. The statements can be run again."""
    url = sa.make_url(new_database(postgresql))
    Database(url.render_as_string(hide_password=False)).close()
    password = tmp_path / "password"
    password.write_text("o'clock")
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("needs psql")
    command = [psql, "-qX", "-h", str(postgresql), "-U", "postgres", "-d", str(url.database)]
    for _ in range(2):
        environ = {**os.environ, "SERVICE_PASSWORD_FILE": str(password)}
        done = subprocess.run(
            [*command, "-f", str(FOLDER / "role.sql")], env=environ, capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == ("", "")
    service = url.set(username="likeness_service").render_as_string(hide_password=False)
    make_0_1_0(service)
    Database(service).close()  # migrated by the role itself
    with engine_of(service).connect() as connection:
        (rights,) = connection.execute(sa.text(RIGHTS)).all()
        owners = connection.execute(sa.text("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"))
        assert owners.scalars().all() == ["likeness_service"]
        with pytest.raises(ProgrammingError, match="permission denied"):
            connection.execute(sa.text("SELECT * FROM pg_authid"))
    (most,) = (int(text) for text in re.findall(r"max_connections=(\d+)", str(SERVICES["database"]["command"])))
    *flags, limit = rights
    assert flags == [False] * 5
    replica = 2 * POOL_SIZE + 1  # the pool with what it may add, and the lock on the database
    assert 2 * replica <= limit <= most - 20, "something is left for administrators"


def test_health_is_what_readyz_says(shared_server: LiveServer, tmp_path: Path, port: int) -> None:
    def verdict(at: str) -> int:
        command = [sys.executable, "-IS", str(FOLDER / "healthy.py")]
        return subprocess.run(command, env=environment(tmp_path, PORT=at), capture_output=True, check=False).returncode

    assert verdict(shared_server.url.rpartition(":")[2]) == 0
    assert verdict(str(port)) == 1


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "monitoring/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_say_in_one_sentence_what_is_wrong() -> None:
    rules = alert_rules()
    assert all(set(rule) == {"alert", "expr", "for", "annotations"} for rule in rules)
    assert all(
        re.fullmatch(r"[A-Z].*\.", rule["annotations"].pop("summary")) and not rule["annotations"] for rule in rules
    )


def expressions() -> list[str]:
    """Every question that the dashboard and the alerts ask of Prometheus."""
    dashboard = json.loads((FOLDER / "monitoring/grafana/dashboards/likeness.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [variable["query"]["query"] for variable in dashboard["templating"]["list"]]
    return asked + [rule["expr"] for rule in alert_rules()]


HISTORY: dict[str, Any] = {
    "rule_files": ["alerts.yml"],
    "evaluation_interval": "5m",
    "tests": [
        {
            "name": "a gallery that does not change, whose snapshot is touched every five minutes",
            "interval": "1m",
            "input_series": [{"series": "likeness_snapshot_age_seconds", "values": "0+60x5 " * 900}],
            "alert_rule_test": [{"eval_time": "89h", "alertname": "LikenessSnapshotOld"}],
        },
        {
            "name": "changes that no snapshot has",
            "interval": "1m",
            "input_series": [{"series": "likeness_snapshot_age_seconds", "values": "0+60x1600"}],
            "alert_rule_test": [
                {"eval_time": "24h", "alertname": "LikenessSnapshotOld"},
                {"eval_time": "26h", "alertname": "LikenessSnapshotOld", "exp_alerts": [{"exp_labels": {}}]},
            ],
        },
    ],
}
"""What `promtool test rules` is given of LikenessSnapshotOld."""
TRAFFIC = {"nobody asks": ([], None), "none is an error": (["200"], 0.0), "every second is one": (["200", "503"], 0.5)}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package `prometheus`")
def test_prometheus_answers_what_the_dashboard_and_the_alert_of_snapshots_mean(tmp_path: Path) -> None:
    history = copy.deepcopy(HISTORY)
    dashboard = json.loads((FOLDER / "monitoring/grafana/dashboards/likeness.json").read_text())
    (panel,) = (panel for panel in dashboard["panels"] if panel["title"] == "Errors of the server")
    expression = panel["targets"][0]["expr"].replace("$instance", ".*").replace("$__rate_interval", "5m")
    for name, (statuses, share) in TRAFFIC.items():
        total = 'likeness_requests_total{{instance="a", route="/v1/verify", status="{}"}}'
        series = [{"series": total.format(status), "values": "0+60x60"} for status in statuses]
        series += [{"series": total.format("204"), "values": "7+0x60"}]  # of before: one that nobody adds to
        samples = [] if share is None else [{"labels": "{}", "value": share}]
        asked = [{"expr": expression, "eval_time": "30m", "exp_samples": samples}]
        history["tests"].append({"name": name, "interval": "1m", "input_series": series, "promql_expr_test": asked})
    summary = next(rule for rule in alert_rules() if rule["alert"] == "LikenessSnapshotOld")["annotations"]
    history["tests"][1]["alert_rule_test"][1]["exp_alerts"][0]["exp_annotations"] = summary
    shutil.copy(FOLDER / "monitoring" / "alerts.yml", tmp_path)
    (tmp_path / "history.yml").write_text(yaml.safe_dump(history))
    command = ["promtool", "test", "rules", "history.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_by_its_key_all_that_the_dashboard_and_the_alerts_ask_for(tmp_path: Path) -> None:
    secrets_made(tmp_path)
    text = (FOLDER / "keys.yml").read_text()
    assert "/run/likeness/metrics/key" in text
    assert "/run/likeness/metrics/key" in (FOLDER / "monitoring" / "prometheus.yml").read_text()
    file = tmp_path / "keys.yml"
    file.write_text(text.replace("/run/likeness", str(tmp_path)))
    (terms, secret), _watcher = read_declared_keys(file, {})
    assert (tmp_path / "metrics" / "key").read_text() == f"lk_{terms.id}_{secret}"
    data = tmp_path / "data"
    with running(data, keys_file=file) as client:
        client.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        client.post("/v1/galleries/staff/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
        client.post("/v1/galleries/staff/identify", files={"image": BOTH}).raise_for_status()
        (data / "snapshots" / "1.snapshot").write_bytes(b"one")
        (data / "last_backup").touch()
        client.headers["x-api-key"] = f"lk_{terms.id}_{secret}"
        text = client.get("/metrics").raise_for_status().text
        assert client.get("/v1/galleries").status_code == 403
        assert client.post("/v1/detect", files={"image": COLLINS}).status_code == 403
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = {sample.name for sample in samples}
    labels = {label for sample in samples for label in sample.labels} | {"instance", "job"}
    asked = {name for expression in expressions() for name in re.findall(r"\b(?:likeness|process)_\w+", expression)}
    assert len(asked) > 25
    assert asked <= names
    by = {
        label
        for expression in expressions()
        for found in re.findall(r"by \(([^)]*)\)", expression)
        for label in found.split(", ")
    }
    by |= {label for expression in expressions() for label in re.findall(r"[{,] ?(\w+)[=!]~?\"", expression)}
    assert {"route", "status", "stage", "batcher"} <= by <= labels
