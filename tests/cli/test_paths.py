"""Paths with characters that mean something in a URL, a pattern or a format string: every command and setting that
names a path uses that very file."""

from __future__ import annotations

import csv
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import pytest

from app.config import Settings
from app.files import sqlite_url
from tests.conftest import PROJECT
from tests.support import embedder_files, packages
from tests.support.commands import run
from tests.support.documents import load
from tests.support.live import ANSWER_S, make_certificate, serving
from tests.support.ready import give_models
from tests.support.service import AGAIN, COLLINS, HOPPER

ODD = "team%20photos ?a=b&c #1 [x] {0} %s ~ é+"
IN_SETTINGS = {"data_dir", "models_dir", "tls_cert", "tls_key", "encryption_key_file", "keys_file"}
"""Those set in TestSettings; `database_url`, `audit_sink` and `index` are text."""
ELSEWHERE = {
    "serve": "TestSettings",
    "models quantize": "takes its photos as `models measure` does",
    "models fuse": "too",
    "models pull": "tests/models/test_measured.py: a folder of files that are fetched elsewhere",
    "mcp": "tests/features/mcp/test_mcp.py: an assistant names them",
    "watch": "tests/features/watching/test_watch.py: needs a film, and PyAV",
}


def named(root: Path) -> set[str]:
    """What lies in a folder, by name: an odd path that was taken for another leaves a second one here."""
    return {path.name for path in root.iterdir()}


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Path]:
    """A folder with an odd name, which is all that its folder holds, now and at the end."""
    folder = tmp_path / "root" / ODD
    folder.mkdir(parents=True)
    yield folder
    assert named(folder.parent) == {ODD}


class Commands:
    """Runs commands on data folders in an odd one, and keeps which were run."""

    def __init__(self, odd: Path) -> None:
        self.odd = odd
        self.run: set[str] = set()

    def __call__(self, data: str, *words: object, code: int = 0, **settings: object) -> str:
        done = run(self.odd / data, *words, **settings)
        assert done.returncode == code, (words, done)
        self.run.add(" ".join(map(str, words)))
        return done.stdout


def people_of(folder: Path) -> Path:
    for person, photos in {"ada": (COLLINS, AGAIN), "grace": (HOPPER,)}.items():
        (folder / person).mkdir(parents=True)
        for number, photo in enumerate(photos):
            (folder / person / f"{number} %41?#.jpg").write_bytes(photo)
    return folder


def of_path(hint: Any) -> bool:
    return hint is Path or any(map(of_path, get_args(hint)))


@pytest.mark.long
def test_commands_use_the_path_that_they_are_given(odd: Path) -> None:
    likeness = Commands(odd)
    give_models(odd / "data")
    people = people_of(odd / "people")
    photo = people / "ada" / "0 %41?#.jpg"
    likeness("data", "enroll", "staff", "--people", people, "--create")
    assert "known: ada" in likeness("data", "identify", "staff", photo)
    assert "same person" in likeness("data", "verify", photo, people / "ada" / "1 %41?#.jpg")
    likeness("data", "detect", people)
    likeness("data", "corrections", "add", "staff", "grace", photo)
    (odd / "list.csv").write_text("")
    with (odd / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "id"], [photo, "ada"], ["people/grace/0 %41?#.jpg", "grace"]])
    likeness("data", "import", "listed", odd / "list.csv", "--create", "--report", odd / "report.csv")
    likeness("data", "import", "folder", people, "--create")
    job = run(odd / "data", "jobs", "list", "--json").rows[0]["id"]
    likeness("data", "jobs", "report", job, "--out", odd / "job.csv")
    likeness("data", "export", "staff", odd / "staff.archive")
    assert "known: ada" in likeness("data", "identify", "listed", photo)
    dump = (PROJECT / "tests" / "compreface_dump.sql").read_bytes()
    for name, content in (("COLLINS", COLLINS), ("HOPPER", HOPPER)):
        dump = dump.replace(f"@{name}@".encode(), content.hex().encode())
    (odd / "dump.sql").write_bytes(dump)
    words = ("--service", "Other", "--create", "--report", odd / "refused.jsonl")
    likeness("data", "import-compreface", odd / "dump.sql", "moved", *words)
    likeness("data", "backup", odd / "likeness.backup")
    likeness("data", "erase", "staff", "grace", "--save", odd / "receipt.json", "--yes")
    likeness("data", "receipts", "verify", odd / "receipt.json")
    likeness("data", "doctor")
    likeness("restored", "restore", odd / "likeness.backup")
    likeness("data", "database", "copy", sqlite_url(odd / "copied" / "likeness.db"))
    shutil.copyfile(odd / "data" / "vault.key", odd / "copied" / "vault.key")
    for data in ("restored", "copied"):
        give_models(odd / data)
        assert "known: ada" in likeness(data, "identify", "staff", photo)
    small = embedder_files.small()
    (odd / "net.onnx").write_bytes(small.SerializeToString())
    stated = ("--name", "mine", "--licence", "MIT", "--preset", "sface")
    likeness("data", "models", "add", odd / "net.onnx", *stated)
    likeness(
        "data", "models", "measure", "sface", "--photos", people, "--draw", odd / "det.svg", code=3
    )  # two people are too few
    made = {"report.csv", "job.csv", "staff.archive", "refused.jsonl", "likeness.backup", "receipt.json"}
    assert made <= {path.name for path in odd.iterdir()}
    assert {path.name for path in (odd / "data").iterdir()} >= {"likeness.db", "admin.key", "packages"}
    naming = {
        name
        for name, command in load("reference").every_command()
        if any(of_path(vars(parameter)["type_descriptor"].annotation) for parameter in command.params)
    }
    assert {
        name for name in naming - set(ELSEWHERE) if not any(said.startswith(f"{name} ") for said in likeness.run)
    } == set()


