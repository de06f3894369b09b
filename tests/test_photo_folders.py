"""One walk over photos: what counts, what is left out and said, and that commands, imports and training agree."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from app.photo_folders import is_photo, people, walk
from tests.support.commands import run
from tests.support.ready import give_models
from tests.support.service import AGAIN, COLLINS, HOPPER
from training.data import open_dataset
from training.data.preparation.aligning import list_jobs
from training.evaluation.photos import open_photos

ADA = "Adá"
NFD, NFC = unicodedata.normalize("NFD", ADA), unicodedata.normalize("NFC", ADA)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two people as a NAS and a Mac leave them: one of them twice, in both ways to write her name."""
    files = {
        f"{NFD}/1.JPG": COLLINS,
        f"{NFC}/2.jpg": AGAIN,
        "grace/trip.jpg/3.jpg": HOPPER,  # a folder that is named like a photo
        "grace/.thumbnails/3.jpg": HOPPER,
        "grace/@eaDir/3.jpg/SYNOPHOTO.jpg": HOPPER,
        "grace/._3.jpg": b"resource fork",
        "grace/notes.txt": b"text",
        "@eaDir/4.jpg": HOPPER,
        "#recycle/5.jpg": HOPPER,
        ".hidden/6.jpg": HOPPER,
        "__MACOSX/7.jpg": HOPPER,
        "beside.jpg": HOPPER,
    }
    for name, content in files.items():
        (tmp_path / "people" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "people" / name).write_bytes(content)
    (tmp_path / "people" / "grace" / "gone.jpg").symlink_to("nowhere")
    return tmp_path / "people"


def test_photos_are_files_that_are_not_hidden_and_no_systems_own(root: Path) -> None:
    left_out: list[str] = []
    found = people(root, lambda folder, _why: left_out.append(folder.relative_to(root).as_posix()))
    names = {person: sorted(path.name for path in paths) for person, paths in found.items()}
    assert names == {NFC: ["1.JPG", "2.jpg"], "grace": ["3.jpg"]}
    assert sorted(left_out) == ["#recycle", ".hidden", "@eaDir", "__MACOSX", "grace/.thumbnails", "grace/@eaDir"]
    assert [path.name for path in walk(root / "grace")] == ["3.jpg"]
    assert is_photo(["people", "a.heic"])
    assert not is_photo(["@eaDir", "a.jpg"])


def test_training_takes_the_same_photos(root: Path) -> None:
    faces = open_dataset(str(root))
    assert (list(faces.people), len(faces)) == (["Adá", "grace"], 3)
    assert set(open_photos(root).names) == {f"{NFC}/1", f"{NFC}/2", "trip.jpg/3", "people/beside"}
    assert sorted(Path(job.photo).name for job in list_jobs(root)) == ["1.JPG", "2.jpg", "3.jpg", "beside.jpg"]


def test_linked_folders_are_photos_of_people_too_and_each_is_entered_once(root: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    (linked / "deeper").mkdir(parents=True)
    (linked / "grace").symlink_to(root / "grace", target_is_directory=True)
    (linked / "deeper" / "ada").symlink_to(root / NFC, target_is_directory=True)
    (linked / "deeper" / "again").symlink_to(linked, target_is_directory=True)
    (linked / "deeper" / "gone").symlink_to("nowhere", target_is_directory=True)
    assert [path.name for path in walk(linked)] == ["2.jpg", "3.jpg"]
    assert {person: len(photos) for person, photos in people(linked).items()} == {"deeper": 2, "grace": 1}
    assert set(open_photos(linked).names) == {"ada/2", "trip.jpg/3"}


def test_commands_take_the_same_photos_and_say_what_is_left_out(root: Path, tmp_path: Path) -> None:
    give_models(data := tmp_path / "data")
    done = run(data, "enroll", "staff", "--people", root, "--create")
    assert done.returncode == 0, done
    assert f"{root / '@eaDir'}: left out" in done.stderr
    assert run(data, "import", "imported", root, "--create").returncode == 0
    for gallery in ("staff", "imported"):
        counted = {row["id"]: row["face_count"] for row in run(data, "people", "list", gallery, "--json").rows}
        assert counted == {NFC: 2, "grace": 1}
    assert len(run(data, "detect", root / "grace", "--json").rows) == 1
