"""`likeness doctor --upgrade-from`: the checklist of each version, looked up on the data folder."""

from __future__ import annotations

import re
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.cli.output import Exit
from app.features.doctor.upgrade import CHECKLISTS, parse
from app.version import VERSION
from tests.conftest import PROJECT
from tests.support.commands import Done, run
from tests.support.ready import give_database, give_models

OLD = PROJECT / "tests" / "data" / "v0.1.0" / "data.tar.gz"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder of version 0.1.0, with people in three galleries."""
    folder = tmp_path / "data"
    with tarfile.open(OLD) as archive:
        archive.extractall(folder, filter="data")
    return folder


def walked(data: Path, since: str = "0.1.0", **settings: Any) -> Done:
    return run(data, "doctor", "--upgrade-from", since, "--json", **settings)


def said(done: Done, verdict: str) -> str:
    return "\n".join(f"{row['found']} → {row['remedy']}" for row in done.rows if row["verdict"] == verdict)


def change(data: Path, statement: str) -> None:
    with closing(sqlite3.connect(data / "likeness.db")) as database, database:
        database.execute(statement)


def test_a_folder_of_0_1_0_is_told_what_it_needs_and_stays_as_it_is(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    done = walked(data)
    assert done.returncode == 0, done.stderr
    assert {row["check"] for row in done.rows} == {VERSION}
    warnings = said(done, "warning")
    assert "schema 0012, and the first start migrates it" in warnings
    for gallery in ("plain", "half", "near"):
        assert f"likeness faces check {gallery}" in warnings
    assert "none has the scope metrics" in warnings
    assert "likeness-client" in said(done, "todo")
    assert all(bool(row["remedy"]) == (row["verdict"] != "ok") for row in done.rows)
    assert {path: path.read_bytes() for path in before} == before


def test_a_model_that_is_no_longer_shipped_fails_and_says_the_way_out(data: Path) -> None:
    change(data, "UPDATE galleries SET embedder = 'mobilefacenet-64@1' WHERE id = 'half'")
    done = walked(data)
    assert done.returncode == Exit.NO
    assert "likeness reembed start half sface --wait" in said(done, "failed")


def test_galleries_without_crops_and_keys_that_cant_delete_are_named(data: Path) -> None:
    change(data, "UPDATE galleries SET store = 'none' WHERE id = 'near'")
    columns = "(id, scopes, digest, created_at)"
    for key, scopes in {"double-take": "enroll read recognize", "prometheus": "metrics"}.items():
        values = f"('{key}', '{scopes}', x'00', '2026')"
        change(data, f"INSERT INTO api_keys {columns} VALUES {values}")  # noqa: S608 - a test's own words
    (data / "tuned.json").write_text("{}")
    warnings = said(walked(data), "warning")
    assert "keep no crops, so that their faces can't be checked: near" in warnings
    assert "keys that enroll and may not delete: double-take" in warnings
    assert "scope metrics" not in warnings
    assert "tuned.json is no longer read" in warnings


def test_a_setting_that_is_no_more_comes_first(data: Path) -> None:
    done = run(data, "doctor", "--upgrade-from", "0.1.0", "--json", METRICS="key")
    assert done.returncode == Exit.NO
    assert [(row["check"], row["verdict"]) for row in done.rows] == [("settings", "failed")]
    assert "LIKENESS_METRICS is no setting any more" in said(done, "failed")


def test_what_is_migrated_or_new_is_in_order(tmp_path: Path) -> None:
    assert "no database yet" in said(walked(tmp_path / "new"), "ok")
    give_models(tmp_path / "data")
    give_database(tmp_path / "data")
    done = walked(tmp_path / "data")
    assert "the database is migrated" in said(done, "ok")
    assert "nobody is enrolled" in said(done, "ok")


def test_from_this_version_nothing_is_to_be_done(data: Path) -> None:
    done = walked(data, VERSION)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("wrong", ["", "0.1", "v0.1.0", "0.1.0; x", "٠.١.٠", "99.0.0"])
def test_another_word_than_an_earlier_version_is_refused_in_one_line(data: Path, wrong: str) -> None:
    done = walked(data, wrong)
    assert done.returncode == Exit.USAGE
    assert "--upgrade-from" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_version_but_the_first_has_a_checklist() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert list(CHECKLISTS) == sorted(versions[:-1], key=parse)
