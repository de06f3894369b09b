"""`likeness import-compreface`: a CompreFace database's photos, from what `pg_dump` writes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidInput
from app.features.compreface.command import open_dump
from tests.conftest import PROJECT
from tests.support.commands import run as likeness
from tests.support.live import LiveServer
from tests.support.postgres import new_database
from tests.support.service import AGAIN, COLLINS, HOPPER

LAB, OTHER = "Door of the lab", "Other"
GRACE = 'Grace "Amazing" Höpper \\ 王'
ADDRESS = "a0000000-0000-0000-0000-00000000000{}"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """The committed dump, with real photos in it."""
    text = (PROJECT / "tests" / "compreface_dump.sql").read_bytes()
    for name, photo in (("COLLINS", COLLINS), ("HOPPER", HOPPER)):
        text = text.replace(f"@{name}@".encode(), photo.hex().encode())
    path = tmp_path / "compreface.sql"
    path.write_bytes(text)
    return path


def imported(server: LiveServer, path: Path, gallery: str, *more: object) -> tuple[int, dict[str, Any], str]:
    done = likeness(server.data_dir, "import-compreface", path, gallery, "--create", "--json", *more)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def subjects(server: LiveServer, gallery: str) -> dict[str, int]:
    with server.client() as client:
        listed = client.get(f"/v1/galleries/{gallery}/subjects").raise_for_status().json()["subjects"]
    return {one["id"]: one["face_count"] for one in listed}


def test_photos_are_enrolled_and_what_is_not_is_said(shared_server: LiveServer, dump: Path, tmp_path: Path) -> None:
    gallery, report = f"lab-{uuid.uuid4().hex}", tmp_path / "report.jsonl"
    # A tab is a control character, which no id here may hold.
    text = dump.read_bytes().replace(b"Eileen\\tCollins", b"Eileen Collins")
    dump.write_bytes(text)
    code, said, errors = imported(shared_server, dump, gallery, "--service", LAB, "--report", report)
    assert said == {
        "service": LAB,
        "enrolled": 2,
        "enrolled_before": 0,
        "refused": {"unsupported_image": 1},
        "subjects_without_photo": ["Without example", "Without photo"],
    }
    assert code == 3, "a photo was refused, which a script must learn"
    assert "10000000-0000-0000-0000-000000000003" in errors
    assert subjects(shared_server, gallery) == {"Eileen Collins": 1, GRACE: 1}
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(line["subject"], line["outcome"]) for line in lines] == [
        ("Eileen Collins", "enrolled"),
        (GRACE, "enrolled"),
        (GRACE, "unsupported_image"),
    ]
    _, again, _ = imported(shared_server, dump, gallery, "--service", LAB, "--report", report)
    assert (again["enrolled"], again["enrolled_before"]) == (0, 2), "what the report has is not enrolled twice"
    assert subjects(shared_server, gallery) == {"Eileen Collins": 1, GRACE: 1}


def test_a_gzipped_dump_and_a_service_of_several(shared_server: LiveServer, dump: Path) -> None:
    packed = dump.with_suffix(".sql.gz")
    packed.write_bytes(gzip.compress(dump.read_bytes()))
    gallery = f"other-{uuid.uuid4().hex}"
    code, said, _ = imported(shared_server, packed, gallery, "--service", OTHER)
    assert (code, said["enrolled"], said["subjects_without_photo"]) == (0, 1, [])
    assert subjects(shared_server, gallery) == {"Of the other service": 1}


def test_names_are_read_as_postgresql_escapes_them(dump: Path) -> None:
    found = open_dump(dump, LAB)
    assert set(found.subjects.values()) == {"Eileen\tCollins", GRACE, "Without photo", "Without example"}
    assert [(photo.subject, photo.content) for photo in found.read()] == [
        ("Eileen\tCollins", COLLINS),
        (GRACE, HOPPER),
        (GRACE, b"\x00\xff"),
    ]
    assert found.photos == 3, "two models' embeddings of one photo are one photo"


def refused(path: Path, code: str, service: str | None = LAB) -> str:
    with pytest.raises(InvalidInput) as caught:
        list(open_dump(path, service).read())
    assert caught.value.code == code
    return caught.value.message


def test_several_services_must_be_chosen_from_without_naming_keys(dump: Path) -> None:
    for service in (None, "nobody's"):
        message = refused(dump, "service_due", service)
        assert LAB in message
        assert ADDRESS.format(1) not in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"COPY public.img", b"COPY public.pictures"),
        (b"COPY public.subject", b"-- "),
        (b"COPY public.embedding", b"INSERT INTO public.embedding VALUES (1); --"),
        (b"\tWithout example\n", b"\n"),
        (b"Without photo", b"\xff\xfe"),
        (b"\tWithout example\n", b"\t\\N\n"),
    ],
)
def test_dumps_that_are_none_are_refused(dump: Path, old: bytes, new: bytes) -> None:
    changed = dump.read_bytes().replace(old, new)
    assert changed != dump.read_bytes()
    dump.write_bytes(changed)
    refused(dump, "invalid_dump")


@pytest.mark.parametrize("start", [b"PGDMP\x01\x0e", b"\x1f\x8bnothing", b"", b"-- no COPY here\n"])
def test_files_that_are_no_dump_are_refused(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "dump"
    path.write_bytes(start)
    refused(path, "invalid_dump")
    refused(tmp_path / "missing", "file_not_found")


def test_a_dump_that_is_cut_short_is_found_out_wherever_it_ends(dump: Path) -> None:
    whole = dump.read_bytes()
    last = whole.index(b"Of the other service")
    for end in (whole.index(b"COPY public.img") + 100_000, last, last + 22):
        dump.write_bytes(whole[:end])
        refused(dump, "invalid_dump")


def test_a_damaged_photo_is_one_refusal(dump: Path) -> None:
    dump.write_bytes(dump.read_bytes().replace(b"\\\\x00ff", b"\\\\x00f"))
    assert [photo.content for photo in open_dump(dump, LAB).read()] == [COLLINS, HOPPER, None]


SCHEMA = """
CREATE TABLE app (id bigserial PRIMARY KEY, name varchar(50), guid varchar(36), api_key varchar(36) UNIQUE);
CREATE TABLE model (id bigserial PRIMARY KEY, name varchar(50), guid varchar(36), app_id bigint REFERENCES app (id),
    api_key varchar(36) UNIQUE, type varchar(50), created_date timestamp);
