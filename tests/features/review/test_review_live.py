"""Reviews through a real server: over HTTP, by the client and the command line, and after the server was killed."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from likeness_client import ApiError, Client, ClientError, answers

from app.models.packages import write_manifest
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.commands import run as likeness
from tests.support.live import LiveServer, serving
from tests.support.reviewing import DIMENSION, MEASURED, between, vector
from tests.support.tarred import tar_of

pytestmark = pytest.mark.long

PACKAGE = "review@1"
PEOPLE, PHOTOS = 40, 3
WAIT_S = 120.0


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    """Of servers with a package whose templates the tests make up."""
    models = tmp_path / "models"
    for name in ("yunet", "sface"):
        shutil.copytree(PROJECT / "models" / name, models / name)
    content = packages.contract_model(DIMENSION).SerializeToString()
    points = (packages.calibration(MEASURED),)
    write_manifest(
        models / "review", packages.manifest(content, name="review", dimension=DIMENSION, calibrations=points)
    )
    (models / "review" / "model.onnx").write_bytes(content)
    return {"MODELS_DIR": models, "EMBEDDER": "sface"}


@pytest.fixture
def server(tmp_path: Path, settings: dict[str, object]) -> Iterator[LiveServer]:
    with serving(tmp_path / "data", settings) as found:
        yield found


def templates(people: Sequence[tuple[str, np.ndarray, float]]) -> bytes:
    """A tar as `import --templates` takes it: of subject, vector and quality."""
    file = io.BytesIO()
    np.save(file, np.stack([one for _, one, _ in people]))
    lines = "".join(json.dumps({"subject": subject, "quality": quality}) + "\n" for subject, _, quality in people)
    return tar_of({"templates.npy": file.getvalue(), "faces.jsonl": lines.encode()})


def fill(client: Client, people: int = PEOPLE, gallery: str = "staff") -> None:
    """Everybody has PHOTOS; p1 is there twice, p2 has a face of p3, p4 one of nobody, p5 a poor one like p6."""
    client.create_gallery(gallery, embedder=PACKAGE, store="none")
    rows = [(f"p{person}", vector(person, photo), 90.0) for person in range(people) for photo in range(PHOTOS)]
    rows += [("it's twice", vector(1, photo), 90.0) for photo in (10, 11)]
    rows += [("p2", vector(3, 10), 90.0), ("p4", vector(people + 1, 1), 90.0), ("p5", between(5, 6, 0), 10.0)]
    rows += [("poor", vector(people + 2, photo), 10.0) for photo in (1, 2)]
    job = client.import_faces(gallery, templates(rows), content="templates", package=PACKAGE)
    done = client.wait_job(job.id, every_s=0.05)
    assert done.state == "done", done


def reviewed(client: Client, gallery: str = "staff") -> answers.Review:
    job = client.wait_job(client.start_review(gallery).id, every_s=0.05)
    assert job.state == "done", job
    return client.review(gallery)


FOUND = {
    ("same_person", "it's twice"),
    ("misplaced_face", "p2"),
    ("outlier", "p4"),
    ("poor_face", "p5"),
    ("no_good_face", "poor"),
}


def found(review: answers.Review) -> set[tuple[str, str]]:
    """Kind and the subject to change."""
    return {(one.kind, one.actions[0].subject) for one in review.findings}


def test_a_gallery_is_reviewed_and_put_right_by_the_commands_it_gives(server: LiveServer) -> None:
    with Client(server.url, server.key) as client:
        fill(client)
        with pytest.raises(ApiError) as caught:
            client.review("staff")
        assert caught.value.code == "review_not_found"
        done = likeness(server.data_dir, "galleries", "review", "staff", "--wait")
        assert done.returncode == 1, done.stderr
        for said in ("may be one person", "looks like somebody else", "no good face", "FNMR", "FPIR"):
            assert said in done.stdout
        assert found(client.review("staff")) == FOUND
        lines = [line[line.index("likeness ") :].strip() for line in done.stdout.splitlines() if "likeness " in line]
        for words in (shlex.split(line)[1:] for line in lines):
            if words[:2] in (["people", "merge"], ["faces", "move"]) or words[:4] == ["faces", "delete", "staff", "p4"]:
                put_right = likeness(server.data_dir, *words, *([] if "move" in words else ["--yes"]))
                assert put_right.returncode == 0, put_right.stderr
            if words[0] == "galleries":
                assert likeness(server.data_dir, *words).returncode in {0, 5}
        again = likeness(server.data_dir, "galleries", "review", "staff", "--wait", "--json")
        assert again.returncode == 0, again.stdout
        left = json.loads(again.stdout)
        assert (left["findings"], left["summary"]["dismissed"]) == ([], 2), "two were called right"
        assert likeness(server.data_dir, "galleries", "findings", "staff", "--dismissed").stdout.count("poor") >= 2
        assert client.subject("staff", "p1").face_count == PHOTOS + 2
        assert client.subject("staff", "p3").face_count == PHOTOS + 1


def test_who_may_see_how_much(server: LiveServer) -> None:
    with Client(server.url, server.key) as client:
        fill(client)
        exact = reviewed(client)
        secrets = {scope: client.create_key([scope], key_id=scope).secret for scope in ("read", "enroll")}
        assert exact.summary is not None
        assert exact.summary.counts["same_person"] == 1
        shown = client.review("staff", kind="misplaced_face").findings[0].evidence
    with Client(server.url, secrets["read"]) as reader:
        coarse = reader.review("staff", kind="misplaced_face").findings[0].evidence
        for call in (lambda: reader.start_review("staff"), lambda: reader.dismiss_finding("staff", "b" * 32)):
            with pytest.raises(ApiError) as caught:
                call()
            assert caught.value.code == "missing_scope"
    assert shown.score is not None
    assert coarse.score is not None
    assert coarse.score <= shown.score
    assert coarse.score == pytest.approx(round(coarse.score, 2)), "no finer than the operating points"
    assert shown.score != pytest.approx(round(shown.score, 2), abs=1e-6)
    assert (coarse.own_score, coarse.fmr) == (None, None), "below every operating point"
    with Client(server.url, secrets["enroll"]) as editor, pytest.raises(ApiError) as caught:
        editor.dismiss_finding("staff", "b" * 32)
    assert caught.value.code == "finding_not_found"


def test_what_was_called_right_travels_with_an_exported_gallery(server: LiveServer, tmp_path: Path) -> None:
    with Client(server.url, server.key) as client:
        fill(client)
        for one in reviewed(client).findings:
            if one.kind != "outlier":
                client.dismiss_finding("staff", one.id)
        job = client.wait_job(client.export_gallery("staff").id, every_s=0.05)
        client.job_result(job.id, tmp_path / "staff.tar")
        client.delete_gallery("staff")
        client.create_gallery("arrived", embedder=PACKAGE, store="none")
        for _ in range(2):  # the second time adds nothing
            job = client.import_faces("arrived", (tmp_path / "staff.tar").read_bytes(), content="archive")
            assert client.wait_job(job.id, every_s=0.05).state == "done"
        arrived = reviewed(client, "arrived")
        assert found(arrived) == {("outlier", "p4")}
        assert arrived.summary is not None
        assert arrived.summary.dismissed == len(FOUND) - 1


def test_hostile_ids_are_not_found_and_pages_hold_together(server: LiveServer) -> None:
    with Client(server.url, server.key) as client:
        fill(client)
        everything = reviewed(client).findings
        assert [one.id for one in client.all_findings("staff", limit=2)] == [one.id for one in everything]
        with pytest.raises(ClientError, match="no URL can hold it"):
            client.dismiss_finding("staff", "..")
        for finding in ("...", "'; drop table findings; --", "\x00", "a" * 31, "é" * 255):
            with pytest.raises(ApiError) as caught:
                client.dismiss_finding("staff", finding)
            assert caught.value.code in {"finding_not_found", "invalid_path", "not_found", "invalid_request"}, finding
        with server.client() as http:
            for query in ("kind=nonsense", "cursor=x", "limit=0", "dismissed=perhaps", "more=1"):
                assert http.get(f"/v1/galleries/staff/review?{query}").status_code == 422, query


def test_a_killed_servers_review_goes_on(tmp_path: Path, settings: dict[str, object]) -> None:
    people = 4000
    with serving(tmp_path / "data", settings) as first, Client(first.url, first.key) as client:
        fill(client, people)
        job = client.start_review("staff")
        end = time.monotonic() + WAIT_S
        while (now := client.job(job.id)).done == 0 and now.state in {"queued", "running"}:
            assert time.monotonic() < end
            time.sleep(0.005)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    assert 0 < now.done < now.total if now.total else False, now
    with serving(tmp_path / "data", settings) as second, Client(second.url, second.key) as client:
        done = client.wait_job(job.id, every_s=0.05)
        assert done.state == "done", done
        review = client.review("staff")
        assert found(review) >= FOUND
        assert review.summary is not None
        assert review.summary.faces == people * PHOTOS + 7
