"""A stranger's path: from an ONNX file to a gallery that identifies, and adding while a server is under load."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from likeness_client import AsyncClient
from onnx import ModelProto
from PIL import Image

from app.errors import Unusable
from app.models.add import NewPackage, add_detector
from app.package.manifest import Licence
from tests.conftest import PROJECT
from tests.support.calibrating import add_random_people
from tests.support.commands import Done, run
from tests.support.crops import write_people
from tests.support.embedder_files import SMALL, bgr, floats, nchw, sface_file
from tests.support.live import environment, serving
from tests.support.load import CLIENTS, GALLERY, Worker
from tests.support.ready import give_models
from training.data.drawn import ProceduralFaces

SAMPLES = PROJECT / "docs" / "samples"
BORDER = 64
"""Pixels around a drawn crop: a detector looks for a head in a photo."""
SECONDS = 4.0
"""How long the clients work at least, beside whatever else they wait for."""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("yunet", "sface"):
        (folder / name).symlink_to(PROJECT / "models" / name)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ten drawn people with three photos each."""
    return write_people(tmp_path_factory.mktemp("people"), ProceduralFaces(10, 3, first=500), BORDER)


def add(folder: Path, models: Path, file: Path, *words: object) -> Done:
    """Add the file as `mine`, and print how long it took."""
    start = time.perf_counter()
    give_models(folder / "data")
    done = run(folder / "data", "models", "add", file, "--name", "mine", "--licence", "MIT", *words, models_dir=models)
    print(f"{file.name}: added in {time.perf_counter() - start:.1f} s, exit code {done.returncode}")  # noqa: T201
    return done


def written(folder: Path, model: ModelProto) -> Path:
    file = folder / "given.onnx"
    file.write_bytes(model.SerializeToString())
    return file


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: sface_file(), ("--preset", "sface")),
        (lambda _: SMALL / "model.onnx", ("--colour", "rgb")),
        (lambda folder: written(folder, bgr()), ("--colour", "bgr")),
        (lambda folder: written(folder, nchw()), ("--colour", "rgb")),
        (
            lambda folder: written(folder, floats()),
            ("--colour", "rgb", "--mean", "127.5", "--std", "127.5,127.5,127.5"),
        ),
    ],
    ids=["sface", "sface-slim, NHWC", "BGR", "NCHW", "float NCHW, stated"],
)
def test_two_commands_lead_from_a_file_to_a_gallery(
    tmp_path: Path, models: Path, make: Callable[[Path], Path], words: tuple[str, ...]
) -> None:
    done = add(tmp_path, models, make(tmp_path), *words)
    assert done.returncode == 0, done.stderr
    data = tmp_path / "data"
    made = run(data, "galleries", "create", "crew", "--embedder", "mine", "--force", models_dir=models)
    assert made.returncode == 0, made.stderr
    enrolled = run(data, "enroll", "crew", "eileen", SAMPLES / "collins.jpg", models_dir=models)
    assert enrolled.returncode == 0, enrolled.stderr


def test_too_few_people_are_refused_and_photos_without_a_face_are_named(
    tmp_path: Path, models: Path, photos: Path
) -> None:
    few = tmp_path / "few"
    for person in sorted(photos.iterdir())[:3]:
        shutil.copytree(person, few / person.name)
    (few / "p00" / "broken.jpg").write_text("no photo")
    Image.new("RGB", (200, 200)).save(few / "p00" / "blank.png")
    done = add(tmp_path, models, SMALL / "model.onnx", "--photos", few)
    assert (done.returncode, "3 people with two usable photos" in done.stderr) == (3, True), done.stderr
    assert all(f"{name}: left out" in done.stderr for name in ("broken.jpg", "blank.png")), done.stderr
    assert add(tmp_path, models, SMALL / "model.onnx", "--photos", tmp_path / "nowhere").returncode == 3


@pytest.fixture
def crops(tmp_path: Path) -> Path:
    """A folder of 60 drawn people with three aligned crops each."""
    return write_people(tmp_path / "crops", ProceduralFaces(60, 3, first=900))


