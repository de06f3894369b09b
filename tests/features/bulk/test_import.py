"""Imports: what is good is enrolled once, what is not is refused by name, and nothing an archive says is believed."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import tarfile
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from app.errors import InvalidInput
from app.features import tar_stream
from app.features.bulk import command as transfer
from app.features.bulk import json_lines, photo_import
from app.features.bulk.imports import Import
from app.features.bulk.npy import RowReader
from app.features.bulk.rows import write_many
from app.features.tar_stream import PieceReader
from app.gallery.store import Store
from tests.conftest import PROJECT
from tests.support import packages, stores
from tests.support.allocated import peak_bytes
from tests.support.changing import written
from tests.support.commands import run
from tests.support.jobs import end_leases
from tests.support.live import serving
from tests.support.ready import give_models
from tests.support.service import AGAIN, COLLINS, HOPPER, encoded, error_of, running
from tests.support.tarred import npy_of, tar_of, templates_of, units
from tests.support.waiting import job_ended, until

PACKAGE = "sface@2021dec_int8bq"
TWINS = encoded(np.hstack([np.array(Image.open(io.BytesIO(HOPPER)).convert("RGB"))] * 2), "JPEG")
"""Two faces, as prominent as each other."""
FACELESS = (PROJECT / "docs" / "samples" / "README.md").read_bytes()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("import") / "data", max_import_bytes=16_000_000) as client:
        yield client


@pytest.fixture
def home(service: httpx.Client) -> str:
    """The path of an empty gallery."""
    made = service.post("/v1/galleries", json={"id": f"g-{uuid.uuid4().hex}"}).raise_for_status().json()
    assert made["embedder"] == PACKAGE
    return f"/v1/galleries/{made['id']}"


def send(
    client: httpx.Client, home: str, upload: bytes, kind: str = "application/x-tar", **query: Any
) -> dict[str, Any]:
    answer = client.post(f"{home}/import", content=upload, headers={"content-type": kind}, params=query)
    assert answer.status_code == 202, answer.text
    return job_ended(client, answer.json()["id"])


def refused(client: httpx.Client, job: Mapping[str, Any]) -> list[tuple[str, str]]:
    text = client.get(f"/v1/jobs/{job['id']}/report").raise_for_status().text
    return [(line["name"], line["code"]) for line in map(json.loads, text.splitlines()) if not line["enrolled"]]


def warned(client: httpx.Client, job: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    text = client.get(f"/v1/jobs/{job['id']}/report").raise_for_status().text
    return [
        (line["name"], line["code"], line["reasons"]) for line in map(json.loads, text.splitlines()) if line["enrolled"]
    ]


def subjects(client: httpx.Client, home: str) -> dict[str, Any]:
    listed = client.get(f"{home}/subjects?limit=1000").raise_for_status().json()["subjects"]
    return {one["id"]: one for one in listed}


@pytest.mark.long
def test_an_archive_that_is_imported_again_brings_nothing_twice(database_url: str, tmp_path: Path) -> None:
    """Beside the gallery that it was exported from, whose faces have its ids, so that the copies have others."""
    with running(tmp_path / "data", database_url=database_url) as client:
        client.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        photos = {"eileen/1.jpg": COLLINS, "eileen/2.jpg": AGAIN, "grace/1.jpg": HOPPER}
        assert send(client, "/v1/galleries/crew", tar_of(photos))["counts"]["enrolled"] == 3
        exported = job_ended(client, client.post("/v1/galleries/crew/export").raise_for_status().json()["id"])
        archive = client.get(f"/v1/jobs/{exported['id']}/result").raise_for_status().content
        copies = []
        for gallery in ("copy", "another"):
            client.post("/v1/galleries", json={"id": gallery}).raise_for_status()
            for _ in range(2):
                job = send(client, f"/v1/galleries/{gallery}", archive, content="archive")
                assert job["state"] == "done", job
                found = client.get(f"/v1/galleries/{gallery}").raise_for_status().json()
                assert (found["subjects"], found["faces"]) == (2, 3)
            faces = client.get(f"/v1/galleries/{gallery}/subjects/eileen/faces").raise_for_status().json()["faces"]
            copies.append({face["face_id"] for face in faces})
        assert copies[0].isdisjoint(copies[1])


PEOPLE = {
    "eileen/1.jpg": COLLINS,
    "eileen/deeper/2.jpg": AGAIN,
    "grace/1.jpg": HOPPER,
    "grace/both.jpg": TWINS,
    "nobody/text.jpg": FACELESS,
    ".DS_Store": b"x",
    "eileen/._1.jpg": b"x",
    "loose.jpg": COLLINS,
}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_photos_are_taken_by_the_rules_of_enrollment(service: httpx.Client, home: str, mode: str) -> None:
    job = send(service, home, tar_of(PEOPLE, mode))
    assert (job["state"], job["kind"], job["done"], job["total"], job["key"]) == ("done", "import", 6, 6, "admin.key")
    assert refused(service, job) == [
        ("grace/both.jpg", "ambiguous_face"),
        ("nobody/text.jpg", "unsupported_image"),
        ("loose.jpg", "no_subject"),
    ]
    assert job["counts"] == {"enrolled": 3, "new_subjects": 2, "refused": 3, "warned": 1, "skipped": 2}
    assert {name: one["face_count"] for name, one in subjects(service, home).items()} == {"eileen": 2, "grace": 1}
    answer = service.post(f"{home}/identify", files={"image": AGAIN}).json()
    assert answer["faces"][0]["candidates"][0]["subject"] == "eileen"
    face = service.get(f"{home}/subjects/grace/faces").json()["faces"][0]
    assert service.get(f"{home}/subjects/grace/faces/{face['face_id']}/crop").is_success
    enrolled = service.post(f"{home}/subjects/again/faces", files={"images": HOPPER}).json()["enrolled"][0]
    assert (enrolled["quality"], enrolled["box"]) == (face["quality"], face["box"])
    assert service.get(f"{home}/check").json()["ok"]


def test_findings_are_reported_and_rejected_where_asked(service: httpx.Client, home: str) -> None:
    """Against the gallery, and among the photos of one batch."""
    (face,) = service.post(f"{home}/subjects/eileen/faces", files={"images": COLLINS}).json()["enrolled"]
    people = tar_of({"grace/1.jpg": HOPPER, "grace/2.jpg": HOPPER, "other/1.jpg": COLLINS})
    job = send(service, home, people, on_conflict="reject")
    assert job["counts"] == {"enrolled": 1, "new_subjects": 1, "refused": 2}
    assert refused(service, job) == [("grace/2.jpg", "duplicate_face"), ("other/1.jpg", "face_conflict")]
    assert set(subjects(service, home)) == {"eileen", "grace"}, "nobody is made for a rejected face"
    job = send(service, home, people)
    assert job["counts"] == {"enrolled": 3, "new_subjects": 1, "warned": 3}
    assert [row[:2] for row in warned(service, job)] == [
        ("grace/1.jpg", "duplicate_face"),
        ("grace/2.jpg", "duplicate_face"),
        ("other/1.jpg", "face_conflict"),
    ]
    whom, score = warned(service, job)[2][2]
    found = service.post(f"{home}/subjects/new/faces", params={"on_conflict": "reject"}, files={"images": COLLINS})
    assert found.json()["error"]["details"]["score"] == float(score.removeprefix("score ")), "as coarse as in answers"
    assert whom == "subject eileen"
    service.patch(home, json={"on_conflict": "allow"}).raise_for_status()
    assert send(service, home, people)["counts"] == {"enrolled": 3}
    assert face["duplicate"] is None


def test_templates_are_looked_at_where_asked(service: httpx.Client, home: str) -> None:
    vectors = units(300)
    lines = [{"subject": f"p{number}"} for number in range(300)]
    upload = templates_of(vectors, lines)
    assert send(service, home, upload, content="templates", package=PACKAGE)["counts"]["enrolled"] == 300
    assert send(service, home, upload, content="templates", package=PACKAGE)["counts"] == {"enrolled": 300}
    asked = send(service, home, upload, content="templates", package=PACKAGE, on_conflict="reject")
    assert asked["counts"] == {"refused": 300}
    assert {code for _, code in refused(service, asked)} == {"duplicate_face"}


def test_new_people_are_written_once(database_url: str) -> None:
    """Their faces change only the subjects that were there before."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        statements.append(statement)

    with closing(Store(database_url)) as store:
        gallery = store.create_gallery("staff", stores.PACKAGE, stores.DIMENSION)
        faces = [replace(stores.face(seed), subject=f"s{seed}", face_id=f"{seed:032}") for seed in range(3)]
        sa.event.listen(store.database._engine, "before_cursor_execute", note)
        try:
            written(store, gallery, write_many, stores.PACKAGE, [], faces[:2])
            assert [one for one in statements if one.startswith("UPDATE subjects")] == []
            before = store.subject(gallery, "s1").updated_at
            written(store, gallery, write_many, stores.PACKAGE, [], [replace(faces[2], subject="s1")])
        finally:
            sa.event.remove(store.database._engine, "before_cursor_execute", note)
        assert store.subject(gallery, "s1").updated_at > before


