"""What `/metrics` says, held against what was done."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.api.components import Components
from app.choices import Stage
from tests.support.service import BOTH, COLLINS, running


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted, however slow the machine is."""
    monkeypatch.setattr("app.features.monitoring.collector.COUNTING_S", 60.0)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(tmp_path_factory.mktemp("metrics")) as found:
        yield found


def scraped(client: httpx.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and labels."""
    answer = client.get("/metrics").raise_for_status()
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.text)
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def test_requests_stages_and_batches_are_counted(client: httpx.Client) -> None:
    client.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
    client.post("/v1/galleries/staff/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
    client.post("/v1/galleries/staff/identify", files={"image": BOTH}).raise_for_status()
    client.get("/v1/galleries/nowhere")
    found = scraped(client)

    def of(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    faces, identify = "/v1/galleries/{gallery}/subjects/{subject}/faces", "/v1/galleries/{gallery}/identify"
    assert of("likeness_requests_total", method="POST", route=faces, status="201") == 1
    assert of("likeness_requests_total", method="GET", route="/v1/galleries/{gallery}", status="404") == 1
    assert of("likeness_request_seconds_count", method="POST", route=identify) == 1
    assert found.get(("likeness_stage_seconds_count", frozenset({("stage", "liveness")})), 0) == 0  # it is off
    for stage in set(get_args(Stage)) - {"liveness"}:
        assert of("likeness_stage_seconds_count", stage=stage) == (1 if stage == "store" else 2), stage
        assert of("likeness_stage_seconds_sum", stage=stage) > 0
    assert of("likeness_batch_size_sum", batcher="search") == 0, (
        "a small gallery is searched without waiting for others"
    )
    assert of("likeness_batch_size_sum", batcher="embed") == 4, "one face to warm up, one enrolled, two identified"
    assert of("likeness_batch_size_bucket", batcher="embed", le="+Inf") == of(
        "likeness_batch_size_count", batcher="embed"
    )
    assert of("likeness_batcher_waiting", batcher="embed") == of("likeness_batcher_waiting", batcher="liveness") == 0
    assert of("likeness_requests_admitted") == of("likeness_requests_waiting") == of("likeness_bodies_bytes") == 0
    assert of("likeness_requests_limit") == 64
    assert of("likeness_ready") == of("likeness_database_up") == 1
    assert of("process_resident_memory_bytes") > 50e6
    assert of("process_cpu_seconds_total") > 0
    models = {dict(labels)["task"] for name, labels in found if name == "likeness_model_info"}
    assert models == {"detect", "embed"}


def unlabelled(client: httpx.Client) -> dict[str, float]:
    return {name: number for (name, labels), number in scraped(client).items() if not labels}


def test_what_is_enrolled_and_snapshots_are_told_and_when_the_database_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.features.monitoring.collector.COUNTS_S", 0.0)
    with running(tmp_path) as client:
        empty = unlabelled(client)
        client.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
        client.post("/v1/galleries", json={"id": "empty"}).raise_for_status()
        client.post("/v1/galleries/staff/subjects", json={"id": "nobody"}).raise_for_status()
        path = "/v1/galleries/staff/subjects/eileen/faces"
        client.post(path, files=[("images", COLLINS), ("images", COLLINS)]).raise_for_status()
        file = tmp_path / "snapshots" / "1.snapshot"
        file.write_bytes(bytes(5000))
        written = time.time() - 3600
        os.utime(file, (written, written))
        found = unlabelled(client)
        file.unlink()
        for stored in tmp_path.glob("likeness.db*"):
            with stored.open("r+b") as database:  # not cut off first: SQLite has mapped one of them
                database.write(b"no database any more" * (500 + stored.stat().st_size // 20))
        lost = unlabelled(client)
    assert empty["likeness_snapshots"] == empty["likeness_snapshots_bytes"] == 0
    assert "likeness_snapshot_age_seconds" not in empty
    assert (found["likeness_galleries"], found["likeness_subjects"], found["likeness_faces"]) == (2, 2, 2)
    assert found["likeness_index_faces"] == 2
    assert found["likeness_index_bytes"] >= 2 * 128 * 4
    assert (found["likeness_snapshots"], found["likeness_snapshots_bytes"]) == (1, 5000)
    assert 3600 <= found["likeness_snapshot_age_seconds"] < 3700
    assert found["likeness_index_changes_behind"] == 0
    assert 0 <= found["likeness_log_read_age_seconds"] < 60
    assert (lost["likeness_database_up"], lost["likeness_ready"]) == (0, 1)
    assert "likeness_faces" not in lost


def test_labels_are_bounded_whatever_clients_send(client: httpx.Client) -> None:
    client.get("/v1/models")
    before = {key for key in scraped(client) if key[0] == "likeness_requests_total"}
    for number in range(20):
        client.get(f"/v1/galleries/made-up-{number}")
        client.get(f"/made/up/{number}")
        client.request(f"MADEUP{number}", "/v1/models")
        client.get(f"/v1/galleries/made-up-{number}", headers={"x-api-key": f"made-up-{number}"})
    after = {key for key in scraped(client) if key[0] == "likeness_requests_total"}
    assert len(after - before) <= 5
    assert "made" not in client.get("/metrics").text.lower()


def test_a_second_service_in_the_process_counts_apart_and_without_snapshots_has_no_word_of_them(
    client: httpx.Client, tmp_path: Path
) -> None:
    client.get("/version")
    name, labels = "likeness_requests_total", {"method": "GET", "route": "/version", "status": "200"}
    assert scraped(client)[name, frozenset(labels.items())] > 0
    with running(tmp_path, snapshot_seconds=0) as other:
        found = scraped(other)
    assert (name, frozenset(labels.items())) not in found
    assert not [name for name, _ in found if name.startswith("likeness_snapshot")]


@pytest.mark.long
def test_a_service_that_ended_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Components]] = []

    class Watched(Components):
        """One that can be referred to weakly."""

        def __post_init__(self) -> None:
            super().__post_init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr("app.main.Components", Watched)
    with running(tmp_path):
        assert made[0]() is not None
    gc.collect()
    assert made[0]() is None


def test_the_disk_and_the_age_of_the_last_backup_are_told(tmp_path: Path) -> None:
    with running(tmp_path / "data") as found:
        names = {name for name, _ in scraped(found)}
        assert "likeness_disk_free_bytes" in names
        assert "likeness_backup_age_seconds" not in names
        (tmp_path / "data" / "last_backup").touch()
        os.utime(tmp_path / "data" / "last_backup", (time.time() - 3600, time.time() - 3600))
        assert 3600 <= scraped(found)["likeness_backup_age_seconds", frozenset()] < 7200
