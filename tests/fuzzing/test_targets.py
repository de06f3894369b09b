"""The targets that `make fuzz` fuzzes: each reads its seeds, refuses damaged ones, and what once failed."""

from __future__ import annotations

import random
import time

import pytest

from app.errors import LikenessError
from tests.conftest import PROJECT
from tests.fuzzing.targets import INPUT_S, TARGETS, run
from tests.support.mutations import mutated

REGRESSIONS = PROJECT / "tests" / "regressions"
INPUTS, FULL_INPUTS = 150, 20_000

every_target = pytest.mark.parametrize("name", TARGETS)


@every_target
def test_a_target_reads_some_of_its_seeds(name: str) -> None:
    """One that refused everything would find nothing."""
    target, read = TARGETS[name], 0
    for seed in target.seeds():
        assert len(seed) <= target.longest
        try:
            target.run(seed)
        except LikenessError:
            continue
        read += 1
    assert read or name in {"tar", "sigv4"}, "only signed ones are read"


@every_target
def test_damaged_inputs_are_refused_or_read(name: str, full: bool) -> None:
    chance = random.Random(time.time_ns() if full else 5)
    seeds = TARGETS[name].seeds()
    for _ in range(FULL_INPUTS if full else INPUTS):
        run(name, mutated(chance.choice(seeds), chance, seeds)[: TARGETS[name].longest])


@every_target
def test_what_failed_once_does_not_fail_again(name: str) -> None:
    for path in sorted(REGRESSIONS.glob(f"{name}-*")):
        begun = time.process_time()
        run(name, path.read_bytes())
        assert time.process_time() - begun < INPUT_S, path.name