def test_a_form_brings_the_same(service: httpx.Client, home: str) -> None:
    answer = service.post(f"{home}/import", files={"archive": tar_of({"eileen/1.jpg": COLLINS})})
    assert job_ended(service, answer.raise_for_status().json()["id"])["counts"] == {"enrolled": 1, "new_subjects": 1}


def test_people_jsonl_says_more_of_the_photos(service: httpx.Client, home: str) -> None:
    people = [
        {"photo": "p/1", "subject": "eileen", "name": "Eileen Collins", "metadata": {"team": "STS-114"}},
        {"photo": "2", "subject": "e\u0301lise"},
    ]
    told = "\n".join(json.dumps(one) for one in people).encode()
    job = send(service, home, tar_of({"people.jsonl": told, "p/1": COLLINS, "./2": HOPPER, "grace/3": HOPPER}))
    assert job["counts"] == {"enrolled": 3, "new_subjects": 3, "warned": 1}
    found = subjects(service, home)
    assert set(found) == {"eileen", "\u00e9lise", "grace"}
    assert (found["eileen"]["name"], found["eileen"]["metadata"]) == ("Eileen Collins", {"team": "STS-114"})


@pytest.mark.parametrize("named", ["photos/F\u00fcnf 1.jpg", "photos\\F\u00fcnf 1.jpg", ".\\photos\\Fu\u0308nf 1.jpg"])
@pytest.mark.parametrize("kept", ["F\u00fcnf 1.jpg", "Fu\u0308nf 1.jpg"])
def test_a_table_names_photos_as_windows_does_and_in_either_form_of_unicode(
    tmp_path: Path, named: str, kept: str
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / kept).write_bytes(COLLINS)
    table = tmp_path / "people.csv"
    table.write_text(f"subject,path\neileen,{named}\neileen,photos/none.jpg\n", encoding="utf-8")
    source = transfer.source_of(table, None, None)
    assert source.missing == [str(tmp_path / "photos" / "none.jpg")]
    assert COLLINS in b"".join(source.tar())


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_people_jsonl_names_photos_in_either_form_of_unicode(
    service: httpx.Client, home: str, forms: tuple[Literal["NFC", "NFD"], Literal["NFC", "NFD"]]
) -> None:
    """Such as one that a program wrote, in a tar that macOS made: the folder's name is not who it shows."""
    told, packed = (normalize(form, "K\u00f6ln/f\u00fcnf.jpg") for form in forms)
    line = json.dumps({"photo": told, "subject": "eileen"}).encode()
    send(service, home, tar_of({"people.jsonl": line, packed: COLLINS}))
    assert set(subjects(service, home)) == {"eileen"}


