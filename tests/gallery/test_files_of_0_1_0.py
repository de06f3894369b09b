"""A data folder and an export of version 0.1.0 open unchanged and give the same answers; see tests/data/v0.1.0."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from likeness_client import Client

from app.features.checks.comparing import check_index
from app.gallery.service import Galleries
from app.gallery.store import ChangeReader
from app.search.snapshots import Snapshots
from app.types import Template
from tests.support.following import quiet
from tests.support.service import BOTH, running

FILES = Path(__file__).parents[1] / "data" / "v0.1.0"
EXPECTED: dict[str, Any] = json.loads((FILES / "expected.json").read_text())
KINDS = {"plain": "fp32", "half": "int8", "near": "int8"}
"""How each gallery is searched now."""
PHOTO_TOLERANCE = 0.02
"""How far a photo's score may be from the one on another processor, whose int8 arithmetic differs."""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with tarfile.open(FILES / "data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def galleries(data_dir: Path) -> Iterator[Galleries]:
    snapshots = Snapshots(data_dir / "snapshots", min_faces=1)
    with closing(quiet(f"sqlite:///{data_dir / 'likeness.db'}", snapshots)) as opened:
        yield opened


def probes(galleries: Galleries, gallery: str) -> list[Template]:
    """The templates that 0.1.0 was asked about: each stored one, a random one, and one face changed by it."""
    package = galleries.store.gallery(gallery).embedder
    rows = [
        row
        for subject in ("collins", "hopper")
        for row in galleries.store.faces(galleries.store.gallery(gallery), subject).items
    ]
    vectors = [row.template.vector for row in rows]
    noise = np.random.default_rng(7).standard_normal(len(vectors[0])).astype(np.float32)
    noise /= np.linalg.norm(noise)
    mixed = (vectors[0] + 0.7 * noise).astype(np.float32)
    return [
        Template(np.array(vector, np.float32), package) for vector in (*vectors, noise, mixed / np.linalg.norm(mixed))
    ]


@pytest.mark.parametrize("source", ["snapshots", "database"])
def test_stored_templates_get_the_same_scores(
    galleries: Galleries, data_dir: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise AssertionError("the index is built from the database")

    if source == "snapshots":
        monkeypatch.setattr(ChangeReader, "read_all", build)
    else:
        for path in (data_dir / "snapshots").glob("*.snapshot"):
            path.unlink()
    galleries.indexes.load()
    held = galleries.indexes.backend.snapshotted()
    assert held is not None
    assert held.count == (len(KINDS) if source == "snapshots" else 0)
    for gallery, kind in KINDS.items():
        expected = EXPECTED[gallery]
        assert galleries.store.gallery(gallery).search == kind
        assert galleries.store.gallery(gallery).embedder == expected["embedder"]
        asked = probes(galleries, gallery)
        for answer, before in zip(
            galleries.open_search(galleries.store.gallery(gallery)).search(asked, 10), expected["identify"], strict=True
        ):
            found = [(candidate.subject, candidate.face_id) for candidate in answer]
            assert found == [(candidate["subject"], candidate["face_id"]) for candidate in before], gallery
            np.testing.assert_allclose(
                [candidate.score for candidate in answer], [candidate["score"] for candidate in before], atol=1e-6
            )
        scores = [
            galleries.open_search(galleries.store.gallery(gallery)).verify("collins", probe).score for probe in asked
        ]
        np.testing.assert_allclose(scores, expected["verify"], atol=1e-6)
    monkeypatch.undo()
    assert all(check_index(galleries, galleries.store.gallery(gallery)).ok for gallery in KINDS)


def test_a_server_goes_on_with_the_data_folder_and_imports_the_export(data_dir: Path, tmp_path: Path) -> None:
    key = (data_dir / "admin.key").read_text().strip()
    archive = tmp_path / "export.tar"
    archive.write_bytes(gzip.decompress((FILES / "export.tar.gz").read_bytes()))
    with running(data_dir) as api, Client("http://service", key, transport=api._transport) as client:
        client.create_gallery("imported")
        job = client.import_faces("imported", archive, content="archive")  # signed with the key in the data folder
        job = client.wait_job(job.id, every_s=0.05)
        assert (job.state, job.counts) == ("done", {"enrolled": 3, "new_subjects": 2})
        for gallery, before in (*((name, name) for name in KINDS), ("imported", "near")):
            answer = client.identify(gallery, BOTH)
            expected = EXPECTED[before]["photo"]
            assert [face.decision for face in answer.faces] == [face["decision"] for face in expected]
            for face, old in zip(answer.faces, expected, strict=True):
                assert [candidate.subject for candidate in face.candidates] == [
                    candidate["subject"] for candidate in old["candidates"]
                ]
                given = [candidate.score for candidate in face.candidates]
                np.testing.assert_allclose(
                    given, [candidate["score"] for candidate in old["candidates"]], atol=PHOTO_TOLERANCE
                )
            assert client.check_gallery(gallery).ok
        subject = client.subject("plain", "collins")
        assert subject.consent is not None
        assert subject.consent.note == "test data"