@pytest.mark.long
def test_no_request_fails_while_a_model_is_added_and_measured(tmp_path: Path, models: Path, crops: Path) -> None:
    """Sixteen clients enroll, identify and delete; meanwhile commands add two models, measure one, and calibrate a
    gallery of other people."""
    seconds: dict[str, list[float]] = defaultdict(list)
    workers = [Worker(number, random.Random(number), seconds) for number in range(CLIENTS)]
    data = tmp_path / "data"
    said: list[str] = []
    names = ("first", "second")

    def command(*words: object) -> subprocess.CompletedProcess[str]:
        environ = environment(data, MODELS_DIR=models)
        return subprocess.run(
            [sys.executable, "-m", "app", *map(str, words)],
            env=environ, cwd=PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    async def adding(stop: asyncio.Event) -> None:
        added = [
            ("models", "add", SMALL / "model.onnx", "--name", name, "--licence", "MIT", "--colour", "rgb")
            for name in names
        ]
        measured = ("models", "measure", names[0], "--photos", crops, "--aligned", "--use")
        try:
            for words in (*added, measured, ("galleries", "calibrate", "staff")):
                start = time.perf_counter()
                ended = await asyncio.to_thread(command, *words)
                assert ended.returncode == 0, ended.stderr
                said.append(f"{words[1]}: {time.perf_counter() - start:.1f} s beside {CLIENTS} clients")
        finally:
            stop.set()

    async def play(url: str, key: str) -> None:
        async with AsyncClient(url, key) as client:
            await client.create_gallery(GALLERY)
            stop = asyncio.Event()
            added = asyncio.create_task(adding(stop))
            while not stop.is_set():
                until = time.monotonic() + SECONDS
                await asyncio.gather(*(worker.run(client, until) for worker in workers))
            await added
            found = {model.name: model for model in (await client.models()).models}
            assert [bool(found[name].calibrations) for name in names] == [True, False]
            assert (await client.calibration("staff")).points
            assert (await client.create_gallery("own", embedder="second", force=True)).embedder == "second@1"
            assert (await client.check_gallery(GALLERY)).ok

    with serving(data, {"MODELS_DIR": models}) as server:
        with server.client() as api:
            api.post("/v1/galleries", json={"id": "staff", "store": "none"}).raise_for_status()
            add_random_people(api, "staff")
        asyncio.run(play(server.url, server.key))
        print(said, {step: len(times) for step, times in seconds.items()})  # noqa: T201 (shown by `pytest -s`)
        assert '"status": 500' not in server.log.read_text()


@pytest.mark.long
def test_a_yunet_becomes_the_detector_and_nothing_else_does(tmp_path: Path, models: Path) -> None:
    yunet = sface_file().with_name("face_detection_yunet_2023mar_int8bq.onnx")
    done = add(tmp_path, models, yunet, "--task", "detect", "--json")
    assert done.returncode == 0, done.stderr
    assert done.rows[0]["found"] == done.rows[0]["photos"] == 20
    data = tmp_path / "data"
    with serving(data, {"MODELS_DIR": models, "DETECTOR": "mine"}, models=False) as server, server.client() as api:
        found = api.post(
            "/v1/detect", content=(SAMPLES / "both.jpg").read_bytes(), headers={"content-type": "image/jpeg"}
        )
        assert len(found.raise_for_status().json()["faces"]) == 2
    shutil.rmtree(data / "packages" / "mine")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(yunet.read_bytes()[:5000])
    for file, code in ((SMALL / "model.onnx", "package_not_preparable"), (broken, "model_unsuitable"),
                       (tmp_path / "nowhere.onnx", "model_unsuitable")):  # fmt: skip
        done = add(tmp_path, models, file, "--task", "detect")
        assert (done.returncode, code in done.stderr) == (4, True), done.stderr
        assert not (data / "packages" / "mine").exists()


def test_a_yunet_that_finds_nobody_is_refused(models: Path) -> None:
    yunet = sface_file().with_name("face_detection_yunet_2023mar_int8bq.onnx")
    new = NewPackage(yunet, "mine", Licence(name="MIT", non_commercial=False), models, models.parent)
    with pytest.raises(Unusable, match="finds no face in any of 20 photos"):
        add_detector(new, lambda _package: (0, 20))
    assert not (models / "mine").exists()