def test_hidden_photos_are_skipped_and_counted_unless_people_jsonl_names_them(service: httpx.Client, home: str) -> None:
    told = json.dumps({"photo": ".camera/1.jpg", "subject": "eileen"}).encode()
    photos = dict.fromkeys((".camera/1.jpg", ".camera/2.jpg", "grace/._1.jpg", "@eaDir/x/1.jpg"), COLLINS)
    job = send(service, home, tar_of({"people.jsonl": told, **photos, "grace/1.jpg": HOPPER}))
    assert job["counts"] == {"enrolled": 2, "new_subjects": 2, "skipped": 3}
    assert set(subjects(service, home)) == {"eileen", "grace"}


@pytest.mark.parametrize(
    "upload",
    [
        b"no tar",
        b"\x1f\x8b\x08 no gzip",
        bytes(10_240)[:100],
        tar_of(PEOPLE)[:100_000],
        tar_of(PEOPLE, "w:gz")[:-2_000],
        tar_of({"people.jsonl": b"{}\n", "a/1.jpg": COLLINS}),
        tar_of({"people.jsonl": b"[" * 100_000, "a/1.jpg": COLLINS}),
        tar_of({"people.jsonl": b"x" * 2_000_000, "a/1.jpg": COLLINS}),
    ],
)
def test_what_is_cut_short_or_no_tar_is_refused_as_a_whole(service: httpx.Client, home: str, upload: bytes) -> None:
    job = send(service, home, upload)
    assert job["state"] == "failed"
    assert job["error"]["code"] in {"invalid_archive", "invalid_item"}
    assert subjects(service, home) == {}


def test_a_bomb_is_stopped(service: httpx.Client, home: str) -> None:
    packer = zlib.compressobj(wbits=31)
    zeros = (
        packer.compress(tar_stream.header("a/1.jpg", 17_000_000)) + packer.compress(bytes(17_000_000)) + packer.flush()
    )
    assert len(zeros) < 40_000
    job = send(service, home, zeros, "application/gzip")
    assert (job["state"], job["error"]["code"]) == ("failed", "payload_too_large")


def test_a_header_that_would_fill_the_memory_is_refused(service: httpx.Client, home: str) -> None:
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    info.size = 5_000_000
    job = send(service, home, info.tobuf() + bytes(5_000_000))
    assert (job["state"], job["error"]["code"]) == ("failed", "invalid_archive")


def test_a_photo_that_looks_like_none_of_its_persons_others_is_said(service: httpx.Client, home: str) -> None:
    people = {"ada/1.jpg": COLLINS, "ada/2.jpg": AGAIN, "ada/3.jpg": HOPPER}
    job = send(service, home, tar_of(people), on_conflict="warn")
    assert (job["state"], job["counts"]["enrolled"]) == ("done", 3)
    assert [row for row in warned(service, job) if row[1] == "unlike"] == [("ada/3.jpg", "unlike", [])]
    job = send(service, home, tar_of({"ada/4.jpg": HOPPER}), on_conflict="allow")
    assert job["counts"] == {"enrolled": 1}


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info.tobuf(tarfile.PAX_FORMAT) + content + tar_stream.padding(len(content))


