"""Shards in object storage are read in order, and a run over them is resumed exactly."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the train extra")


from app.errors import InvalidInput, LikenessError
from tests.support.crops import png_of
from tests.support.runs import ALONE, differing, flat_people, small_recipe
from tests.support.tarred import tar_of
from training import checkpoint
from training.data import open_dataset
from training.data.formats.remote import list_urls
from training.data.sampler import ShardSampler
from training.run.inputs import prepare_material
from training.run.trainer import Trainer

SHARDS, IN_EACH = 6, 8


@pytest.fixture(scope="module")
def shards() -> list[bytes]:
    crops = flat_people(6, 8)
    order = np.random.default_rng(0).permutation(len(crops))
    made = []
    for shard in range(SHARDS):
        places = order[shard * IN_EACH : (shard + 1) * IN_EACH].tolist()
        files = {f"person {crops.labels[p]}/{p:03}.png": png_of(crops.images([p])[0]) for p in places}
        made.append(tar_of(files))
    return made


@pytest.fixture
def bucket(shards: list[bytes]) -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    for number, shard in enumerate(shards):
        memory.pipe(f"/bucket/{number:02}.tar", shard)
    yield "memory://bucket/*.tar"
    memory.rm("/bucket", recursive=True)


@pytest.fixture
def local(shards: list[bytes], tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    for number, shard in enumerate(shards):
        (tmp_path / "local" / f"{number:02}.tar").write_bytes(shard)
    return tmp_path / "local"


@pytest.fixture
def server(local: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(local))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)


def test_a_set_on_a_web_server_is_the_same_as_on_disk(local: Path, server: str, tmp_path: Path) -> None:
    here = open_dataset(local)
    there = open_dataset(f"{server}/{{00..05}}.tar", indexes=tmp_path / "indexes", copies=2)
    assert list(there.people) == list(here.people)
    np.testing.assert_array_equal(there.labels, here.labels)
    assert [there.describe(row) for row in range(len(there))] == [here.describe(row) for row in range(len(here))]
    for faces in (there, pickle.loads(pickle.dumps(there))):  # noqa: S301 - our own bytes
        assert all((faces[row][0] == here[row][0]).all() for row in range(len(here)))
    assert len(list((tmp_path / "indexes").glob("*/shards/*.tar"))) == 2


def test_a_changed_shard_is_noticed(bucket: str, shards: list[bytes], tmp_path: Path) -> None:
    before = open_dataset(bucket, indexes=tmp_path)
    assert open_dataset(bucket, indexes=tmp_path).key() == before.key()
    fsspec.filesystem("memory").pipe("/bucket/01.tar", shards[0])
    assert open_dataset(bucket, indexes=tmp_path).key() != before.key()


def test_what_cannot_be_read_is_an_error_that_names_it(bucket: str, shards: list[bytes], server: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/02.tar", shards[2][:3000])
    with pytest.raises(LikenessError, match=r"02\.tar|bytes"):
        _read_all(bucket)
    memory.pipe("/bucket/02.tar", b"no tar file" * 99)
    for url, code in {
        bucket: "dataset_invalid",
        f"{server}/none.tar": "dataset_unreachable",
        "http://127.0.0.1:9/a.tar": "dataset_unreachable",
        "nothing://a.tar": "dataset_unreachable",
    }.items():
        with pytest.raises(InvalidInput) as caught:
            open_dataset(url)
        assert caught.value.code == code


def _read_all(spec: str) -> None:
    faces = open_dataset(spec)
    for row in range(len(faces)):
        faces[row]


def test_urls_are_numbered_or_listed(bucket: str) -> None:
    assert list_urls("s3://a/{008..011}.tar") == [f"s3://a/{number:03}.tar" for number in range(8, 12)]
    assert list_urls(bucket) == [f"memory:///bucket/{number:02}.tar" for number in range(SHARDS)]


@pytest.mark.parametrize("together", [1, 2, 4, 9])
def test_shards_are_read_in_order_and_every_image_once(together: int) -> None:
    shards = np.repeat([0, 1, 3, 4, 6], [5, 1, 7, 4, 6])
    fetched: list[int] = []
    built = ShardSampler(shards, together=together, batch_size=4, seed=3, fetch=fetched.append)
    epochs = []
    for epoch in range(2):
        built.set_epoch(epoch)
        fetched.clear()
        drawn = np.concatenate([built.batch(number) for number in range(len(built))])
        assert sorted(drawn[: len(shards)].tolist()) == list(range(len(shards)))
        order = list(dict.fromkeys(shards[drawn].tolist()))
        groups = [set(order[start : start + together]) for start in range(0, 5, together)]
        place = 0
        for group in groups:  # no image of a shard comes outside of its group
            count = int(np.isin(shards, list(group)).sum())
            assert set(shards[drawn[place : place + count]].tolist()) == group
            place += count
        assert set(shards[drawn[len(shards) :]].tolist()) <= groups[-1]
        assert len(fetched) == len(set(fetched)) == max(0, 5 - together)
        assert set(fetched) == set().union(*groups[1:])
        epochs.append(drawn)
    assert (epochs[0] != epochs[1]).any()
    halves = [
        ShardSampler(shards, together=together, batch_size=4, seed=3, rank=rank, world_size=2) for rank in range(2)
    ]
    together_again = [place for first, second in zip(*halves, strict=True) for place in (*first, *second)]
    assert together_again == epochs[0].tolist()


@pytest.mark.long
def test_a_run_over_a_web_server_is_resumed_bit_for_bit(server: str, tmp_path: Path) -> None:
    recipe = small_recipe(
        data={"source": f"{server}/{{00..05}}.tar", "held_out": 0.0, "indexes": str(tmp_path), "workers": 2},
        sampler={"name": "shards", "shards": 1, "batch_size": 10},
    )
    states = []
    for name, stops in (("whole", [8]), ("parts", [3, 8])):
        for until in stops:
            trainer = Trainer(recipe, prepare_material(recipe, Path("models")), tmp_path / name, ALONE)
            if (last := checkpoint.latest(tmp_path / name)) is not None:
                trainer.restore(last)
            trainer.train(until=until)
        states.append(trainer.state())
    assert differing(*states) == []
    assert len(list(tmp_path.glob("*/shards/*.tar"))) <= 4  # three, and one that was fetched meanwhile


def test_drawn_faces_have_no_shards(tmp_path: Path) -> None:
    recipe = small_recipe(
        data={"source": "procedural:people=4,images=4", "indexes": str(tmp_path)}, sampler={"name": "shards"}
    )
    with pytest.raises(InvalidInput, match="needs tar shards"):
        prepare_material(recipe, tmp_path)
