"""`likeness tune`: what it tries, what it takes, and what the server makes of its file."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from app.config import Settings
from app.inference.package import find_packages, load_package, select
from app.server.models import with_tuned
from app.tuning import tuned
from app.tuning.contest import Speeds
from app.tuning.measure import EmbedWay, PhotoWay, Setting, best, embed_ways, photo_ways, tune
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.commands import run
from tests.support.service import running

SAMPLES = PROJECT / "docs" / "samples"
CHOICE = tuned.Choice(threads=6, detect_threads=2, embed_workers=3, embed_threads=2, max_batch=8)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    packages.install(folder, "tiny")
    shutil.copytree(PROJECT / "models" / "yunet", folder / "yunet")
    return folder


@pytest.fixture
def settings(models: Path, tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", models_dir=models, embedder="tiny")


def kept(settings: Settings, where: tuned.Where | None = None) -> None:
    yunet = load_package(settings.models_dir / "yunet").id
    about = where or tuned.here("cpu", "tiny@1", yunet)
    tuned.write(settings.data_dir, tuned.Tuned(measured_at="2026-01-01T00:00:00+00:00", where=about, choice=CHOICE))


@contextmanager
def one_core() -> Iterator[None]:
    """For this thread, and for those that it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def as_tuned(settings: Settings) -> Settings:
    found = find_packages(settings.models_dir)
    return with_tuned(settings, select(found, settings.embedder), select(found, settings.detector))


class TestWays:
    @pytest.mark.parametrize("cores", [1, 2, 6, 8])
    def test_on_a_cpu_all_cores_are_always_busy_and_never_more(self, cores: int) -> None:
        ways = embed_ways("cpu", cores)
        assert len(set(ways)) == len(ways)
        assert all(cores / 2 < way.workers * way.threads <= cores for way in ways)
        assert {(way.workers, way.threads) for way in ways} >= {(cores, 1), (1, cores)}

    def test_on_a_gpu_batches_are_large_and_workers_few(self) -> None:
        assert min(way.max_batch for way in embed_ways("cuda", 16)) == 16
        assert {way.workers for way in embed_ways("cuda", 16)} == {1, 2}
        assert {way.detect_threads for way in photo_ways("cuda", 16)} == {1}

    def test_of_those_alike_the_smallest_batch_is_taken(self) -> None:
        ways = [EmbedWay(1, 1, 2), EmbedWay(4, 1, 2), EmbedWay(16, 1, 2)]
        speeds = {way: rate * np.array([1.0, 1.1, 0.9]) for way, rate in zip(ways, (90, 99, 100), strict=True)}
        assert best(Speeds({str(way): rates for way, rates in speeds.items()}), ways) == ways[1]

    def test_one_good_round_is_no_reason(self) -> None:
        ways = [PhotoWay(1, 2), PhotoWay(1, 4)]
        speeds = {str(ways[0]): np.array([50.0, 50, 500]), str(ways[1]): np.array([60.0, 60, 60])}
        assert best(Speeds(speeds), ways) == ways[1]