def test_entries_that_no_archive_should_have_are_refused_one_by_one(
    service: httpx.Client, home: str, tmp_path: Path
) -> None:
    target = tmp_path / "escaped"
    bad = [
        (entry("../up/1.jpg", content=COLLINS), "unsafe_path"),
        (entry(f"{target}/1.jpg", content=COLLINS), "unsafe_path"),
        (entry("a/../../1.jpg", content=COLLINS), "unsafe_path"),
        (entry("a\\..\\1.jpg", content=COLLINS), "unsafe_path"),
        (entry("C:/a/1.jpg", content=COLLINS), "unsafe_path"),
        (entry("a/\x01.jpg", content=COLLINS), "unsafe_path"),
        (entry("a/\udcff.jpg", content=COLLINS), "unsafe_path"),
        (entry("a/link.jpg", tarfile.SYMTYPE, "/etc/passwd"), "not_a_file"),
        (entry("a/hard.jpg", tarfile.LNKTYPE, "eileen/1.jpg"), "not_a_file"),
        (entry("a/device", tarfile.CHRTYPE), "not_a_file"),
        (entry("a/pipe", tarfile.FIFOTYPE), "not_a_file"),
        (entry("x" * 300 + "/1.jpg", content=COLLINS), "invalid_id"),
    ]
    good = entry("eileen/1.jpg", content=COLLINS) + entry("grace\\more\\1.jpg", content=HOPPER)
    upload = b"".join(part for part, _ in bad) + good + tar_stream.TAR_END
    job = send(service, home, upload)
    assert job["state"] == "done"
    assert [code for _, code in refused(service, job)] == [code for _, code in bad]
    assert set(subjects(service, home)) == {"eileen", "grace"}
    assert not target.exists()
    assert not (tmp_path.parent / "up").exists()


MUTATED = tar_of({"a/1": b"12345" * 300, "b/2": b"", "c/3": b"x" * 513})


