"""One rank of a training run up to its first step, as a process of its own: `python -m bench.contenders.rank`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from training.recipe import Recipe, parse_recipe


def recipe(source: Path, indexes: Path) -> Recipe:
    """Return a run on this set whose net costs next to nothing."""
    return parse_recipe(
        {
            "name": "first-step",
            "data": {"source": f"rec:{source}", "indexes": str(indexes), "held_out": 0.0, "workers": 1},
            "model": {"dim": 8, "input_size": 16, "options": {"width": 0.125}},
            "losses": [{"name": "arcface"}],
            "train": {"steps": 1},
        }
    )


def measure(source: Path, indexes: Path) -> dict[str, float]:
    """Make one step; return its seconds from before the data was opened, and this process's own memory in MB after it.

    What is mapped from files is not counted: the system takes it back when it needs the memory.
    """
    import torch  # noqa: PLC0415 - not part of what is measured

    from training.run.distributed import World  # noqa: PLC0415 - as above
    from training.run.inputs import prepare_material  # noqa: PLC0415
    from training.run.trainer import Trainer  # noqa: PLC0415

    run = recipe(source, indexes)
    before, begin = _own_memory(), time.perf_counter()
    material = prepare_material(run, Path("models"))
    opened = time.perf_counter()
    trainer = Trainer(run, material, source.parent / "run", World(0, 1, torch.device("cpu")))
    trainer.train_step()
    return {
        "open_s": opened - begin,
        "first_step_s": time.perf_counter() - begin,
        "memory_mb": _own_memory() - before,
    }


def _own_memory() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
