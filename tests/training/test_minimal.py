"""training/minimal.py, which is there to be read: 150 lines that make a package which the service answers with."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import PROJECT
from tests.support.live import serving
from training.commands.try_package import _photos
from training.data.drawn import ProceduralFaces
from training.losses import build

PAGE = PROJECT / "training" / "minimal.py"
SAMPLES = PROJECT / "docs" / "samples"
PEOPLE, EACH = 40, 5


def test_recipes_that_the_page_on_training_names_are_there() -> None:
    text = (PROJECT / "docs" / "how-to" / "train.md").read_text()
    table = text[text.index("| recipe | ") :].partition("\n\n")[0]
    named = {name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    there = {path.stem for path in (PROJECT / "training" / "recipes").glob("*.toml")}
    assert named == there


def test_it_is_short() -> None:
    assert len(PAGE.read_text().splitlines()) <= 150


def test_its_loss_is_arcface() -> None:
    """Compared with the loss that is tested against its paper's formula."""
    module = runpy.run_path(str(PAGE))
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(6, 8, generator=generator, dtype=torch.float64))
    directions = torch.randn(5, 8, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    loss = build("arcface", num_classes=5, dim=8, s=module["SCALE"], m=module["MARGIN"]).double()
    with torch.no_grad():
        next(loss.parameters()).copy_(directions)
        assert module["arcface"](embeddings, directions, labels).item() == pytest.approx(
            loss(embeddings, labels).item(), rel=1e-6
        )


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--help"], [], ["people_that_are_not_there", "models/mine"]])
def test_it_says_how_it_is_called(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(PAGE), *arguments])
    with pytest.raises(
        SystemExit, match=r"^Train a face embedder, all on one page: `python training/minimal\.py PEOPLE"
    ):
        runpy.run_path(str(PAGE), run_name="__main__")


@pytest.mark.parametrize("folders", [0, 1, 5])
def test_fewer_people_than_it_takes_are_counted_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: int
) -> None:
    for number in range(folders):
        (tmp_path / f"{number}" / "more").mkdir(parents=True)
        (tmp_path / f"{number}" / "photo.jpg").write_bytes((SAMPLES / "collins.jpg").read_bytes())
    monkeypatch.setattr(sys, "argv", [str(PAGE), str(tmp_path), str(tmp_path / "mine")])
    with pytest.raises(
        SystemExit, match=rf"folders with a face: {folders}\. At least 6 are needed, one for each person"
    ):
        runpy.run_path(str(PAGE), run_name="__main__")


def test_a_folder_of_people_becomes_a_package_that_the_service_answers_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few steps: that it learns is the demo's test."""
    faces = ProceduralFaces(PEOPLE, EACH, seed=1, first=0)
    for person in range(PEOPLE):
        folder = tmp_path / "people" / f"{person:02}"
        folder.mkdir(parents=True)
        for number, photo in enumerate(_photos(faces, person)):
            (folder / f"{number}.png").write_bytes(photo)
    models = tmp_path / "models"
    models.mkdir()
    for package in ("yunet", "sface"):
        (models / package).symlink_to(PROJECT / "models" / package)
    monkeypatch.chdir(tmp_path)
    module = runpy.run_path(str(PAGE))
    module["main"].__globals__.update(STEPS=4, BATCH=8, HELD_OUT=2)
    module["main"]("people", "models/mine")
    with (
        serving(tmp_path / "data", {"MODELS_DIR": models, "EMBEDDER": "mine"}) as server,
        server.client("/v1") as client,
    ):
        client.post("/galleries", json={"id": "crew", "accept_non_commercial": True}).raise_for_status()
        files = {"images": (SAMPLES / "collins.jpg").read_bytes()}
        client.post("/galleries/crew/subjects/eileen/faces", files=files).raise_for_status()
        probe = {"image": (SAMPLES / "collins.jpg").read_bytes()}
        answer = client.post("/galleries/crew/identify?fmr=0.1", files=probe).raise_for_status().json()
    (face,) = answer["faces"]
    assert face["candidates"][0]["subject"] == "eileen"
    assert answer["model"].startswith("mine@1")
