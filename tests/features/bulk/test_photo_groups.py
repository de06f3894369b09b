"""A camera roll without names becomes folders of people, which are named and imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.support.commands import run
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER


@pytest.fixture
def roll(tmp_path: Path) -> Path:
    folder = tmp_path / "roll"
    for name, photo in {"a/1.jpg": COLLINS, "b/1.jpg": AGAIN, "2.jpg": HOPPER, "3.jpg": BOTH}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(photo)
    (folder / "cut.jpg").write_bytes(COLLINS[:2000])
    Image.new("RGB", (320, 320), "grey").save(folder / "wall.png")
    return folder


def test_photos_without_names_become_people_to_name(roll: Path, tmp_path: Path) -> None:
    data, groups = tmp_path / "data", tmp_path / "groups"
    done = run(data, "import", "crew", roll, "--group", groups, "--create")
    assert done.returncode == 3, "one photo is damaged"
    assert "cut.jpg" in done.stderr
    assert "photos without a usable face 1\n" in done.stdout
    assert f"  {roll / 'wall.png'}\n" in done.stdout
    found = {folder.name: sorted(file.name for file in folder.iterdir()) for folder in sorted(groups.iterdir())}
    assert [len(files) for files in found.values()] == sorted((len(files) for files in found.values()), reverse=True)
    first = found["person 1"]
    assert {"1.jpg", "1 2.jpg"} <= set(first), "both photos of one name and one person are kept"
    (groups / "person 1").rename(groups / "eileen")
    assert run(data, "import", "crew", groups).returncode == 0
    named = run(data, "identify", "crew", roll / "b" / "1.jpg", "--json").rows
    assert [face["candidates"][0]["subject"] for face in named[0]["faces"]] == ["eileen"]


def test_a_folder_with_something_in_it_is_left_alone(roll: Path, tmp_path: Path) -> None:
    done = run(tmp_path / "data", "import", "crew", roll, "--group", roll, "--create")
    assert done.returncode == 2
    assert "empty folder" in done.stderr
