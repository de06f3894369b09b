"""Every tutorial works from its first line to its last, as pasted. Part of the long stage (`make test-full`)."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.tutorials import TUTORIALS, following, steps

PAGES = sorted(TUTORIALS.glob("*.md"))
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "behind-a-proxy": ("nginx", "caddy", "openssl", "curl"),
    "home-assistant": ("mosquitto",),
    "frigate": ("mosquitto",),
}
PEOPLE = 300


def compreface_dump(project: Path, shared: Path) -> None:  # noqa: ARG001 - one signature for all
    """Write a dump of CompreFace's tables with the sample photos in it."""
    text = (PROJECT / "tests" / "compreface_dump.sql").read_bytes().replace(b"Eileen\\tCollins", b"Eileen Collins")
    for name in ("collins", "hopper"):
        photo = (PROJECT / "docs" / "samples" / f"{name}.jpg").read_bytes()
        text = text.replace(f"@{name.upper()}@".encode(), photo.hex().encode())
    (project / "compreface.sql.gz").write_bytes(gzip.compress(text))


def people(project: Path, shared: Path) -> None:
    """Unpack two photos each of the first people of LFW that have two."""
    archive = shared / "lfw" / "lfw-deepfunneled.tar"
    if not archive.is_file():
        pytest.skip("needs LFW in ../shared/data, which is not on this machine")
    with tarfile.open(archive) as photos:
        names = {Path(name) for name in photos.getnames()}
        chosen = sorted(path.parent for path in names if path.name.endswith("_0002.jpg"))
        twice = [folder for folder in chosen if folder / f"{folder.name}_0001.jpg" in names][:PEOPLE]
        for folder in twice:
            for number in (1, 2):
                member = photos.extractfile(str(folder / f"{folder.name}_000{number}.jpg"))
                assert member is not None
                target = project / "people" / folder.name / f"{number}.jpg"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(member.read())


PREPARED: Mapping[str, Callable[[Path, Path], None]] = {
    "move-from-compreface": compreface_dump,
    "your-own-thresholds": people,
}
"""What readers of a tutorial have and the project does not."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_its_blocks_are_understood(path: Path) -> None:
    found = list(steps(path.read_text()))
    assert any(step.kind == "run" for step in found)
    assert any(step.kind == "output" for step in found), "a tutorial shows what its reader sees"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_it_can_be_followed(path: Path, full: bool, tmp_path: Path) -> None:
    if not full:
        pytest.skip("a tutorial from start to end: part of the long stage (--full)")
    missing = [
        program for program in ("make", "git", "curl", *PROGRAMS.get(path.stem, ())) if not shutil.which(program)
    ]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: apt install {' '.join(missing)})")
    with following(tmp_path) as (reader, project):
        if prepare := PREPARED.get(path.stem):
            prepare(project, PROJECT.parent / "shared" / "data")
        reader.follow(path.read_text())