@settings(max_examples=100, database=None)
@given(
    cut=st.integers(0, len(MUTATED)),
    flips=st.lists(st.tuples(st.integers(0, len(MUTATED) - 1), st.integers(0, 255)), max_size=8),
)
def test_no_bytes_make_the_reader_stumble(cut: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(MUTATED)
    for place, value in flips:
        data[place] = value
    try:
        found = [
            (one.name, b"" if one.problem else one.read())
            for one in tar_stream.entries(lambda: iter([bytes(data[:cut])]), 10**6)
        ]
    except InvalidInput:
        found = []
    assert len(found) <= 3


@settings(max_examples=20, database=None)
@given(
    files=st.dictionaries(
        st.from_regex(r"[a-zé]{1,200}/[a-z]{1,50}", fullmatch=True), st.binary(max_size=3000), max_size=5
    )
)
def test_what_goes_into_a_tar_comes_out(files: dict[str, bytes]) -> None:
    ours = b"".join(
        tar_stream.header(name, len(data)) + data + tar_stream.padding(len(data)) for name, data in files.items()
    )
    for whole in (tar_of(files), tar_of(files, "w:gz"), ours + tar_stream.TAR_END):
        found = tar_stream.entries(lambda: iter([whole[:700], whole[700:]]), 10**9)  # noqa: B023 (read right here)
        assert {one.name: one.read() for one in found} == files


def test_uploads_that_are_none_are_refused_at_once(service: httpx.Client, home: str) -> None:
    def post(upload: bytes, kind: str = "application/x-tar", **query: Any) -> httpx.Response:
        return service.post(f"{home}/import", content=upload, headers={"content-type": kind}, params=query)

    error_of(post(b""), 422, "empty_upload")
    error_of(post(b"x" * 16_000_001), 413, "payload_too_large")
    error_of(post(b"x", "text/plain"), 415, "unsupported_media_type")
    error_of(post(b"x", "multipart/form-data"), 400, "invalid_multipart")
    error_of(post(b"--x\r\n", "multipart/form-data; boundary=x"), 400, "invalid_multipart")
    error_of(service.post(f"{home}/import", files={"other": b"x"}), 422, "invalid_request")
    error_of(service.post(f"{home}/import", files=[("archive", b"x"), ("archive", b"y")]), 400, "invalid_multipart")
    error_of(post(b"x", content="nonsense"), 422, "invalid_request")
    error_of(post(b"x", content="templates"), 422, "invalid_request")
    error_of(post(b"x", content="templates", package="other@1"), 409, "package_mismatch")
    error_of(service.post("/v1/galleries/none/import", content=b"x"), 404, "gallery_not_found")
    assert service.get("/v1/jobs", params={"gallery": home.rpartition("/")[2]}).json()["jobs"] == []


def test_nothing_of_an_upload_is_on_the_disk_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = b"a photo that nobody should find "
    looked, people = threading.Event(), photo_import._people

    def people_later(upload: Import) -> dict[str, bytes]:
        """What it does first; a job that is done takes the upload away."""
        assert looked.wait(60)
        return people(upload)

    monkeypatch.setattr(photo_import, "_people", people_later)
    with running(tmp_path / "data") as client:
        client.post("/v1/galleries", json={"id": "g"}).raise_for_status()
        job = client.post("/v1/galleries/g/import", files={"archive": tar_of({"a/1.jpg": mark * 1000})}).json()
        held = {path.suffix: path.read_bytes() for path in (tmp_path / "data" / "jobs").iterdir()}
        looked.set()
        assert held.keys() == {"", ".upload"}
        assert len(held[".upload"]) > len(mark) * 1000
        assert mark not in held[".upload"]
        assert job_ended(client, job["id"])["counts"] == {"refused": 1}
        until(lambda: not list((tmp_path / "data" / "jobs").glob("*.upload")))
    assert [path.name for path in (tmp_path / "data" / "jobs").iterdir()] == ["place"]


def test_templates_are_found_by_search_as_they_are(service: httpx.Client, home: str) -> None:
    vectors = units(300)
    about: list[Any] = [{"subject": f"s{n // 2}"} for n in range(300)]
    about[0] |= {"name": "First", "metadata": {"a": [1]}, "quality": 80, "face_id": "a" * 32}
    job = send(service, home, templates_of(vectors, about), content="templates", package=PACKAGE)
    assert (job["state"], job["counts"], job["done"]) == ("done", {"enrolled": 300, "new_subjects": 150}, 300)
    first = service.get(f"{home}/subjects/s0").json()
    assert (first["name"], first["metadata"], first["face_count"]) == ("First", {"a": [1]}, 2)
    faces = service.get(f"{home}/subjects/s0/faces").json()["faces"]
    assert faces[0]["face_id"] == "a" * 32
    assert [face["quality"]["score"] for face in faces] == [80, 50]
    assert service.get(f"{home}/check").json() | {"ok": True} == service.get(f"{home}/check").json()
    again = send(service, home, templates_of(vectors[:1], about[:1]), content="templates", package=PACKAGE)
    assert refused(service, again) == [("s0", "face_exists")]


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
def test_templates_in_any_float_and_of_any_length_if_asked(service: httpx.Client, home: str, kind: str) -> None:
    tar = tar_of({"ids.txt": "\u00e9\nb\nc\n".encode(), "templates.npy": npy_of((units(3) * 3).astype(kind))})
    job = send(service, home, tar, content="templates", package=PACKAGE)
    assert refused(service, job) == [
        ("\u00e9", "invalid_template"),
        ("b", "invalid_template"),
        ("c", "invalid_template"),
    ]
    job = send(service, home, tar, content="templates", package=PACKAGE, normalize=True)
    assert job["counts"] == {"enrolled": 3, "new_subjects": 3}
    assert set(subjects(service, home)) == {"\u00e9", "b", "c"}


def test_each_bad_template_is_refused_by_its_line(service: httpx.Client, home: str) -> None:
    vectors = units(9)
    vectors[1] *= 2
    vectors[2, 0] = np.nan
    about: list[Any] = [{"subject": f"s{n}"} for n in range(9)]
    about[3] = {"subject": ".."}
    about[4] = {"subject": "s4", "metadata": {"a": "x" * 20_000}}
    about[5] = {"subject": "s5", "quality": 101}
    about[6] = b"no json"
    about[7] = {"subject": "s7", "face_id": "A"}
    job = send(service, home, templates_of(vectors, about), content="templates", package=PACKAGE)
    assert job["state"] == "done"
    assert [code for _, code in refused(service, job)] == [
        "invalid_template",
        "invalid_template",
        "invalid_id",
        "invalid_metadata",
        "invalid_item",
        "invalid_item",
        "invalid_item",
    ]
    assert set(subjects(service, home)) == {"s0", "s8"}


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch /tmp/likeness-evil",)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"templates.npy": npy_of(units(2)), "ids.txt": b"a\n"}, "invalid_archive"),
        ({"templates.npy": npy_of(units(2))[:-1], "ids.txt": b"a\nb\n"}, "invalid_archive"),
        ({"templates.npy": npy_of(units(2))}, "invalid_archive"),
        ({"ids.txt": b"a\n"}, "invalid_archive"),
        ({"templates.npy": b"nonsense", "ids.txt": b"a\n"}, "invalid_archive"),
        ({"templates.npy": npy_of(np.array([Evil()], object)), "ids.txt": b"a\n"}, "invalid_archive"),
        ({"templates.npy": npy_of(np.zeros((2, 128), np.int32)), "ids.txt": b"a\nb\n"}, "invalid_archive"),
        ({"templates.npy": npy_of(units(1)[0]), "ids.txt": b"a\n"}, "invalid_archive"),
        ({"templates.npy": npy_of(np.asfortranarray(units(3))), "ids.txt": b"a\nb\nc\n"}, "invalid_archive"),
        ({"templates.npy": npy_of(units(2, 64)), "ids.txt": b"a\nb\n"}, "invalid_template"),
    ],
)
def test_templates_that_do_not_fit_together_are_refused_as_a_whole(
    service: httpx.Client, home: str, files: dict[str, bytes], code: str
) -> None:
    job = send(service, home, tar_of(files), content="templates", package=PACKAGE)
    assert (job["state"], job["error"]["code"]) == ("failed", code)
    assert subjects(service, home) == {}
    assert not Path("/tmp/likeness-evil").exists()  # noqa: S108 (the same)