class TestMeasuring:
    @pytest.mark.long
    def test_it_measures_every_way_and_takes_one(self, models: Path, tmp_path: Path) -> None:
        found = find_packages(models)
        detector = next(package for package in found.values() if package.manifest.task == "detect")
        setting = Setting(found["tiny@1"], detector, tmp_path, "cpu", cores=2)
        turns: list[str] = []
        photos = [(SAMPLES / "hopper.jpg").read_bytes()]
        tried = tune(setting, photos, 2, shortest_s=0.01, say=turns.append)
        ways = embed_ways("cpu", 2)
        assert set(tried.faces.rounds) == {str(way) for way in ways}
        others = photo_ways("cpu", 2)
        assert set(tried.photos.rounds) == {str(way) for way in others}
        assert len(turns) == 3 * (len(ways) + len(others))
        assert all((rates > 0).all() for rates in tried.faces.rounds.values())
        assert all((rates > 0).all() for rates in tried.photos.rounds.values())
        assert tried.embedding in ways
        assert tried.photo in others
        assert tried.choice.embed_workers * tried.choice.embed_threads == 2
        choice = tried.choice
        assert tried.embedding == EmbedWay(choice.max_batch, choice.embed_threads, choice.embed_workers)
        assert tried.photo == PhotoWay(choice.detect_threads, choice.threads)

    @pytest.mark.long
    def test_the_command_keeps_what_it_found_for_the_server(self, settings: Settings, tmp_path: Path) -> None:
        photos = tmp_path / "photos"
        photos.mkdir()
        shutil.copy(SAMPLES / "hopper.jpg", photos)
        words = ("tune", "--photos", photos, "--rounds", 2)
        here = {"models_dir": settings.models_dir, "embedder": "tiny"}
        with one_core():  # fewer ways to try
            dry = run(settings.data_dir, *words, "--dry-run", **here)
            assert (dry.returncode, (settings.data_dir / tuned.FILE).exists()) == (0, False)
            done = run(settings.data_dir, *words, **here)
            assert done.returncode == 0
            found = as_tuned(settings)
        for name in tuned.Choice.model_fields:
            assert f"LIKENESS_{name.upper()}={getattr(found, name)}" in done.stdout
        assert found.embed_workers is not None

    def test_photos_without_a_face_measure_nothing(self, settings: Settings, tmp_path: Path) -> None:
        here = {"models_dir": settings.models_dir, "embedder": "tiny"}
        refused = run(settings.data_dir, "tune", "--photos", tmp_path, **here)
        assert refused.returncode != 0
        assert "photos" in refused.stderr


class TestServing:
    def test_the_server_takes_the_choice_measured_here(self, settings: Settings) -> None:
        kept(settings)
        found = as_tuned(settings)
        assert found.model_dump(include=set(tuned.Choice.model_fields)) == CHOICE.model_dump()

    def test_what_is_set_by_hand_stays(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        kept(settings)
        monkeypatch.setenv("LIKENESS_MAX_BATCH", "5")
        by_hand = Settings(data_dir=settings.data_dir, models_dir=settings.models_dir, embedder="tiny", threads=9)
        found = as_tuned(by_hand)
        assert (found.threads, found.max_batch, found.embed_workers) == (9, 5, CHOICE.embed_workers)

    @pytest.mark.parametrize("change", [{"machine": "Z80, 1 cores"}, {"embedder": "tiny@2"}, {"device": "cuda"}])
    def test_what_was_measured_elsewhere_is_left_alone_and_told_of(
        self, settings: Settings, caplog: pytest.LogCaptureFixture, change: dict[str, str]
    ) -> None:
        yunet = load_package(settings.models_dir / "yunet").id
        kept(settings, tuned.here("cpu", "tiny@1", yunet).model_copy(update=change))
        with caplog.at_level(logging.WARNING):
            assert as_tuned(settings) == settings
        (record,) = caplog.records
        assert next(iter(change.values())) in str(vars(record)["fields"])

    @pytest.mark.parametrize("content", ["", "{}", '{"choice": {"threads": 0}}', "[1"])
    def test_a_damaged_file_does_not_stop_the_server(
        self, settings: Settings, caplog: pytest.LogCaptureFixture, content: str
    ) -> None:
        settings.data_dir.mkdir()
        (settings.data_dir / tuned.FILE).write_text(content)
        with caplog.at_level(logging.WARNING):
            assert as_tuned(settings) == settings
        assert len(caplog.records) == 1

    def test_a_service_runs_with_it(self, settings: Settings) -> None:
        kept(settings)
        given = settings.model_dump(include=settings.model_fields_set - {"data_dir"})
        with running(settings.data_dir, **given) as client:
            models = {model["name"]: model for model in client.get("/v1/models").raise_for_status().json()["models"]}
        assert models["yunet"]["device"] == models["tiny"]["device"] == "cpu"
        assert models["yunet"]["providers"] == ["CPUExecutionProvider"]
