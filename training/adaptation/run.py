"""A run of online distillation from its files: crops onto the device, the loop with its log, checkpoints, resuming."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from app.errors import InvalidInput, Unusable
from training import checkpoint
from training.adaptation.distil import OnlineDistillation
from training.data import read_drop_list
from training.data.crops import Crops
from training.run.inputs import read_source
from training.run.precision import Precision, has_amx
from training.run.stopping import StopSignals

LOG_EVERY = 50


def read_photos(sources: Sequence[str], drop: Path | None, console: Console) -> Tensor:
    """(N, 112, 112, 3) uint8 of all aligned crops of the sources but those of dropped people.

    Raises InvalidInput (`recipe_data`) where none are left, and what reading them raises.
    """
    dropped = set(read_drop_list(drop)) if drop else set()
    parts = [_kept(read_source(source, console), dropped) for source in sources]
    found = np.concatenate(parts)
    if not len(found):
        raise InvalidInput("There are no crops to learn from.", code="recipe_data")
    return torch.from_numpy(found)


def _kept(crops: Crops, dropped: set[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    wanted = np.array([name not in dropped for name in crops.people], bool)[crops.labels]
    return crops.images(np.flatnonzero(wanted))


def precision_on(device: torch.device) -> Precision:
    """Return fp16 on a GPU, bf16 on a CPU with AMX (SFace: 1.5 times fp32's speed), else fp32.

    bf16 is not offered on a GPU: the gradient of a depthwise convolution in bf16 took longer than the rest of the step
    together on an H100 (cuDNN 9.19).
    """
    if device.type == "cuda":
        return "fp16"
    return "bf16" if has_amx() else "fp32"


def run_to_end(
    run: OnlineDistillation, folder: Path, every: int, say: Callable[[str], None], *, resume: bool
) -> dict[str, float]:
    """Train to the last step with a checkpoint every so many, and return the last losses.

    `metrics.jsonl` in the folder has a line for each log. Raises InvalidInput (`run_exists`) where the folder holds a
    run and `resume` is false, or `recipe_mismatch`; Unusable: `checkpoint_damaged`, `training_diverged` where a loss
    is not finite, `training_stopped` after a checkpoint on SIGTERM or Ctrl-C.
    """
    if (last := checkpoint.last_of(folder, resume=resume)) is not None:
        run.restore(checkpoint.load(last).state)
        say(f"going on from step {run.step}")
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, float] = {}
    start, first = time.monotonic(), run.step
    with StopSignals() as stop:
        while run.step < run.config.steps:
            losses = run.train_step()
            ends = run.step == run.config.steps
            if run.step % LOG_EVERY == 0 or ends:
                figures = {name: round(float(value), 6) for name, value in losses.items()}
                rate = (run.step - first) * run.config.batch_size / (time.monotonic() - start)
                line = {"step": run.step, "images_per_s": round(rate, 1), **figures}
                with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                say(f"step {run.step} of {run.config.steps}: loss {figures['loss']:.4f}, {rate:.0f} images/s")
                if not math.isfinite(figures["loss"]):
                    raise Unusable(f"The loss is {figures['loss']} at step {run.step}.", code="training_diverged")
            if run.step % every == 0 or ends or stop.name:
                checkpoint.save(checkpoint.step_path(folder, run.step), run.state(), {"step": run.step})
                checkpoint.prune(folder, 2)
            if stop.name and not ends:
                message = f"Stopped by {stop.name} at step {run.step}: --resume goes on."
                raise Unusable(message, code="training_stopped", step=run.step)
    return figures
