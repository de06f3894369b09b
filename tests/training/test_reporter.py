"""What a run says: lines and `metrics.jsonl`, a bar on a terminal, TensorBoard where it is installed."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from training.run.log import Reporter


def told(out: Path | None, *, terminal: bool) -> str:
    """What is shown of a run that goes on at step 4 of 12."""
    screen = io.StringIO()
    with Reporter(out, 12, 4, Console(file=screen, force_terminal=terminal, width=200)) as report:
        for step in range(5, 9):
            report.stepped(step, images=50)
        report.log(8, {"loss": 2.5, "lr": 0.1})
        report.evaluated(8, {"fnmr": 0.125})
        report.warn(8, "too hot")
    return screen.getvalue()


def test_a_log_has_speed_and_what_is_left_and_every_line_is_kept(tmp_path: Path) -> None:
    shown = told(tmp_path, terminal=False)
    line = re.search(r"step 8/12 +loss 2\.5 +lr 0\.1 +\d+ img/s +(\d+):(\d\d):(\d\d) left", shown)
    assert line is not None
    assert re.search(r"step 8 +evaluation +fnmr 0\.125", shown)
    assert re.search(r"step 8 +warning: too hot", shown)
    log, evaluation, warning = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    speed = log.pop("images_per_s")
    assert log == {"kind": "train", "step": 8, "loss": 2.5, "lr": 0.1}
    hours, minutes, seconds = map(int, line.groups())
    assert 200 / speed == pytest.approx(3600 * hours + 60 * minutes + seconds, abs=0.6)  # 4 steps made, 4 to go
    assert evaluation == {"kind": "evaluation", "step": 8, "fnmr": 0.125}
    assert warning == {"kind": "warning", "step": 8, "message": "too hot"}


def test_on_a_terminal_there_is_a_bar_that_knows_the_steps_made_before(tmp_path: Path) -> None:
    shown = told(tmp_path, terminal=True)
    assert "8/12" in shown
    assert re.search(r"loss 2\.5.*img/s", shown)
    assert "too hot" in shown


def test_other_ranks_say_nothing(tmp_path: Path) -> None:
    assert told(None, terminal=False) == ""
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_has_the_same_figures(tmp_path: Path) -> None:
    reader = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(reader, reason="TensorBoard is not installed")
    pytest.importorskip("torch", reason="training needs the train extra")
    told(tmp_path, terminal=False)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"train/loss", "train/images_per_s", "evaluation/fnmr"} <= set(events.Tags()["scalars"])
    ((step, value),) = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert (step, value) == (8, 2.5)
