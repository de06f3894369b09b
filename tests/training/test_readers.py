"""Sets of crops from folders, tables, RecordIO, tar shards and verification packs."""

from __future__ import annotations

import csv
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from app.errors import InvalidImage, InvalidInput, LikenessError
from app.face.formats import Limits
from app.face.image import decode
from app.types import Pixels
from tests.support import images
from tests.support.crops import RecordWriter, pack_header, png, png_of, write_pack
from tests.support.tarred import tar_of
from training.data import FaceSet, open_dataset, read_drop_list, rows_left
from training.data.dataset import decode_crop
from training.data.drawn import ProceduralFaces
from training.data.formats.bins import read_pack
from training.data.formats.records import MAGIC, MAGIC_BYTES, read_index, read_record, unpack_header

PEOPLE = {"ada": 2, "bob": 3, "卓": 1}


IMAGES = [
    (person, f"{person}/{n}.png", png(20 * i + n)) for i, (person, k) in enumerate(PEOPLE.items()) for n in range(k)
]


def as_folder(root: Path) -> Path:
    for _, path, data in IMAGES:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "ada" / "notes.txt").write_text("no image")
    (root / "loose.png").write_bytes(png(0))
    return root


def as_csv(root: Path) -> Path:
    as_folder(root)
    with (root / "list.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["Path", "Person"], *([path, person] for person, path, _ in IMAGES)])
    return root / "list.csv"


def as_parquet(root: Path) -> Path:
    as_folder(root)
    columns = {
        "other": [1.5] * len(IMAGES),
        "path": [path for _, path, _ in IMAGES],
        "label": [p for p, _, _ in IMAGES],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), root / "list.parquet")
    return root / "list.parquet"


def as_tar(root: Path) -> Path:
    """Two shards: one says who by folder, the other by sidecar files."""
    (root / "a.tar").write_bytes(tar_of({path: data for _, path, data in IMAGES[:3]}))
    second: dict[str, bytes] = {}
    for number, (person, _, data) in enumerate(IMAGES[3:], start=3):
        ending, said = (".cls", person) if number % 2 else (".json", json.dumps({"label": person}))
        second |= {f"{number:04}.png": data, f"{number:04}{ending}": said.encode()}
    (root / "b.tar").write_bytes(tar_of(second))
    return root


@pytest.mark.parametrize("made", [as_folder, as_csv, as_parquet, as_tar])
def test_every_format_gives_the_same_set(made: Callable[[Path], Path], tmp_path: Path) -> None:
    faces = open_dataset(made(tmp_path))
    assert faces.people == sorted(PEOPLE)
    assert faces.labels.dtype == np.int64
    assert len(faces) == len(IMAGES)
    for index, (person, _, data) in enumerate(IMAGES):
        crop, label = faces[index]
        assert faces.people[label] == faces.people[faces.labels[index]] == person
        np.testing.assert_array_equal(crop, decode_crop(data))
    with pytest.raises(IndexError):
        faces[len(faces)]
    np.testing.assert_array_equal(faces[-1][0], faces[len(faces) - 1][0])
    assert len({faces.describe(i) for i in range(len(faces))}) == len(faces)
    assert pickle.loads(pickle.dumps(faces))[0][1] == faces[0][1]  # noqa: S301 - our own bytes


def test_crops_of_other_sizes_are_resized_by_averaging_areas() -> None:
    fine = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    mean = fine.reshape(112, 2, 112, 2, 3).mean((1, 3))
    np.testing.assert_allclose(decode_crop(png_of(fine)), mean, atol=0.51)
    assert decode_crop(png(9, side=20)).shape == (112, 112, 3)
    assert (decode_crop(png(9, side=20)) == (9, 246, 7)).all()
    assert decode_crop(png(3)).flags.writeable
    assert decode_crop(png(3, side=50)).flags.writeable


@pytest.mark.parametrize(
    "data",
    [
        images.encoded(images.photo(112, 112), "JPEG"),
        images.encoded(images.photo(112, 112).convert("L"), "JPEG", progressive=True),
        images.turned(images.photo(112, 112), "JPEG", 6),
        images.encoded(images.photo(112, 112).convert("CMYK"), "JPEG"),
    ],
    ids=["plain", "grey", "turned", "cmyk"],
)
def test_crops_are_decoded_as_photos_are(data: bytes) -> None:
    np.testing.assert_array_equal(decode_crop(data), decode(data, Limits()).pixels)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_crop_that_lost_bytes_is_damaged(progressive: bool) -> None:
    data = images.encoded(images.photo(112, 112), "JPEG", progressive=progressive)
    at = data.rindex(b"\xff\xda") + (len(data) - data.rindex(b"\xff\xda")) // 2
    for lost in (data[:at] + b"\xff\xd9", data[: at - 200] + data[at:], data[:at]):
        with pytest.raises(InvalidImage):
            decode_crop(lost)