CREATE TABLE subject (id uuid PRIMARY KEY, api_key varchar(36) REFERENCES model (api_key) ON DELETE CASCADE,
    subject_name varchar(255), UNIQUE (api_key, subject_name));
CREATE TABLE img (id uuid PRIMARY KEY, content bytea NOT NULL);
CREATE TABLE embedding (id uuid PRIMARY KEY, subject_id uuid REFERENCES subject (id) ON DELETE CASCADE,
    embedding float8[] NOT NULL, calculator varchar(255) NOT NULL, img_id uuid REFERENCES img (id));
"""
"""The tables of CompreFace's migrations that hold its faces, and those they refer to."""


def test_what_postgresql_itself_dumps(shared_server: LiveServer, postgresql: Path, tmp_path: Path) -> None:
    import psycopg  # noqa: PLC0415 - as in conftest

    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"))
    pg_dump = shutil.which("pg_dump") or (str(programs[-1]) if programs else None)
    if pg_dump is None:
        pytest.skip("needs pg_dump")
    url = new_database(postgresql)
    names = {"Eileen": (COLLINS, AGAIN), "tab, \\ and 'quote' Ω": (HOPPER,)}
    with psycopg.connect(url) as connection:
        connection.execute(SCHEMA.encode())
        connection.execute("INSERT INTO app (name, api_key) VALUES ('ours', 'x')")
        key = str(uuid.uuid4())
        connection.execute("INSERT INTO model (name, app_id, api_key) VALUES ('faces', 1, %s)", [key])
        for name, photos in names.items():
            subject = uuid.uuid4()
            connection.execute("INSERT INTO subject VALUES (%s, %s, %s)", [subject, key, name])
            for photo in photos:
                image = uuid.uuid4()
                connection.execute("INSERT INTO img VALUES (%s, %s)", [image, photo])
                row = [uuid.uuid4(), subject, [0.5, -1e-7], "Facenet2018", image]
                connection.execute("INSERT INTO embedding VALUES (%s, %s, %s, %s, %s)", row)
    path = tmp_path / "real.sql"
    with path.open("wb") as file:
        subprocess.run([pg_dump, url], stdout=file, check=True, env=os.environ | {"PGUSER": "postgres"})
    gallery = f"real-{uuid.uuid4().hex}"
    code, said, errors = imported(shared_server, path, gallery)
    assert (code, said["enrolled"], said["service"]) == (0, 3, "faces"), errors
    assert subjects(shared_server, gallery) == {name: len(photos) for name, photos in names.items()}
    inserts = tmp_path / "inserts.sql"
    with inserts.open("wb") as file:
        subprocess.run([pg_dump, "--inserts", url], stdout=file, check=True)
    assert "plain format" in refused(inserts, "invalid_dump", None)
