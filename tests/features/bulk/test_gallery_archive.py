"""A gallery as one signed file: from one server to another, the same answers; and nothing of it that was altered."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from likeness_client import ApiError, Client

from app.choices import FindingKind
from app.errors import InvalidInput
from app.features import signatures
from app.features.bulk import archive, json_lines
from app.features.bulk.json_lines import DismissalLine
from app.features.erasure import erasing
from app.features.stored import decode_crop
from app.features.tar_stream import TAR_END, header, padding
from tests.support.black_png import black_png
from tests.support.live import LiveServer, serving
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, enroll, running
from tests.support.tarred import tar_of
from tests.support.waiting import job_ended

PEOPLE = {"eileen/1.jpg": COLLINS, "eileen/2.jpg": AGAIN, "grace/1.jpg": HOPPER}


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 112 112\n%%EndComments\nshowpage\n%%EOF\n"


AGREED = {
    "name": "Eileen \u00c9. Collins",
    "metadata": {"team": ["STS-114"]},
    "expires_at": "2090-01-01T00:00:00Z",
    "consent": {"note": "signed", "given_at": "2026-01-31T12:00:00Z"},
}


@dataclass
class Two:
    """Two servers that know nothing of each other, and an archive of the first one's gallery."""

    first: Client
    second: Client
    server: LiveServer
    """The first one's process."""
    archive: Path
    trust: str


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, shared_server: LiveServer) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("archives")
    with (
        serving(folder / "first") as server,
        Client(server.url, server.key) as first,
        Client(shared_server.url, shared_server.key) as second,
    ):
        first.create_gallery("crew")
        job = first.wait_job(first.import_faces("crew", tar_of(PEOPLE)).id, every_s=0.05)
        assert (job.state, job.counts) == ("done", {"enrolled": 3, "new_subjects": 2, "warned": 1})
        first.update_subject("crew", "eileen", AGREED)
        first.create_subject("crew", "nobody yet", name="\u2603")
        exported = first.wait_job(first.export_gallery("crew").id, every_s=0.05)
        assert (exported.state, exported.counts) == ("done", {"subjects": 3, "faces": 3})
        first.job_result(exported.id, folder / "crew.tar")
        with server.client() as api:
            key = api.get("/v1/server-key").raise_for_status().json()["public_key"]
        yield Two(first, second, server, folder / "crew.tar", key)


def brought(two: Two, gallery: str, archive: bytes | Path, trust: str | None) -> Any:
    two.second.create_gallery(gallery)
    job = two.second.import_faces(gallery, archive, content="archive", trust=trust)
    return two.second.wait_job(job.id, every_s=0.05)


def identified(client: Client, gallery: str) -> list[Any]:
    return [
        [face.model_dump(exclude={"box", "landmarks"}) for face in client.identify(gallery, photo).faces]
        for photo in (COLLINS, AGAIN, HOPPER, BOTH)
    ]


def everything(client: Client, gallery: str) -> list[Any]:
    people = list(client.all_subjects(gallery))
    faces = [client.faces(gallery, one.id).faces for one in people]
    crops = [
        client.face_crop(gallery, one.id, face.face_id)
        for one, some in zip(people, faces, strict=True)
        for face in some
    ]
    return [[one.model_dump(exclude={"updated_at"}) for one in people], faces, crops]


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {one.name: file.read() for one in tar if (file := tar.extractfile(one))}


def tar(files: dict[str, bytes]) -> bytes:
    return b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in files.items()) + TAR_END


def test_an_archive_names_settings_only_where_they_were_made(two: Two, tmp_path: Path) -> None:
    """As archives of before name none, which are imported all the same; the gallery here keeps its own."""
    assert not {"population", "liveness"} & json.loads(members(two.archive.read_bytes())["manifest.json"]).keys()
    two.first.create_gallery("school", population=["children"], liveness="report")
    exported = two.first.wait_job(two.first.export_gallery("school").id, every_s=0.05)
    two.first.job_result(exported.id, tmp_path / "school.tar")
    found = json.loads(members((tmp_path / "school.tar").read_bytes())["manifest.json"])
    assert (found["population"], found["liveness"]) == (["children"], "report")
    assert brought(two, "school", tmp_path / "school.tar", two.trust).state == "done"
    assert two.second.gallery("school").liveness == "off"