def test_damaged_images_raise_and_are_named_or_skipped_where_asked_and_counted(tmp_path: Path) -> None:
    as_folder(tmp_path)
    (tmp_path / "bob" / "1.png").write_bytes(png(1)[:60])
    (tmp_path / "卓" / "0.png").write_bytes(b"no image")
    with pytest.raises(InvalidImage, match=r"bob/1\.png"):
        open_dataset(tmp_path)[3]
    faces = open_dataset(tmp_path, "skip")
    crop, label = faces[3]
    assert faces.people[label] == "bob"
    np.testing.assert_array_equal(crop, faces[4][0])
    assert getattr(faces, "skipped") == {3}  # noqa: B009 - only stored sets skip
    with pytest.raises(InvalidImage, match="卓"):
        faces[5]


def test_a_file_that_went_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    faces = open_dataset(as_folder(tmp_path))
    (tmp_path / "ada" / "0.png").unlink()
    with pytest.raises(LikenessError, match=r"ada/0\.png"):
        faces[0]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("list.csv", b"path,person\n", "dataset_empty"),
        ("list.csv", b"", "dataset_empty"),
        ("list.csv", b"file,who\na.png,x\n", "dataset_invalid"),
        ("list.csv", b"path,person\na.png,\n", "dataset_invalid"),
        ("list.csv", b"path,person\na.png\n", "dataset_invalid"),
        ("list.parquet", b"PAR1 no", "dataset_invalid"),
        ("train.rec", b"", "dataset_empty"),
        ("train.rec", b"0123456789abcdef", "dataset_invalid"),
        ("set.tar", b"no tar file", "dataset_invalid"),
        ("set.zip", b"PK", "dataset_unknown"),
    ],
)
def test_files_that_hold_no_set_are_refused(name: str, content: bytes, code: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        open_dataset(tmp_path / name)
    assert refused.value.code == code


def test_a_folder_without_photos_says_what_was_looked_for_and_found(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"{tmp_path}/PERSON/PHOTO\); folders found: 0") as refused:
        open_dataset(tmp_path)
    assert refused.value.code == "dataset_empty"
    (tmp_path / "ada").mkdir()
    with pytest.raises(InvalidInput, match="folders found: 1"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    "spec", ["nowhere", "nowhere.csv", "nowhere.rec", "nowhere.tar", "tar:no/*.tar", "folder:nowhere"]
)
def test_what_is_not_there_is_said_to_be_missing(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as missing:
        open_dataset(spec)
    assert missing.value.code == "dataset_not_found"


def test_an_image_in_a_tar_that_nothing_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(tar_of({"1.png": png(1)}))
    with pytest.raises(InvalidInput, match=r"1\.png"):
        open_dataset(tmp_path / "x.tar")


def test_kinds_can_be_said_and_shards_be_given_as_a_pattern(tmp_path: Path) -> None:
    as_tar(tmp_path)
    assert len(open_dataset(f"tar:{tmp_path}/a.tar")) == 3
    assert len(open_dataset(f"{tmp_path}/*.tar")) == len(IMAGES)
    drawn = open_dataset("procedural:people=3,images=2,seed=5,first=7")
    assert drawn.people == ["drawn-7", "drawn-8", "drawn-9"]
    assert len(drawn) == 6
    with pytest.raises(InvalidInput, match="persons"):
        open_dataset("procedural:persons=3")


def test_drop_lists_are_read_from_json_csv_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"threshold": 0.4, "drop": ["1", "2"]}')
    (tmp_path / "b.csv").write_text("drop,keeps,score\n1,x,0.5\n2,y,0.6\n")
    (tmp_path / "c.txt").write_text("1\n\n2\n")
    assert all(read_drop_list(tmp_path / name) == ({"1", "2"}, set()) for name in ("a.json", "b.csv", "c.txt"))
    (tmp_path / "d.json").write_text('{"dropped": ["1"]}')
    with pytest.raises(InvalidInput, match="no list"):
        read_drop_list(tmp_path / "d.json")
    faces = ProceduralFaces(4, 2)
    (tmp_path / "drop.txt").write_text("drawn-0\ndrawn-2\n")
    assert rows_left(faces, tmp_path / "drop.txt").tolist() == [2, 3, 6, 7]
    assert rows_left(faces, None).tolist() == list(range(8))


# --- RecordIO ------------------------------------------------------------------------------------------------------

PAYLOADS = st.lists(st.one_of(st.binary(max_size=9), st.just(MAGIC_BYTES)), max_size=8).map(b"".join)


def whole_index(rec: Path) -> NDArray[np.int64]:
    """Keys and offsets, (2, N)."""
    return np.concatenate([np.stack(part) for part in read_index(rec)], axis=1)


@settings(max_examples=50)
@given(payloads=st.lists(PAYLOADS, min_size=1, max_size=6))
def test_records_come_back_as_written_whatever_they_hold(
    payloads: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rec = tmp_path_factory.mktemp("rec") / "x.rec"
    with RecordWriter(rec) as writer:
        for key, payload in enumerate(payloads):
            writer.write(key, payload)
    keys, offsets = whole_index(rec)
    assert keys.tolist() == list(range(len(payloads)))
    assert rec.stat().st_size % 4 == 0
    with rec.open("rb") as file:
        assert [read_record(file, offset)[0] for offset in offsets.tolist()] == payloads
    rec.with_suffix(".idx").unlink()
    np.testing.assert_array_equal(whole_index(rec)[1], offsets)  # found by walking


def test_the_bytes_are_those_of_recordio(tmp_path: Path) -> None:
    """Written out by hand from the format's description: a whole record, padding, and one cut at its magic."""
    with RecordWriter(tmp_path / "x.rec") as writer:
        writer.write(4, b"abcde")
        writer.write(9, b"abcd" + MAGIC_BYTES + b"ef")
    magic = struct.pack("<I", 0xCED7230A)
    whole = magic + struct.pack("<I", 5) + b"abcde\0\0\0"
    parts = magic + struct.pack("<I", 1 << 29 | 4) + b"abcd" + magic + struct.pack("<I", 3 << 29 | 2) + b"ef\0\0"
    assert (tmp_path / "x.rec").read_bytes() == whole + parts
    assert (tmp_path / "x.idx").read_text() == "4\t0\n9\t16\n"
    assert MAGIC_BYTES == magic == struct.pack("<I", MAGIC)


def insightface_set(rec: Path, image: Callable[[int], bytes] = png) -> None:
    """Two people of two and three images, then their own records, as InsightFace's ``train.rec`` has them."""
    with RecordWriter(rec) as writer:
        writer.write_image(0, [6.0, 8.0], b"")
        for key, label in enumerate([11, 11, 7, 7, 7], start=1):
            # either way of writing one label occurs in published sets
            labels = [float(label)] if key % 2 else [float(label), 0.0]
            writer.write_image(key, labels, image(key))
        writer.write_image(6, [1.0, 3.0], b"")
        writer.write_image(7, [3.0, 6.0], b"")


def test_an_insightface_set_leaves_its_index_records_out(tmp_path: Path) -> None:
    insightface_set(tmp_path / "train.rec")
    faces = open_dataset(tmp_path)
    assert faces.people == ["7", "11"]
    assert faces.labels.tolist() == [1, 1, 0, 0, 0]
    for index in range(5):
        np.testing.assert_array_equal(faces[index][0], decode_crop(png(index + 1)))
    assert faces.describe(0) == "train.rec key 1"


def test_a_set_whose_images_hold_the_magic_is_read(tmp_path: Path) -> None:
    """JPEG comments may hold anything: here the magic, at the start of the file's own alignment too."""

    def jpeg(key: int) -> bytes:
        comment = MAGIC_BYTES * 4 + b"x" * key + MAGIC_BYTES * 4
        return images.encoded(Image.new("RGB", (112, 112), (key * 30, 0, 0)), "JPEG", comment=comment)

    insightface_set(tmp_path / "train.rec", jpeg)
    faces = open_dataset(tmp_path / "train.rec")
    assert faces.labels.tolist() == [1, 1, 0, 0, 0]
    for index in range(5):
        np.testing.assert_array_equal(faces[index][0], decode_crop(jpeg(index + 1)))


def test_a_set_without_index_records_or_index_is_read(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "x.rec") as writer:
        for key in range(3):
            writer.write_image(key, [key // 2], png(key))
    (tmp_path / "x.idx").unlink()
    faces = open_dataset(tmp_path / "x.rec")
    assert faces.labels.tolist() == [0, 0, 1]


def test_labels_read_at_once_are_those_read_one_by_one(tmp_path: Path) -> None:
    """Oracle: each record unpacked; a small one at the file's end and one with the magic in its header included."""
    magic_as_float = struct.unpack("<f", MAGIC_BYTES)[0]
    with RecordWriter(tmp_path / "x.rec") as writer:
        for key in range(50):
            writer.write_image(
                key + 1, [key % 7] if key % 3 else [key % 7, magic_as_float % 2**20, 1.0], b"x" * (key % 5)
            )
        writer.write(99, pack_header([5.0], MAGIC) + b"image")
        writer.write_image(100, [6.0], b"")
    faces = open_dataset(tmp_path / "x.rec")
    offsets = whole_index(tmp_path / "x.rec")[1].tolist()
    with (tmp_path / "x.rec").open("rb") as file:
        slow = [int(unpack_header(read_record(file, offset)[0])[0][0]) for offset in offsets]
    assert [int(faces.people[label]) for label in faces.labels] == slow


@pytest.mark.parametrize(
    "damage", [lambda d: d[: len(d) // 2], lambda d: d[:4] + b"\xff" * 4 + d[8:], lambda d: d[:16], lambda d: b"x" + d]
)
def test_a_damaged_record_file_is_an_error_not_wrong_faces(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    rec = tmp_path / "train.rec"
    insightface_set(rec)
    rec.write_bytes(damage(rec.read_bytes()))
    with pytest.raises(InvalidInput):
        _crops(open_dataset(rec))


def _crops(faces: FaceSet) -> list[Pixels]:
    return [faces[i][0] for i in range(len(faces))]


# --- verification packs --------------------------------------------------------------------------------------------


def test_a_pack_comes_back_as_written(tmp_path: Path) -> None:
    write_pack(tmp_path / "lfw.bin", [png(1), png(1), png(2), png(3)], [True, False])
    pack = read_pack(tmp_path / "lfw.bin")
    assert pack.same.tolist() == [True, False]
    first, second = pack.pair(1)
    np.testing.assert_array_equal(first, decode_crop(png(2)))
    np.testing.assert_array_equal(second, decode_crop(png(3)))
    with pytest.raises(IndexError):
        pack.pair(2)


@pytest.mark.parametrize("protocol", range(6))
def test_packs_of_every_protocol_and_of_arrays_are_read(protocol: int, tmp_path: Path) -> None:
    images, same = [png(4), png(5)], [True]
    arrays = [np.frombuffer(image, np.uint8) for image in images]
    objects = np.empty(2, object)
    objects[:] = images
    for content in ((images, same), (arrays, np.array(same)), (objects, [np.bool_(True)])):
        (tmp_path / "x.bin").write_bytes(pickle.dumps(content, protocol=protocol))
        pack = read_pack(tmp_path / "x.bin")
        assert pack.images == tuple(images)
        assert pack.same.tolist() == same


def test_a_pack_of_python_2_is_read(tmp_path: Path) -> None:
    """Protocol 2 as Python 2 wrote it: images are its ``str`` (SHORT_BINSTRING), and no text in any encoding."""
    image = png(6)[:80]
    strings = b"".join(b"U" + bytes([len(image)]) + image for _ in range(2))
    (tmp_path / "x.bin").write_bytes(b"\x80\x02](" + strings + b"e](\x88e\x86.")
    pack = read_pack(tmp_path / "x.bin")
    assert pack.images == (image, image)
    assert pack.same.tolist() == [True]


class _Hostile:
    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call = call
        self.arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.system, eval, open, getattr, np.load, bytearray, pickle.loads])
def test_a_hostile_pack_is_refused_and_runs_nothing(call: Callable[..., object], protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "pwned"
    hostile = ([_Hostile(call, f"touch {target}"), b""], [True])
    (tmp_path / "x.bin").write_bytes(pickle.dumps(hostile, protocol=protocol))
    with pytest.raises(InvalidInput) as refused:
        read_pack(tmp_path / "x.bin")
    assert refused.value.code == "pack_refused"
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [([b"x"], [True]), ([b"x", b"y"], [2]), (["x", "y"], [True]), 5, ([1, 2], [True]), (b"xy", [True]), {}, None],
)
def test_a_pickle_that_is_no_pack_is_refused(content: object, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(pickle.dumps(content))
    with pytest.raises(InvalidInput) as refused:
        read_pack(tmp_path / "x.bin")
    assert refused.value.code == "pack_invalid"


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), value=st.integers(0, 255))
def test_a_damaged_pack_raises_nothing_but_our_errors(
    cut: int, flip: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(pickle.dumps(([np.frombuffer(b"abc", np.uint8), b"y"], [np.bool_(True)]), protocol=2))
    data[flip % len(data)] = value
    file = tmp_path_factory.mktemp("bin") / "x.bin"
    file.write_bytes(data[: cut or None])
    try:
        pack = read_pack(file)
    except InvalidInput:
        return
    assert len(pack.images) == 2 * len(pack)
