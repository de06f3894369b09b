"""An index says who is in each image and where it lies, is made once, and costs the same to open whatever its size."""

from __future__ import annotations

import gc
import json
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput
from tests.support.crops import png
from training.data import open_dataset
from training.data.formats import ImageBlock, Listing
from training.data.index import open_indexed
from training.data.mapped import Strings, StringWriter, append_numbers, open_array


def listed(people: list[str], at_once: int = 3) -> Listing:
    def blocks(_folder: Path) -> Iterator[ImageBlock]:
        for start in range(0, len(people), at_once):
            block = people[start : start + at_once]
            yield ImageBlock.of_paths(block, [f"{start + place}.png" for place in range(len(block))])

    return Listing("path", (Path("nowhere"),), lambda: (), blocks)


@settings(max_examples=20)
@given(st.lists(st.text(max_size=4), min_size=1, max_size=30))
def test_labels_name_people_back_and_do_not_depend_on_order(names: list[str]) -> None:
    faces, backwards = open_indexed(listed(names), None, "raise"), open_indexed(listed(names[::-1]), None, "raise")
    assert [faces.people[label] for label in faces.labels] == names
    assert faces.labels.dtype == np.int64
    assert list(faces.people) == list(backwards.people) == sorted(set(names), key=_order(names))
    assert [faces.describe(index) for index in range(len(names))] == [f"{index}.png" for index in range(len(names))]


def _order(names: list[str]) -> Callable[[str], Any]:
    return (lambda name: (len(name), name)) if all(name.isdecimal() for name in names) else (lambda name: name)


def test_numbered_people_come_in_the_order_of_their_numbers() -> None:
    assert open_indexed(listed(["10", "9", "9", "100"]), None, "raise").people == ["9", "10", "100"]


def test_arrays_and_strings_come_back_as_they_were_appended(tmp_path: Path) -> None:
    words = ["", "ada", "卓", "", "x" * 300]
    strings = StringWriter(tmp_path / "s")
    with (tmp_path / "a.i64").open("wb") as numbers:
        for part in (words[:2], [], words[2:]):
            strings.append(part)
            append_numbers(numbers, [len(word) for word in part])
    strings.close()
    assert open_array(tmp_path / "a.i64").tolist() == [len(word) for word in words]
    assert Strings(tmp_path / "s") == words
    assert Strings(tmp_path / "s")[-3:] == words[-3:]
    with pytest.raises(IndexError):
        Strings(tmp_path / "s")[len(words)]


def folder_of(root: Path, people: int) -> Path:
    for person in range(people):
        (root / f"p{person}").mkdir(parents=True, exist_ok=True)
        (root / f"p{person}" / "a.png").write_bytes(png(person))
    return root


def test_a_set_is_indexed_once_and_again_when_its_folders_change(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "set", 2)
    counted: list[int] = []
    for _ in range(2):
        faces = open_dataset(source, indexes=tmp_path / "indexes", progress=counted.append)
    assert counted == [1, 1]
    assert len(list((tmp_path / "indexes").iterdir())) == 1
    folder_of(source, 3)
    more = open_dataset(source, indexes=tmp_path / "indexes", progress=counted.append)
    assert len(more) == 3
    assert len(faces) == 2  # under a run that began before


def test_indexing_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,person\na.png,ada\nb.png,\n")
    with pytest.raises(InvalidInput, match="row 2"):
        open_dataset(tmp_path / "list.csv", indexes=tmp_path / "indexes")
    assert list((tmp_path / "indexes").iterdir()) == []


@pytest.mark.long
def test_an_index_that_is_not_kept_goes_with_its_set_but_not_with_a_copy(tmp_path: Path) -> None:
    faces = open_dataset(folder_of(tmp_path / "set", 2))
    folder = getattr(faces, "folder").parent  # noqa: B009 - only stored sets have one
    assert folder.is_relative_to(tempfile.gettempdir())
    process = multiprocessing.get_context("fork").Process(target=_use, args=(faces,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert folder.is_dir()
    del faces, process
    gc.collect()
    assert not folder.exists()


def _use(faces: Any) -> None:
    faces[0]
    del faces
    gc.collect()


def test_a_set_travels_to_another_process_as_a_path(tmp_path: Path) -> None:
    for count in (2, 40):
        faces = open_dataset(folder_of(tmp_path / str(count), count), indexes=tmp_path / "indexes")
        sent = pickle.dumps(faces)
        assert len(sent) < 500
        np.testing.assert_array_equal(pickle.loads(sent)[1][0], faces[1][0])  # noqa: S301 - our own bytes


def parquet_set(path: Path, rows: range, kind: str) -> None:
    """As Hugging Face writes image data sets: a struct of bytes and path, a class label; or plain columns."""
    images = [png(row) for row in rows]
    labels = [row % 3 for row in rows]
    if kind == "huggingface":
        facts = {"info": {"features": {"label": {"names": ["ada", "bob", "卓"], "_type": "ClassLabel"}}}}
        table = pyarrow.table({"image": [{"bytes": data, "path": None} for data in images], "label": labels})
        table = table.replace_schema_metadata({"huggingface": json.dumps(facts)})
    else:
        table = pyarrow.table({"jpg": images, "person": [("ada", "bob", "卓")[label] for label in labels]})
    pyarrow.parquet.write_table(table, path, row_group_size=4)


@pytest.mark.parametrize("kind", ["huggingface", "plain"])
@pytest.mark.parametrize("kept", [True, False])
def test_images_in_parquet_files_are_read(kind: str, *, kept: bool, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    parquet_set(tmp_path / "set" / "train-0.parquet", range(7), kind)
    parquet_set(tmp_path / "set" / "train-1.parquet", range(7, 12), kind)
    for spec in (tmp_path / "set", f"{tmp_path}/set/train-*.parquet"):
        faces = open_dataset(spec, indexes=tmp_path / "indexes" if kept else None)
        assert list(faces.people) == ["ada", "bob", "卓"]
        assert faces.labels.tolist() == [row % 3 for row in range(12)]
        assert [int(faces[row][0][0, 0, 0]) for row in range(12)] == list(range(12))
        assert faces.describe(8) == "train-1.parquet row 1"
    assert len(open_dataset(tmp_path / "set" / "train-0.parquet")) == 7


def test_a_parquet_row_without_its_image_or_person_is_refused(tmp_path: Path) -> None:
    for images, people in (([png(1), None], ["a", "b"]), ([png(1), png(2)], ["a", None]), ([png(1), b""], ["a", "b"])):
        column = pyarrow.array(images, pyarrow.binary())
        pyarrow.parquet.write_table(pyarrow.table({"image": column, "label": people}), tmp_path / "x.parquet")
        with pytest.raises(InvalidInput) as refused:
            open_dataset(tmp_path / "x.parquet")
        assert refused.value.code == "dataset_invalid"


def test_a_pattern_of_files_with_other_columns_is_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"image": ["a.png"], "label": ["x"]}), tmp_path / "x.parquet")
    with pytest.raises(InvalidInput, match="needs a column of images"):
        open_dataset(f"parquet:{tmp_path}/*.parquet")