def test_another_server_answers_the_same(two: Two) -> None:
    job = brought(two, "brought", two.archive, two.trust)
    assert (job.state, job.counts) == ("done", {"enrolled": 3, "new_subjects": 3})
    assert everything(two.second, "brought") == everything(two.first, "crew")
    assert identified(two.second, "brought") == identified(two.first, "crew")
    assert two.second.check_gallery("brought").ok
    again = two.second.import_faces("brought", two.archive, content="archive", trust=two.trust)
    report = two.second.job_report(two.second.wait_job(again.id, every_s=0.05).id).decode().splitlines()
    assert [json.loads(line)["code"] for line in report] == ["face_exists"] * 3


def test_the_archive_is_what_it_says(two: Two) -> None:
    found = members(two.archive.read_bytes())
    assert list(found) == [
        "manifest.json",
        "signature.json",
        "subjects.jsonl",
        "faces.jsonl",
        "templates.npy",
        "crops.bin",
    ]
    manifest = json.loads(found["manifest.json"])
    assert (manifest["format"], manifest["subjects"], manifest["faces"]) == ("likeness-gallery", 3, 3)
    assert len(found["crops.bin"]) == sum(json.loads(line)["crop"] for line in found["faces.jsonl"].splitlines())
    assert two.archive.stat().st_mode & 0o077 == 0
    assert b"Eileen" not in b"".join(path.read_bytes() for path in (two.server.data_dir / "jobs").glob("*.result"))


def test_without_crops(two: Two) -> None:
    exported = two.first.wait_job(two.first.export_gallery("crew", crops=False).id, every_s=0.05)
    path = two.archive.with_name("no crops.tar")
    two.first.job_result(exported.id, path)
    assert "crops.bin" not in members(path.read_bytes())
    assert brought(two, "no-crops", path, two.trust).state == "done"
    assert two.second.check_gallery("no-crops").faces == 3, "ids that another gallery has are made anew"
    face = two.second.faces("no-crops", "grace").faces[0]
    with pytest.raises(ApiError, match="no crops"):
        two.second.face_crop("no-crops", "grace", face.face_id)


def test_a_signer_must_be_known_or_confirmed(two: Two) -> None:
    digest = signatures.fingerprint(signatures.decode(two.trust))
    for number, trust in enumerate((None, "", "0" * 64, signatures.encode(bytes(32)))):
        job = brought(two, f"unknown-{number}", two.archive, trust)
        assert (job.state, job.error.code) == ("failed", "unknown_signer")
        assert digest in job.error.message
        assert list(two.second.all_subjects(f"unknown-{number}")) == []
    assert brought(two, "by-digest", two.archive, digest.upper()).error is None
    two.first.create_gallery("own")
    own = two.first.wait_job(two.first.import_faces("own", two.archive, content="archive").id, every_s=0.05)
    assert own.state == "done", "its own signature is known"


def swapped(files: dict[str, bytes]) -> dict[str, bytes]:
    names = list(files)
    names[2], names[3] = names[3], names[2]
    return {name: files[name] for name in names}


def with_manifest(files: dict[str, bytes], **changed: Any) -> dict[str, bytes]:
    return files | {"manifest.json": json.dumps(json.loads(files["manifest.json"]) | changed).encode()}


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


