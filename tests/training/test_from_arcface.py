"""The page for those who come from arcface_torch, walked on two CPU ranks: its recipe and commands as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("torch", reason="training needs the train extra")

from tests.conftest import PROJECT
from tests.support import images
from tests.support.crops import RecordWriter, write_pack
from tests.support.runs import logged
from training.data.drawn import ProceduralFaces

PAGE = (PROJECT / "docs" / "how-to" / "from-arcface-torch.md").read_text(encoding="utf-8")
SMALLER = (
    "sampler.batch_size=16", "model.options={width=0.125}", "model.input_size=32", "model.dim=32", "train.epochs=1",
    "evaluate.every=4", "optimizer.lr=0.05",
)  # fmt: skip
"""Of the page's recipe, so that two cores do it in seconds."""


def encoded(faces: ProceduralFaces, index: int) -> bytes:
    return images.encoded(Image.fromarray(faces[index][0]), "JPEG", quality=95)


def write_set(folder: Path) -> None:
    """Write `train.rec` of 16 people and `lfw.bin` of 20 pairs as InsightFace lays them out."""
    folder.mkdir()
    faces, unseen = ProceduralFaces(16, 6, seed=1), ProceduralFaces(20, 2, seed=1, first=10**6)
    with RecordWriter(folder / "train.rec") as file:
        for index, label in enumerate(faces.labels.tolist()):
            file.write_image(index + 1, [float(label)], encoded(faces, index))
    pairs = [(2 * k, 2 * k + 1 if k % 2 else (2 * k + 2) % 40) for k in range(20)]
    crops = [encoded(unseen, index) for pair in pairs for index in pair]
    write_pack(folder / "lfw.bin", crops, [k % 2 == 1 for k in range(20)])


def command(begins: str) -> list[str]:
    """Return the page's command, run by this Python."""
    (found,) = re.findall(rf"`({begins}[^`]*)`", PAGE)
    runs = {"torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"], "python": [sys.executable]}
    program, *words = shlex.split(found)
    return [*runs[program], *words]


def follow(folder: Path, words: list[str], *more: str) -> str:
    environment = os.environ | {"PYTHONPATH": f"{PROJECT}:{PROJECT / 'clients' / 'python'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*words, *more], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.long
def test_the_page_is_followed_on_two_ranks(tmp_path: Path) -> None:
    write_set(tmp_path / "faces")
    (recipe,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(recipe)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "yunet").symlink_to(PROJECT / "models" / "yunet")
    settings = [word for setting in SMALLER for word in ("--set", setting)]
    train = command("torchrun [^`]*mine.toml(?! --resume)")
    assert "on 2 × cpu" in follow(tmp_path, train, *settings, "--device", "cpu")
    assert all("accuracy_lfw" in line for line in logged(tmp_path / "runs" / "mine", "evaluation"))
    longer = ["train.epochs=2" if word == "train.epochs=1" else word for word in settings]
    assert "from step 6 to 12" in follow(tmp_path, [*train, "--resume"], *longer, "--device", "cpu")
    follow(tmp_path, command("python -m training export"))
    follow(tmp_path, command("python -m training evaluate pairs"), "--rounds", "2", "--no-draw")
    found = json.loads((tmp_path / "runs" / "lfw" / "result.json").read_text())
    assert found["verification"]["mated"] == 10