class TestSettings:
    def test_every_setting_of_a_path_is_here(self) -> None:
        hints = get_type_hints(Settings)
        assert {name for name in Settings.model_fields if of_path(hints[name])} == IN_SETTINGS

    @pytest.mark.long
    def test_a_server_uses_the_paths_of_its_settings(self, odd: Path) -> None:
        certificate, key = make_certificate(odd, 30)
        models = odd / "models"
        shutil.copytree(PROJECT / "models" / "yunet", models / "yunet")
        packages.install(models, "small")
        (odd / "keys.yaml").write_text("keys: [{id: door, scopes: [read], secret: " + "d" * 40 + "}]")
        data = odd / "data"
        (odd / "seal.key").write_text(run(data, "vault", "new-key").stdout)
        settings = {
            "MODELS_DIR": models,
            "EMBEDDER": "small",
            "TLS_CERT": certificate,
            "TLS_KEY": key,
            "KEYS_FILE": odd / "keys.yaml",
            "ENCRYPTION_KEY_FILE": odd / "seal.key",
            "AUDIT_SINK": odd / "audit.jsonl",
            "DATABASE_URL": sqlite_url(odd / "elsewhere" / "likeness.db"),
        }
        trust = ssl.create_default_context(cafile=certificate)
        with serving(data, settings, trust) as server, server.client("/v1") as client:
            client.post("/galleries", json={"id": "staff"}).raise_for_status()
            door = {"x-api-key": "lk_door_" + "d" * 40}
            answer = httpx.get(f"{server.url}/v1/galleries", headers=door, verify=trust, timeout=ANSWER_S)
            assert [gallery["id"] for gallery in answer.raise_for_status().json()["galleries"]] == ["staff"]
            assert "staff" in run(data, "galleries", "list", **settings).stdout
        assert (odd / "elsewhere" / "likeness.db").stat().st_size
        assert (odd / "audit.jsonl").read_text()


def test_a_database_that_an_older_version_put_elsewhere_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    give_models(data := tmp_path / "team%20photos")
    assert run(tmp_path / "team photos", "galleries", "create", "staff").returncode == 0
    done = run(data, "galleries", "create", "other")
    assert (done.returncode, "database_misplaced" in done.stderr) == (4, True), done
    for name in ("likeness.db", "vault.key", "admin.key"):  # the keys were in the data folder all along
        (tmp_path / "team photos" / name).replace(data / name)
    assert run(data, "galleries", "list", "--json").rows[0]["id"] == "staff"


def test_a_data_folder_that_moves_keeps_its_people(odd: Path) -> None:
    give_models(odd / "data")
    assert run(odd / "data", "galleries", "create", "staff").returncode == 0
    moved = (odd / "data").rename(odd / "other 50% off?")
    assert run(moved, "galleries", "list", "--json").rows[0]["id"] == "staff"