def pax(content: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return entry("pax", kind, content=content)


def record(keyword: str, value: str) -> bytes:
    """A record of an extended header; its length counts itself (POSIX.1-2008, pax)."""
    rest = f" {keyword}={value}\n"
    length = len(rest) + len(str(len(rest) + 2))
    return f"{length}{rest}".encode()


PHOTO = entry("a/1.jpg", content=b"x") + tar_stream.TAR_END
HOSTILE_TARS = {
    "nested": lambda: pax(record("comment", "x")) * 2_000 + PHOTO,
    "nested names": lambda: entry("x", tarfile.GNUTYPE_LONGNAME, content=b"a/1\0") * 2_000 + PHOTO,
    "for all files": lambda: (
        b"".join(pax(record(f"k{n}", "v" * 60_000), tarfile.XGLTYPE) + entry(f"a/{n}.jpg") for n in range(200)) + PHOTO
    ),
    "digits": lambda: pax(b"1" * 60_000) + PHOTO,
    "sparse without end": lambda: (
        pax(record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"))
        + entry("a/1.jpg", content=bytes(20_000_000))
        + tar_stream.TAR_END
    ),
    "negative": lambda: pax(record("size", "-1")) + PHOTO,
}


def _read_through(upload: bytes) -> None:
    for one in tar_stream.entries(lambda: iter([upload]), 10**9):
        for _ in one.pieces():
            pass


@pytest.mark.parametrize("what", HOSTILE_TARS)
def test_hostile_headers_take_neither_memory_nor_time(what: str) -> None:
    upload = HOSTILE_TARS[what]()
    took_s = list[float]()

    def refuse() -> None:
        began = time.thread_time()
        with pytest.raises(InvalidInput) as caught:
            _read_through(upload)
        took_s.append(time.thread_time() - began)
        assert caught.value.code == "invalid_archive"

    assert peak_bytes(refuse, 12_000_000) < 12_000_000
    assert min(took_s) < 2


def test_headers_of_real_archives_are_read() -> None:
    """Long names and links, extended attributes, and a header for all files, as git writes it."""
    name = "a" * 120 + "/" + "b" * 200 + "1" * 50 + ".jpg"
    attributes = record("SCHILY.xattr.user.x", "7" * 200) + record("mtime", "1700000000.123456789")
    upload = pax(record("comment", "0" * 40), tarfile.XGLTYPE) + pax(attributes + record("path", name))
    upload += entry("short", content=b"x") + entry("a/" + "c" * 300, content=b"y") + tar_stream.TAR_END
    found = [(one.name, one.read()) for one in tar_stream.entries(lambda: iter([upload]), 10**6)]
    assert found == [(name, b"x"), ("a/" + "c" * 300, b"y")]


def npy_header(text: str, length: int | None = None, version: int = 2) -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(4 if version > 1 else 2, "little") + text.encode()


@pytest.mark.parametrize(
    "header",
    [
        npy_header("x" * 20_000_000),
        npy_header("{}", length=2**32 - 1) + bytes(20_000_000),
        npy_header("-" * 4_000 + "1"),
        npy_header("(" * 4_000),
        npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 128), }\n") + bytes(20_000_000),
    ],
    ids=["long", "says long", "minus signs", "brackets", "negative"],
)
def test_hostile_npy_headers_are_refused_before_they_are_read(header: bytes) -> None:
    def refuse() -> None:
        with pytest.raises(InvalidInput):
            RowReader(PieceReader(iter([header])), 128)

    assert peak_bytes(refuse, 2_000_000) < 2_000_000


