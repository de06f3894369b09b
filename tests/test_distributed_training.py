"""Two processes train what one process trains, and a checkpoint goes on with any number of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the train extra")

import torch

from tests.conftest import PROJECT
from tests.runs import all_tensors, small_recipe, small_trainer
from training import checkpoint
from training.config import Recipe

TOLERANCE = 1e-9
"""Everything runs in float64, where only a wrong formula makes a difference; rounding stays near 1e-13."""
CASES: dict[str, dict[str, Any]] = {
    "class weights on every rank, and mined pairs over both": {
        "losses": [{"name": "arcface", "s": 16.0, "m": 0.2}, {"name": "triplet", "miner": "semihard"}],
        "sampler": {"name": "pk", "images": 2},
    },
    "class weights sharded over the ranks": {"partial_fc": {"enabled": True, "sample_rate": 1.0}},
}

RANK = """
import sys
from pathlib import Path
import torch
from tests.runs import small_trainer
from training import checkpoint
from training.config import Recipe
from training.distributed import joined

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
out, until = Path(sys.argv[1]), int(sys.argv[2])
recipe = Recipe.model_validate_json((out / "start.json").read_text())
with joined("cpu") as world:
    trainer = small_trainer(recipe, out, world)
    last = checkpoint.latest(out)
    if last is not None:
        trainer.restore(last)
    trainer.train(until)
"""


def run_ranks(recipe: Recipe, out: Path, until: int, ranks: int) -> None:
    """Trains up to a step on some ranks, as torchrun would start them (it adds seconds for its own server)."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "start.json").write_text(recipe.model_dump_json())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(out), str(until)],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(outputs)


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    first, second = all_tensors(one), all_tensors(other)
    assert first.keys() == second.keys()
    return {
        name: float((value.double() - second[name].double()).abs().max())
        for name, value in first.items()
        if value.numel()
    }


@pytest.fixture
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("sections", CASES.values(), ids=CASES)
def test_two_ranks_take_the_step_of_one_and_go_on_with_one_or_three(tmp_path: Path, sections: dict[str, Any]) -> None:
    recipe = small_recipe(**sections, schedule={"warmup": 0}, optimizer={"lr": 0.02}, train={"ema": 0.0, "steps": 4})
    alone = small_trainer(recipe, tmp_path / "alone")
    alone.train(until=1)
    run_ranks(recipe, tmp_path / "two", until=1, ranks=2)
    two = checkpoint.load(checkpoint.step_path(tmp_path / "two", 1)).state
    # SGD's momentum after the first step is the gradient itself, of the net and of the class weights.
    gradients = differences(alone.state()["optimizer"], two["optimizer"])
    assert any(name.startswith("/state/") for name in gradients)
    assert max(gradients.values()) < TOLERANCE
    assert max(differences(alone.state()["model"], two["model"]).values()) < TOLERANCE
    assert max(differences(alone.state()["objective"], two["objective"]).values()) < TOLERANCE

    states = {}
    for ranks in (1, 3):
        folder = tmp_path / f"on {ranks}"
        folder.mkdir()
        for suffix in (".pt", ".json"):
            source = checkpoint.step_path(tmp_path / "two", 1).with_suffix(suffix)
            (folder / source.name).write_bytes(source.read_bytes())
        if ranks == 1:
            resumed = small_trainer(recipe, folder)
            resumed.restore(checkpoint.step_path(folder, 1))
            resumed.train(until=3)
        else:
            run_ranks(recipe, folder, until=3, ranks=ranks)
        states[ranks] = checkpoint.load(checkpoint.step_path(folder, 3)).state
    assert max(differences(states[1]["model"], states[3]["model"]).values()) < TOLERANCE
    assert max(differences(states[1]["objective"], states[3]["objective"]).values()) < TOLERANCE


def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    from app.errors import InvalidInput  # noqa: PLC0415  beside torch's own late import
    from training.distributed import World  # noqa: PLC0415  the same

    with pytest.raises(InvalidInput, match="shared evenly"):
        small_trainer(small_recipe(), tmp_path, World(0, 5, torch.device("cpu")))
