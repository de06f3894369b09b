"""`likeness doctor`: finds what is wrong with an installation, and says what to do."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import sqlalchemy as sa
from cryptography.x509.oid import ExtendedKeyUsageOID

from app.cli.output import Exit
from app.config import Settings
from app.db.engine import Database
from app.features.doctor.command import examine
from app.features.doctor.environment import holder_of
from app.features.doctor.inspection import inspect
from app.features.doctor.results import CheckResult
from app.features.reembedding.steps import Reembeddings
from app.gallery.store import Store
from app.models.opening import open_embedder
from app.models.packages import write_manifest
from app.package import golden
from app.package.folders import load_package
from app.server.data_folder import load_key
from tests.conftest import PROJECT
from tests.support import liveness, packages
from tests.support.commands import run
from tests.support.live import LiveServer, make_certificate
from tests.support.milvus import milvus_server, need_milvus
from tests.support.ready import give_database, give_models
from training.service import reserved_port


def examined(data_dir: Path, *only: str, **settings: Any) -> dict[str, list[CheckResult]]:
    """What is found, by check; by ``only`` some of them where they are named."""
    found: dict[str, list[CheckResult]] = {}
    with reserved_port() as port:
        for finding in examine(Settings(data_dir=data_dir, **{"port": port} | settings), only or None):
            found.setdefault(finding.check, []).append(finding)
    return found


def failed(findings: dict[str, list[CheckResult]]) -> dict[str, CheckResult]:
    return {name: result for name, found in findings.items() for result in found if result.verdict == "failed"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder as a start leaves it."""
    folder = tmp_path / "data"
    load_key(folder)
    give_models(folder)
    give_database(folder)
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the project's packages."""
    return shutil.copytree(PROJECT / "models", tmp_path / "models")


def test_a_good_installation_has_nothing_wrong(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.iterdir() if path.is_file()}
    found = examined(data)
    assert failed(found) == {}
    assert set(found) == {
        "python", "packages", "models", "device", "data", "key", "database", "galleries", "index", "vault", "disk",
        "port", "limits", "clock", "liveness", "workers",
    }  # fmt: skip
    assert len(found["models"]) == len(list((PROJECT / "models").iterdir()))
    assert {result.verdict for name in ("models", "device", "data", "key", "database") for result in found[name]} == {
        "ok"
    }
    assert all(bool(result.remedy) == (result.verdict != "ok") for ones in found.values() for result in ones)
    assert {path: path.read_bytes() for path in data.iterdir() if path.is_file()} == before


def test_before_the_first_start_nothing_is_made(tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models" / "yunet", models / "yunet")
    packages.install(models, "small")
    assert failed(examined(tmp_path / "data", models_dir=models, embedder="small")) == {}
    assert not (tmp_path / "data").exists()


def test_a_model_file_that_was_changed_is_found(models: Path, data: Path) -> None:
    manifest = models / "sface" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("fb143eea", "00000000"))
    found = failed(examined(data, "models", "device", models_dir=models))
    assert "is not the file that" in found["models"].found
    assert found["models"].remedy
    assert "device" in found


def test_operating_points_of_another_model_are_a_warning(models: Path, data: Path) -> None:
    shutil.copytree(models / "sface-slim", models / "mine")
    copied = load_package(models / "sface").manifest
    slim = load_package(models / "sface-slim").manifest
    taken = {"name": "mine", "calibrations": copied.calibrations}
    write_manifest(models / "mine", slim.model_copy(update=taken))
    warnings = [
        result for result in examined(data, "models", models_dir=models)["models"] if result.verdict == "warning"
    ]
    assert [result.found.split(" (")[0] for result in warnings] == [f"The operating points of mine@{slim.version}"]
    assert warnings[0].remedy