SPOILED: dict[str, tuple[Callable[[dict[str, bytes]], bytes], str]] = {
    "a template": (lambda f: tar(f | {"templates.npy": flipped(f["templates.npy"], 200)}), "invalid_archive"),
    "a crop": (lambda f: tar(f | {"crops.bin": flipped(f["crops.bin"], 9)}), "invalid_archive"),
    "a name": (
        lambda f: tar(f | {"subjects.jsonl": f["subjects.jsonl"].replace(b"grace", b"grice")}),
        "invalid_archive",
    ),
    "the manifest": (lambda f: tar(with_manifest(f, gallery="other")), "signature_wrong"),
    "the package": (lambda f: tar(with_manifest(f, package="other@1")), "signature_wrong"),
    "the signature": (
        lambda f: tar(f | {"signature.json": f["signature.json"].replace(b'"signature": "', b'"signature": "A')}),
        "signature_wrong",
    ),
    "no signature": (
        lambda f: tar({name: data for name, data in f.items() if name != "signature.json"}),
        "invalid_archive",
    ),
    "the order": (lambda f: tar(swapped(f)), "invalid_archive"),
    "one more": (lambda f: tar(f | {"more": b"x"}), "invalid_archive"),
    "one less": (lambda f: tar({name: data for name, data in f.items() if name != "crops.bin"}), "invalid_archive"),
    "the end": (lambda f: tar(f)[:-5000], "invalid_archive"),
    "half": (lambda f: tar(f)[: len(tar(f)) // 2], "invalid_archive"),
    "a later version": (lambda f: tar(with_manifest(f, version=2)), "invalid_archive"),
    "no manifest": (lambda _: tar_of(PEOPLE), "invalid_archive"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_was_altered_is_refused_and_nothing_of_it_imported(two: Two, what: str) -> None:
    spoil, code = SPOILED[what]
    gallery = f"spoiled {what}"
    job = brought(two, gallery, spoil(members(two.archive.read_bytes())), two.trust)
    assert (job.state, job.error.code) == ("failed", code)
    assert list(two.second.all_subjects(gallery)) == []


def resigned(files: dict[str, bytes]) -> tuple[bytes, str]:
    """An archive of these files, signed by a key of its own, and that key."""
    signer = signatures.Signer(signatures.new_private_key())
    manifest = json.loads(files["manifest.json"])
    for member in manifest["members"]:
        data = files[member["name"]]
        member |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    told = json.dumps(manifest).encode()
    document = {
        "algorithm": "Ed25519",
        "public_key": signatures.encode(signer.public_key),
        "signature": signatures.encode(signer.sign(told, b"gallery archive")),
    }
    signed = {"manifest.json": told, "signature.json": json.dumps(document).encode()}
    return tar(files | signed), document["public_key"]


def test_an_archive_of_another_package_is_refused(two: Two) -> None:
    foreign, trust = resigned(with_manifest(members(two.archive.read_bytes()), package="other@1"))
    job = brought(two, "package", foreign, trust)
    assert (job.state, job.error.code) == ("failed", "package_mismatch")


def test_crops_that_are_no_crops_are_refused(two: Two) -> None:
    """An archive of a trusted signer brings a program for Ghostscript and a picture of 169 megapixels."""
    files = members(two.archive.read_bytes())
    lines = [json.loads(line) for line in files["faces.jsonl"].splitlines()]
    crops = [EPS, black_png(13_000), files["crops.bin"][-lines[-1]["crop"] :]]
    for line, crop in zip(lines, crops, strict=True):
        line["crop"] = len(crop)
    told = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    hostile, trust = resigned(files | {"faces.jsonl": told, "crops.bin": b"".join(crops)})
    job = brought(two, "hostile", hostile, trust)
    assert (job.state, job.counts["enrolled"], job.counts["refused"]) == ("done", 1, 2)
    report = [json.loads(line) for line in two.second.job_report(job.id).splitlines()]
    assert [(one["item"], one["code"]) for one in report] == [(0, "invalid_image"), (1, "invalid_image")]


def test_ids_and_names_with_invisible_characters_are_refused_and_reported(two: Two) -> None:
    """They are told apart by nobody: here one turns the text behind it around, one hides in a name."""
    files = members(two.archive.read_bytes())
    turned, hidden = "grace\u202e", "Eileen\u200b"
    people = [json.loads(line) for line in files["subjects.jsonl"].splitlines()]
    faces = [json.loads(line) for line in files["faces.jsonl"].splitlines()]
    for one in people:
        one.update({"name": hidden} if one["id"] == "eileen" else {"id": turned} if one["id"] == "grace" else {})
    for one in faces:
        one.update({"subject": turned} if one["subject"] == "grace" else {})
    told = {
        name: b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        for name, lines in (("subjects.jsonl", people), ("faces.jsonl", faces))
    }
    hostile, trust = resigned(files | told)
    job = brought(two, "invisible", hostile, trust)
    assert (job.state, job.counts["enrolled"], job.counts["refused"]) == ("done", 2, 3)
    found = {one.id: one for one in two.second.all_subjects("invisible")}
    assert set(found) == {"eileen", "nobody yet"}
    assert (found["eileen"].name, found["eileen"].metadata) == (None, AGREED["metadata"])
    report = [json.loads(line) for line in two.second.job_report(job.id).splitlines()]
    assert sorted((one["item"], one["code"]) for one in report) == [
        (next(n for n, one in enumerate(faces) if one["subject"] == turned), "invalid_id"),
        *sorted(
            (len(faces) + n, "invalid_name" if one["id"] == "eileen" else "invalid_id")
            for n, one in enumerate(people)
            if one["id"] in {"eileen", turned}
        ),
    ]


@pytest.mark.parametrize("data", [EPS, black_png(13_000), black_png(112), b"\xff\xd8\xff", b""])
def test_only_jpegs_of_112_pixels_are_decoded_as_stored_crops(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInput):
        decode_crop(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kB"


def test_results_are_there_for_who_may_have_them(two: Two) -> None:
    exported = two.first.wait_job(two.first.export_gallery("crew").id, every_s=0.05)
    assert exported.has_result
    for scopes, galleries in ((["read", "enroll", "recognize"], None), (["admin"], ["other"])):
        secret = two.first.create_key(scopes, galleries=galleries).secret
        with Client(two.server.url, secret) as client, pytest.raises(ApiError) as caught:
            client.job_result(exported.id, two.archive.with_name("stolen.tar"))
        assert caught.value.code in {"missing_scope", "job_not_found"}
    assert not two.archive.with_name("stolen.tar").exists()
    imported = next(job for job in two.first.all_jobs() if job.kind == "import")
    with pytest.raises(ApiError) as caught:
        two.first.job_result(imported.id, two.archive.with_name("none.tar"))
    assert caught.value.code == "result_not_found"


def test_who_is_erased_is_in_no_exported_file_and_no_report_any_more(two: Two) -> None:
    two.first.create_gallery("erasing")
    imported = two.first.import_faces("erasing", tar_of({"eileen/1.jpg": COLLINS, "eileen/none.jpg": b"x"}))
    assert two.first.wait_job(imported.id, every_s=0.05).counts["refused"] == 1
    exported = two.first.wait_job(two.first.export_gallery("erasing").id, every_s=0.05)
    two.first.erase_subject("erasing", "eileen")
    assert not two.first.job(exported.id).has_result
    with pytest.raises(ApiError) as caught:
        two.first.job_result(exported.id, two.archive.with_name("erased.tar"))
    assert caught.value.code == "result_not_found"
    assert two.first.job_report(imported.id) == b""


def test_who_is_erased_while_an_export_runs_is_not_in_its_file(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest, left = archive._manifest, ["eileen", "grace"]
    with running(tmp_path / "data", database_url=database_url) as api:

        def meanwhile(*given: Any) -> archive.ArchiveManifest:
            if left:
                api.post(f"/v1/galleries/crew/subjects/{left.pop()}/erase").raise_for_status()
            return write_manifest(*given)

        monkeypatch.setattr(archive, "_manifest", meanwhile)
        api.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        for subject, photo in (("eileen", COLLINS), ("grace", HOPPER), ("again", AGAIN)):
            enroll(api, "/v1/galleries/crew", subject, photo).raise_for_status()
        job = job_ended(api, api.post("/v1/galleries/crew/export").raise_for_status().json()["id"])
        assert (job["state"], job["counts"]) == ("done", {"subjects": 1, "faces": 1})
        files = members(api.get(f"/v1/jobs/{job['id']}/result").raise_for_status().content)
        (line,) = files["subjects.jsonl"].splitlines()
        assert (json.loads(line)["id"], left) == ("again", [])

        left += [f"visitor-{number}" for number in range(erasing.MOST_RESTARTS + 1)]
        for subject in left:
            api.post("/v1/galleries/crew/subjects", json={"id": subject}).raise_for_status()
        job = job_ended(api, api.post("/v1/galleries/crew/export").raise_for_status().json()["id"])
        assert (job["state"], job["error"]["code"], left) == ("failed", "export_outdated", [])


def test_a_dismissal_is_of_a_kind_that_reviews_find() -> None:
    line = {"face_id": "0" * 32, "other_face_id": None, "created_at": "2026-01-01T00:00:00+00:00"}
    for kind in get_args(FindingKind):
        assert json_lines.parse(json.dumps(line | {"kind": kind}).encode(), DismissalLine).kind == kind
    with pytest.raises(InvalidInput, match="kind"):
        json_lines.parse(json.dumps(line | {"kind": "other"}).encode(), DismissalLine)