def test_batches_of_large_lines_are_small() -> None:
    weighed = [(n, json_lines.BATCH_WEIGHT // 3) for n in range(10)]
    assert [len(some) for some in json_lines.batches(weighed, 5_000)] == [4, 4, 2]
    assert [len(some) for some in json_lines.batches([(n, 1) for n in range(10)], 4)] == [4, 4, 2]


def test_what_belongs_together_is_in_one_batch_up_to_twice_its_size() -> None:
    def parted(tens: str) -> list[str]:
        items = [(one, 1) for one in tens]
        return ["".join(some) for some in json_lines.batches(items, 4, together=lambda one, other: one == other)]

    assert parted("abcccccdd") == ["abccccc", "dd"]
    assert parted("aaaaaaaaaab") == ["aaaaaaaa", "aab"]
    assert parted("abcd") == ["abcd"]


def test_too_many_lines_about_photos_are_refused(
    service: httpx.Client, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photo_import, "MAX_PEOPLE", 2)
    lines = b"".join(json.dumps({"photo": f"{n}.jpg", "subject": "x"}).encode() + b"\n" for n in range(3))
    job = send(service, home, tar_of({"people.jsonl": lines}))
    assert (job["state"], job["error"]["code"]) == ("failed", "payload_too_large")


def test_an_import_is_cancelled_and_what_is_done_stays(
    service: httpx.Client, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = photo_import._write

    def write_and_wait(imported: Import, *batch: Any) -> None:
        """Until the job has heard of the end: a quick machine would be done by then."""
        write(imported, *batch)
        until(lambda: imported.job.cancelled)

    monkeypatch.setattr(photo_import, "_write", write_and_wait)
    upload = tar_of({f"p{n}/1.jpg": COLLINS for n in range(2 * photo_import.PHOTOS_AT_ONCE)})
    job = service.post(f"{home}/import", files={"archive": upload}).raise_for_status().json()
    until(lambda: service.get(f"/v1/jobs/{job['id']}").json()["counts"].get("enrolled"))
    service.post(f"/v1/jobs/{job['id']}/cancel").raise_for_status()
    now = job_ended(service, job["id"])
    assert now["state"] == "cancelled"
    assert now["counts"]["enrolled"] == len(subjects(service, home)) == photo_import.PHOTOS_AT_ONCE
    assert service.get(f"{home}/check").json()["ok"]


@pytest.mark.long
def test_a_killed_server_goes_on_and_enrolls_nothing_twice(tmp_path: Path, full: bool) -> None:
    rounds, count = (8, 200_000) if full else (2, 12_000)
    upload = templates_of(units(count), [{"subject": f"s{n}"} for n in range(count)])
    data = tmp_path / "data"
    with serving(data) as server:
        with server.client() as client:
            client.post("/v1/galleries", json={"id": "g"}).raise_for_status()
            query = {"content": "templates", "package": PACKAGE}
            answer = client.post("/v1/galleries/g/import", params=query, files={"archive": upload})
            job = answer.raise_for_status().json()["id"]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    seen: list[int] = []
    for number in range(1, rounds + 1):
        end_leases(data)
        with serving(data) as server:
            with server.client() as client:
                if number == rounds:
                    now = job_ended(client, job)
                    check = client.get("/v1/galleries/g/check").raise_for_status().json()
                    break
                end = time.monotonic() + 60
                while client.get(f"/v1/jobs/{job}").json()["done"] <= sum(seen[-1:]) and time.monotonic() < end:
                    time.sleep(0.01)
                seen.append(client.get(f"/v1/jobs/{job}").json()["done"])
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
    assert (now["state"], now["done"]) == ("done", count)
    assert now["counts"] == {"enrolled": count, "new_subjects": count}
    assert (check["ok"], check["faces"], check["subjects"]) == (True, count, count)
    with Store(f"sqlite:///{data / 'likeness.db'}").database.read() as connection:
        from sqlalchemy import text  # noqa: PLC0415 (only here)

        gaps = connection.execute(text("SELECT max(number) - count(*) FROM changes")).scalar()
    assert gaps == -1, "numbered from 0 without a gap"


def test_a_row_of_parquet_without_a_person_names_nobody(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs the extra `parquet`")
    pyarrow = pytest.importorskip("pyarrow")
    table = {"id": ["ada", None, "7"], "embedding": units(3, seed=4).tolist()}
    parquet.write_table(pyarrow.table(table), tmp_path / "vectors.parquet")
    packed = b"".join(transfer.source_of(tmp_path / "vectors.parquet", None, None).tar())
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        file = tar.extractfile("faces.jsonl")
        assert file is not None
        assert [json.loads(line)["subject"] for line in file] == ["ada", "", "7"]


@pytest.mark.long
def test_a_gallery_is_created_for_the_package_of_its_templates_or_not_at_all(tmp_path: Path) -> None:
    data = tmp_path / "data"
    give_models(data)
    package = packages.install(data / "packages", "small")
    np.save(tmp_path / "vectors.npy", units(2, packages.DIMENSION))
    (tmp_path / "vectors.txt").write_text("ada\ngrace\n")
    words = ("import", "staff", tmp_path / "vectors.npy", "--create")
    assert run(data, *words).returncode == 2, "no package was named"
    assert run(data, "galleries", "list", "--json").rows == []
    done = run(data, *words, "--package", package.id)
    assert done.returncode == 0, done
    (made,) = run(data, "galleries", "list", "--json").rows
    assert (made["embedder"], made["faces"]) == (package.id, 2)
    other = run(data, "import", "others", *words[2:], "--package", PACKAGE)
    assert (other.returncode, "invalid_template" in other.stderr) == (4, True), "templates of another length"
    assert [each["id"] for each in run(data, "galleries", "list", "--json").rows] == ["staff"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_may_be_written_as_excel_does(tmp_path: Path, delimiter: str) -> None:
    (tmp_path / "a.jpg").write_bytes(HOPPER)
    rows = (["Photo", " ID", "Name", "Team, or Floor"], ["a.jpg", "ada ", "Ada", "3"])
    with (tmp_path / "list.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    with tarfile.open(fileobj=io.BytesIO(b"".join(transfer.source_of(tmp_path / "list.csv", None, None).tar()))) as tar:
        lines = tar.extractfile("people.jsonl")
        assert lines is not None
        line = json.loads(lines.read())
    assert line == {"photo": "000000001/a.jpg", "subject": "ada", "name": "Ada", "metadata": {"Team, or Floor": "3"}}


def test_a_list_of_ids_may_begin_with_a_byte_order_mark() -> None:
    text = "\ufeffada\r\ngrace\r\n".encode()
    assert (
        list(json_lines.split(iter([text]))) == list(json_lines.split(iter([text[:5], text[5:]]))) == [b"ada", b"grace"]
    )
    assert list(json_lines.split(iter(["\ufeffada".encode()]))) == [b"ada"]


@pytest.mark.long
def test_the_command_line_takes_every_sort_of_source(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs the extra `parquet`")
    pyarrow = pytest.importorskip("pyarrow")
    folder = tmp_path / "people"
    for name, content in PEOPLE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "list.csv").write_text(
        "path,id,name,team\npeople/eileen/1.jpg,eileen,Eileen Collins,STS-114\npeople/none.jpg,x,,\n", encoding="utf-8"
    )
    np.save(tmp_path / "vectors.npy", units(3, seed=2))
    (tmp_path / "vectors.csv").write_text("id,name,quality,floor\nn0,N,70,2\nn1,,,\nn2,,,\n")
    table = {
        "id": ["q0", "q1"],
        "embedding": units(2, seed=3).tolist(),
        "name": ["Q", None],
        "metadata": [{"a": 1}, None],
    }
    parquet.write_table(pyarrow.table(table), tmp_path / "vectors.parquet")
    (tmp_path / "photos.tgz").write_bytes(tar_of({"tarred/1.jpg": HOPPER}, "w:gz"))
    give_models(tmp_path / "data")

    def likeness(*words: str | Path) -> tuple[int, Any, str]:
        done = run(tmp_path / "data", *words, "--json")
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    report = tmp_path / "report.csv"
    code, job, _ = likeness("import", "g", folder, "--create", "--report", report)
    assert (code, job["counts"]) == (3, {"enrolled": 3, "new_subjects": 2, "refused": 2, "warned": 1})
    assert [line.split(",")[1:3] for line in report.read_text().splitlines() if line.endswith("false")] == [
        ["grace/both.jpg", "ambiguous_face"],
        ["nobody/text.jpg", "unsupported_image"],
    ]
    with serving(tmp_path / "data") as server:
        code, job, errors = likeness("import", "g", tmp_path / "list.csv")
        assert (code, job["counts"]) == (3, {"enrolled": 1, "warned": 1})
        assert "none.jpg" in errors
        code, job, _ = likeness("import", "g", tmp_path / "vectors.npy", "--package", PACKAGE)
        assert (code, job["counts"]) == (0, {"enrolled": 3, "new_subjects": 3})
        code, job, _ = likeness("import", "g", tmp_path / "vectors.parquet", "--package", PACKAGE)
        assert (code, job["counts"]) == (0, {"enrolled": 2, "new_subjects": 2})
        code, job, _ = likeness("import", "g", tmp_path / "photos.tgz")
        assert (code, job["counts"]) == (0, {"enrolled": 1, "new_subjects": 1, "warned": 1})
        code, job, _ = likeness("import", "g", tmp_path / "photos.tgz", "--on-conflict", "reject")
        assert (code, job["counts"]) == (3, {"refused": 1})
        assert likeness("import", "g", tmp_path / "vectors.npy")[0] == 2, "no package was named"
        assert likeness("import", "g", tmp_path / "data.log")[0] == 2
        assert likeness("import", "g", tmp_path / "nothing")[0] == 2
        with server.client() as client:
            found = subjects(client, "/v1/galleries/g")
    assert (found["eileen"]["name"], found["eileen"]["metadata"]) == ("Eileen Collins", {"team": "STS-114"})
    assert (found["n0"]["name"], found["n0"]["metadata"]) == ("N", {"floor": "2"})
    assert (found["q0"]["name"], found["q0"]["metadata"]) == ("Q", {"a": 1})
    assert found["tarred"]["face_count"] == 1
