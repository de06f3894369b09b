"""Crops that are decoded once are those that lie there now, and a batch is what its number says."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the train extra")

import torch

from app.types import Pixels
from tests.support.crops import RecordWriter, png
from tests.support.runs import flat_people
from tests.support.tarred import tar_of
from training.data import open_dataset, sampler
from training.data.crops import facts_of, open_pixels
from training.data.loader import BatchKey, BatchSource, batch_keys

PEOPLE = ("ada", "bob")


def as_folder(root: Path, value: int) -> Path:
    for person in PEOPLE:
        (root / person).mkdir(parents=True, exist_ok=True)
        (root / person / "1.png").write_bytes(png(value))
    return root


def as_list(root: Path, value: int) -> Path:
    as_folder(root, value)
    (root / "list.csv").write_text("path,person\n" + "".join(f"{name}/1.png,{name}\n" for name in PEOPLE))
    return root / "list.csv"


def as_tar(root: Path, value: int) -> Path:
    (root / "a.tar").write_bytes(tar_of({f"{person}/1.png": png(value) for person in PEOPLE}))
    return root / "a.tar"


def as_records(root: Path, value: int) -> Path:
    with RecordWriter(root / "train.rec") as file:
        for key, label in enumerate((0.0, 1.0), start=1):
            file.write_image(key, [label], png(value))
    return root / "train.rec"


def reds(source: str | Path, cache: Path) -> Pixels:
    """(N, 112, 112) of the decoded crops; the value they were written with."""
    return open_pixels(open_dataset(source), cache)[:][..., 0]


@pytest.mark.parametrize("made", [as_folder, as_list, as_tar, as_records])
def test_files_written_again_under_their_names_are_read_again(
    made: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    source = made(tmp_path / "data", 10)
    assert np.all(reds(source, tmp_path / "cache") == 10)
    kept = (tmp_path / "cache" / "crops.npy").stat()
    running = open_pixels(open_dataset(source), tmp_path / "cache")
    assert (tmp_path / "cache" / "crops.npy").stat() == kept

    made(tmp_path / "data", 200)
    for file in filter(Path.is_file, (tmp_path / "data").rglob("*")):
        os.utime(file, ns=(kept.st_mtime_ns + 1, kept.st_mtime_ns + 1))  # however coarse the file system's clock is
    assert np.all(reds(source, tmp_path / "cache") == 200)
    assert np.all(running[:][..., 0] == 10)  # under a run that began before
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["crops.json", "crops.npy"]


def test_what_is_kept_under_another_key_is_made_anew(tmp_path: Path) -> None:
    source = as_folder(tmp_path / "data", 10)
    cache = tmp_path / "cache"
    cache.mkdir()
    np.save(cache / "crops.npy", np.zeros((2, 112, 112, 3), np.uint8))
    (cache / "crops.json").write_text('{"images": 2, "source": "0"}\n')
    assert np.all(reds(source, cache) == 10)


def test_an_image_that_has_gone_is_named(tmp_path: Path) -> None:
    table = as_list(tmp_path, 10)
    (tmp_path / "bob" / "1.png").unlink()
    with pytest.raises(Exception, match=r"bob/1\.png") as caught:
        reds(table, tmp_path / "cache")
    assert getattr(caught.value, "code", None) is not None
    assert list((tmp_path / "cache").iterdir()) == []


def test_crops_are_told_apart_by_their_files_whether_they_are_decoded_before_or_not(tmp_path: Path) -> None:
    source = as_folder(tmp_path / "data", 10)
    before = facts_of(open_pixels(open_dataset(source), None))
    assert facts_of(open_pixels(open_dataset(source), tmp_path / "cache")) == before
    (source / "bob" / "1.png").write_bytes(png(200) + b" ")
    assert facts_of(open_pixels(open_dataset(source), None)) != before


@pytest.mark.parametrize("name", sampler.names())
def test_a_batch_depends_on_its_number_and_not_on_what_was_drawn_before(name: str) -> None:
    built = sampler.build(name, np.repeat(np.arange(6), 6), batch_size=12, images=4, seed=3)
    whole = list(itertools.islice(batch_keys(built, 0, 0, 1), 8))
    places = [(count // len(built), count % len(built) * 12) for count in range(8)]
    assert [(key.epoch, key.start) for key in whole] == places
    from_second, from_fifth = batch_keys(built, 1, 0, 1), batch_keys(built, 4, 0, 1)
    for number in range(3):  # two runs over one sampler, turn and turn about
        assert next(from_second) == whole[1 + number]
        assert next(from_fifth) == whole[4 + number]
    halves = [next(batch_keys(built, 2, rank, 2)) for rank in range(2)]
    assert halves[0].indices + halves[1].indices == whole[2].indices
    assert halves[1].start == whole[2].start + 6


def test_a_crop_is_changed_by_its_place_in_the_batch_of_all_ranks() -> None:
    source = BatchSource(flat_people(2, 8), 3, lambda crop, random: crop + random.integers(0, 9, crop.shape, np.uint8))
    indices = tuple(range(16))
    whole, *parts = (source[BatchKey(1, start, indices[start:end])] for start, end in ((0, 16), (0, 8), (8, 16)))
    assert 0 < whole.mirrored.sum() < 16
    for name in ("images", "mirrored"):
        torch.testing.assert_close(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