def test_whether_templates_are_checked_is_said(models: Path, data: Path) -> None:
    packages.install(models, "unchecked")
    found = {
        result.found.split(":")[0]: result.found for result in examined(data, "models", models_dir=models)["models"]
    }
    assert found["sface@2021dec_int8bq"].endswith("its templates are checked when it is opened")
    assert found["unchecked@1"].endswith(
        "it has no golden vectors, so that its templates are not checked when it is opened"
    )
    assert "templates" not in found["yunet@2023mar_int8bq"]


def test_a_package_that_makes_other_templates_here_is_found(tmp_path: Path, data: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(PROJECT / "models" / "yunet", models / "yunet")
    package = packages.install(models, "other")
    opposite = golden.record(lambda crops: -open_embedder(package, tmp_path, "cpu").run(crops))
    write_manifest(package.folder, package.manifest.model_copy(update={"golden": opposite}))
    found = failed(examined(data, "models", "device", models_dir=models, embedder="other"))
    assert set(found) == {"device"}
    assert "makes other templates here (cpu)" in found["device"].found
    assert "constraints.txt" in found["device"].remedy


@pytest.mark.parametrize("settings", [{"models_dir": Path("/nowhere")}, {"embedder": "nothing"}, {"embedder": "yunet"}])
def test_packages_that_are_not_there_are_found(data: Path, settings: dict[str, Any]) -> None:
    found = failed(examined(data, "models", "device", **settings))
    assert found["models"].remedy
    assert found["device"].remedy


def test_a_bad_manifest_is_a_warning(models: Path, data: Path) -> None:
    (models / "bad").mkdir()
    (models / "bad" / "manifest.json").write_text("{")
    found = examined(data, "models", "device", models_dir=models)
    (result,) = (result for result in found["models"] if result.verdict == "warning")
    assert str(models / "bad" / "manifest.json") in result.found
    assert "Repair or remove" in result.remedy
    assert failed(found) == {}


def test_packages_that_galleries_were_made_with_are_looked_for(models: Path, data: Path) -> None:
    small = packages.install(models, "small", dimension=8)
    with closing(Store(f"sqlite:///{data / 'likeness.db'}")) as store:
        staff = store.create_gallery("staff", "sface@2021dec_int8bq", 128)
        store.create_gallery("crew", "small@1", 8)
        store.create_gallery("guests", "small@1", 8)
        Reembeddings(store).begin(staff, "other@1", 16, without_crop="refuse", keep_days=1)
    found = examined(data, "galleries", models_dir=models)["galleries"]
    assert [(result.verdict, result.found.split()[0]) for result in found] == [
        ("failed", "other@1"),
        ("ok", "sface@2021dec_int8bq:"),
        ("ok", "small@1:"),
    ]
    assert "likeness reembed start staff PACKAGE" in found[0].remedy
    assert "2 galleries (crew, …)" in found[2].found
    packages.install(models, "other", dimension=4)
    (small.folder / "model.onnx").write_bytes(b"something else")
    found = examined(data, "galleries", models_dir=models, max_embedders=2)["galleries"]
    assert [result.verdict for result in found] == ["failed", "ok", "failed", "warning"]
    assert "makes 4 numbers, not the 16" in found[0].found
    assert "is not the file that" in found[2].found
    assert "LIKENESS_MAX_EMBEDDERS" in found[3].remedy
    assert all(bool(result.remedy) == (result.verdict != "ok") for result in found)


def test_a_gpu_that_cannot_be_used_is_found(data: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime may have a GPU")
    found = failed(examined(data, device="cuda"))
    assert set(found) == {"device"}
    assert "built without CUDA" in found["device"].found
    assert "LIKENESS_DEVICE=cpu" in found["device"].remedy


def test_files_that_others_can_read_are_found(data: Path) -> None:
    (data / "admin.key").chmod(0o644)
    data.chmod(0o755)
    found = examined(data, "key", "data")
    assert found["key"][0].verdict == "failed"
    assert "chmod 600" in found["key"][0].remedy
    assert found["data"][0].verdict == "warning"
    data.chmod(0o700)
    assert "admin.key" in examined(data, "key", "data")["data"][0].found


def test_a_key_that_is_none_is_found(data: Path) -> None:
    (data / "admin.key").write_text("short\n")
    assert "--rotate" in failed(examined(data, "key"))["key"].remedy


def test_a_folder_that_cannot_be_made_is_found() -> None:
    found = failed(examined(Path("/dev/null/data"), "data"))
    assert "/dev/null" in found["data"].found


def test_a_damaged_database_is_found(data: Path) -> None:
    path = data / "likeness.db"
    whole = path.read_bytes()
    path.write_bytes(b"no database at all" * 1000)
    assert "backup" in failed(examined(data, "database"))["database"].remedy
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("pragma foreign_keys = off")
        database.execute(
            "insert into subjects (gallery_key, id, folded, metadata, created_at, updated_at)"
            " values (9, '', '', '', '', '')"
        )
    assert "rows without" in failed(examined(data, "database"))["database"].found


def test_a_database_of_another_version_is_found(data: Path) -> None:
    with closing(sqlite3.connect(data / "likeness.db")) as database, database:
        database.execute("update alembic_version set version_num = '9999'")
    assert "newer or unreleased version" in failed(examined(data, "database"))["database"].found
    with closing(sqlite3.connect(data / "likeness.db")) as database, database:
        database.execute("delete from alembic_version")
    (finding,) = examined(data, "database")["database"]
    assert (finding.verdict, "migrates" in finding.remedy) == ("warning", True)


def test_a_database_that_somebody_holds_is_found(data: Path) -> None:
    with closing(sqlite3.connect(data / "likeness.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert failed(examined(data, "database"))["database"].remedy
        holder.execute("ROLLBACK")
    assert "database" not in failed(examined(data, "database"))


def test_databases_of_both_kinds_are_looked_at_without_being_changed(empty_database_url: str, tmp_path: Path) -> None:
    assert inspect(tmp_path, empty_database_url).revision is None
    Database(empty_database_url).close()
    found = inspect(tmp_path, empty_database_url)
    assert (found.problem, found.known, found.writable, found.damage) == ("", True, True, [])
    assert found.revision == found.newest is not None
    assert abs(found.clock_off_s) < 60
    if empty_database_url.startswith("postgresql"):
        engine = sa.create_engine(empty_database_url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            assert "likeness_doctor" not in sa.inspect(connection).get_table_names()
        engine.dispose()


def test_a_database_server_that_is_not_there_is_found_and_its_password_kept(data: Path, port: int) -> None:
    url = f"postgresql://me:very-secret@127.0.0.1:{port}/likeness"
    found = failed(examined(data, "database", database_url=url))["database"]
    assert "LIKENESS_DATABASE_URL" in found.remedy
    assert "very-secret" not in str(found)


@pytest.mark.long
def test_a_milvus_is_looked_at(tmp_path: Path, data: Path, port: int) -> None:
    where = f"milvus://127.0.0.1:{port}"
    assert examined(data, "index")["index"][0].verdict == "ok"
    need_milvus()
    for bad in (where, "milvus://"):
        assert "LIKENESS_INDEX" in failed(examined(data, "index", index=bad))["index"].remedy
    assert examined(data, "index", index=f"milvus://{tmp_path}/v.db")["index"][0].verdict == "warning"
    with milvus_server(tmp_path / "milvus", port):
        [found] = examined(data, "index", index=where)["index"]
        assert (found.verdict, "milvus" in found.found) == ("ok", True)


def test_a_port_that_somebody_holds_is_found_with_its_holder(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        found = failed(examined(data, "port", port=port))["port"]
        assert f"process {os.getpid()} " in found.remedy
        assert (holder_of(port) or "nobody") in found.remedy
    assert holder_of(port) is None
    assert "port" not in failed(examined(data, "port", port=port))


def test_an_address_that_is_none_of_ours_is_found(data: Path) -> None:
    assert "LIKENESS_HOST" in failed(examined(data, "port", host="192.0.2.1"))["port"].remedy


def test_a_server_that_runs_here_is_no_fault(shared_server: LiveServer) -> None:
    done = run(shared_server.data_dir, "doctor", "--json")
    found = {line["check"]: line for line in done.rows}
    assert shared_server.url in found["port"]["found"]
    assert "as prepared" in found["device"]["found"]
    assert {line["verdict"] for line in found.values()} <= {"ok", "warning"}
    assert shared_server.key not in done.stdout + done.stderr


def test_the_command_says_what_to_do_and_exits_with_1(tmp_path: Path, port: int) -> None:
    done = run(tmp_path / "data", "doctor", PORT=port, EMBEDDER="nothing")
    assert done.returncode == Exit.NO
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("failed   models"))
    assert "There is no model package 'nothing'" in lines[at]
    assert lines[at + 1].strip().startswith("→ Set LIKENESS_MODELS_DIR")


def test_certificates_are_looked_at(tmp_path: Path, data: Path) -> None:
    cert, key = make_certificate(tmp_path, days=30)
    assert [result.verdict for result in examined(data, "tls", tls_cert=cert, tls_key=key)["tls"]] == ["ok"]
    cert, key = make_certificate(tmp_path, days=3)
    (soon,) = examined(data, "tls", tls_cert=cert, tls_key=key)["tls"]
    assert (soon.verdict, "Renew" in soon.remedy) == ("warning", True)
    assert "tls" in failed(examined(data, "tls", tls_cert=cert, tls_key=cert))
    cert, key = make_certificate(tmp_path, days=-3)
    expired = failed(examined(data, "tls", tls_cert=cert, tls_key=key))["tls"]
    assert "Renew" in expired.remedy
    cert, key = make_certificate(tmp_path, 30, ExtendedKeyUsageOID.CLIENT_AUTH)
    assert "not for servers" in failed(examined(data, "tls", tls_cert=cert, tls_key=key))["tls"].found
    cert, key = make_certificate(tmp_path, 30, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
    assert [result.verdict for result in examined(data, "tls", tls_cert=cert, tls_key=key)["tls"]] == ["ok"]


def test_a_certificate_that_cannot_be_examined_is_a_finding(tmp_path: Path, data: Path) -> None:
    cert, key = make_certificate(tmp_path, days=30)
    cert.write_text(cert.read_text().replace(" CERTIFICATE", " TRUSTED CERTIFICATE"))  # as `openssl x509 -trustout`
    (unread,) = examined(data, "tls", tls_cert=cert, tls_key=key)["tls"]
    assert (unread.verdict, str(cert) in unread.found, bool(unread.remedy)) == ("warning", True, True)


def test_liveness_that_decides_nothing_is_a_warning(models: Path, data: Path) -> None:
    assert [result.verdict for result in examined(data, "liveness", models_dir=models)["liveness"]] == ["ok"]
    made = liveness.install(models)
    (found,) = examined(data, "liveness", models_dir=models)["liveness"]
    assert (found.verdict, "not measured" in found.found) == ("warning", True)
    liveness.calibrate(made, live_from=0.5, spoof_below=0.5)
    (found,) = examined(data, "liveness", models_dir=models)["liveness"]
    assert (found.verdict, "made-up" in found.found) == ("ok", True)
    (found,) = examined(data, "liveness", models_dir=models, liveness=("none",))["liveness"]
    assert (found.verdict, "none" in found.found) == ("warning", True)


def test_a_package_that_cannot_be_imported_is_a_finding(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "app.features.doctor.models", raising=False)
    monkeypatch.delitem(sys.modules, "app.inference.session", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = failed(examined(data, "packages", "device", "disk"))
    assert set(found) == {"packages", "device"}
    assert "onnxruntime" in found["device"].found
